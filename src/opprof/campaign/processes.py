"""Processes that the campaign started: recorded before they do anything, signalled by no mistake.

A process is named by its pid, the time it started (field 22 of ``/proc/PID/stat``) and the boot.
Every child waits in a small shell for one line from the controller; the controller first writes the
child's record to disk and then sends the line, so no child ever does anything unrecorded, and a
child whose controller dies before that line ends by itself. Before that line it also gets its
birthmark (:mod:`opprof.host.birthmark`), by which whatever descends from it is found: also what
left the process group and the session, emptied its environment, or outlived the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from opprof.artifacts.campaign import ProcessRecord
from opprof.errors import EnvironmentFailure
from opprof.host.birthmark import birthmark, birthmark_in, give_birthmark, is_born_of

CAMPAIGN_VARIABLE = "OPPROF_CAMPAIGN"
RUN_VARIABLE = "OPPROF_RUN"
ATTEMPT_VARIABLE = "OPPROF_ATTEMPT"
_MARKS = (f"{CAMPAIGN_VARIABLE}=", f"{RUN_VARIABLE}=")
_GATE = 'read -r word || exit 125; exec "$@" </dev/null'
"""Waits for one line on its input; at its end (the controller died) exits without running."""
_LOOK_S = 0.05
_KILL_S = 10.0

Role = Literal["controller", "server", "client", "analysis", "worker"]


@dataclass(frozen=True)
class Seen:
    """A process of the table as it is now."""

    pid: int
    start_ticks: int
    pgid: int
    state: str
    """``Z``: ended, waiting to be reaped; ``T``: stopped by a signal or a debugger."""
    birthmark: int | None = None
    """As :meth:`ProcessTable.marked` found it."""


@dataclass(frozen=True)
class Ended:
    """A process of an earlier controller that lived until now and was ended."""

    birthmark: int
    """Tells the run that it was born of."""
    line: str
    """For the log."""


class ProcessTable:
    """``/proc`` of this boot; tests give a folder of their own and a killer that only notes."""

    def __init__(
        self,
        root: Path = Path("/proc"),
        *,
        kill: Callable[[int, int], None] | None = None,
    ) -> None:
        self._root = root
        self._kill = kill
        self.boot_id = self._text("sys/kernel/random/boot_id").strip()

    def look(self, pid: int) -> Seen | None:
        """Return the process with that pid, or None."""
        text = self._text(f"{pid}/stat")
        # The name stands in brackets and may hold blanks and brackets itself.
        fields = text[text.rfind(")") + 2 :].split()
        if len(fields) < 20:
            return None
        return Seen(pid, int(fields[19]), int(fields[2]), fields[0])

    def is_alive(self, record: ProcessRecord) -> bool:
        """Tell whether exactly the recorded process still runs: same boot, pid and start."""
        if record.boot_id != self.boot_id:
            return False
        seen = self.look(record.pid)
        return seen is not None and seen.start_ticks == record.start_ticks and seen.state != "Z"

    def send(self, record: ProcessRecord, number: int) -> bool:
        """Signal the recorded process; False when it is gone or its pid belongs to another."""
        if not self.is_alive(record):
            return False
        return self._send(record.pid, record.start_ticks, number)

    def marked(self, campaign: str, *, run: str | None = None) -> list[Seen]:
        """Return the living processes that were born of the campaign, this process excepted.

        ``run``: of that run only; empty for what belongs to the campaign and to no run.
        """
        found = []
        for entry in self._root.iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            before = self.look(int(entry.name))
            if before is None or before.state == "Z":
                continue
            mark = self._mark(entry.name, campaign)
            if is_born_of(mark, campaign, run) and self._still(before) is not None:
                found.append(replace(before, birthmark=mark))
        return found

    def _mark(self, pid: str, campaign: str) -> int | None:
        """Return the birthmark; where none could be given, what the environment says instead."""
        mark = birthmark_in(self._text(f"{pid}/limits"))
        if mark is not None:
            return mark
        words = self._text(f"{pid}/environ").split("\0")
        said = dict(word.split("=", 1) for word in words if word.startswith(_MARKS))
        if said.get(CAMPAIGN_VARIABLE) != campaign:
            return None
        return birthmark(campaign, said.get(RUN_VARIABLE, ""))

    def send_seen(self, seen: Seen, number: int) -> bool:
        """Signal a process that :meth:`marked` found, if it is still that process."""
        if self._still(seen) is None:
            return False
        return self._send(seen.pid, seen.start_ticks, number)

    def _still(self, seen: Seen) -> Seen | None:
        """Return that very process as it is now, running or asleep; None once it has ended."""
        now = self.look(seen.pid)
        if now is None or now.start_ticks != seen.start_ticks or now.state == "Z":
            return None
        return now

    def _send(self, pid: int, start_ticks: int, number: int) -> bool:
        def unchanged() -> bool:
            now = self.look(pid)
            return now is not None and now.start_ticks == start_ticks

        try:
            if self._kill is None:
                return _send_checked(pid, number, unchanged)
            self._kill(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _text(self, name: str) -> str:
        try:
            return (self._root / name).read_text(errors="replace")
        except OSError:
            return ""


def _send_checked(pid: int, number: int, unchanged: Callable[[], bool]) -> bool:
    """Hold the process by a descriptor, check it again, then signal what is held."""
    opened = getattr(os, "pidfd_open", None)
    if opened is None or not hasattr(signal, "pidfd_send_signal"):
        os.kill(pid, number)
        return True
    try:
        descriptor = opened(pid)
    except OSError as error:
        if isinstance(error, ProcessLookupError):
            return False
        os.kill(pid, number)
        return True
    try:
        if not unchanged():
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        os.close(descriptor)


@dataclass
class Child:
    """A started child; it waits until :meth:`go`."""

    record: ProcessRecord
    process: asyncio.subprocess.Process
    _gate: int

    def go(self) -> None:
        """Let the child run its command; call it once its record is on disk."""
        try:
            os.write(self._gate, b"go\n")
        except BrokenPipeError:
            pass  # It was ended meanwhile; waiting for it tells.
        finally:
            os.close(self._gate)

    async def wait(self, seconds: float | None) -> int | None:
        """Return the exit status, or None when it still runs after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        except TimeoutError:
            return None


