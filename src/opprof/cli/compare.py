"""``opprof compare RUN...``: shares, ranking and inversions of several runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from opprof.cli.options import json_option, print_json, runs_protocol_option


@click.command("compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@runs_protocol_option
@click.option(
    "--mapping",
    metavar="v1|v2|FILE",
    default=None,
    help="Table that decides when a run directory is analysed here (default: the pinned one).",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Worker processes [cores].")
@json_option
def compare(
    runs: tuple[Path, ...],
    protocol_source: str | None,
    mapping: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compare runs: RUN is a run directory, its analysis, or a folder that holds several.

    Every pair of patterns and families is listed with its gaps, met or not; the permutation test
    (criterion 3) is the decision's. An analysis that names another protocol than the bound one is
    refused. Exit code 1 when the data contradict themselves (a red flag).
    """
    from opprof.analysis.bound import protocol_for
    from opprof.analysis.load import compare_found, load_runs
    from opprof.cli.compare_tables import print_comparison
    from opprof.cli.progress import progress

    protocol = protocol_for(protocol_source, runs)
    with progress(len(runs), "analysing") as advance:
        found = load_runs(runs, protocol, mapping=mapping, jobs=jobs, advance=advance)
    comparison = compare_found(found, protocol, mapping=mapping)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison, protocol)
    # Data that contradict themselves are no result, however well they were compared.
    flags = [*comparison.sanity.red_flags]
    flags += [flag for cell in comparison.cells for flag in cell.sanity.red_flags]
    raise SystemExit(int(bool(flags)))
