"""One run in lock step with an embedded engine in another process, on virtual time.

The same session, journal, gates and files as a real run; only the clock and the transport differ,
so a run takes as long as its events need and equal inputs give equal bytes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from opprof.artifacts.run import Result
from opprof.client.journal import Journal
from opprof.client.lockstep import LockstepTransport, parse_address
from opprof.client.profiler import read_events
from opprof.client.run_files import ManifestSource, RunFiles, RunReport
from opprof.client.session import Session
from opprof.client.steps import read_stream
from opprof.client.timeline import Progress
from opprof.client.virtual import VirtualClock
from opprof.errors import EnvironmentFailure, OpprofError

_LEAD_NS = 20_000_000
_SLICE_NS = 1_000_000_000
"""Between two looks at signals; records are flushed as often."""
_LIMIT_NS = 200_000 * 1_000_000_000


def run_lockstep(files: RunFiles) -> RunReport:
    """Run the load and write the run's client artefacts.

    Raises:
        EnvironmentFailure: no engine answers, or it cannot take the run, or the disk is full.
    """
    options, plan = files.options, files.plan
    stream_file = files.engine_files()
    clock = VirtualClock()
    transport = LockstepTransport(clock, parse_address(options.base_url))
    with contextlib.closing(transport), _signals() as stopped:
        hello = transport.hello
        if hello.model != options.model:
            raise EnvironmentFailure(f"the server has {hello.model!r}, not {options.model!r}")
        if plan.windows.count and not hello.profile:
            raise EnvironmentFailure("the server has no profile routes: --profiler-config")
        clock.begin(hello.now_ns)
        files.output.create(files.manifest.summary)
        journal = Journal(files.output.requests)
        journal.open()
        source = ManifestSource(files.manifest)
        session = Session(plan, clock, transport, source, files.watch(stream_file), journal)
        session.simulated = True
        try:
            _load(files, session, clock, stopped)
        finally:
            journal.close()
        if session.machine.ending.abort_reason == "interrupted":
            files.say(session, "interrupted", "signal received")
            return RunReport(None, files.output.folder)
        transport.flush()
        stream, events, faults = None, [], []
        if stream_file is not None:
            try:
                stream, events = read_stream(stream_file), read_events(stream_file.parent)
            except OpprofError as error:
                faults.append(str(error))
        facts = session.facts(stream, None, events, faults)
        result: Result = files.write(facts, clock.name, {"loop": "virtual"})
    return RunReport(result, files.output.folder)


def _load(files: RunFiles, session: Session, clock: VirtualClock, stopped: list[int]) -> None:
    """Run from the first request to the end of the drain."""
    ended: list[bool] = []
    clean: list[bool] = []

    def entered(progress: Progress) -> None:
        if progress.kind == "clean":
            clean.append(True)
        elif clean:
            files.say(session, "running", None)

    session.on_finished = lambda: ended.append(True)
    session.machine.on_phase = entered
    session.admission.warm()
    files.say(session, "running", None)
    session.start(clock.now_ns() + _LEAD_NS)
    until_ns = clock.now_ns()
    limit_ns = until_ns + _LIMIT_NS
    while not ended:
        if stopped:
            session.interrupt()
            stopped.clear()
        until_ns += _SLICE_NS
        if until_ns > limit_ns:
            files.say(session, "failed", "the run never ended")
            raise EnvironmentFailure("the run in virtual time never ended")
        clock.run(until_ns=until_ns)
        session.journal.flush()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    seen: list[int] = []
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, lambda signum, _frame: seen.append(signum))
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
