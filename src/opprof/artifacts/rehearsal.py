"""``rehearsal.json``: what a rehearsed campaign costs, which gates it fails, what it decides.

Everything in it is simulated: it speaks of a design, never of hardware.

Format history
    schema 2    ``repeats`` are whole rehearsals: one row each, gates over all runs; no populations.
    schema 1    first.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from opprof.artifacts.common import SanityBlock, Sha256

SCHEMA = 2


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


class Spread(Struct, frozen=True, forbid_unknown_fields=True):
    """One number over repeats."""

    count: int
    """Repeats that have it."""
    mean: float
    sd: float | None
    """Standard deviation (divisor count - 1); null for one value."""


class Repeat(Struct, frozen=True, forbid_unknown_fields=True):
    """One repeat: a whole rehearsal under its own seed."""

    seed: int
    """``opprof rehearse --seed`` with it makes the same rehearsal."""
    outcomes: dict[str, str]
    """``H1a``, ``H1b``, ``compound`` to outcome."""
    runs: int
    """Runs that could be made."""
    refused: list[str]
    """Runs that the client did not accept."""
    failed_gates: dict[str, list[str]]
    """Run to the gates that it failed; runs without one are left out."""


class Repeats(Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes over repeats under other seeds."""

    repeats: int
    outcomes: dict[str, dict[str, Rate]]
    """``H1a``, ``H1b``, ``compound`` to outcome to rate."""
    recovered: Rate | None
    """Repeats that meet the truth's expected outcomes; null without one."""
    gates: dict[str, Rate]
    """Gate to the share of runs that fail it."""
    refused: Rate
    """Runs that the client did not accept."""
    spread: dict[str, dict[str, Spread]]
    """Run to what the decision uses of it (as ``measures``) to its scatter."""
    rows: list[Repeat]


class Rehearsal(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact."""

    schema: Literal[2]
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
    measures: dict[str, dict[str, float]]
    """Run to name to value, of what the decision uses: throughput, latencies, waste, shares of
    graph modes (``mode_share.FULL``) and of families in the windows (``share.attention``)."""
    expectation_missed: list[str]
    """What the truth file expected and did not come out; empty when all did."""
    repeats: Repeats | None
    code_version: str
    code_sha256: Sha256
    sanity: SanityBlock | None = None
    """null in rehearsals that were written before."""
    not_modelled: list[str] = []
    """Flags of the server command that a real server would heed and the embedded engine did not."""
