"""A protocol's whole rehearsal: campaign, analysis, decision, gates, resolution, repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opprof._version import __version__
from opprof.analysis.gates import CATALOGUE
from opprof.analysis.load import LoadedRun
from opprof.artifacts.common import Gate
from opprof.artifacts.decision import Decision
from opprof.artifacts.rehearsal import (
    Cost,
    GateRow,
    Rehearsal,
    RehearsedRunRow,
    SkippedRunRow,
    VerdictRow,
)
from opprof.code_hash import code_sha256
from opprof.engines.sim.flags import not_modelled
from opprof.files import read_bytes
from opprof.protocol import Protocol
from opprof.protocol.design import design
from opprof.rehearsal.campaign import CampaignReport
from opprof.rehearsal.colocation import colocation_gates
from opprof.rehearsal.measures import measures
from opprof.rehearsal.once import decide_once, rehearse_once
from opprof.rehearsal.repeats import make_repeats, rate, summarise
from opprof.rehearsal.resolution import resolutions
from opprof.rehearsal.sanity import with_sanity
from opprof.rehearsal.truth import Expectation, Truth, without_effects

_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Rehearsed:
    """The artefact and what its figures come from."""

    report: Rehearsal
    decision: Decision | None


def rehearse(
    protocol: Protocol,
    truth: Truth,
    out: Path,
    *,
    seed: int,
    repeats: int,
    jobs: int,
    advance: Callable[[str], None],
) -> Rehearsed:
    """Rehearse a protocol below ``out`` (``runs/``) and return its report.

    ``repeats``: how often it is rehearsed again under other seeds. ``jobs``: worker processes.

    Raises:
        InputError: the protocol cannot be rehearsed.
        StateConflict: ``out`` holds an earlier rehearsal.
        EnvironmentFailure: a worker process was killed from outside.
    """
    data = read_bytes(Path(protocol.source), limit_bytes=_LIMIT_BYTES)
    once = rehearse_once(protocol, data, truth, out / "runs", seed=seed, jobs=jobs, advance=advance)
    facts, decision = decide_once(once, protocol, jobs=jobs)
    if decision is not None:
        advance(f"decided: {decision.compound.outcome}")
    gates, null = once.all_gates, once
    null_truth = without_effects(truth)
    if null_truth is not None:
        advance("the same campaign without the planted effects, for the gates' own rates:")
        null = rehearse_once(
            protocol, data, null_truth, out / "no-effect", seed=seed, jobs=jobs, advance=advance
        )
        gates += colocation_gates(protocol, truth, null.found, once.found)
    repeated = None
    if repeats:
        made = make_repeats(
            protocol,
            data,
            truth,
            seed=seed,
            repeats=repeats,
            jobs=jobs,
            each_bytes=_size(out / "runs"),
            advance=advance,
        )
        repeated = summarise(made, truth.file.expect)
    campaign = once.campaign
    report = Rehearsal(
        schema=2,
        simulated=True,
        protocol_id=protocol.file.id,
        protocol_sha256=protocol.sha256,
        truth=truth.file.name,
        truth_sha256=truth.sha256,
        seed=seed,
        cost=_cost(protocol, campaign),
        runs=_rows(campaign),
        skipped=[SkippedRunRow(_name(item), item.reason) for item in campaign.skipped],
        gates=_gate_rows(gates, null.all_gates, null.found),
        resolution=[] if decision is None else resolutions(decision, facts, protocol),
        verdicts={} if decision is None else _verdicts(decision),
        measures=measures(once.found, decision),
        expectation_missed=_missed(truth.file.expect, decision, gates, campaign),
        repeats=repeated,
        code_version=__version__,
        code_sha256=code_sha256(),
        not_modelled=not_modelled(
            protocol.file.server.command.split(), (row.flags for row in protocol.file.configs)
        ),
    )
    return Rehearsed(with_sanity(report), decision)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _name(run: object) -> str:
    role = getattr(run, "role", "primary")
    suffix = "" if role == "primary" else f"-{role}"
    parts = (getattr(run, name) for name in ("pattern", "config", "load_point"))
    return "-".join(parts) + suffix


def _rows(campaign: CampaignReport) -> list[RehearsedRunRow]:
    return [
        RehearsedRunRow(
            name=run.folder.name,
            accepted=run.accepted,
            reasons=list(run.reasons),
            completed_rps=run.completed_rps,
            offered_rps=run.offered_rps,
            virtual_s=run.virtual_s,
            drain_quarantined=run.drain_quarantined,
        )
        for run in campaign.runs
    ]


def _cost(protocol: Protocol, campaign: CampaignReport) -> Cost:
    planned, budget = design(protocol.file), protocol.file.budget
    return Cost(
        measured_runs=len(campaign.runs),
        gpu_hours=campaign.gpu_hours,
        wall_hours=campaign.wall_hours,
        planned_gpu_hours=planned.gpu_hours,
        planned_wall_hours=planned.wall_hours,
        budget_gpu_hours=budget.gpu_hours_max - budget.gpu_hours_used,
    )


def _verdicts(decision: Decision) -> dict[str, VerdictRow]:
    first, second, both = decision.h1a, decision.h1b, decision.compound
    return {
        "H1a": VerdictRow(first.outcome, list(first.reasons)),
        "H1b": VerdictRow(second.outcome, list(second.reasons)),
        "compound": VerdictRow(both.outcome, list(both.reasons)),
    }


# --------------------------------------------------------------------------- gates


def _gate_rows(
    gates: Sequence[Gate], null_gates: Sequence[Gate], null_found: Sequence[LoadedRun]
) -> list[GateRow]:
    """Count every gate, as rehearsed and under no effect.

    The label that everything is simulated fails by design and is left out. Representativeness is
    drawn many times under no effect by the analysis itself, so its rate is far better known.
    """
    null_rates = [
        item.analysis.kernels.representativeness.null_rate
        for item in null_found
        if item.analysis.kernels.representativeness is not None
    ]
    drawn = [item for item in null_rates if item is not None]
    rows = []
    for name in dict.fromkeys(gate.name for gate in gates):
        if name == "simulated":
            continue
        chosen = [gate for gate in gates if gate.name == name]
        failed = [gate for gate in chosen if gate.outcome == "fail"]
        judged = sum(gate.outcome != "not_evaluable" for gate in chosen)
        observed = rate(len(failed), judged)
        null = [gate for gate in null_gates if gate.name == name]
        no_effect = rate(
            sum(gate.outcome == "fail" for gate in null),
            sum(gate.outcome != "not_evaluable" for gate in null),
        )
        if name == "representativeness" and drawn:
            trials = sum(item.draws for item in drawn)
            count = sum(round(item.any_feature_failure_rate * item.draws) for item in drawn)
            no_effect = rate(count, trials)
        rows.append(
            GateRow(
                gate=name,
                reach=CATALOGUE[name].reach if name in CATALOGUE else "run",
                judged=judged,
                not_evaluable=len(chosen) - judged,
                failed=observed,
                no_effect=no_effect,
                example=failed[0].reason if failed else "",
            )
        )
    return rows


def _missed(
    expect: Expectation,
    decision: Decision | None,
    gates: Sequence[Gate],
    campaign: CampaignReport,
) -> list[str]:
    """Return what the truth expected and did not come out."""
    missed = []
    wanted = {"H1a": expect.H1a, "H1b": expect.H1b, "compound": expect.compound}
    seen = {} if decision is None else {k: v.outcome for k, v in _verdicts(decision).items()}
    for part, outcome in wanted.items():
        if outcome is not None and seen.get(part) != outcome:
            missed.append(f"{part} is {seen.get(part, 'undecided')}, expected {outcome}")
    failed = {gate.name for gate in gates if gate.outcome == "fail"}
    absent = [name for name in expect.failed_gates if name not in failed]
    refused = {run.folder.name for run in campaign.runs if not run.accepted}
    late = {run.folder.name for run in campaign.runs if run.drain_quarantined}
    missed += [f"no run failed the gate {name}" for name in absent]
    missed += [f"{run} was not refused" for run in expect.refused_runs if run not in refused]
    return missed + [
        f"{run} is not drain-quarantined" for run in expect.quarantined_runs if run not in late
    ]
