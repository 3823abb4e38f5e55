"""The run's phases as a state machine over a passed clock (protocol, "Warm-up, clean measurement,
and profiler placement").

warm-up, contiguous clean segments, then profile window and fixed recovery in turn, then admission
stops and outstanding requests drain. Borders up to the end of the clean union are computed from
``t0``; after it each phase starts exactly where the one before ended, so no nanosecond of the run
is without a tag. Admission goes on during profile calls: they are made beside the load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from opprof.artifacts.run import Interval, IntervalKind
from opprof.client.admission import Admission
from opprof.client.plan import RunPlan
from opprof.client.ports import Clock, ControlReply, Timer, Transport, WindowWatch
from opprof.errors import OpprofError

_POLL_NS = 100_000_000


@dataclass(slots=True)
class WindowRecord:
    """What is known of one profile window."""

    index: int
    start: ControlReply | None = None
    stop: ControlReply | None = None
    iterations_over_ns: int | None = None
    """When the watch said that the active iterations were over."""
    steps: int | None = None
    timed_out: bool = False


@dataclass(slots=True)
class Progress:
    """Where the run is now, for a display."""

    kind: IntervalKind | None = None
    index: int = 0
    start_ns: int = 0
    planned_end_ns: int | None = None


@dataclass(slots=True)
class Ending:
    """How the run ended."""

    abort_reason: str | None = None
    """Why admission stopped before its time; None for a run that went to its planned end."""
    drain_over_budget: bool = False
    drain_given_up: bool = False
    end_ns: int | None = None


@dataclass(slots=True)
class _State:
    t0_ns: int = 0
    window: int = 0
    finished: bool = False
    draining: bool = False
    timers: list[Timer] = field(default_factory=list)


class TimelineMachine:
    """Drives admission and the profile endpoints through the plan's phases."""

    def __init__(
        self,
        plan: RunPlan,
        clock: Clock,
        transport: Transport,
        admission: Admission,
        watch: WindowWatch | None,
    ) -> None:
        if plan.windows.count and watch is None:
            raise ValueError("profile windows need a watch")
        self._plan = plan
        self._clock = clock
        self._transport = transport
        self._admission = admission
        self._watch = watch
        self._state = _State()
        self.intervals: list[Interval] = []
        self.windows: list[WindowRecord] = []
        self.progress = Progress()
        self.ending = Ending()
        self.on_phase: Callable[[Progress], None] = _ignore
        self.on_finished: Callable[[], None] = _nothing
        admission.on_exhausted = self._exhausted
        admission.on_broken = self.abort
        admission.on_idle = self._idle

    @property
    def t0_ns(self) -> int:
        """When admission began."""
        return self._state.t0_ns

    def start(self, t0_ns: int) -> None:
        """Begin the warm-up at ``t0_ns``."""
        plan, self._state.t0_ns = self._plan, t0_ns
        if not plan.windows.count:
            self._admission.close_at(plan.clean_end_ns(t0_ns))
        self._enter("warmup", 0, t0_ns, plan.clean_start_ns(t0_ns))
        self._admission.start(t0_ns)
        self._at(plan.clean_start_ns(t0_ns), lambda: self._segment(0))

    def abort(self, reason: str) -> None:
        """Stop admission now and drain; the run is invalid for ``reason``."""
        if self._state.finished or self._state.draining:
            return
        self.ending.abort_reason = reason
        self._cancel_timers()
        self._stop_admission(max(self._clock.now_ns(), self.progress.start_ns))

    def tell(self) -> bool:
        """Tell a background that it may stop: it drains; False where there is nothing to tell."""
        running = self.progress.kind == "warmup" and not self._over()
        if not self._plan.until_told or not running:
            return False
        self._cancel_timers()
        self._stop_admission(max(self._clock.now_ns(), self.progress.start_ns))
        return True

    def interrupt(self) -> None:
        """Leave at once: the open phase ends here, nothing is waited for."""
        if not self._state.finished:
            self.ending.abort_reason = "interrupted"
            self._finish(self._clock.now_ns())

    # ------------------------------------------------------------------ warm-up and clean

    def _segment(self, index: int) -> None:
        plan, t0_ns = self._plan, self._state.t0_ns
        start_ns = plan.segment_start_ns(t0_ns, index)
        self._leave(start_ns)
        if index < plan.segments:
            self._enter("clean", index, start_ns, plan.segment_start_ns(t0_ns, index + 1))
            self._at(plan.segment_start_ns(t0_ns, index + 1), lambda: self._segment(index + 1))
        elif plan.windows.count:
            self._open_window(0, start_ns)
        elif plan.until_told:
            self.ending.abort_reason = "the background was not told to stop in its time"
            self._stop_admission(start_ns)
        else:
            self._stop_admission(start_ns)

    # ------------------------------------------------------------------ profile and recovery

    def _open_window(self, index: int, start_ns: int) -> None:
        self._state.window = index
        self.windows.append(WindowRecord(index))
        self._enter("profile", index, start_ns, None)
        self._call("/start_profile", self._started)

    def _call(self, path: str, answered: Callable[[ControlReply], None]) -> None:
        """Make a profile call; a server that never answers it ends the run at the watchdog."""
        index, pending = self._state.window, [True]

        def done(reply: ControlReply) -> None:
            pending.clear()
            answered(reply)

        def too_late() -> None:
            if pending:
                self.abort(f"profile window {index}: {path} was not answered")

        self._at(self._clock.now_ns() + self._plan.windows.watchdog_ns, too_late, exact=False)
        self._transport.control(path, done)

    def _started(self, reply: ControlReply) -> None:
        if self._over():
            return
        record = self.windows[-1]
        record.start = reply
        if reply.status != 200:
            self.abort(f"profile window {record.index}: /start_profile {_answered(reply)}")
            return
        assert self._watch is not None
        try:
            self._watch.begin(reply.after_ns)
        except OpprofError as error:
            self.abort(str(error))
            return
        self._watch_window()

    def _watch_window(self) -> None:
        if self._over():
            return
        assert self._watch is not None
        record, now_ns = self.windows[-1], self._clock.now_ns()
        assert record.start is not None
        try:
            state = self._watch.poll(now_ns)
        except OpprofError as error:
            self.abort(str(error))
            return
        record.steps = state.steps
        if state.complete:
            record.iterations_over_ns = now_ns
        elif now_ns - record.start.after_ns >= self._plan.windows.watchdog_ns:
            record.timed_out = True
        else:
            self._at(now_ns + _POLL_NS, self._watch_window, exact=False)
            return
        self._call("/stop_profile", self._stopped)

    def _stopped(self, reply: ControlReply) -> None:
        if self._over():
            return
        record = self.windows[-1]
        record.stop = reply
        if reply.status != 200:
            self.abort(f"profile window {record.index}: /stop_profile {_answered(reply)}")
            return
        if record.timed_out:
            self.abort(f"profile window {record.index}: its iterations did not end")
            return
        self._leave(reply.after_ns)
        end_ns = reply.after_ns + self._plan.windows.recovery_ns
        self._enter("recovery", record.index, reply.after_ns, end_ns)
        if record.index + 1 == self._plan.windows.count:
            self._admission.close_at(end_ns)
        self._at(end_ns, lambda: self._recovered(end_ns))

    def _recovered(self, end_ns: int) -> None:
        self._leave(end_ns)
        if self._state.window + 1 < self._plan.windows.count:
            self._open_window(self._state.window + 1, end_ns)
        else:
            self._stop_admission(end_ns)

    # ------------------------------------------------------------------ drain

    def _stop_admission(self, border_ns: int) -> None:
        self._leave(border_ns)
        self._state.draining = True
        drain = self._plan.drain
        self._enter("drain", 0, border_ns, border_ns + drain.budget_ns)
        self._at(border_ns + drain.budget_ns, self._over_budget, exact=False)
        self._at(border_ns + drain.watchdog_ns, self._give_up, exact=False)
        self._admission.stop()

    def _over_budget(self) -> None:
        self.ending.drain_over_budget = True

    def _give_up(self) -> None:
        self.ending.drain_given_up = True
        self._finish(self._clock.now_ns())

    def _idle(self) -> None:
        if self._state.draining and not self._state.finished:
            self._finish(max(self._clock.now_ns(), self.progress.start_ns))

    def _exhausted(self) -> None:
        self.abort("the manifest ran out of requests; it never wraps")

    # ------------------------------------------------------------------ helpers

    def _over(self) -> bool:
        return self._state.finished or self._state.draining

    def _at(self, due_ns: int, callback: Callable[[], None], *, exact: bool = True) -> None:
        self._state.timers.append(self._clock.call_at(due_ns, callback, exact=exact))

    def _cancel_timers(self) -> None:
        for timer in self._state.timers:
            timer.cancel()
        self._state.timers.clear()

    def _enter(
        self, kind: IntervalKind, index: int, start_ns: int, planned_end_ns: int | None
    ) -> None:
        self.progress = Progress(kind, index, start_ns, planned_end_ns)
        self.on_phase(self.progress)

    def _leave(self, end_ns: int) -> None:
        """Close the open phase at ``end_ns``; a profile phase carries its calls."""
        phase = self.progress
        if phase.kind is None:
            return
        if phase.kind == "profile":
            record = self.windows[-1]
            start, stop = record.start, record.stop
            self.intervals.append(
                Interval(
                    kind="profile",
                    index=phase.index,
                    start_mono_ns=phase.start_ns,
                    end_mono_ns=end_ns,
                    start_call_mono_ns=_call(start),
                    stop_call_mono_ns=_call(stop),
                    http_status=(_status(start), _status(stop)),
                )
            )
        else:
            self.intervals.append(Interval(phase.kind, phase.index, phase.start_ns, end_ns))
        self.progress = Progress(start_ns=end_ns)

    def _finish(self, end_ns: int) -> None:
        self._state.finished = True
        self._cancel_timers()
        self.ending.end_ns = end_ns
        self._leave(max(end_ns, self.progress.start_ns))
        self._admission.stopped = True
        self.on_finished()


def _call(reply: ControlReply | None) -> tuple[int, int] | None:
    return None if reply is None else (reply.before_ns, reply.after_ns)


def _status(reply: ControlReply | None) -> int | None:
    return None if reply is None else reply.status


def _answered(reply: ControlReply) -> str:
    return f"answered {reply.status}" if reply.status is not None else f"failed ({reply.error})"


def _ignore(_progress: Progress) -> None:
    """Default hook: nobody listens."""


def _nothing() -> None:
    """Default hook: nobody listens."""
