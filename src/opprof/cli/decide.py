"""``opprof decide CAMPAIGN`` or ``RUN...``: H1a, H1b and the compound verdict with every number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opprof.cli.options import json_option, print_json
from opprof.errors import EnvironmentFailure, InputError

if TYPE_CHECKING:
    from opprof.decision.load import Decided
    from opprof.protocol import Protocol


@click.command("decide")
@click.argument(
    "runs", metavar="CAMPAIGN|RUN...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--protocol",
    "protocol_source",
    metavar="FILE|phase3",
    default=None,
    help="Protocol of a list of runs (default: that of the campaign they lie in, else "
    "$OPPROF_PROTOCOL, else the packaged phase3). A campaign is decided under its own.",
)
@click.option(
    "--rehearsal",
    is_flag=True,
    help="Tolerate gates that a rehearsal on scaled time fails by design; such runs stay marked.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Write DIR/decision.json, decision.md and report.html (default: into the campaign; "
    "nothing for a list of runs).",
)
@click.option("--no-report", is_flag=True, help="Do not write report.html.")
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Worker processes [cores].")
@json_option
def decide(
    runs: tuple[Path, ...],
    protocol_source: str | None,
    rehearsal: bool,
    out: Path | None,
    no_report: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Decide the hypotheses over a CAMPAIGN under its own frozen protocol.

    A list of run directories, of their analyses, or of folders that hold several is decided too;
    such a decision is labelled exploratory. Every registered comparison is listed, evaluable or
    not. Exit code 1 when the compound outcome is INVALID.
    """
    # One thread a process: many small products gain nothing from a second one, and two workers with
    # two threads each would only wait for one another. Must be set before numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from opprof.analysis.bound import is_campaign
    from opprof.decision.write import check_replaceable, write_decision

    campaign = next((path for path in runs if is_campaign(path)), None)
    if campaign is not None:
        if len(runs) > 1:
            raise InputError("is a campaign and is decided alone", path=campaign)
        if protocol_source is not None or rehearsal:
            reason = "is decided under its own protocol: leave --protocol and --rehearsal out"
            raise InputError(reason, path=campaign)
        out = out or campaign
    if out is not None:
        check_replaceable(out)
    decided, protocol = _decided(runs, campaign, protocol_source, rehearsal, jobs)
    written = [] if out is None else write_decision(decided.decision, out)
    if out is not None and not no_report and _can_report():
        from opprof.report.decided import write_decided

        written.append(write_decided(decided.decision, decided.runs, protocol, out))
    if out is not None:
        from opprof.integrity.closing import record_again

        record_again(out, written)
    if as_json:
        print_json(decided.decision)
    else:
        from opprof.cli.decide_tables import print_decision

        print_decision(decided.decision, protocol, written)
    raise SystemExit(int(decided.decision.compound.outcome == "INVALID"))


def _can_report() -> bool:
    """Whether the page can be made; without the extra the decision stands alone, and says so."""
    from opprof.report.render import require_extra

    try:
        require_extra()
    except EnvironmentFailure as error:
        click.echo(f"no report.html: {error.reason}", err=True)
        return False
    return True


def _decided(
    runs: tuple[Path, ...],
    campaign: Path | None,
    protocol_source: str | None,
    rehearsal: bool,
    jobs: int | None,
) -> tuple[Decided, Protocol]:
    from opprof.analysis.bound import protocol_for
    from opprof.analysis.load import find_folders
    from opprof.cli.progress import progress
    from opprof.decision.campaign import read_campaign
    from opprof.decision.load import decide_campaign, decide_paths

    if campaign is not None:
        offered = read_campaign(campaign)
        with progress(2 * len(offered.folders), "deciding") as advance:
            return decide_campaign(campaign, jobs=jobs, advance=advance), offered.protocol
    protocol = protocol_for(protocol_source, runs)
    if protocol is None:
        raise InputError("a decision needs a protocol; its thresholds have no default")
    with progress(2 * len(find_folders(runs)), "deciding") as advance:
        found = decide_paths(
            runs, protocol, exploratory=True, rehearsal=rehearsal, jobs=jobs, advance=advance
        )
    return found, protocol
