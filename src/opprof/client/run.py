"""One real run, from checked options to ``client/result.json``, which is written last."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opprof._version import __version__
from opprof.artifacts.run import Result, RunState
from opprof.client.endpoint import Endpoint, parse_endpoint
from opprof.client.facts import RunFacts
from opprof.client.health import HealthProbe, peak_rss_mb
from opprof.client.http import HttpTransport
from opprof.client.journal import Journal
from opprof.client.options import RunOptions, build_plan, check_options, deviations
from opprof.client.output import OutputFolder
from opprof.client.plan import RunPlan
from opprof.client.ports import RequestSpec, WindowWatch
from opprof.client.preflight import check_server
from opprof.client.profiler import (
    CollectedTrace,
    EngineProfiler,
    check_schedule,
    collect_traces,
    read_engine_profiler,
    read_events,
)
from opprof.client.progress import Display
from opprof.client.realtime import LoopClock
from opprof.client.results import Binding, artefacts_of, timeline_of
from opprof.client.saturation import DerivedRate, derive_rate
from opprof.client.schedule import seconds_to_ns
from opprof.client.session import Session
from opprof.client.steps import StepWindow, read_stream, stream_path
from opprof.client.timeline import Progress
from opprof.client.virtual import FixedWindow
from opprof.errors import EnvironmentFailure, InputError, OpprofError
from opprof.protocol import Protocol
from opprof.workload.read import Manifest, open_manifest

_LEAD_NS = 20_000_000
"""From the last preparation to the first request."""
_CONNECT_WAIT_NS = 10_000_000_000
_TICK_NS = 500_000_000
"""Records are flushed and the display is fed this often."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended."""

    result: Result | None
    """None when it was interrupted."""
    folder: Path


