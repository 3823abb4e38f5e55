"""Who is sent when: the closed loop and the absolute open loop under one cap.

The closed loop keeps ``max_concurrency`` requests outstanding: a request is scheduled when a slot
becomes free. The open loop schedules by :class:`Schedule` alone; a request that finds the cap
reached waits in arrival order and keeps its scheduled time, so its wait is part of its latency
from the schedule. The manifest never wraps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from opprof.client.plan import Load
from opprof.client.ports import Clock, Outcome, Prepared, RequestSource, RequestSpec, Transport
from opprof.client.schedule import Schedule
from opprof.errors import OpprofError

_READY_AHEAD_NS = 100_000_000
"""Connections for the next group are asked for this long before it is due."""

_SPARE_CONNECTIONS = 2


class Flight:
    """One request from its schedule to its end."""

    __slots__ = ("_admission", "admitted_ns", "scheduled_ns", "spec")

    def __init__(
        self, admission: Admission, spec: RequestSpec, scheduled_ns: int, admitted_ns: int | None
    ) -> None:
        self._admission = admission
        self.spec = spec
        self.scheduled_ns = scheduled_ns
        self.admitted_ns = admitted_ns

    def done(self, outcome: Outcome) -> None:
        """The transport's callback."""
        self._admission.ended(self, outcome)


