"""Runs attempts on the GPUs of many hosts, through a Ray cluster that exists already.

States and artefacts are those of the local executor: the same attempt function runs on the node,
reports every phase and process to the controller before it goes on, and its run directory comes
home before the attempt counts as ended. What only this executor can meet is a lost host: the
attempt is then broken off like one whose controller died, and restarts elsewhere from the
fresh-server boundary.

Clocks. Phases are stamped by the controller. Process times and the signal to the server are the
node's CLOCK_REALTIME, as are all times inside a run directory, whose server and client share one
host; CLOCK_MONOTONIC of two hosts is never compared (A-P3-5 needs the signal and the checkpoint
only, both of one host).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts.campaign import Campaign, RunRecord
from opprof.artifacts.environment import Topology
from opprof.campaign.attempt import (
    AttemptSpec,
    CleanedUp,
    Halt,
    Journal,
    Meeting,
    Outcome,
    PlaceLost,
)
from opprof.campaign.executors import frames
from opprof.campaign.executors.ray_cluster import (
    Node,
    NodeSilent,
    RayLimits,
    alive,
    answer,
    connect,
    find_nodes,
    on_node,
)
from opprof.campaign.executors.ray_errand import Courier, Errand, Station, lost_worker
from opprof.campaign.executors.ray_node import Warden
from opprof.campaign.executors.ray_worker import ENTRY
from opprof.campaign.processes import Ended, ProcessTable, end_marked, ended
from opprof.errors import EnvironmentFailure, InputError, OpprofError
from opprof.files import read_bytes

_THREADS = 16
"""Concurrent calls of a warden: one per slot and some."""


@dataclass(frozen=True)
class RaySettings:
    """How the executor is set up."""

    address: str
    scratch: str = ""
    """Folder for attempts on nodes that do not see the campaign's; empty for the node's own
    temporary folder."""
    ship: bool = False
    """Treat every node as one that does not see the campaign's folder."""
    entry: str = ENTRY
    limits: RayLimits = field(default_factory=RayLimits)


