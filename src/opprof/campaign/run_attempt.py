"""One attempt, from a fresh server to its checks (protocol, "Load and execution protocol").

::

    starting ─ serving ─ loading ─ draining ─ cleaning ─ checking ─ outcome

However it ends, every process that it started is ended and waited for first. Faults of the
surroundings become an outcome; only a fault of the place itself (a full disk) is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from opprof.artifacts.campaign import ProcessRecord
from opprof.artifacts.common import Gate
from opprof.campaign import checks
from opprof.campaign.attempt import AttemptSpec, Facts, Halt, Journal, Meeting, Outcome
from opprof.campaign.client import base_url, client_command, client_deadline_s
from opprof.campaign.commands import CommandLog
from opprof.campaign.engine_checks import check_engine, health_gate
from opprof.campaign.frozen import frozen_of
from opprof.campaign.hosts import open_host
from opprof.campaign.options import Options, options_of, own_environment
from opprof.campaign.places import visible_devices
from opprof.campaign.processes import (
    ATTEMPT_VARIABLE,
    CAMPAIGN_VARIABLE,
    RUN_VARIABLE,
    Child,
    ProcessTable,
    Seen,
    end_marked,
    spawn,
)
from opprof.campaign.server import (
    Launch,
    RunPlace,
    free_port,
    server_environment,
    tail,
    wait_healthy,
)
from opprof.campaign.source_checks import sources_after
from opprof.campaign.surroundings import Surroundings
from opprof.errors import EnvironmentFailure
from opprof.host.cpus import parse_cpus
from opprof.host.ports import Host
from opprof.protocol import load_protocol

Role = Literal["server", "client", "analysis"]


class Attempt:
    """The effects of one attempt; made for one call of :meth:`run`."""

    def __init__(
        self,
        spec: AttemptSpec,
        journal: Journal,
        halt: Halt,
        table: ProcessTable,
        host: Host,
        meeting: Meeting | None = None,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        protocol = load_protocol(spec.protocol)
        assert protocol is not None
        self._spec, self._journal, self._halt, self._table = spec, journal, halt, table
        self._protocol = protocol
        self._options: Options = options_of(spec.campaign)
        self._wall_ns = wall_ns
        self._folder = Path(spec.folder)
        self._facts = Facts()
        self._commands = CommandLog(self._folder / "commands.log", wall_ns)
        self._children: list[Child] = []
        self._server: Child | None = None
        self._meeting = meeting
        self._around = Surroundings(
            host, spec, self._options.limits, idle_bytes=frozen_of(protocol.file).idle_gpu_bytes_max
        )
        self._place_failure: EnvironmentFailure | None = None
        """The controller's disk failed while processes were being ended."""

    async def run(self) -> Outcome:
        """Make the run directory, run, clean up, check.

        Raises:
            EnvironmentFailure: the run directory cannot be written.
            asyncio.CancelledError: cancelled, after its processes were ended.
        """
        self._make_folder()
        meeting = self._meeting
        try:
            try:
                try:
                    await self._serve_and_load()
                finally:
                    if meeting is not None:
                        await to_the_end(meeting.leave(self._spec.run))
                    await to_the_end(self._end_everything())
            except EnvironmentFailure as error:
                self._facts.fault = str(error)
            if self._place_failure is not None:
                raise self._place_failure
            return await self._judge()
        finally:
            await to_the_end(self._end_helpers())

    # ------------------------------------------------------------------ the phases

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True)
            (self._folder / "traces").mkdir()
            Path(self._spec.logs).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot make: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=self._folder) from error

    async def _serve_and_load(self) -> None:
        spec, facts, options = self._spec, self._facts, self._options
        facts.port = free_port(spec.slot.port)
        await self._around.look("idle")
        self._write_environment()
        if (idle := self._around.idle()).outcome == "fail":
            raise EnvironmentFailure(f"GPU not idle: {idle.reason}")
        launch = Launch(tuple(spec.launch), spec.environment)
        place = RunPlace(spec.run, self._folder, facts.port, self._devices())
        environment = server_environment(
            launch, self._marks("server"), place, own=spec.campaign.simulated
        )
        command = launch.command(place)
        server_log = self._folder / "server.log"
        facts.launched_mono_ns = time.monotonic_ns()
        facts.server_failed = True
        with _open_log(server_log) as log:
            self._server = await self._start("server", command, environment, log)
        await wait_healthy(self._server, facts.port, options, server_log)
        facts.server_failed = False
        await self._journal.phase("serving")
        self._check_engine()
        await self._around.look("before")
        self._write_environment()
        await self._load(self._server)
        await self._around.look("after")

    def _check_engine(self) -> None:
        """No load on a server that is not what the protocol froze."""
        found = check_engine(self._spec, self._protocol, self._folder)
        self._facts.engine_gates, self._facts.engine_fields = found.gates, dict(found.fields)
        if found.refusal:
            raise EnvironmentFailure(found.refusal)

    async def _load(self, server: Child) -> None:
        spec, facts = self._spec, self._facts
        command = client_command(spec, self._protocol, sys.executable, facts.port)
        deadline_s = client_deadline_s(spec, self._protocol, self._options.limits)
        environment = own_environment() | self._marks("client")
        if self._meeting is not None:
            await self._meeting.may_load(spec.run)
        await self._journal.phase("loading")
        facts.load_begun = True
        with _open_log(self._log("client")) as log:
            client = await self._start("client", command, environment, log)
        waiting = asyncio.ensure_future(client.wait(deadline_s))
        dying = asyncio.ensure_future(server.process.wait())
        watching = asyncio.ensure_future(self._around.watch())
        meeting = asyncio.ensure_future(self._meet(client))
        try:
            await asyncio.wait({waiting, dying, watching}, return_when=asyncio.FIRST_COMPLETED)
            facts.server_died = dying.done() and not waiting.done()
            if watching.done() and not waiting.done():
                facts.contamination = watching.result()
                self._table.send(client.record, signal.SIGINT)
            # A client whose server is gone says so itself, within its own time-outs.
            facts.client_exit = await waiting
        finally:
            for each in (waiting, dying, watching, meeting):
                each.cancel()
        facts.client_timed_out = facts.client_exit is None
        self._commands.add_profile_calls(
            self._folder, base_url(spec, facts.port), virtual=spec.campaign.engine == "sim-virtual"
        )

    async def _meet(self, client: Child) -> None:
        """As a background: tell the round when load flows, and end the client after the target."""
        meeting, spec = self._meeting, self._spec
        if meeting is None or not spec.background:
            return
        requests = self._folder / "client" / "requests.jsonl"
        while not requests.is_file() or requests.stat().st_size == 0:
            await asyncio.sleep(self._options.limits.look_s)
        await meeting.loads(spec.run)
        await meeting.until_over()
        self._table.send(client.record, signal.SIGINT)

    async def _end_everything(self) -> None:
        """Client, then server by its own drain, then whatever is left; all of it bounded."""
        limits, facts = self._options.limits, self._facts
        await self._end_helpers()
        if self._server is not None:
            await self._drain(self._server)
            await self._tell(self._journal.phase("cleaning"))
            met = await end_marked(
                self._table,
                self._spec.campaign.id,
                run=self._spec.run,
                grace_s=0.0 if self._halt.now else limits.grace_s,
            )
            self._note_leftovers(met)
            await self._around.memory_back()
            await self._around.look("cleanup")
            facts.freed_mono_ns = time.monotonic_ns()

    def _note_leftovers(self, met: list[Seen]) -> None:
        """Say in ``commands.log`` what the server and the client left behind; it is ended."""
        try:
            for seen in met:
                self._commands.line("cleanup", f"kill {seen.pid}", self._wall_ns())
        except EnvironmentFailure as error:
            self._place_failure = self._place_failure or error

    async def _drain(self, server: Child) -> None:
        """SIGTERM to the API parent, which drains its engine; SIGKILL to the group at the end."""
        limits, facts = self._options.limits, self._facts
        if server.process.returncode is None:
            facts.signal_wall_ns = self._wall_ns()
            await self._tell(self._journal.signalled(facts.signal_wall_ns))
            await self._tell(self._journal.phase("draining"))
            patience = 0.0 if self._halt.now else self._spec.shutdown_timeout_s + limits.exit_s
            facts.server_killed = await self._end(server, signal.SIGTERM, patience)
            # A server that was killed while its client ended is still to be reaped when it is
            # told to end: a kill that nobody here sent is its own death.
            by_kill = child_status(server) == -signal.SIGKILL
            facts.server_died = by_kill and not facts.server_killed
        else:
            facts.server_died = True
            await self._note_end(server)
        facts.server_exit = server.process.returncode

    async def _end_helpers(self) -> None:
        """End client and analysis, where they still run."""
        for child in self._children:
            if child is not self._server:
                await self._end(child, signal.SIGINT, self._options.limits.grace_s)

    async def _tell(self, report: Coroutine[object, object, None]) -> None:
        """Report, but let a full disk hold up no ending of processes."""
        try:
            await report
        except EnvironmentFailure as error:
            self._place_failure = self._place_failure or error

    async def _judge(self) -> Outcome:
        await self._journal.phase("checking", self._facts.fault)
        self._write_environment()
        has_result = (self._folder / "client" / "result.json").is_file()
        if has_result and not self._facts.fault and checks.is_measured(self._spec):
            await self._analyse()
        await self._scan()
        sources = await asyncio.to_thread(sources_after, self._spec, self._folder)
        gates = [*self._gates(), *sources]
        return checks.outcome_of(self._spec, self._protocol, self._facts, self._folder, gates)

    async def _scan(self) -> None:
        """Look for the manifest's prompts in everything that the attempt wrote (hard stop 8)."""
        spec, limits = self._spec, self._options.limits
        command = [sys.executable, "-m", "opprof", "scan", str(self._folder)]
        command += ["--private", spec.manifest, "--json"]
        # Its logs lie beside the run directory; the scan's own is being written.
        logs = Path(spec.logs)
        for path in sorted(logs.parent.iterdir()):
            if path.name.startswith(f"{logs.name}.") and path != self._scan_log:
                command += ["--also", str(path)]
        environment = own_environment() | self._marks("analysis")
        with _open_log(self._scan_log, "wb") as log:
            child = await self._start("analysis", command, environment, log)
        self._facts.scan_exit = await child.wait(limits.analysis_s)
        await self._end(child, signal.SIGINT, limits.grace_s)

    def _gates(self) -> list[Gate]:
        """Everything that the controller itself has judged."""
        health = health_gate(self._facts, self._folder, self._around.oom_kills())
        own = [health, checks.privacy_gate(self._facts.scan_exit, self._scan_log)]
        own += checks.refused_input(self._facts)
        return [*self._around.gates(self._facts), *self._facts.engine_gates, *own]

    def _write_environment(self) -> None:
        """Write what is known by now: a launch is recorded before it is made, a load likewise."""
        path, fields = self._folder / "environment.json", self._facts.engine_fields
        self._around.write(path, self._protocol, self._facts, more=fields)

    async def _analyse(self) -> None:
        options, spec = self._options, self._spec
        command = [sys.executable, "-m", "opprof", "analyze", str(self._folder)]
        command += ["--protocol", spec.protocol, "--jobs", "1"]
        environment = own_environment() | self._marks("analysis")
        with _open_log(self._log("analysis")) as log:
            child = await self._start("analysis", command, environment, log)
        self._facts.analysis_exit = await child.wait(options.limits.analysis_s)
        await self._end(child, signal.SIGINT, options.limits.grace_s)
        # An unusable trace is exit status 2 as well, but then there is an analysis that says so.
        written = (self._folder / "analysis" / "sanity.json").is_file()
        if self._facts.analysis_exit == checks.REFUSED and not written:
            self._facts.analysis_refusal = tail(self._log("analysis"))

    # -------------------------------------------------------------------- processes

    async def _start(
        self,
        role: Role,
        command: list[str],
        environment: dict[str, str],
        log: BinaryIO,
    ) -> Child:
        """Start a child: recorded on disk, logged, and only then let go."""
        # The analysis too: beside it other cells may be measured.
        cpus = parse_cpus(self._spec.slot.cpus)
        child = await spawn(
            self._table,
            role,
            command,
            campaign=self._spec.campaign.id,
            run=self._spec.run,
            environment=environment,
            log=log,
            cwd=self._folder,
            cpus=cpus,
            redact=self._redact,
            wall_ns=self._wall_ns,
        )
        self._children.append(child)
        await self._journal.started(child.record)
        self._commands.add(role, command, environment)
        child.go()
        return child

    async def _end(self, child: Child, number: signal.Signals, patience_s: float) -> bool:
        """Signal a child of ours, wait, kill its group when it does not end; note its status.

        Returns whether it had to be killed.
        """
        killed = False
        if child.process.returncode is None:
            self._table.send(child.record, number)
            if await self._patiently(child, patience_s) is None:
                if child is self._server:
                    self._facts.log_bytes_at_kill = _size(self._folder / "server.log")
                self._kill_group(child.record)
                killed = True
                await child.wait(self._options.limits.grace_s)
        await self._note_end(child)
        return killed

    async def _patiently(self, child: Child, seconds: float) -> int | None:
        """Wait for a child, but no longer than somebody is willing to (``stop --now``)."""
        waiting = asyncio.ensure_future(child.wait(seconds))
        hurry = asyncio.ensure_future(self._halt.hurried())
        try:
            await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            hurry.cancel()

    def _kill_group(self, record: ProcessRecord) -> None:
        # The leader is our own child and not reaped yet, so its group cannot be another's.
        if self._table.is_alive(record):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(record.pgid, signal.SIGKILL)

    async def _note_end(self, child: Child) -> None:
        if child.record.ended_wall_ns is not None:
            return
        child.record = msgspec.structs.replace(
            child.record, ended_wall_ns=self._wall_ns(), exit_status=child.process.returncode
        )
        await self._tell(self._journal.ended(child.record))

    def _marks(self, role: Role) -> dict[str, str]:
        spec = self._spec
        return {
            CAMPAIGN_VARIABLE: spec.campaign.id,
            RUN_VARIABLE: spec.run,
            ATTEMPT_VARIABLE: str(spec.number),
            "OPPROF_ROLE": role,
        }

    def _log(self, role: Role) -> Path:
        # Beside the run directory, which holds the contract's files only.
        return Path(f"{self._spec.logs}.{role}.log")

    @property
    def _scan_log(self) -> Path:
        return Path(f"{self._spec.logs}.scan.log")

    def _devices(self) -> str | None:
        slot = self._spec.slot
        if not slot.gpus:
            return None
        return visible_devices(slot.gpus, slot.gpu_uuids)

    def _redact(self, text: str) -> str:
        for path, name in self._spec.redacted.items():
            text = text.replace(path, name)
        return text


async def to_the_end(work: Coroutine[object, object, None]) -> None:
    """Await ``work`` to its end, however often this task is cancelled meanwhile."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def child_status(child: Child) -> int | None:
    """Return a child's exit status as it is now; None while it runs."""
    return child.process.returncode


def _open_log(path: Path, mode: Literal["ab", "wb"] = "ab") -> BinaryIO:
    try:
        return path.open(mode)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=path) from error


async def run_attempt(
    spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
) -> Outcome:
    """Run one attempt on the host of this process (see :class:`Attempt`)."""
    campaign = spec.campaign
    host = open_host(options_of(campaign), campaign.engine, campaign.id, spec.slot.host)
    return await Attempt(spec, journal, halt, ProcessTable(), host, meeting).run()
