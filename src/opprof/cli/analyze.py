"""``opprof analyze RUN...``: the four artefacts of each run and a compact table."""

from __future__ import annotations

from pathlib import Path

import click

from opprof.cli.options import json_option, print_json, runs_protocol_option
from opprof.errors import InputError


@click.command("analyze")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--mapping",
    metavar="v1|v2|FILE",
    default=None,
    help="Mapping table that decides (default: the protocol's pinned one). The others stay beside.",
)
@runs_protocol_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Write DIR/<folder name of the run>/*.json (default: RUN/analysis/*.json).",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Worker processes [cores].")
@json_option
def analyze(
    runs: tuple[Path, ...],
    mapping: str | None,
    protocol_source: str | None,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Analyse run directories: operator shares, waste, gates.

    Artefacts of a run that fails a gate are still written. Exit code 1 when a gate fails, 2 when a
    trace is missing or cannot be read (its window is then invalid; the rest stands).
    """
    from opprof.analysis.bound import protocol_for
    from opprof.analysis.many import analyze_many
    from opprof.analysis.write import check_free, write_analysis
    from opprof.cli import one_line
    from opprof.cli.progress import progress
    from opprof.cli.tables import print_analysis

    folders = _folders(runs, out)
    protocol = protocol_for(protocol_source, runs)
    with progress(len(runs), "analysing") as advance:
        results = analyze_many(runs, protocol, mapping=mapping, jobs=jobs, advance=advance)
    for result, folder in zip(results, folders, strict=True):
        check_free(folder, result.sanity.provenance.inputs)
    for result, folder in zip(results, folders, strict=True):
        write_analysis(result, folder)
    if as_json:
        print_json(
            [
                {
                    "run": result.run,
                    "folder": str(folder),
                    "outcome": result.sanity.outcome,
                    "red_flags": result.sanity.red_flags,
                    "breakdown_valid": result.kernels.breakdown_valid,
                    "failed": [{"gate": g.name, "scope": g.scope} for g in result.failed],
                }
                for result, folder in zip(results, folders, strict=True)
            ]
        )
    else:
        print_analysis(results, folders, protocol)
    unusable = [
        (run, text) for run, result in zip(runs, results, strict=True) for text in result.unusable
    ]
    for run, text in unusable:
        click.echo(f"opprof: error [E-INPUT] {one_line(f'{run}: {text}')}", err=True)
    failed = any(result.sanity.outcome == "fail" for result in results)
    raise SystemExit(2 if unusable else int(failed))


def _folders(runs: tuple[Path, ...], out: Path | None) -> list[Path]:
    """Where each run's artefacts go; two runs in one place are an error."""
    folders = [run / "analysis" if out is None else out / run.resolve().name for run in runs]
    seen: dict[Path, Path] = {}
    for run, folder in zip(runs, folders, strict=True):
        other = seen.setdefault(folder.resolve(), run)
        if other is not run:
            raise InputError(f"collides with {other}: both would be written to {folder}", path=run)
    return folders
