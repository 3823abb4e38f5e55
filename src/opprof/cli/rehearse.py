"""``opprof rehearse``: a whole campaign in virtual time, before any GPU hour is spent."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opprof.cli.options import SEED, json_option, print_json
from opprof.words import plural

if TYPE_CHECKING:
    from rich.console import Console

    from opprof.artifacts.rehearsal import GateRow, Rate, Rehearsal, Spread

_ALWAYS = ("representativeness", "recovery", "classifiable")
"""Gates that are shown even where they never fail: they decide whether a design can pass."""

_SHOWN = {
    "completed_rps": "req/s",
    "step_duration_mean_ms": "step ms",
    "E_token_per_ms": "tokens/ms",
    "padding_fraction": "padding",
    "graph_miss_rate": "misses",
    "share.moe_gemm": "MoE GEMM",
    "share.attention": "attention",
}
"""Of what scatters over repeats, what fits on a screen, with its heading; ``--json`` has all."""


@click.command("rehearse")
@click.argument("protocol_source", metavar="PROTOCOL")
@click.option(
    "--truth",
    "truth_path",
    type=click.Path(path_type=Path),
    help="TOML file of planted truths; without it nothing is planted.",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Seed of engine and arrivals."
)
@click.option(
    "--repeat",
    "repeats",
    type=click.IntRange(min=0),
    default=0,
    help="Rehearse N more times under other seeds; shares of outcomes with 95 % intervals.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the runs, decision.json and rehearsal.json here; must be new or empty.",
)
@click.option("--jobs", type=click.IntRange(1, 256), help="Worker processes [cores, at most 2].")
@json_option
def rehearse(
    protocol_source: str,
    truth_path: Path | None,
    seed: int,
    repeats: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Rehearse PROTOCOL on the embedded engine: everything that comes out is simulated.

    Prints cost, gates that would fail, the resolution of each test, and the decision. Exit code 1
    when the truth file's expectation is missed; without an expectation, when the decision is
    INVALID or a run could not be made.
    """
    from opprof.decision.write import write_decision
    from opprof.errors import InputError
    from opprof.files import write_atomic
    from opprof.protocol import load_protocol
    from opprof.rehearsal.rehearse import rehearse as run_rehearsal
    from opprof.rehearsal.truth import Expectation, load_truth

    protocol = load_protocol(protocol_source)
    if protocol is None:
        raise InputError("a rehearsal needs a protocol")
    truth = load_truth(
        truth_path,
        [row.id for row in protocol.file.patterns],
        [row.id for row in protocol.file.configs],
    )
    workers = jobs or min(2, os.cpu_count() or 1)
    with _folder(out) as folder:
        done = run_rehearsal(
            protocol,
            truth,
            folder,
            seed=seed,
            repeats=repeats,
            jobs=workers,
            advance=lambda line: click.echo(line, err=True),
        )
        if out is not None:
            write_atomic(out / "rehearsal.json", _pretty(done.report))
            if done.decision is not None:
                write_decision(done.decision, out)
    if as_json:
        print_json(done.report)
    else:
        _print(done.report)
    raise SystemExit(_exit_code(done.report, expects=truth.file.expect != Expectation()))


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    from opprof.errors import StateConflict

    if out is None:
        with tempfile.TemporaryDirectory(prefix="opprof-rehearsal-") as name:
            yield Path(name)
        return
    if out.exists() and any(out.iterdir()):
        raise StateConflict("is not empty: a rehearsal never overwrites another", path=out)
    out.mkdir(parents=True, exist_ok=True)
    yield out


def _pretty(value: object) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _exit_code(report: Rehearsal, *, expects: bool) -> int:
    if expects:
        return int(bool(report.expectation_missed))
    compound = report.verdicts.get("compound")
    return int(compound is None or compound.outcome == "INVALID" or bool(report.skipped))


# --------------------------------------------------------------------------- output


