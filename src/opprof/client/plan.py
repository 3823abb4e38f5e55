"""What one run will do, as values: load, phases, budgets (protocol, "Load and execution protocol").

All borders are computed from ``t0`` with integer nanoseconds, so segments are contiguous and of
exactly the given length whatever happens meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from opprof.artifacts.run import LoadPoint, Role


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop (``rate_rps`` None) or open loop, under one cap of outstanding requests."""

    max_concurrency: int
    rate_rps: float | None
    burst: int
    """Requests that arrive together in the open loop; 1 is steady."""


@dataclass(frozen=True, slots=True)
class DrainBudget:
    """A-P3-3 and A-P3-5: how long outstanding requests may take after admission has stopped."""

    budget_ns: int
    """In force: the protocol's class budget, which wins over the flag."""
    requested_ns: int
    """What ``--drain-timeout-seconds`` said."""
    watchdog_ns: int
    """After it the client gives up waiting; nothing is cancelled before."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Profile windows and the fixed recovery after each."""

    count: int
    steps: int
    """Engine steps from the start call's return to the written trace."""
    recovery_ns: int
    watchdog_ns: int
    """After it a window whose iterations have not ended is given up."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The whole run; durations already carry the declared time scale."""

    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    load: Load
    warmup_ns: int
    segment_ns: int
    segments: int
    windows: Windows
    drain: DrainBudget
    time_scale: float
    until_told: bool = False
    """A co-location background: admits from ``t0`` until it is told to stop, at most for the
    warm-up's length; nothing of it is measured (A-P3-1)."""

    def clean_start_ns(self, t0_ns: int) -> int:
        """First nanosecond of clean segment A."""
        return t0_ns + self.warmup_ns

    def segment_start_ns(self, t0_ns: int, index: int) -> int:
        """Start of clean segment ``index``, which is the end of the one before."""
        return t0_ns + self.warmup_ns + index * self.segment_ns

    def clean_end_ns(self, t0_ns: int) -> int:
        """End of the clean union (exclusive)."""
        return self.segment_start_ns(t0_ns, self.segments)

    @property
    def clean_ns(self) -> int:
        """Length of the clean union: the denominator of every rate."""
        return self.segments * self.segment_ns
