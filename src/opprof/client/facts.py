"""Everything a finished run is judged by, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from opprof.artifacts.engine import ProfilerEvent
from opprof.artifacts.run import Interval, RequestRecord
from opprof.client.journal import Failure
from opprof.client.plan import RunPlan
from opprof.client.steps import StepStream
from opprof.client.timeline import Ending, WindowRecord


@dataclass(frozen=True, slots=True)
class Health:
    """What the client measured of itself inside the clean interval."""

    cpu_s: float
    """Processor time of the client's process."""
    wall_s: float
    loop_delays_ms: list[float]
    """Lateness of a regular wake-up of the event loop."""

    @property
    def cpu_share(self) -> float | None:
        """Processor time over wall time; 1.0 is one core, all that one event loop can use."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Values only: what was planned, what happened, what was seen of the engine and the client."""

    plan: RunPlan
    t0_ns: int
    intervals: list[Interval]
    windows: list[WindowRecord]
    ending: Ending
    records: list[RequestRecord]
    failures: list[Failure]
    unsent: int
    """Requests that were scheduled and never admitted."""
    finish_reasons: dict[str, int]
    """Whole answers by the server's finish reason."""
    outstanding_max: int
    stream: StepStream | None
    """The Layer-1 stream, read after the drain; None without ``--opprof-dir``."""
    health: Health | None
    """None in virtual time."""
    window_source: str | None
    profiler_events: list[ProfilerEvent]
    """What the engine's recorder wrote of the profiler; empty where it writes nothing."""
    simulated: bool = False
    """The server says that it is an embedded engine, or the run has no server at all."""
    faults: list[str] = field(default_factory=list)
    """What could not be read or collected after the load; the run is measured and not accepted."""

    @property
    def clean(self) -> tuple[int, int] | None:
        """The clean union as it really was; None when no clean segment was begun."""
        spans = [(i.start_mono_ns, i.end_mono_ns) for i in self.intervals if i.kind == "clean"]
        return (spans[0][0], spans[-1][1]) if spans else None

    def kind(self, name: str) -> list[Interval]:
        """The intervals of one kind, in order."""
        return [interval for interval in self.intervals if interval.kind == name]
