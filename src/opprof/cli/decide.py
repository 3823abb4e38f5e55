"""``opprof decide RUN_OR_DIR...``: H1a, H1b and the compound verdict with every number."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opprof.cli.options import json_option, print_json, protocol_option
from opprof.errors import InputError


@click.command("decide")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@protocol_option
@click.option(
    "--registered",
    is_flag=True,
    help="The runs are a finished campaign. Without it the decision is labelled exploratory.",
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
    help="Write DIR/decision.json and DIR/decision.md.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Worker processes.")
@json_option
def decide(
    runs: tuple[Path, ...],
    protocol_source: str | None,
    registered: bool,
    rehearsal: bool,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Decide the hypotheses: RUN is a run directory, its analysis, or a folder that holds several.

    Every registered comparison is listed, evaluable or not. Exit code 1 when the compound outcome
    is INVALID.
    """
    # One thread a process: many small products gain nothing from a second one, and two workers with
    # two threads each would only wait for one another. Must be set before numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from opprof.analysis.load import find_folders
    from opprof.cli.progress import progress
    from opprof.decision.load import decide_paths
    from opprof.decision.write import write_decision
    from opprof.protocol import load_protocol

    protocol = load_protocol(protocol_source)
    if protocol is None:
        raise InputError("a decision needs a protocol; its thresholds have no default")
    with progress(2 * len(find_folders(runs)), "deciding") as advance:
        decision = decide_paths(
            runs,
            protocol,
            exploratory=not registered,
            rehearsal=rehearsal,
            jobs=jobs,
            advance=advance,
        )
    written = [] if out is None else write_decision(decision, out)
    if as_json:
        print_json(decision)
    else:
        from opprof.cli.decide_tables import print_decision

        print_decision(decision, protocol, written)
    raise SystemExit(int(decision.compound.outcome == "INVALID"))
