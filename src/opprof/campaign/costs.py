"""What a run takes: expected seconds, and the conservative ones that a reservation counts.

Expected: the protocol's own budget lines ("Budget and hard stop conditions": 488 s a primary run,
380 s a confirmation, 140 s a burn-in), which know no drain. Reserved: the expected time, the whole
drain allowance of the pattern's class, and the shutdown's time-out. Time-outs that only a fault
reaches (drain watchdog, profile watchdog, a start that hangs) are not reserved: with them two waves
of the full matrix would fill the budget. What overruns a reservation is stopped while it runs, by
the balance (:func:`opprof.campaign.ledger.over_budget`), so the cap holds in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from opprof.artifacts.campaign import RunRecord
from opprof.artifacts.run import LoadPoint, Role
from opprof.campaign.frozen import frozen_of
from opprof.errors import InputError
from opprof.protocol.model import Config, Pattern, ProtocolFile


@dataclass(frozen=True)
class Pace:
    """What a run's length depends on beside its load."""

    time_scale: float
    """Declared factor on warm-up, clean segments, recovery and drain; not on server starts."""
    shutdown_timeout_s: float
    """``--shutdown-timeout`` of the server."""


def pace_of(protocol: ProtocolFile, time_scale: float) -> Pace:
    """Return the pace of a campaign under the protocol.

    Raises:
        InputError: the protocol leaves the server's shutdown timeout out.
    """
    return Pace(time_scale, frozen_of(protocol).shutdown_timeout_s)


@dataclass(frozen=True)
class RunCost:
    """One run's seconds and what they cost."""

    gpus: int
    expected_s: float
    reserved_s: float

    @property
    def expected_gpu_s(self) -> float:
        """GPU-seconds as the protocol estimates them."""
        return self.gpus * self.expected_s

    @property
    def reserved_gpu_s(self) -> float:
        """GPU-seconds that a reservation counts."""
        return self.gpus * self.reserved_s


def run_cost(protocol: ProtocolFile, record: RunRecord, pace: Pace) -> RunCost:
    """Return what the run takes.

    Raises:
        InputError: the protocol has not its pattern or configuration.
    """
    return cost_of(protocol, record.pattern, record.config, record.load_point, record.role, pace)


def cost_of(
    protocol: ProtocolFile,
    pattern: str,
    config: str,
    load_point: LoadPoint,
    role: Role,
    pace: Pace,
) -> RunCost:
    """Return what a run of this kind takes (see :func:`run_cost`)."""
    budget = protocol.budget
    scaled, fixed = load_seconds(protocol, load_point, role)
    expected = budget.startup_s + pace.time_scale * scaled + fixed + budget.shutdown_s
    drain = pattern_row(protocol, pattern).drain_budget_s * pace.time_scale
    slack = max(0.0, pace.shutdown_timeout_s - budget.shutdown_s)
    return RunCost(
        gpus=config_row(protocol, config).tensor_parallel_size,
        expected_s=expected,
        reserved_s=expected + drain + slack,
    )


def load_seconds(protocol: ProtocolFile, load_point: LoadPoint, role: Role) -> tuple[float, float]:
    """Return the client's seconds without drain: those that the time scale stretches, and others.

    A co-location target's moderate run has one profile window, its calibration none (A-P3-1, 4).
    """
    timeline, budget = protocol.timeline, protocol.budget
    if role == "burnin":
        return protocol.burnin.seconds, 0.0
    if role == "confirmation":
        return max(0.0, budget.confirmation_s - budget.startup_s - budget.shutdown_s), 0.0
    windows = timeline.profile_windows
    if role == "colocation":
        windows = 1 if load_point == "moderate" else 0
    scaled = timeline.warmup_s + timeline.clean_s + windows * timeline.recovery_s
    return scaled, windows * budget.profile_window_s


def pattern_row(protocol: ProtocolFile, pattern: str) -> Pattern:
    """Return the pattern's row.

    Raises:
        InputError: the protocol has none.
    """
    for row in protocol.patterns:
        if row.id == pattern:
            return row
    raise InputError(f"{protocol.id} has no pattern {pattern!r}")


def config_row(protocol: ProtocolFile, config: str) -> Config:
    """Return the configuration's row.

    Raises:
        InputError: the protocol has none.
    """
    for row in protocol.configs:
        if row.id == config:
            return row
    raise InputError(f"{protocol.id} has no configuration {config!r}")
