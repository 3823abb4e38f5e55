"""The process that executes one attempt on a Ray node (``python -m`` this module).

Ray starts its own workers at niceness 15, with SIGINT blocked, ``OMP_NUM_THREADS=1`` and first in
the kernel's list of victims; a server that inherited that would not be the server that is measured
elsewhere. This process gives all of it back and is no child of Ray's worker (Ray kills the children
of its workers, but not theirs). Its only tie is a pair of pipes to the actor: when they close
(actor, node or controller died), it ends the attempt's processes at once and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from opprof.artifacts.campaign import Phase, ProcessRecord
from opprof.campaign.attempt import AttemptSpec, Halt, Journal, Meeting, Outcome
from opprof.campaign.executors import frames
from opprof.campaign.options import options_of
from opprof.campaign.processes import ProcessTable, end_marked, own_record
from opprof.errors import EnvironmentFailure, OpprofError
from opprof.host.birthmark import birthmark, give_birthmark

ENTRY = "opprof.campaign.run_attempt:run_attempt"
RAYLET_VARIABLE = "RAY_RAYLET_PID"
_OOM = "/proc/{}/oom_score_adj"


class Run(Protocol):
    """What :data:`ENTRY` names."""

    def __call__(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None
    ) -> Awaitable[Outcome]: ...


class Wires:
    """Frames to and from the actor: the attempt's journal, and its place in a round."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._acks: asyncio.Queue[None] = asyncio.Queue()
        self._one_at_a_time = asyncio.Lock()
        self._go: dict[frames.Until, asyncio.Queue[str]] = {
            "may_load": asyncio.Queue(),
            "over": asyncio.Queue(),
        }
        self.closed = False

    def listen(self, cancel: Callable[[bool], None]) -> None:
        """Take frames from now on; ``cancel`` is told whether it must be at once."""
        loop = asyncio.get_running_loop()

        def take(data: bytes | None) -> None:
            frame = None if data is None else frames.decode_down(data)
            if isinstance(frame, frames.Ack):
                self._acks.put_nowait(None)
            elif isinstance(frame, frames.Go):
                self._go[frame.until].put_nowait(frame.problem)
            elif isinstance(frame, frames.Cancel):
                cancel(frame.now)
            else:
                self.closed = True
                self._acks.put_nowait(None)
                cancel(True)

        def read() -> None:
            data: bytes | None = b""
            while data is not None:
                data = frames.read_frame(self._reader)
                # The loop is closed when the process is about to leave anyway.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(take, data)

        # A daemon: the process leaves without waiting for the other side to close the pipe.
        threading.Thread(target=read, daemon=True).start()

    async def tell(self, frame: frames.Up) -> None:
        """Send a frame and wait until it is on disk at the controller.

        When nobody listens any more it returns at once: the attempt is being ended.
        """
        async with self._one_at_a_time:
            if self.closed:
                return
            try:
                frames.write_frame(self._writer, frames.encode(frame))
            except BrokenPipeError:
                self.closed = True
                return
            await self._acks.get()

    async def phase(self, phase: Phase, reason: str = "") -> None:
        """The attempt enters a phase."""
        await self.tell(frames.PhaseEntered(phase, reason))

    async def started(self, process: ProcessRecord) -> None:
        """A child waits at its gate; without a controller it never gets through."""
        await self.tell(frames.Started(process))
        if self.closed:
            raise EnvironmentFailure("the controller is gone")

    async def ended(self, process: ProcessRecord) -> None:
        """A child's exit status is known."""
        await self.tell(frames.Ended(process))

    async def signalled(self, wall_ns: int) -> None:
        """The server was told to end."""
        await self.tell(frames.Signalled(wall_ns))

    # The meeting of a round lives at the controller, which knows whose wires these are.

    async def may_load(self, _run: str) -> None:
        """Return when the run's client may start.

        Raises:
            EnvironmentFailure: another run of the round broke off.
        """
        await self._until("may_load")

    async def loads(self, _run: str) -> None:
        """The run's client has completed a request."""
        await self.tell(frames.Tells("loads"))

    async def until_over(self) -> None:
        """Return when a background has to stop."""
        await self._until("over")

    async def leave(self, _run: str) -> None:
        """The run's load has ended."""
        await self.tell(frames.Tells("leaves"))

    async def _until(self, what: frames.Until) -> None:
        """Wait at the controller; when that is gone, the attempt is cancelled meanwhile."""
        await self.tell(frames.Waits(what))
        if problem := await self._go[what].get():
            raise EnvironmentFailure(problem)


