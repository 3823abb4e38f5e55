"""What a decision knows of one run: artefacts, clean series, and what it may be used for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opprof.artifacts.common import Gate, RunIdentity
from opprof.artifacts.decision import RunStatus
from opprof.artifacts.kernels import Kernels
from opprof.decision.series import CleanSeries, Missing


@dataclass(frozen=True)
class GateReach:
    """A gate of a run and what its failure takes away (``run``, ``breakdown``, ``window`` …)."""

    gate: Gate
    reach: str


@dataclass(frozen=True)
class RunFacts:
    """One run as the decision reads it."""

    kernels: Kernels
    source: str
    gates: Sequence[GateReach] = ()
    red_flags: Sequence[str] = ()
    waste: Mapping[str, float | None] = field(default_factory=dict)
    """Waste metrics by the names of the contract."""
    missing_waste: Mapping[str, str] = field(default_factory=dict)
    """Metric to the reason why it is null."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Run-level figures, unit last in the name."""
    series: CleanSeries | Missing = field(default_factory=lambda: Missing("no clean series"))
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Artefact name to SHA-256."""
    marks: Sequence[str] = ()
    """What a campaign knows of the run: reruns, adjudications."""

    @property
    def run(self) -> RunIdentity:
        """Who the run is."""
        return self.kernels.run


def run_status(facts: RunFacts, tolerated: frozenset[str]) -> RunStatus:
    """Judge what a run may be used for.

    ``tolerated`` names gates whose failure is a mark only: a rehearsal runs on scaled time.
    """
    failed = [item for item in facts.gates if item.gate.outcome == "fail"]
    reach_run = [item.gate for item in failed if item.reach == "run"]
    invalid = [f"red flag {flag}" for flag in facts.red_flags]
    invalid += [_sentence(gate) for gate in reach_run if gate.name not in tolerated]
    marks = [f"tolerated: {gate.name}" for gate in reach_run if gate.name in tolerated]
    marks += facts.marks
    run = facts.run
    if run.drain_quarantined:
        marks.append("drain quarantined")
    if run.simulated:
        marks.append("simulated, no measurement")
    marks += _empty_steps(facts.kernels)
    if run.time_scale != 1.0:
        marks.append(f"durations scaled by {run.time_scale:g}")
    breakdown = list(invalid)
    if facts.kernels.breakdown_valid is not True:
        word = "not judged" if facts.kernels.breakdown_valid is None else "invalid"
        reasons = facts.kernels.breakdown_reasons or ["no reason given"]
        breakdown += [f"operator breakdown {word}: {reason}" for reason in reasons]
    breakdown += [
        f"window {window.window} rank {window.rank} is not accepted: {reason}"
        for window in facts.kernels.windows
        if not window.accepted
        for reason in window.reasons[:1] or ["no reason given"]
    ]
    return RunStatus(
        run=run,
        source=facts.source,
        valid=not invalid,
        invalid_reasons=invalid,
        breakdown_valid=not breakdown,
        breakdown_reasons=breakdown,
        marks=marks,
        not_evaluable_gates=sorted(
            {item.gate.name for item in facts.gates if item.gate.outcome == "not_evaluable"}
        ),
    )


def _empty_steps(kernels: Kernels) -> list[str]:
    """Windows with steps that ran nothing, which no test over steps can use."""
    return [
        f"window {window.window}: {empty} of {len(window.steps)} active steps launched no kernel"
        for window in kernels.windows
        if window.rank == 0
        if (empty := sum(step.kernel_ns == 0 for step in window.steps))
    ]


def _sentence(gate: Gate) -> str:
    scope = "" if gate.scope == "run" else f" ({gate.scope})"
    return f"gate {gate.name}{scope} failed: {gate.reason}"