def _print(report: Rehearsal) -> None:
    from rich.table import Column, Table

    from opprof.cli.console import console

    out = console()
    cost = report.cost
    out.print(
        f"SIMULATED rehearsal of {report.protocol_id}, truth {report.truth!r}, seed {report.seed}: "
        "no figure here is a measurement",
        markup=False,
    )
    out.print(
        f"{plural(cost.measured_runs, 'run')}, {cost.gpu_hours:.2f} GPU hours and "
        f"{cost.wall_hours:.2f} wall hours one after the other "
        f"(planned {cost.planned_gpu_hours:.2f} and "
        f"{cost.planned_wall_hours:.2f}; the budget leaves {cost.budget_gpu_hours:.2f} GPU hours)"
    )
    if report.not_modelled:
        flags = ", ".join(report.not_modelled)
        out.print(f"the embedded engine does not model {flags}: left out", markup=False)
    runs = Table(
        Column("run", no_wrap=True), "client", "req/s", "offered", "seconds", "why", title="Runs"
    )
    for run in report.runs:
        runs.add_row(
            run.name,
            "accepted" if run.accepted else "refused",
            _number(run.completed_rps),
            _number(run.offered_rps),
            f"{run.virtual_s:.0f}",
            "; ".join(run.reasons),
        )
    for skipped in report.skipped:
        runs.add_row(skipped.name, "not made", "", "", "", skipped.reason)
    gates = Table(
        Column("gate", no_wrap=True),
        *("takes away", "judged", "failed", "under no effect", "first failure"),
        title="Gates",
    )
    quiet = []
    for gate in report.gates:
        no_effect = 0 if gate.no_effect is None else gate.no_effect.count
        if not (gate.failed.count or no_effect or gate.gate in _ALWAYS):
            quiet.append(gate)
        else:
            gates.add_row(
                gate.gate,
                gate.reach,
                str(gate.judged),
                _rate(gate.failed),
                "-" if gate.no_effect is None else _rate(gate.no_effect),
                gate.example,
            )
    tests = Table("test", "threshold", "resolution", "", title="Resolution (80 % power)")
    for row in report.resolution:
        shown = "unknown" if row.resolution is None else f"{row.resolution:.3f}"
        tests.add_row(row.test, f"{row.threshold:g}", shown, row.reason)
    for table in (runs, gates):
        out.print(table)
    _print_quiet(out, quiet)
    if report.resolution:
        out.print(tests)
    for name, verdict in report.verdicts.items():
        out.print(f"{name}: {verdict.outcome}", markup=False)
        for reason in verdict.reasons[:6]:
            out.print(f"  {reason}", markup=False)
    _print_repeats(out, report)
    for line in report.expectation_missed:
        out.print(f"expectation missed: {line}", markup=False)


def _print_quiet(out: Console, gates: list[GateRow]) -> None:
    """Gates that never failed, with how often they may still fail when nothing is planted."""
    groups: dict[int, list[GateRow]] = {}
    for gate in gates:
        groups.setdefault(0 if gate.no_effect is None else gate.no_effect.trials, []).append(gate)
    for trials, rows in sorted(groups.items(), reverse=True):
        high = rows[0].no_effect.high if rows[0].no_effect is not None else None
        known = "never judged"
        if high is not None:
            known = f"judged {trials} times: at most {high:.0%} (95 %)"
        names = ", ".join(row.gate for row in rows)
        out.print(f"no failure, under no effect {known}: {names}", markup=False)


def _print_repeats(out: Console, report: Rehearsal) -> None:
    from rich.table import Column, Table

    repeats = report.repeats
    if repeats is None:
        return
    table = Table(
        "part", "outcome", "share", title=f"{plural(repeats.repeats, 'rehearsal')}, other seeds"
    )
    for part, outcomes in repeats.outcomes.items():
        for outcome, found in outcomes.items():
            table.add_row(part, outcome, _rate(found))
    for gate, found in repeats.gates.items():
        table.add_row("gate", f"{gate} fails a run", _rate(found))
    table.add_row("client", "refuses a run", _rate(repeats.refused))
    if repeats.recovered is not None:
        table.add_row("truth", "recovered as expected", _rate(repeats.recovered))
    out.print(table)
    names = [name for name in _SHOWN if any(name in found for found in repeats.spread.values())]
    scatter = Table(Column("run", no_wrap=True), title="Mean and standard deviation over them")
    for name in names:
        scatter.add_column(_SHOWN[name])
    for run, spread in repeats.spread.items():
        scatter.add_row(run, *(_spread(spread.get(name)) for name in names))
    out.print(scatter)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.4g}" + ("" if spread.sd is None else f" ± {spread.sd:.2g}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _rate(rate: Rate) -> str:
    if rate.share is None or rate.low is None or rate.high is None:
        return "-"
    return f"{rate.count}/{rate.trials} = {rate.share:.0%} ({rate.low:.0%} to {rate.high:.0%})"