class RayExecutor:
    """See the module; made by :meth:`open`, left by :meth:`close`."""

    def __init__(
        self,
        ray: Any,
        campaign: Campaign,
        folder: Path,
        settings: RaySettings,
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._ray, self._campaign, self._folder = ray, campaign, folder
        self._settings, self._grace_s, self._say = settings, grace_s, say
        self._limits = settings.limits
        self._stations: dict[str, Station] = {}

    @classmethod
    async def open(
        cls,
        campaign: Campaign,
        folder: Path,
        settings: RaySettings,
        *,
        grace_s: float,
        say: Callable[[str], None],
        wanted: tuple[str, ...] = (),
    ) -> RayExecutor:
        """Join the cluster, hold its GPUs, ask every node for its topology.

        Args:
            campaign: whose id marks every process.
            folder: of the campaign, absolute.
            settings: address and further choices.
            grace_s: between SIGTERM and SIGKILL.
            say: takes log lines.
            wanted: node names; empty for every node with slots.

        Raises:
            InputError: the address is none.
            EnvironmentFailure: Ray is missing, the cluster does not answer, a node's code differs,
                its GPUs are another job's.
        """
        ray = await connect(settings.address, campaign.id, settings.limits)
        executor = cls(ray, campaign, folder, settings, grace_s, say)
        async with AsyncExitStack() as unless_manned:
            unless_manned.push_async_callback(executor.close)
            nodes = await find_nodes(ray, wanted, settings.limits, say)
            stations = await asyncio.gather(*(executor._man(node) for node in nodes))
            unless_manned.pop_all()
        executor._stations = {station.node.name: station for station in stations}
        return executor

    async def close(self) -> None:
        """Leave the cluster; Ray ends the wardens and gives the GPUs back."""
        for station in self._living():
            try:
                await self._ask(station, "forget_all")
            except OpprofError as error:
                self._say(f"{station.node.name}: scratch folder left there: {error}")
        await asyncio.to_thread(self._ray.shutdown)

    def hosts(self) -> tuple[Topology, ...]:
        """Return the topology of every node that is not lost, by name, for the planner."""
        return tuple(station.topology for station in self._living())

    # ---------------------------------------------------------------------- RunExecutor

    async def execute(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
    ) -> Outcome:
        """Run the attempt on the node that its slot names.

        ``meeting``: of a round, which lives here; all of its runs are on one node.

        Raises:
            PlaceLost: the node is gone; restart the run elsewhere.
            EnvironmentFailure: the place failed otherwise (disk full).
        """
        station = self._stations.get(spec.slot.host)
        if station is None or station.lost:
            raise PlaceLost(f"{spec.run}: there is no living Ray node {spec.slot.host!r}")
        settings = self._settings
        errand = Errand(
            *(self._ray, station, spec, journal, halt),
            *(settings.entry, settings.limits, self._say, meeting),
        )
        try:
            return await errand.run()
        except NodeSilent as error:
            return await self._after_loss(station, spec, errand, error)

    async def clean_up(self, campaign: str) -> CleanedUp:
        """End what earlier lives left on any node and here, and bring home what lies there.

        It goes by marks and machines, not by what Ray knows: the cluster may be a new one, a node
        one that was lost and came back, under any name. No run is placed before it has ended.
        """
        assert campaign == self._campaign.id
        # A controller's own children (the analysis at the end) outlive it where no slot is.
        here = await end_marked(ProcessTable(), campaign, run=None, grace_s=self._grace_s)
        found = CleanedUp(ended(here), [])
        for station in self._living():
            found.ended.extend(await self._end(station, None, self._grace_s))
            found.lines.extend(await self._bring_kept(station))
        return found

    # -------------------------------------------------------------------------- stations

    def _living(self) -> list[Station]:
        return [station for _, station in sorted(self._stations.items()) if not station.lost]

    async def _man(self, node: Node) -> Station:
        """Start the node's warden, which holds the slots, and ask it for the topology."""
        held = {"num_gpus": node.slots}
        if node.resource != "GPU":
            held = {"resources": {node.resource: node.slots}}  # type: ignore[dict-item]
        kind = self._ray.remote(Warden).options(
            num_cpus=0,
            max_restarts=3,
            max_concurrency=_THREADS,
            scheduling_strategy=on_node(node.node_id),
            **held,
        )
        warden = kind.remote(node.name, self._campaign.id, self._settings.scratch)
        what = f"the slots of Ray node {node.name} were not given to this campaign"
        await answer(warden.pid.remote(), what, self._limits.place_s)
        allotted = None if node.resource != "GPU" else await self._allotted(warden)
        topology = await answer(
            warden.topology.remote(node.slots, allotted), node.name, self._limits.answer_s
        )
        shared = not self._settings.ship and await self._is_shared(warden, node)
        where = "sees the campaign's folder" if shared else "gets and sends files"
        self._say(f"ray node {node.name}: {where}")
        return Station(node, warden, topology, shared, self._settings.ship)

    async def _allotted(self, warden: Any) -> list[str]:
        ref = warden.__ray_call__.remote(_gpu_ids)
        found: list[str] = await answer(ref, "GPUs", self._limits.answer_s)
        return found

    async def _is_shared(self, warden: Any, node: Node) -> bool:
        """Tell whether a token written here is read there and the reply the other way."""
        token, reply = (f"opprof-{secrets.token_hex(8)}" for _ in range(2))
        mine, theirs = self._folder / f".{token}", self._folder / f".{reply}"
        try:
            mine.write_text(token)
            call = warden.answer.remote(str(self._folder), token, reply)
            said = await answer(call, node.name, self._limits.answer_s)
            return bool(said) and theirs.is_file() and read_bytes(theirs) == reply.encode()
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write: {error.strerror or error}", path=self._folder
            ) from error
        finally:
            mine.unlink(missing_ok=True)
            theirs.unlink(missing_ok=True)

    async def _end(self, station: Station, run: str | None, grace_s: float) -> list[Ended]:
        """End what is the campaign's on a node."""
        found: list[Ended] = await self._ask(station, "end", run, grace_s)
        return found

    async def _ask(self, station: Station, method: str, *arguments: Any) -> Any:
        # `end` waits once for SIGTERM and once for SIGKILL.
        seconds = self._limits.answer_s + 2 * self._grace_s
        return await station.ask(method, *arguments, seconds=seconds)

    # ------------------------------------------------------------------------------ loss

    async def _after_loss(
        self, station: Station, spec: AttemptSpec, errand: Errand, error: NodeSilent
    ) -> Outcome:
        """Find out what was lost; leave no process of the attempt where one can be reached.

        Returns:
            the outcome of an attempt whose worker died on a living node.

        Raises:
            PlaceLost: the node is gone.
        """
        name = station.node.name
        if not await self._is_dead(station.node):
            try:
                for each in await self._end(station, spec.run, 0.0):
                    self._say(each.line)
                await errand.bring_home()
                return lost_worker(frames.Gone([], f"the node {name} lives; {error}"))
            except NodeSilent as second:
                error = second
        station.lost = True
        self._say(f"the Ray node {name} was lost: {error}")
        # Its machine may be alive and reachable through another node of it.
        for other in self._living():
            if other.node.identity.boot_id == station.node.identity.boot_id:
                for each in await self._end(other, spec.run, 0.0):
                    self._say(each.line)
                break
        raise PlaceLost(f"the Ray node {name} was lost: {error}") from error

    async def _is_dead(self, node: Node) -> bool:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._limits.loss_s
        while loop.time() < give_up:
            if node.node_id not in await asyncio.to_thread(alive, self._ray):
                return True
            if await self._fresh_answer(node):
                return False
            await asyncio.sleep(self._limits.look_s)
        return False

    async def _fresh_answer(self, node: Node) -> bool:
        """Tell whether the node's raylet still starts tasks, which a dead one cannot."""
        task = self._ray.remote(num_cpus=0, max_retries=0)(_nothing)
        ref = task.options(scheduling_strategy=on_node(node.node_id)).remote()
        try:
            await answer(ref, node.name, self._limits.answer_s)
        except EnvironmentFailure:
            return False
        return True

    async def _bring_kept(self, station: Station) -> list[str]:
        """Bring home attempts of an earlier controller that still lie on a node."""
        lines = []
        for attempt in await self._ask(station, "kept"):
            run, _, number = attempt.rpartition(".")
            home = home_of_kept(self._folder, run, int(number))
            if home is None:
                lines.append(f"{station.node.name}: attempt {attempt} stays there, unclaimed")
                continue
            courier = Courier(station, self._limits)
            await courier.home(attempt, home, str(self._folder / "logs" / attempt))
            lines.append(f"{station.node.name}: brought home attempt {attempt}")
        return lines


def home_of_kept(folder: Path, run: str, number: int) -> Path | None:
    """Return where an attempt that lies on a node belongs; None when the record says otherwise.

    Only the last attempt of a run, still in its run directory's place, is taken in: the controller
    that recovers the campaign moves it aside with its hashes.
    """
    try:
        data = read_bytes(folder / "state" / f"{run}.json")
        record = msgspec.json.decode(data, type=RunRecord)
    except (InputError, msgspec.MsgspecError):
        return None
    last = record.attempt
    if last is None or last.number != number or record.state == "complete":
        return None
    home = folder / last.folder
    return None if home.exists() else home


def _gpu_ids(_: object) -> list[str]:
    import ray

    return [str(each) for each in ray.get_gpu_ids()]


def _nothing() -> None:
    return None
