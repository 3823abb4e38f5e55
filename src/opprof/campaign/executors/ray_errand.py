"""One attempt on one Ray node: files there, the worker, its reports, files home."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts.campaign import ProcessRecord
from opprof.artifacts.environment import Topology
from opprof.campaign.attempt import AttemptSpec, Halt, Journal, Meeting, Outcome
from opprof.campaign.executors import frames, shipping
from opprof.campaign.executors.ray_cluster import Node, RayLimits, answer, on_node
from opprof.campaign.executors.ray_node import LOG_PREFIX, RUN_FOLDER, Bridge, Sent
from opprof.campaign.options import options_of
from opprof.campaign.run_attempt import to_the_end
from opprof.errors import EnvironmentFailure, OpprofError
from opprof.files import sha256_file
from opprof.workload.write import index_path, summary_path

_BRIDGE_THREADS = 4
_LISTING = f"{RUN_FOLDER}/"


@dataclass
class Station:
    """A node with its warden."""

    node: Node
    warden: Any
    topology: Topology
    shared: bool
    """It sees the campaign's folder."""
    ship: bool = False
    """Nothing is looked for under its path at the controller."""
    lost: bool = False
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Attempts that begin together need the same files: whoever comes second finds them there."""

    async def ask(self, method: str, *arguments: Any, seconds: float) -> Any:
        """Call the warden.

        Raises:
            NodeSilent: it is gone or does not answer.
            OpprofError: what the warden raised.
        """
        ref = getattr(self.warden, method).remote(*arguments)
        return await answer(ref, f"Ray node {self.node.name}, {method}", seconds)


class Errand:
    """Made for one call of :meth:`run`."""

    def __init__(
        self,
        ray: Any,
        station: Station,
        spec: AttemptSpec,
        journal: Journal,
        halt: Halt,
        entry: str,
        limits: RayLimits,
        say: Callable[[str], None],
        meeting: Meeting | None = None,
    ) -> None:
        self._ray, self._station, self._home, self._spec = ray, station, spec, spec
        self._journal, self._halt, self._entry = journal, halt, entry
        self._meeting = meeting
        self._waiting: list[asyncio.Task[None]] = []
        self._limits, self._say = limits, say
        self._courier = Courier(station, limits)
        self._bridge: Any = None
        self._greeted = self._has_scratch = False
        self._worker: ProcessRecord | None = None

    async def run(self) -> Outcome:
        """Execute the attempt to its end.

        Raises:
            NodeSilent: the worker's actor or the node is gone.
            OpprofError: what the attempt raised there.
            asyncio.CancelledError: cancelled, after its processes were ended there.
        """
        task = asyncio.create_task(self._whole())
        try:
            last = await asyncio.shield(task)
        except asyncio.CancelledError:
            # A second signal only hurries it (Halt); what lies on the node comes home all the same.
            await to_the_end(self._cancel(task))
            raise
        finally:
            for each in self._waiting:
                each.cancel()
            if self._meeting is not None:
                # Whoever did not get so far as to leave (a dead worker, a lost node) has left now.
                await self._meeting.leave(self._home.run)
            if self._bridge is not None:
                # The worker sees its pipes close and ends whatever it still has.
                self._ray.kill(self._bridge)
        if isinstance(last, frames.Finished):
            return last.outcome
        if isinstance(last, frames.Broke):
            raise last.exception()
        return lost_worker(last)

    async def bring_home(self) -> None:
        """Bring the attempt's files home; nothing to do where the node writes them there itself."""
        if self._station.shared or not self._has_scratch:
            return
        attempt = f"{self._home.run}.{self._home.number}"
        await self._courier.home(attempt, Path(self._home.folder), self._home.logs)

    # ------------------------------------------------------------------------ the attempt

    async def _whole(self) -> frames.Up:
        await self._prepare()
        kind = self._ray.remote(Bridge).options(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_BRIDGE_THREADS,
            scheduling_strategy=on_node(self._station.node.node_id),
        )
        self._bridge = kind.remote()
        meets = self._meeting is not None
        start = frames.encode(frames.Start(self._entry, self._spec, meets))
        log = f"{self._spec.logs}.worker.log"
        frame = await self._read("open", start, log, seconds=self._limits.place_s)
        while not isinstance(
            frame, frames.Finished | frames.Cancelled | frames.Broke | frames.Gone
        ):
            await self._take(frame)
            frame = await self._read("next", seconds=None)
        if not isinstance(frame, frames.Gone):
            call = self._bridge.finish.remote()
            await answer(call, self._station.node.name, self._limits.answer_s)
        if self._worker is not None:
            ended_ns = time.time_ns() + self._station.node.clock_offset_ns
            await self._journal.ended(msgspec.structs.replace(self._worker, ended_wall_ns=ended_ns))
        await self.bring_home()
        return frame

    async def _read(self, method: str, *arguments: Any, seconds: float | None) -> frames.Up:
        ref = getattr(self._bridge, method).remote(*arguments)
        data = await answer(ref, f"the worker on {self._station.node.name}", seconds)
        return frames.decode_up(data)

    async def _take(self, frame: frames.Up) -> None:
        """Put a report on disk; the worker goes on when this has returned."""
        if isinstance(frame, frames.PhaseEntered):
            await self._journal.phase(frame.phase, frame.reason)
        elif isinstance(frame, frames.Signalled):
            await self._journal.signalled(frame.wall_ns)
        elif isinstance(frame, frames.Hello):
            self._greeted, self._worker = True, self._named(frame.process)
            await self._journal.started(self._worker)
        elif isinstance(frame, frames.Started):
            await self._journal.started(self._named(frame.process))
        elif isinstance(frame, frames.Ended):
            await self._journal.ended(self._named(frame.process))
        elif self._meeting is None:
            return
        elif isinstance(frame, frames.Waits):
            self._waiting.append(asyncio.create_task(self._until(self._meeting, frame.until)))
        elif isinstance(frame, frames.Tells) and frame.what == "loads":
            await self._meeting.loads(self._home.run)
        elif isinstance(frame, frames.Tells):
            await self._meeting.leave(self._home.run)

    async def _until(self, meeting: Meeting, until: frames.Until) -> None:
        """Tell the worker when the round is so far."""
        problem = ""
        try:
            if until == "may_load":
                await meeting.may_load(self._home.run)
            else:
                await meeting.until_over()
        except EnvironmentFailure as error:
            problem = error.reason
        self._bridge.tell.remote(frames.encode(frames.Go(until, problem)))

    def _named(self, process: ProcessRecord) -> ProcessRecord:
        """Call the host as the slot does; two nodes may share one machine's name."""
        return msgspec.structs.replace(process, host=self._station.node.name)

    async def _cancel(self, task: asyncio.Task[frames.Up]) -> None:
        """Let the attempt end its processes, at once when :class:`Halt` says so."""
        if not self._greeted:
            task.cancel()  # Nothing was started there yet.
        loop, limits = asyncio.get_running_loop(), options_of(self._spec.campaign).limits
        patience_s = self._spec.shutdown_timeout_s + limits.exit_s + 2 * limits.grace_s
        give_up = loop.time() + patience_s + self._limits.answer_s
        told: bool | None = None
        while not task.done() and loop.time() < give_up:
            if self._greeted and told is not self._halt.now:
                told = self._halt.now
                self._bridge.tell.remote(frames.encode(frames.Cancel(told)))
            await asyncio.wait({task}, timeout=self._limits.look_s)
        task.cancel()
        try:
            await task
        except (OpprofError, asyncio.CancelledError) as error:
            if isinstance(error, OpprofError):
                self._say(f"{self._home.run}: while it was being ended: {error}")

    # -------------------------------------------------------------------- what it needs

    async def _prepare(self) -> None:
        """Make the spec one of paths on the node."""
        home = self._home
        names = {"protocol": home.protocol, "manifest": home.manifest}
        if home.saturation is not None:
            names["saturation"] = home.saturation
        changes: dict[str, Any] = dict(await self._courier.there(names))
        redacted = {
            changes[name]: _redact(path, home.redacted)
            for name, path in names.items()
            if changes[name] != path
        }
        if not self._station.shared:
            folder = await self._station.ask(
                "attempt_folder", home.run, home.number, seconds=self._limits.answer_s
            )
            self._has_scratch = True
            changes |= {"folder": f"{folder}/{RUN_FOLDER}", "logs": f"{folder}/{LOG_PREFIX}"}
            # Records name the places where everything lies in the end.
            redacted |= {changes["folder"]: home.folder, changes["logs"]: home.logs}
        launch = list(home.launch)
        if launch and launch[0] == sys.executable:
            launch[0] = self._station.node.identity.python
        self._spec = msgspec.structs.replace(
            home, launch=launch, redacted=redacted | home.redacted, **changes
        )