class Admission:
    """Sends requests of ``source`` as ``load`` wants it; single-threaded, driven by the clock."""

    def __init__(
        self, clock: Clock, transport: Transport, source: RequestSource, load: Load
    ) -> None:
        self._clock = clock
        self._transport = transport
        self._source = source
        self._load = load
        self._schedule: Schedule | None = None
        self._close_at_ns: int | None = None
        self._prepared: deque[Prepared] = deque()
        self._next_prepare = 0
        self._refill_pending = False
        self._lookahead = max(32, 2 * min(load.burst, load.max_concurrency))
        self._waiting: deque[int] = deque()
        self._exhausted = False
        self.scheduled = 0
        """Requests taken from the schedule so far."""
        self.outstanding: set[Flight] = set()
        self.outstanding_max = 0
        self.stopped = False
        self.on_end: Callable[[Flight, Outcome], None] = _ignore
        self.on_unsent: Callable[[Flight], None] = _ignore_flight
        """A request that was scheduled and never admitted."""
        self.on_exhausted: Callable[[], None] = _nothing
        self.on_broken: Callable[[str], None] = _ignore_reason
        """The manifest can be read no further."""
        self.on_idle: Callable[[], None] = _nothing
        """Admission has stopped and nothing is outstanding."""

    def warm(self) -> None:
        """Prepare the first requests and connections before the clock starts."""
        closed = self._load.rate_rps is None
        together = min(self._load.burst, self._load.max_concurrency) + _SPARE_CONNECTIONS
        first = self._load.max_concurrency if closed else together
        self._fill(max(self._lookahead, first))
        self._transport.ready(first)

    def start(self, t0_ns: int) -> None:
        """Admit from ``t0_ns`` on."""
        if self._load.rate_rps is None:
            self._clock.call_at(t0_ns, self._start_closed, exact=True)
            return
        self._schedule = Schedule(t0_ns, self._load.rate_rps, self._load.burst)
        self._arm()

    def close_at(self, border_ns: int) -> None:
        """Admit nothing that is scheduled at or after ``border_ns``."""
        self._close_at_ns = border_ns

    def stop(self) -> None:
        """Stop admission for good; requests that still wait for the cap are never sent."""
        self.stopped = True
        while self._waiting:
            scheduled_ns = self._waiting.popleft()
            prepared = self._take()
            if prepared is not None:
                self.on_unsent(Flight(self, prepared.spec, scheduled_ns, None))
        if not self.outstanding:
            self._clock.call_soon(self.on_idle)

    @property
    def backlog(self) -> int:
        """Requests that are due and wait for the cap."""
        return len(self._waiting)

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        """A request has ended: free its slot, admit the next, report it."""
        if flight not in self.outstanding:
            # The run has ended and recorded the flight already.
            return
        self.outstanding.remove(flight)
        if not self.stopped:
            if self._load.rate_rps is None:
                self._admit(outcome.ended_ns)
            elif self._waiting:
                self._admit(self._waiting.popleft())
        self.on_end(flight, outcome)
        if self.stopped and not self.outstanding:
            self.on_idle()

    def _start_closed(self) -> None:
        now_ns = self._clock.now_ns()
        for _ in range(self._load.max_concurrency):
            self._admit(now_ns)

    def _arm(self) -> None:
        assert self._schedule is not None
        due_ns = self._schedule.due_ns(self.scheduled)
        if self._schedule.period_ns > 2 * _READY_AHEAD_NS:
            self._clock.call_at(due_ns - _READY_AHEAD_NS, self._make_ready)
        else:
            self._make_ready()
        self._clock.call_at(due_ns, self._due, exact=True)

    def _make_ready(self) -> None:
        if not self.stopped:
            self._transport.ready(self._load.burst + _SPARE_CONNECTIONS)

    def _due(self) -> None:
        schedule = self._schedule
        assert schedule is not None
        now_ns = self._clock.now_ns()
        while not self.stopped:
            due_ns = schedule.due_ns(self.scheduled)
            if due_ns > now_ns:
                self._arm()
                return
            if self._closed_for(due_ns):
                return
            if self.scheduled >= len(self._source):
                self._ran_out()
                return
            self.scheduled += 1
            if len(self.outstanding) < self._load.max_concurrency and not self._waiting:
                self._admit(due_ns)
            else:
                self._waiting.append(due_ns)

    def _closed_for(self, scheduled_ns: int) -> bool:
        return self._close_at_ns is not None and scheduled_ns >= self._close_at_ns

    def _admit(self, scheduled_ns: int) -> None:
        closed_loop = self._load.rate_rps is None
        if closed_loop and (self.stopped or self._closed_for(scheduled_ns)):
            return
        prepared = self._take()
        if prepared is None:
            self._ran_out()
            return
        self.scheduled += closed_loop
        flight = Flight(self, prepared.spec, scheduled_ns, self._clock.now_ns())
        self.outstanding.add(flight)
        if len(self.outstanding) > self.outstanding_max:
            self.outstanding_max = len(self.outstanding)
        self._transport.send(prepared, flight.done)

    def _ran_out(self) -> None:
        """A request is wanted and the manifest has none left; it never wraps."""
        if not self._exhausted:
            self._exhausted = True
            self._clock.call_soon(self.on_exhausted)

    def _take(self) -> Prepared | None:
        if not self._prepared:
            self._try_fill(1)
            if not self._prepared:
                return None
        if 2 * len(self._prepared) < self._lookahead and not self._refill_pending:
            self._refill_pending = True
            self._clock.call_soon(self._refill)
        return self._prepared.popleft()

    def _refill(self) -> None:
        self._refill_pending = False
        self._try_fill(self._lookahead)

    def _try_fill(self, depth: int) -> None:
        """Prepare requests in the middle of a run, where nobody could catch an error."""
        try:
            self._fill(depth)
        except OpprofError as error:
            self._next_prepare = len(self._source)
            self._exhausted = True
            self._clock.call_soon(partial(self.on_broken, str(error)))

    def _fill(self, depth: int) -> None:
        while len(self._prepared) < depth and self._next_prepare < len(self._source):
            self._prepared.append(self._transport.prepare(self._source[self._next_prepare]))
            self._next_prepare += 1


def _ignore(_flight: Flight, _outcome: Outcome) -> None:
    """Default hook: nobody listens."""


def _ignore_flight(_flight: Flight) -> None:
    """Default hook: nobody listens."""


def _ignore_reason(_reason: str) -> None:
    """Default hook: nobody listens."""


def _nothing() -> None:
    """Default hook: nobody listens."""
