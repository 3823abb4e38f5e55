"""``rehearsal.json``: what a rehearsed campaign costs, which gates it fails, what it decides.

Everything in it is simulated: it speaks of a design, never of hardware.

Format history
    schema 1    first.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from opprof.artifacts.common import SanityBlock, Sha256

SCHEMA = 1


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """A share of trials with its 95 % Wilson interval."""

    count: int
    trials: int
    share: float | None
    """null without a trial."""
    low: float | None
    high: float | None


class Cost(Struct, frozen=True, forbid_unknown_fields=True):
    """What the campaign would take."""

    measured_runs: int
    gpu_hours: float
    """As rehearsed: start-up, run, drain, shutdown and burn-ins, times the GPUs of each."""
    wall_hours: float
    """One run after the other."""
    planned_gpu_hours: float
    """By the protocol's own arithmetic."""
    planned_wall_hours: float
    budget_gpu_hours: float
    """What the protocol's hard stop leaves."""


class RehearsedRunRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One rehearsed run."""

    name: str
    accepted: bool
    """By the client's own gates."""
    reasons: list[str]
    completed_rps: float | None
    offered_rps: float | None
    virtual_s: float
    drain_quarantined: bool


class SkippedRunRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One run that could not be made."""

    name: str
    reason: str


class GateRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One gate over all runs and windows of the rehearsal."""

    gate: str
    reach: str
    """What a failure takes away: ``run``, ``breakdown``, ``window`` or ``nothing``."""
    judged: int
    not_evaluable: int
    failed: Rate
    no_effect: Rate | None
    """Failures when nothing is planted; null where this rehearsal does not tell."""
    example: str
    """The first failure's reason; empty when none failed."""


class ResolutionRow(Struct, frozen=True, forbid_unknown_fields=True):
    """How small an effect a test of the design can see."""

    test: str
    """``gap P01/P03``, ``padding_fraction P09 vs P01`` …"""
    unit: str
    threshold: float
    """The protocol's materiality threshold."""
    resolution: float | None
    """Smallest true effect that passes with 80 % probability, given the noise; null: unknown."""
    reason: str
    """Why it is null, or what it is limited by."""


class VerdictRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the decision."""

    outcome: str
    reasons: list[str]


class Repeats(Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes over repeats on the fast path."""

    repeats: int
    outcomes: dict[str, dict[str, Rate]]
    """``H1a``, ``H1b``, ``compound`` to outcome to rate."""
    recovered: Rate | None
    """Repeats that meet the truth's expectation; null without one."""
    gates: dict[str, Rate]
    """Gate to the share of load points that fail it."""
    population_windows: int
    """Profile windows a cell that the repeats draw from."""
    resamples: int
    permutations: int


class Rehearsal(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact."""

    schema: Literal[1]
    simulated: Literal[True]
    protocol_id: str
    protocol_sha256: Sha256
    truth: str
    truth_sha256: Sha256 | None
    """null when nothing is planted."""
    seed: int
    cost: Cost
    runs: list[RehearsedRunRow]
    skipped: list[SkippedRunRow]
    gates: list[GateRow]
    resolution: list[ResolutionRow]
    verdicts: dict[str, VerdictRow]
    """``H1a``, ``H1b``, ``compound``; empty when no run could be decided on."""
    expectation_missed: list[str]
    """What the truth file expected and did not come out; empty when all did."""
    repeats: Repeats | None
    code_version: str
    code_sha256: Sha256
    sanity: SanityBlock | None = None
    """null in rehearsals that were written before."""