class Courier:
    """Files to and from one node."""

    def __init__(self, station: Station, limits: RayLimits) -> None:
        self._station, self._limits = station, limits

    async def there(self, paths: dict[str, str]) -> dict[str, str]:
        """Return where each file lies on the node; what is not there, or differs, is sent.

        A manifest's summary and index go with it.

        Raises:
            InputError: a file cannot be read here.
        """
        found = {}
        for name, path in paths.items():
            group = await asyncio.to_thread(_with_companions, Path(path))
            found[name] = path
            if self._station.ship or not all(
                await self._station.ask("has", group, seconds=self._limits.ship_s)
            ):
                async with self._station.sending:
                    places = [await self._send(each) for each in group]
                found[name] = places[0]
        return found

    async def _send(self, sent: Sent) -> str:
        path, offset = Path(sent.path), 0
        while True:
            piece = await asyncio.to_thread(shipping.read_piece, path.parent, path.name, offset)
            there: str = await self._station.ask(
                "receive", sent, offset, piece, seconds=self._limits.ship_s
            )
            offset += len(piece)
            if there:
                return there
            if not piece or offset >= sent.size:
                raise EnvironmentFailure("changed while it was being sent", path=path)

    async def home(self, attempt: str, folder: Path, logs: str) -> None:
        """Bring an attempt's run directory and logs home, whole; then forget them there.

        Raises:
            StateConflict: the run directory exists here.
            IntegrityError: bytes changed on the way.
            EnvironmentFailure: the disk is full, or the node is gone.
        """
        listing = await self._station.ask("listing", attempt, seconds=self._limits.ship_s)
        run = _below(listing, _LISTING)

        async def read(name: str, offset: int) -> bytes:
            piece: bytes = await self._station.ask(
                "read", attempt, name, offset, seconds=self._limits.ship_s
            )
            return piece

        async def read_run(name: str, offset: int) -> bytes:
            return await read(_LISTING + name, offset)

        for entry in listing.files:
            if entry.name.startswith(f"{LOG_PREFIX}."):
                await self._log(entry, read, Path(logs + entry.name[len(LOG_PREFIX) :]))
        if RUN_FOLDER in listing.folders:
            await shipping.fetch_folder(run, read_run, folder)
        await self._station.ask("forget", attempt, seconds=self._limits.answer_s)

    async def _log(self, entry: shipping.FileEntry, read: shipping.ReadPiece, path: Path) -> None:
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        try:
            await shipping.fetch_file(entry, read, part)
            part.replace(path)
        except OSError as error:
            reason = f"cannot write: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=path) from error
        finally:
            part.unlink(missing_ok=True)


