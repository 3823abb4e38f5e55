"""Profiler windows: vLLM's 2 + 8 schedule, what it costs, and what it keeps of the active steps.

The start call is step 0; each submission steps the profiler; the trace is written inside the call
after the last active step, which stalls the engine (seen: 0.7 to 20 s); the stop call stalls it
again. A stop before the end writes what is there; a start while a window is open changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from opprof.artifacts.engine import ProfilerEvent
from opprof.engines.sim.batch import Batch
from opprof.engines.sim.config import ProfilerConfig
from opprof.engines.sim.cost import ProfilerTimes
from opprof.engines.sim.graphs import Dispatch

MS = 1_000_000


@dataclass(slots=True)
class CapturedStep:
    """One step that the profiler saw; times on the engine's clock."""

    batch: Batch
    dispatch: Dispatch
    parts_ms: dict[str, float]
    submit_ns: int
    launched_ns: int
    start_ns: int
    end_ns: int
    opaque: bool
    number: int = 0
    """``ProfilerStep#number``."""


@dataclass(frozen=True, slots=True)
class EmptyStep:
    """A step that ran no model: it steps the profiler all the same."""

    step: int
    submit_ns: int
    number: int


@dataclass(slots=True)
class WindowCapture:
    """What one window kept."""

    steps: list[CapturedStep]
    """In order; the last warm-up step first, whose kernels may be the prologue."""
    empty: list[EmptyStep]
    first_number: int
    end_ns: int
    """When the last active step ended on the CPU."""


WriteTraces = Callable[[WindowCapture], Sequence[Path]]


class Profiler:
    """The state of ``/start_profile`` and ``/stop_profile``."""

    def __init__(
        self,
        config: ProfilerConfig,
        times: ProfilerTimes,
        ranks: int,
        write: WriteTraces,
        events: Path | None,
    ) -> None:
        self._config = config
        self._times = times
        self._ranks = ranks
        self._write = write
        self._events = events
        self._window = -1
        self._calls = 0
        self._steps: list[CapturedStep] = []
        self._empty: list[EmptyStep] = []
        self._traces: list[str] = []
        self._saved_ms = 0.0
        self.is_open = False
        """Between the start and the stop call."""
        self.fault: str | None = None
        """What was wrong with the last call."""
        self.is_recording = False
        """From the start call until the trace is written."""

    @property
    def is_active(self) -> bool:
        """Whether the current step is kept: an active one, or the last warm-up step."""
        first = self._config.warmup
        return self.is_recording and first - 1 <= self._calls < first + self._config.active

    def start(self, now_ns: int) -> int:
        """Open a window; return how long the engine is blocked, nanoseconds."""
        took_ns = round(self._times.start_ms * MS)
        fault = None
        if self.is_open:
            fault = "started again while a window is open (vLLM ignores it)"
        else:
            self._window += 1
            self.is_open = self.is_recording = True
            self._calls = 0
            self._steps, self._empty, self._traces = [], [], []
        self._event("start", [now_ns, now_ns + took_ns], fault)
        return took_ns

    def step(self, now_ns: int) -> int:
        """A step is submitted; return how long writing the trace blocks it, nanoseconds."""
        if not self.is_recording:
            return 0
        self._calls += 1
        if self._calls < self._config.warmup + self._config.active:
            return 0
        return self._save(now_ns)

    @property
    def refuses(self) -> bool:
        """Whether the recorder's hook answers the last stop call with an error, as the plugin's."""
        return self._events is not None and self.fault is not None

    def capture(self, step: CapturedStep) -> None:
        """Keep the step that is being submitted."""
        step.number = self._calls
        self._steps.append(step)

    def capture_empty(self, step: int, now_ns: int) -> None:
        """Note an empty step inside the active ones."""
        if self.is_active and self._calls >= self._config.warmup:
            self._empty.append(EmptyStep(step, now_ns, self._calls))

    def stop(self, now_ns: int) -> int:
        """Close the window; return how long the engine is blocked, nanoseconds."""
        if not self.is_open:
            self._event("stop", [now_ns, now_ns], "stopped without a start")
            return 0
        took_ns = self._save(now_ns) if self.is_recording else 0
        took_ns += round(
            (self._times.stop_ms + self._times.stop_save_fraction * self._saved_ms) * MS
        )
        self.is_open = False
        fault = None if self._traces else "no trace was written"
        self._event("stop", [now_ns, now_ns + took_ns], fault)
        return took_ns

    def _save(self, now_ns: int) -> int:
        self.is_recording = False
        self._saved_ms = 0.0
        kept = WindowCapture(self._steps, self._empty, self._config.warmup, now_ns)
        self._steps, self._empty = [], []
        if any(step.number >= self._config.warmup for step in kept.steps) or kept.empty:
            self._saved_ms = self._writing_ms(kept)
            self._traces = [path.name for path in self._write(kept)]
        return round(self._saved_ms * MS)

    def _writing_ms(self, window: WindowCapture) -> float:
        times, total = self._times, 0.0
        for step in window.steps:
            total += times.save_step_ms
            if step.dispatch.mode == "FULL":
                total += times.save_request_ms * step.batch.requests
            else:
                total += times.save_eager_ms
        return total

    def _event(self, event: Literal["start", "stop"], call: list[int], fault: str | None) -> None:
        self.fault = fault
        if self._events is None:
            return
        stop = event == "stop"
        line = ProfilerEvent(
            schema=1,
            event=event,
            window=-1 if fault == "stopped without a start" else self._window,
            call_mono_ns=call,
            traces=sorted(self._traces) if stop else [],
            expected_ranks=self._ranks if stop else None,
            fault=fault,
        )
        with self._events.open("ab") as stream:
            stream.write(msgspec.json.encode(line) + b"\n")