async def spawn(
    table: ProcessTable,
    role: Role,
    command: Sequence[str],
    *,
    campaign: str,
    run: str,
    environment: Mapping[str, str],
    log: BinaryIO,
    cwd: Path,
    cpus: Iterable[int] = (),
    redact: Callable[[str], str] = str,
    wall_ns: Callable[[], int] = time.time_ns,
) -> Child:
    """Start a child in its own session, waiting at its gate.

    Args:
        table: where its start time is read.
        role: what it is in the campaign.
        command: program and arguments.
        campaign: that it is born of.
        run: that it is born of; empty for what belongs to the campaign and to no run.
        environment: its whole environment.
        log: where its output goes.
        cwd: its working folder.
        cpus: logical CPUs that it and all its descendants are bound to; empty for all.
        redact: replaces private paths in the recorded command.
        wall_ns: CLOCK_REALTIME.

    Raises:
        EnvironmentFailure: it cannot be started or marked, or the CPUs do not exist.
    """
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        # Whatever goes wrong from here on, the gate closes and the child ends by itself.
        stack.callback(os.close, writer)
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                *("-c", _GATE, "opprof-child", *command),
                stdin=reader,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot start {command[0]}: {error.strerror or error}"
            raise EnvironmentFailure(reason) from error
        finally:
            os.close(reader)
        seen = table.look(process.pid)
        try:
            if seen is None:
                raise EnvironmentFailure("it was ended before it began")
            give_birthmark(process.pid, birthmark(campaign, run))
            _bind(process.pid, cpus)
        except EnvironmentFailure as error:
            stack.close()
            await process.wait()
            raise EnvironmentFailure(f"cannot start {command[0]}: {error.reason}") from error
        stack.pop_all()
    record = ProcessRecord(
        role=role,
        host=socket.gethostname(),
        pid=process.pid,
        start_ticks=seen.start_ticks,
        boot_id=table.boot_id,
        pgid=process.pid,
        command=[redact(part) for part in command],
        started_wall_ns=wall_ns(),
    )
    return Child(record, process, writer)


def _bind(pid: int, cpus: Iterable[int]) -> None:
    if not cpus:
        return
    try:
        os.sched_setaffinity(pid, cpus)
    except OSError as error:
        raise EnvironmentFailure(f"cannot bind it to CPUs: {error.strerror or error}") from error


def own_record(table: ProcessTable, command: Sequence[str], *, wall_ns: int) -> ProcessRecord:
    """Return the record of this very process, as a controller."""
    seen = table.look(os.getpid())
    assert seen is not None
    return ProcessRecord(
        role="controller",
        host=socket.gethostname(),
        pid=seen.pid,
        start_ticks=seen.start_ticks,
        boot_id=table.boot_id,
        pgid=seen.pgid,
        command=list(command),
        started_wall_ns=wall_ns,
    )


async def end_marked(
    table: ProcessTable, campaign: str, *, run: str | None, grace_s: float
) -> list[Seen]:
    """End what was born of the campaign: SIGTERM, after ``grace_s`` SIGKILL; return what was met.

    Raises:
        EnvironmentFailure: something survives SIGKILL for another ``grace_s``, 10 s at least.
    """
    met: dict[tuple[int, int], Seen] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        # Also where nobody may take his time, a killed process needs a moment to be gone.
        patience_s = grace_s if number == signal.SIGTERM else max(grace_s, _KILL_S)
        give_up = time.monotonic() + patience_s
        while left := table.marked(campaign, run=run):
            for seen in left:
                key = (seen.pid, seen.start_ticks)
                if key not in met or number == signal.SIGKILL:
                    table.send_seen(seen, number)
                met[key] = seen
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(_LOOK_S)
        else:
            return list(met.values())
    pids = ", ".join(str(seen.pid) for seen in left)
    raise EnvironmentFailure(f"processes of the campaign survive SIGKILL: {pids}")


def ended(met: Iterable[Seen], where: str = "") -> list[Ended]:
    """Return what :func:`end_marked` met, with lines for the log that begin with ``where``."""
    return [
        Ended(seen.birthmark, f"{where}ended pid {seen.pid} of group {seen.pgid}")
        for seen in met
        if seen.birthmark is not None
    ]