async def serve(wires: Wires, start: frames.Start, table: ProcessTable) -> None:
    """Greet, execute the attempt, tell how it ended; return when its processes are gone."""
    halt, spec = Halt(), start.spec
    run = resolve(start.entry)

    def cancel(now: bool) -> None:
        halt.now = halt.now or now
        # A second wish only hurries the first: a second cancellation would break off the cleaning.
        if not task.cancelling():
            task.cancel()

    async def whole() -> frames.Up:
        record = own_record(table, sys.argv, wall_ns=time.time_ns())
        record = msgspec.structs.replace(record, role="worker", command=_command())
        await wires.tell(frames.Hello(record))
        return frames.Finished(await run(spec, wires, halt, wires if start.meets else None))

    task = asyncio.create_task(whole())
    wires.listen(cancel)
    try:
        last = await task
    except asyncio.CancelledError:
        last = frames.Cancelled()
    except OpprofError as error:
        last = frames.Broke(type(error).__name__, error.reason, error.path)
    grace_s = 0.0 if halt.now else options_of(spec.campaign).limits.grace_s
    await end_marked(table, spec.campaign.id, run=spec.run, grace_s=grace_s)
    await wires.tell(last)


def resolve(entry: str) -> Run:
    """Return the function that ``module:function`` names."""
    module, _, name = entry.partition(":")
    found: Run = getattr(importlib.import_module(module), name)
    return found


def undo_ray(environment: Mapping[str, str]) -> None:
    """Give this process the niceness, signals and OOM score of the node itself.

    Raises:
        EnvironmentFailure: the user may not lower the niceness; measuring with it would be wrong.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    raylet = int(environment[RAYLET_VARIABLE])
    wanted = os.getpriority(os.PRIO_PROCESS, raylet)
    if os.getpriority(os.PRIO_PROCESS, 0) != wanted:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, wanted)
        except PermissionError as error:
            raise EnvironmentFailure(
                "Ray runs its workers at a higher niceness and this user may not lower it: start "
                "the node with RAY_worker_niceness=0 in its environment"
            ) from error
    # Who is killed first when memory runs out decides nothing about a measurement that ends well.
    with contextlib.suppress(OSError):
        score = Path(_OOM.format(raylet)).read_text()
        Path(_OOM.format("self")).write_text(score)


def node_environment(own: Mapping[str, str], raylet_environ: bytes) -> dict[str, str]:
    """Return the environment in which the node was started, without what Ray added since.

    ``raylet_environ``: the raylet's, NUL-separated. A variable that Ray took away from its workers
    (``LD_PRELOAD`` of its own allocator) stays away.
    """
    pairs = (part.partition("=") for part in os.fsdecode(raylet_environ).split("\0") if "=" in part)
    given = {name: value for name, _, value in pairs}
    hidden = {"CUDA_VISIBLE_DEVICES"}  # Ray may hide it from a worker that holds no GPU.
    return {
        name: value
        for name, value in given.items()
        if (name in own or name in hidden) and not name.startswith("RAY_")
    }


def _command() -> list[str]:
    return [sys.executable, "-m", "opprof.campaign.executors.ray_worker"]


def _daemon() -> tuple[int, int]:
    """Leave session and parent; return the pipes under numbers that no child inherits."""
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return reader, writer


def main() -> int:
    """Run one attempt; the first frame says which."""
    reader, writer = _daemon()
    first = frames.read_frame(reader)
    start = None if first is None else frames.decode_down(first)
    if not isinstance(start, frames.Start):
        return 1
    try:
        # The environment names it as well, but only a birthmark lets others find and end it.
        give_birthmark(0, birthmark(start.spec.campaign.id, start.spec.run))
        undo_ray(os.environ)
        os.environ.pop(RAYLET_VARIABLE)
        asyncio.run(serve(Wires(reader, writer), start, ProcessTable()))
    except OpprofError as error:
        broke = frames.Broke(type(error).__name__, error.reason, error.path)
        with contextlib.suppress(BrokenPipeError):
            frames.write_frame(writer, frames.encode(broke))
    return 0


if __name__ == "__main__":
    sys.exit(main())