class ManifestSource:
    """The manifest as the client's request source."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._manifest)

    def __getitem__(self, index: int) -> RequestSpec:
        request = self._manifest.request(index)
        return RequestSpec(
            request.id, request.prompt_json, request.input_tokens, request.output_tokens
        )


def run_client(options: RunOptions, protocol: Protocol) -> RunReport:
    """Run the load and write the run's client artefacts.

    Raises:
        InputError: an argument, the manifest or the saturation result cannot be used.
        StateConflict: the result folder already holds a run.
        EnvironmentFailure: the server cannot take the run, or the disk is full.
    """
    check_options(options)
    endpoint = parse_endpoint(options.base_url, options.headers)
    output = OutputFolder(options.result_dir)
    output.check()
    with open_manifest(options.manifest, verify=True) as manifest:
        _check_seed(options, manifest)
        rate = _rate(options, manifest)
        plan = build_plan(
            options,
            pattern=manifest.pattern,
            arrival=manifest.arrival,
            rate=rate,
            protocol=protocol,
        )
        run = _Run(options, protocol, plan, rate, manifest, endpoint, output)
        return _in_loop(run)


def _in_loop(run: _Run) -> RunReport:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(run.go())
    return uvloop.run(run.go())


def _check_seed(options: RunOptions, manifest: Manifest) -> None:
    seed = manifest.summary.generator.get("workload_seed")
    if options.workload_seed is not None and seed is not None and seed != options.workload_seed:
        raise InputError(
            f"--workload-seed {options.workload_seed} is not the manifest's seed {seed}",
            path=manifest.path,
        )


def _rate(options: RunOptions, manifest: Manifest) -> DerivedRate | None:
    if options.load_point == "saturation":
        return None
    assert options.saturation_result is not None and options.rate_fraction is not None
    return derive_rate(
        options.saturation_result,
        options.rate_fraction,
        manifest_sha256=manifest.sha256,
        pattern=manifest.pattern,
        config=options.config,
        role=options.role,
    )


class _Run:
    """The effects around a session: sockets, files, signals, display."""

    def __init__(
        self,
        options: RunOptions,
        protocol: Protocol,
        plan: RunPlan,
        rate: DerivedRate | None,
        manifest: Manifest,
        endpoint: Endpoint,
        output: OutputFolder,
    ) -> None:
        self._options = options
        self._protocol = protocol
        self._plan = plan
        self._rate = rate
        self._manifest = manifest
        self._endpoint = endpoint
        self._output = output
        self._engine: EngineProfiler | None = None
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
        stream_file = self._engine_files()
        await check_server(self._endpoint, options.model, profile=plan.windows.count > 0)
        output.create(self._manifest.summary)
        journal = Journal(output.requests)
        journal.open()
        clock = LoopClock(loop)
        transport = HttpTransport(loop, clock, self._endpoint, options.model)
        source = ManifestSource(self._manifest)
        watch = self._watch(stream_file)
        session = self._session = Session(plan, clock, transport, source, watch, journal)
        probe = HealthProbe(loop)
        try:
            await self._load(session, transport, probe)
        except EnvironmentFailure as error:
            self._say("failed", str(error))
            raise
        finally:
            transport.close()
            output_error = _closed(journal)
        written = await asyncio.gather(*self._writes, return_exceptions=True)
        failed = output_error or next((each for each in written if each is not None), None)
        if self._defect is not None:
            self._say("failed", f"the client failed: {type(self._defect).__name__}")
            raise self._defect
        if session.machine.ending.abort_reason == "interrupted":
            return self._interrupted()
        if failed is not None:
            with contextlib.suppress(EnvironmentFailure):
                # A full disk often has room for the few bytes that say so.
                self._say("failed", str(failed))
            raise failed
        facts = await self._facts(session, probe, stream_file)
        return RunReport(self._write(facts, clock.name, transport), output.folder)

    def _stop(self, task: asyncio.Task[object]) -> None:
        """Answer a signal; what has been measured to the end is still written."""
        if self._loading and self._session is not None:
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
        self._say("interrupted", "signal received")
        return RunReport(None, self._output.folder)

    def _say(self, state: RunState, reason: str) -> None:
        """Write the state of a run that has no result."""
        if self._session is not None:
            facts = self._session.facts(None, None)
            clock = self._session.clock.name
            self._output.write_timeline(timeline_of(facts, clock, state, reason))

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

    def _engine_files(self) -> Path | None:
        """Return the Layer-1 stream's path and check what the engine says of its profiler."""
        options = self._options
        if options.opprof_dir is None:
            return None
        path = stream_path(options.opprof_dir)
        simulated = read_stream(path).simulated
        if self._rate is not None and self._rate.simulated != simulated:
            kinds = ("a real server", "a simulated one")
            raise InputError(
                f"is of {kinds[self._rate.simulated]}, this is {kinds[simulated]}",
                path=options.saturation_result,
            )
        self._engine = read_engine_profiler(options.opprof_dir)
        if self._engine is not None and self._plan.windows.count:
            check_schedule(
                self._engine, options.profile_warmup_iterations, options.profile_active_iterations
            )
        return path

    def _collect(self, facts: RunFacts) -> list[CollectedTrace]:
        """Put the windows' traces into the run directory, where the engine's folder is readable."""
        folder = None if self._engine is None else self._engine.profiler_dir
        target = self._output.traces
        if folder is None or target is None or not Path(folder).is_dir():
            return []
        try:
            return collect_traces(facts.profiler_events, facts.windows, Path(folder), target)
        except OpprofError as error:
            facts.faults.append(str(error))
            return []

    def _watch(self, stream_file: Path | None) -> WindowWatch:
        plan, options = self._plan, self._options
        if stream_file is not None:
            return StepWindow(stream_file, plan.windows.steps)
        seconds = options.profile_window_seconds
        if seconds is None:
            seconds = self._protocol.file.timeline.profile_window_fallback_s
        # Not scaled: the engine's iterations take as long as ever.
        return FixedWindow(seconds_to_ns(seconds))

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

    def _write(self, facts: RunFacts, clock: str, transport: HttpTransport) -> Result:
        from opprof.code_hash import code_sha256

        row = self._protocol.pattern(self._plan.pattern)
        binding = Binding(
            gates=self._protocol.file.gates,
            warmup_rule="completions" if row is None else row.warmup_rule,
            protocol_id=self._protocol.file.id,
            protocol_sha256=self._protocol.sha256,
            manifest_sha256=self._manifest.sha256,
            code_version=__version__,
            code_sha256=code_sha256(),
            extra=self._extra(transport, self._collect(facts)),
        )
        artefacts = artefacts_of(facts, clock, binding)
        self._output.write_all(artefacts, facts, binding)
        return artefacts.result

    def _extra(self, transport: HttpTransport, traces: list[CollectedTrace]) -> dict[str, Any]:
        rate = self._rate
        return {
            "traces": [asdict(trace) for trace in traces],
            "rate": None
            if rate is None
            else {
                "rate_rps": rate.rate_rps,
                "fraction": rate.fraction,
                "saturation_rps": rate.saturation_rps,
                "saturation_result_sha256": rate.saturation_sha256,
            },
            "protocol_deviations": deviations(self._options, self._protocol),
            "client": {
                "loop": type(asyncio.get_running_loop()).__module__.split(".")[0],
                "connections": transport.connections,
                "connected_late": transport.connected_late,
                "resent": transport.resent,
                "rss_peak_mb": peak_rss_mb(),
            },
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
