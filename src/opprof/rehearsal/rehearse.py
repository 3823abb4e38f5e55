"""A protocol's whole rehearsal: campaign, analysis, decision, gates, resolution, repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof._version import __version__
from opprof.analysis.gates import CATALOGUE
from opprof.analysis.load import LoadedRun, load_runs
from opprof.artifacts.common import Gate
from opprof.artifacts.decision import Decision
from opprof.artifacts.rehearsal import (
    Cost,
    GateRow,
    Rehearsal,
    RehearsedRunRow,
    Repeats,
    SkippedRunRow,
    VerdictRow,
)
from opprof.artifacts.sanity import Sanity
from opprof.code_hash import code_sha256
from opprof.decision.decide import decide
from opprof.decision.facts import RunFacts
from opprof.decision.load import REHEARSAL_GATES, provenance, run_facts
from opprof.files import read_bytes
from opprof.protocol import Protocol
from opprof.protocol.design import design
from opprof.rehearsal.campaign import CampaignReport, rehearse_campaign
from opprof.rehearsal.colocation import colocation_gates
from opprof.rehearsal.repeats import rate, repeat_design
from opprof.rehearsal.resolution import resolutions
from opprof.rehearsal.sanity import with_sanity
from opprof.rehearsal.truth import Expectation, Truth, without_effects

_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Rehearsed:
    """The artefact and what its figures come from."""

    report: Rehearsal
    decision: Decision | None
    repeats_reason: str | None
    """Why repeats were asked for and could not be made."""


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

    Raises:
        InputError: the protocol cannot be rehearsed.
        StateConflict: ``out`` holds an earlier rehearsal.
    """
    data = read_bytes(Path(protocol.source), limit_bytes=_LIMIT_BYTES)
    campaign = rehearse_campaign(
        protocol, data, truth, out / "runs", seed=seed, jobs=jobs, advance=advance
    )
    folders = [run.folder for run in campaign.runs]
    found = load_runs(folders, protocol, jobs=jobs) if folders else []
    advance(f"{len(found)} runs analysed")
    facts = [run_facts(item, protocol) for item in found]
    decision = None
    if facts:
        decision = decide(
            facts,
            protocol,
            provenance(facts, found, protocol),
            exploratory=False,
            tolerated=REHEARSAL_GATES,
        )
        advance(f"decided: {decision.compound.outcome}")
    gates = _all_gates(found, folders)
    null_found, null_gates = found, gates
    null_truth = without_effects(truth)
    if null_truth is not None:
        null_found, null_gates = _no_effect(protocol, data, null_truth, out, seed, jobs, advance)
        gates += colocation_gates(protocol, truth, null_found, found)
    repeated: Repeats | None = None
    reason: str | None = None
    if repeats:
        made = _repeats(protocol, data, truth, facts, campaign, seed, repeats, jobs, advance)
        repeated, reason = (None, made) if isinstance(made, str) else (made, None)
    report = Rehearsal(
        schema=1,
        simulated=True,
        protocol_id=protocol.file.id,
        protocol_sha256=protocol.sha256,
        truth=truth.file.name,
        truth_sha256=truth.sha256,
        seed=seed,
        cost=_cost(protocol, campaign),
        runs=_rows(campaign),
        skipped=[SkippedRunRow(_name(item), item.reason) for item in campaign.skipped],
        gates=_gate_rows(gates, null_gates, null_found),
        resolution=[] if decision is None else resolutions(decision, facts, protocol),
        verdicts={} if decision is None else _verdicts(decision),
        expectation_missed=_missed(truth.file.expect, decision, gates, campaign),
        repeats=repeated,
        code_version=__version__,
        code_sha256=code_sha256(),
    )
    return Rehearsed(with_sanity(report), decision, reason)


def _no_effect(
    protocol: Protocol,
    data: bytes,
    truth: Truth,
    out: Path,
    seed: int,
    jobs: int,
    advance: Callable[[str], None],
) -> tuple[list[LoadedRun], list[Gate]]:
    """Rehearse the same campaign with nothing planted: what its gates do under no effect."""
    campaign = rehearse_campaign(protocol, data, truth, out / "no-effect", seed=seed, jobs=jobs)
    folders = [run.folder for run in campaign.runs]
    found = load_runs(folders, protocol, jobs=jobs) if folders else []
    advance(f"{len(found)} runs without the planted effects analysed, for the gates' own rates")
    return found, _all_gates(found, folders)


def _repeats(
    protocol: Protocol,
    data: bytes,
    truth: Truth,
    facts: Sequence[RunFacts],
    campaign: CampaignReport,
    seed: int,
    repeats: int,
    jobs: int,
    advance: Callable[[str], None],
) -> Repeats | str:
    saturation = {
        run.pattern: run.folder / "client" / "result.json"
        for run in campaign.runs
        if run.load_point == "saturation" and run.config == protocol.file.load.primary_config
    }
    return repeat_design(
        protocol,
        data,
        truth,
        facts,
        saturation,
        seed=seed,
        repeats=repeats,
        jobs=jobs,
        advance=advance,
    )


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


def _all_gates(found: Sequence[LoadedRun], folders: Sequence[Path]) -> list[Gate]:
    """Return every gate of the analyses, and the client's that the analysis has no name for."""
    gates = [gate for item in found for gate in item.analysis.sanity.gates]
    names = {gate.name for gate in gates}
    for folder in folders:
        data = read_bytes(folder / "client" / "sanity.json", limit_bytes=_LIMIT_BYTES)
        client = msgspec.json.decode(data, type=Sanity)
        gates += [gate for gate in client.gates if gate.name not in names]
    return gates


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