def lost_worker(last: frames.Up) -> Outcome:
    """Return the outcome of an attempt whose worker process died under it."""
    reason = "its worker ended without a word"
    if isinstance(last, frames.Gone):
        reason = f"{reason} ({last.log}); ended after it: {', '.join(last.ended) or 'nothing'}"
    return Outcome(
        checks={},
        reason=reason,
        fault="infrastructure",
        accepted=None,
        drain_quarantined=None,
        gpu_seconds=0.0,
        signal_wall_ns=None,
    )


def _with_companions(path: Path) -> list[Sent]:
    """Return the file first, then what lies beside it and belongs to it."""
    beside = [each for each in (summary_path(path), index_path(path)) if each.is_file()]
    first = sha256_file(path)
    place = first[:16]
    found = [Sent(str(path), path.stat().st_size, first, place)]
    return found + [Sent(str(e), e.stat().st_size, sha256_file(e), place) for e in beside]


def _redact(path: str, names: dict[str, str]) -> str:
    for private, name in names.items():
        path = path.replace(private, name)
    return path


def _below(listing: shipping.Listing, prefix: str) -> shipping.Listing:
    folders = [name[len(prefix) :] for name in listing.folders if name.startswith(prefix)]
    files = [
        msgspec.structs.replace(entry, name=entry.name[len(prefix) :])
        for entry in listing.files
        if entry.name.startswith(prefix)
    ]
    return shipping.Listing(folders, files)
