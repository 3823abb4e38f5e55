"""``opprof report DIR|RUN... --out FILE``: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opprof.cli.options import json_option, print_json, runs_protocol_option
from opprof.errors import InputError

if TYPE_CHECKING:
    from opprof.analysis.results import RunAnalysis
    from opprof.protocol import Protocol


@click.command("report")
@click.argument(
    "paths", metavar="DIR|RUN...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path),
    help="The HTML file to write.",
)
@click.option("--title", default="OpProf report", show_default=True, help="Heading of the page.")
@click.option(
    "--mapping",
    metavar="v1|v2|FILE",
    default=None,
    help="Table that decides when a run directory is analysed here (default: the pinned one).",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Worker processes [cores].")
@runs_protocol_option
@json_option
def report(
    paths: tuple[Path, ...],
    out: Path,
    title: str,
    mapping: str | None,
    jobs: int | None,
    protocol_source: str | None,
    as_json: bool,
) -> None:
    """Write one HTML report of analysed runs.

    DIR is what 'opprof analyze --out DIR' wrote, or any folder of runs; RUN is a run directory,
    which is analysed in memory where it holds no analysis, or one of another protocol than the one
    that is bound. Given both, DIR's figures are shown
    with the step timelines of RUN. Exit code 0 when the report is written, whatever it says:
    judging the runs is the work of 'opprof analyze'.
    """
    from opprof.analysis.bound import protocol_for
    from opprof.integrity.closing import record_again
    from opprof.report.load import load_report
    from opprof.report.render import require_extra, write_report

    require_extra()
    if out.is_dir():
        raise InputError("is a folder; --out names the HTML file", path=out)
    protocol = protocol_for(protocol_source, paths)

    def analyse(runs: Sequence[Path]) -> Sequence[RunAnalysis]:
        return _analyse(runs, protocol, mapping, jobs)

    page = load_report(paths, protocol, analyse, title=title, mapping=mapping)
    written = write_report(page, out)
    record_again(out.parent, [out])
    runs = [run.identity.name for run in page.runs]
    invalid = [run.identity.name for run in page.runs if run.invalid]
    if as_json:
        print_json({"out": str(out), "bytes": written, "runs": runs, "invalid": invalid})
        return
    click.echo(f"{out}: {len(runs)} run{'s' * (len(runs) != 1)}, {written / 1e6:.1f} MB")
    for told in (*page.analysed_again, *page.protocol_trouble):
        click.echo(told)
    if invalid:
        click.echo(f"invalid (the report says why): {', '.join(invalid)}")


def _analyse(
    runs: Sequence[Path], protocol: Protocol | None, mapping: str | None, jobs: int | None
) -> Sequence[RunAnalysis]:
    from opprof.analysis.many import analyze_many
    from opprof.cli.progress import progress

    with progress(len(runs), "analysing") as advance:
        return analyze_many(runs, protocol, mapping=mapping, jobs=jobs, advance=advance)
