"""Fakes behind the client's ports: a virtual clock and a server that lives on it.

They let the whole protocol run in milliseconds and deterministically; :class:`VirtualClock` is also
the clock of an embedded engine.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opprof.artifacts.run import VIRTUAL_CLOCK
from opprof.client.ports import ControlReply, Outcome, Prepared, RequestSpec, WindowState


class _VirtualTimer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """Time that jumps from event to event; equal times keep the order of their calls."""

    name = VIRTUAL_CLOCK

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._events: list[tuple[int, int, _VirtualTimer]] = []
        self._order = 0

    def begin(self, now_ns: int) -> None:
        """Set the time before anything is planned."""
        assert not self._events, "time cannot be set under planned events"
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Current virtual time."""
        return self._now_ns

    def call_at(
        self,
        due_ns: int,
        callback: Callable[[], None],
        *,
        exact: bool = False,  # noqa: ARG002
    ) -> _VirtualTimer:
        """Call back at ``due_ns``, or now when it has passed; every call is exact."""
        timer = _VirtualTimer(callback)
        self._order += 1
        heapq.heappush(self._events, (max(due_ns, self._now_ns), self._order, timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the current time, after what is already waiting for it."""
        self.call_at(self._now_ns, callback)

    def run(self, *, until_ns: int) -> None:
        """Handle every event up to ``until_ns`` (inclusive), or until none is left."""
        while self._events and self._events[0][0] <= until_ns:
            due_ns, _, timer = heapq.heappop(self._events)
            if not timer.cancelled:
                self._now_ns = due_ns
                timer.callback()


@dataclass
class FakeServer:
    """A transport with ``slots`` parallel servers and a fixed time per token.

    ``fault`` may replace an outcome (by arrival index) to rehearse failures.
    """

    clock: VirtualClock
    slots: int
    first_token_ns: int
    token_ns: int
    profile_call_ns: int = 1_000_000
    control_status: dict[str, int] = field(default_factory=dict)
    fault: Callable[[int, Outcome], Outcome] = field(default=lambda _index, outcome: outcome)
    arrivals: list[tuple[int, int | str]] = field(default_factory=list)
    """(time, request id) in order of arrival."""
    calls: list[tuple[int, str]] = field(default_factory=list)
    running: int = 0
    _queue: deque[tuple[int, RequestSpec, Callable[[Outcome], None]]] = field(default_factory=deque)

    def prepare(self, spec: RequestSpec) -> Prepared:
        """Nothing is encoded: the fake reads the specification itself."""
        return Prepared(spec, b"")

    def ready(self, count: int) -> None:
        """The fake has no connections."""

    def send(self, request: Prepared, done: Callable[[Outcome], None]) -> None:
        """Queue the request; it is served as soon as a slot is free."""
        self._queue.append((len(self.arrivals), request.spec, done))
        self.arrivals.append((self.clock.now_ns(), request.spec.request_id))
        self._serve()

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """Answer after ``profile_call_ns``."""
        before_ns = self.clock.now_ns()
        self.calls.append((before_ns, path))
        status = self.control_status.get(path, 200)

        def answer() -> None:
            done(ControlReply(before_ns, self.clock.now_ns(), status))

        self.clock.call_at(before_ns + self.profile_call_ns, answer)

    def _serve(self) -> None:
        while self._queue and self.running < self.slots:
            self.running += 1
            index, spec, done = self._queue.popleft()
            start_ns = self.clock.now_ns()
            first_ns = start_ns + self.first_token_ns
            end_ns = first_ns + (spec.output_tokens - 1) * self.token_ns

            def finish(
                index: int = index,
                spec: RequestSpec = spec,
                done: Callable[[Outcome], None] = done,
                first_ns: int = first_ns,
            ) -> None:
                self.running -= 1
                outcome = Outcome(
                    ended_ns=self.clock.now_ns(),
                    first_token_ns=first_ns,
                    http_status=200,
                    prompt_tokens=spec.input_tokens,
                    output_tokens=spec.output_tokens,
                    finish_reason="length",
                )
                done(self.fault(index, outcome))
                self._serve()

            self.clock.call_at(end_ns, finish)


class FixedWindow:
    """A profile window of a fixed length, where no step stream can be watched."""

    source = "fixed"

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._started_ns = 0

    def begin(self, started_ns: int) -> None:
        """Start the window's length at ``started_ns``."""
        self._started_ns = started_ns

    def poll(self, now_ns: int) -> WindowState:
        """Complete once the length has passed; steps are not seen."""
        return WindowState(now_ns - self._started_ns >= self._length_ns, None)


def uniform_source(
    count: int, *, input_tokens: int, output_tokens: int, prompt_json: bytes = b"[1]"
) -> Sequence[RequestSpec]:
    """A source of ``count`` equal requests, for rehearsals and tests."""
    return [RequestSpec(i, prompt_json, input_tokens, output_tokens) for i in range(count)]
