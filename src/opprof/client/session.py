"""One run's core: admission, timeline and journal over a passed clock and transport.

The same session drives a real server and, in virtual time, an embedded engine.
"""

from __future__ import annotations

from collections.abc import Callable

from opprof.artifacts.engine import ProfilerEvent
from opprof.client.admission import Admission, Flight
from opprof.client.facts import Health, RunFacts
from opprof.client.journal import Failure, Journal
from opprof.client.plan import RunPlan
from opprof.client.ports import Clock, Outcome, RequestSource, Transport, WindowWatch
from opprof.client.steps import StepStream
from opprof.client.timeline import TimelineMachine

_CONSECUTIVE_FAILURES_MIN = 64
"""So many failures in a row, and at least one for every slot, mean that nothing is served."""


class Session:
    """A run from ``start`` to ``on_finished``."""

    def __init__(
        self,
        plan: RunPlan,
        clock: Clock,
        transport: Transport,
        source: RequestSource,
        watch: WindowWatch | None,
        journal: Journal,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.journal = journal
        self.simulated = False
        """Known before the first request, so that no state of the run's files lacks the label."""
        self.admission = Admission(clock, transport, source, plan.load)
        self.machine = TimelineMachine(plan, clock, transport, self.admission, watch)
        self.on_finished: Callable[[], None] = _nothing
        self._watch = watch
        self._failures_in_row = 0
        self.admission.on_end = self._ended
        self.admission.on_unsent = self._unsent
        self.machine.on_finished = self._finished

    def start(self, t0_ns: int) -> None:
        """Begin the warm-up at ``t0_ns``."""
        self.machine.start(t0_ns)

    def tell(self) -> bool:
        """Tell a background to stop admitting and drain; False where there is nothing to tell."""
        return self.machine.tell()

    def interrupt(self) -> None:
        """Stop at once; what is outstanding is recorded as interrupted."""
        self.machine.interrupt()

    def facts(
        self,
        stream: StepStream | None,
        health: Health | None,
        profiler_events: list[ProfilerEvent] | None = None,
        faults: list[str] | None = None,
    ) -> RunFacts:
        """Return everything that the finished run is judged by."""
        machine = self.machine
        return RunFacts(
            plan=self.plan,
            t0_ns=machine.t0_ns,
            intervals=machine.intervals,
            windows=machine.windows,
            ending=machine.ending,
            records=self.journal.records,
            failures=self.journal.failures,
            unsent=self.journal.unsent,
            finish_reasons=dict(self.journal.finish_reasons),
            outstanding_max=self.admission.outstanding_max,
            stream=stream,
            health=health,
            window_source=self._watch.source if self._watch and self.plan.windows.count else None,
            profiler_events=profiler_events or [],
            faults=faults or [],
            simulated=self.simulated,
        )

    def _ended(self, flight: Flight, outcome: Outcome) -> None:
        code = self.journal.ended(flight, outcome)
        if self.journal.write_error is not None:
            self.machine.abort("requests.jsonl cannot be written")
        if code is None:
            self._failures_in_row = 0
            return
        self._failures_in_row += 1
        limit = max(_CONSECUTIVE_FAILURES_MIN, self.plan.load.max_concurrency)
        if code == "connect":
            self.machine.abort("the server does not accept connections any more")
        elif self._failures_in_row >= limit:
            self.machine.abort(f"{limit} requests in a row failed, the last with {code}")

    def _unsent(self, flight: Flight) -> None:
        self.journal.never_ended(flight, "never_admitted")

    def _finished(self) -> None:
        end_ns = self.machine.ending.end_ns
        assert end_ns is not None
        code = "unfinished" if self.machine.ending.drain_given_up else "interrupted"
        for flight in sorted(self.admission.outstanding, key=lambda each: each.scheduled_ns):
            self.journal.never_ended(flight, code)
            assert flight.admitted_ns is not None
            self.journal.failures.append(Failure(flight.admitted_ns, end_ns, code))
        self.admission.outstanding.clear()
        self.on_finished()


def _nothing() -> None:
    """Default hook: nobody listens."""
