"""One real run, from checked options to ``client/result.json``, which is written last."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opprof.client.endpoint import Endpoint, parse_endpoint
from opprof.client.facts import RunFacts
from opprof.client.health import HealthProbe, peak_rss_mb
from opprof.client.http import HttpTransport
from opprof.client.journal import Journal
from opprof.client.limits import allow_connections
from opprof.client.lockstep import SCHEME
from opprof.client.lockstep_run import run_lockstep
from opprof.client.options import RunOptions, check_options
from opprof.client.output import OutputFolder
from opprof.client.preflight import check_server
from opprof.client.profiler import read_events
from opprof.client.progress import Display
from opprof.client.realtime import LoopClock
from opprof.client.results import timeline_of
from opprof.client.run_files import ManifestSource, RunFiles, RunReport
from opprof.client.session import Session
from opprof.client.steps import read_stream
from opprof.client.timeline import Progress
from opprof.errors import EnvironmentFailure, OpprofError
from opprof.protocol import Protocol
from opprof.rules.durations import seconds_to_ns
from opprof.workload.read import open_manifest

_LEAD_NS = 20_000_000
"""From the last preparation to the first request."""
_CONNECT_WAIT_NS = 10_000_000_000
_TICK_NS = 500_000_000
"""Records are flushed and the display is fed this often."""


def run_client(options: RunOptions, protocol: Protocol) -> RunReport:
    """Run the load and write the run's client artefacts.

    Raises:
        InputError: an argument, the manifest or the saturation result cannot be used.
        StateConflict: the result folder already holds a run.
        EnvironmentFailure: the server cannot take the run, or the disk is full.
    """
    check_options(options)
    virtual = options.base_url.startswith(SCHEME)
    endpoint = None if virtual else parse_endpoint(options.base_url, options.headers)
    output = OutputFolder(options.result_dir)
    output.check()
    with open_manifest(options.manifest, verify=True) as manifest:
        files = RunFiles(options, protocol, manifest, output)
        if endpoint is None:
            return run_lockstep(files)
        allow_connections(files.plan.load.max_concurrency)
        return _in_loop(_Run(files, endpoint))


def _in_loop(run: _Run) -> RunReport:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(run.go())
    return uvloop.run(run.go())


class _Run:
    """The effects around a session: sockets, files, signals, display."""

    def __init__(self, files: RunFiles, endpoint: Endpoint) -> None:
        self._files = files
        self._options = files.options
        self._protocol = files.protocol
        self._plan = files.plan
        self._endpoint = endpoint
        self._output = files.output
        self._writes: list[asyncio.Future[None]] = []
        self._session: Session | None = None
        self._finished = asyncio.Event()
        self._loading = self._loaded = self._cancelled = False
        self._defect: Exception | None = None

    async def go(self) -> RunReport:
        """Run inside an event loop; a signal is answered from its first turn to its last."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.set_exception_handler(self._broken)
        with _signals(loop, lambda: self._stop(task)):
            try:
                return await self._go(loop)
            except asyncio.CancelledError:
                if not self._cancelled:
                    raise
                return self._interrupted()

    async def _go(self, loop: asyncio.AbstractEventLoop) -> RunReport:
        options, plan, output = self._options, self._plan, self._output
        stream_file = self._files.engine_files()
        profile = plan.windows.count > 0
        simulated = await check_server(self._endpoint, options.model, profile=profile)
        if simulated or stream_file is None:
            self._files.check_kind(simulated)
        output.create(self._files.manifest.summary)
        journal = Journal(output.requests)
        journal.open()
        clock = LoopClock(loop)
        transport = HttpTransport(loop, clock, self._endpoint, options.model)
        source = ManifestSource(self._files.manifest)
        watch = self._files.watch(stream_file)
        session = self._session = Session(plan, clock, transport, source, watch, journal)
        session.simulated = simulated
        probe = HealthProbe(loop)
        try:
            await self._load(session, transport, probe)
        except EnvironmentFailure as error:
            self._files.say(self._session, "failed", str(error))
            raise
        finally:
            transport.close()
            output_error = _closed(journal)
        written = await asyncio.gather(*self._writes, return_exceptions=True)
        failed = output_error or next((each for each in written if each is not None), None)
        if self._defect is not None:
            self._files.say(
                self._session, "failed", f"the client failed: {type(self._defect).__name__}"
            )
            raise self._defect
        if session.machine.ending.abort_reason == "interrupted":
            return self._interrupted()
        if failed is not None:
            with contextlib.suppress(EnvironmentFailure):
                # A full disk often has room for the few bytes that say so.
                self._files.say(self._session, "failed", str(failed))
            raise failed
        facts = await self._facts(session, probe, stream_file)
        result = self._files.write(facts, clock.name, _client_row(transport))
        return RunReport(result, output.folder)

    def _stop(self, task: asyncio.Task[object]) -> None:
        """Answer a signal; what has been measured to the end is still written."""
        if self._loading and self._session is not None:
            if not self._session.tell():
                self._session.interrupt()
        elif not self._loaded and not self._cancelled:
            self._cancelled = True
            task.cancel()

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End a run one of whose callbacks failed: its chain of timers is broken."""
        error = context.get("exception")
        if not isinstance(error, Exception) or isinstance(error, OSError):
            loop.default_exception_handler(context)
            return
        self._defect = self._defect or error
        self._finished.set()
        if self._session is not None:
            self._session.interrupt()

    def _interrupted(self) -> RunReport:
        self._files.say(self._session, "interrupted", "signal received")
        return RunReport(None, self._output.folder)

    async def _facts(
        self, session: Session, probe: HealthProbe, stream_file: Path | None
    ) -> RunFacts:
        """Read what the engine wrote; a fault there costs the acceptance, not the measurement."""
        stream, events, faults = None, [], []
        if stream_file is not None:
            try:
                await _wait_for_flush(stream_file, session, self._protocol)
                stream, events = read_stream(stream_file), read_events(stream_file.parent)
            except OpprofError as error:
                faults.append(str(error))
        return session.facts(stream, probe.health(), events, faults)

    async def _load(self, session: Session, transport: HttpTransport, probe: HealthProbe) -> None:
        output, finished = self._output, self._finished
        session.on_finished = finished.set
        session.machine.on_phase = self._phase_hook(session, probe)
        session.admission.warm()
        await _connected(transport, session)
        facts = session.facts(None, None)
        output.write_timeline(timeline_of(facts, session.clock.name, "running", None))
        with (
            _quiet_collector(),
            Display(session, enabled=self._options.progress) as display,
        ):
            self._loading = True
            session.start(session.clock.now_ns() + _LEAD_NS)
            while not finished.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(finished.wait(), _TICK_NS / 1e9)
                session.journal.flush()
                display.feed()
            self._loading, self._loaded = False, True
        probe.end()

    def _phase_hook(self, session: Session, probe: HealthProbe) -> Callable[[Progress], None]:
        """Measure the client in the clean interval; keep the timeline file current after it."""
        loop, clean_seen = asyncio.get_running_loop(), False

        def enter(progress: Progress) -> None:
            nonlocal clean_seen
            if progress.kind == "clean":
                if not clean_seen:
                    probe.begin()
                clean_seen = True
            elif clean_seen:
                probe.end()
                facts = session.facts(None, None)
                timeline = timeline_of(facts, session.clock.name, "running", None)
                # In a thread: a disk flush must not hold up arrivals.
                write = self._output.write_timeline
                self._writes.append(loop.run_in_executor(None, write, timeline))

        return enter


def _client_row(transport: HttpTransport) -> dict[str, Any]:
    """Return what the client says of itself."""
    return {
        "loop": type(asyncio.get_running_loop()).__module__.split(".")[0],
        "connections": transport.connections,
        "connected_late": transport.connected_late,
        "resent": transport.resent,
        "rss_peak_mb": peak_rss_mb(),
    }


async def _connected(transport: HttpTransport, session: Session) -> None:
    """Wait until the first connections stand, so that the first requests leave together."""
    load = session.plan.load
    wanted = load.max_concurrency if load.rate_rps is None else load.burst
    give_up_ns = time.monotonic_ns() + _CONNECT_WAIT_NS
    while transport.idle < wanted:
        if time.monotonic_ns() > give_up_ns:
            raise EnvironmentFailure(
                f"only {transport.idle} of {wanted} connections could be opened; look at the "
                "server's backlog and at `ulimit -n`"
            )
        await asyncio.sleep(0.005)


async def _wait_for_flush(path: Path, session: Session, protocol: Protocol) -> None:
    """Give the recorder two flush intervals to write the steps of the last interval."""
    end_ns = session.machine.ending.end_ns or 0
    flush_s = protocol.file.layer1.flush_interval_s
    give_up_ns = time.monotonic_ns() + seconds_to_ns(2 * flush_s)
    while time.monotonic_ns() < give_up_ns:
        if _changed_ns(path) - time.time_ns() + time.monotonic_ns() > end_ns:
            return
        await asyncio.sleep(flush_s / 10)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise EnvironmentFailure(f"cannot read: {error.strerror or error}", path=path) from error


def _closed(journal: Journal) -> EnvironmentFailure | None:
    try:
        journal.close()
    except EnvironmentFailure as error:
        return error
    return None


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Any:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _quiet_collector() -> Any:
    """Keep the cycle collector out of the load: a full pass would delay arrivals by milliseconds.

    The client makes no cycles on its way; the number of requests bounds what could pile up.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
