"""The controller: wave after wave until the protocol is done, a stop is met, or it is told to end.

It owns the campaign by a lock, writes every state, starts and ends every process, and can be killed
at any moment: what is on disk is enough for the next one. Wall time stands in records only; every
wait is on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from opprof._version import __version__
from opprof.adjudication.write import RESULT
from opprof.artifacts.campaign import (
    Campaign,
    ControllerRecord,
    HostUse,
    RunRecord,
    Slot,
    Stop,
)
from opprof.artifacts.environment import Topology
from opprof.campaign import tally
from opprof.campaign.attempt import PlaceLost
from opprof.campaign.colocate import BudgetSpent, Check, colocation_gate
from opprof.campaign.colocation import PlaceBinding, authorised_width
from opprof.campaign.colocation_read import CheckedPlace
from opprof.campaign.frozen import applies
from opprof.campaign.hosts import hosts_to_check, is_free, placed, without_host
from opprof.campaign.launcher import Equipment, Launcher, Place
from opprof.campaign.ledger import over_budget, reserve
from opprof.campaign.naming import is_of_host, run_name
from opprof.campaign.options import Options, options_of
from opprof.campaign.review import standing
from opprof.campaign.stops import NAMES, joined, judge_matrix
from opprof.campaign.waves import Done, Lane, Refusal, Wave, Where, next_in_lane, next_wave
from opprof.errors import EnvironmentFailure, OpprofError
from opprof.host.ports import Host

BUDGET_CONDITION = 9
EVERYBODYS_CONDITIONS = frozenset({1, 2, 8, 9})
"""Hard stops that end the attempts under way: hashes, host, private text, disk and budget."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Ending:
    """Why the controller goes."""

    asked: bool = False
    """By a signal."""
    stop: Stop | None = None
    failure: str = ""


class Controller:
    """One life of a campaign's controller."""

    def __init__(
        self,
        equipment: Equipment,
        host: Host,
        hosts: Sequence[Topology],
        record: ControllerRecord,
        *,
        holds_lock: Callable[[], bool],
    ) -> None:
        self._equipment, self._store = equipment, equipment.store
        self._protocol, self._ledger = equipment.binding.protocol, equipment.ledger
        self._campaign: Campaign = equipment.store.campaign()
        self._options: Options = options_of(self._campaign)
        self._host, self._hosts = host, hosts
        self._record, self._holds_lock, self._say = record, holds_lock, equipment.say
        self._ending = Ending()
        self._where: Where | None = None
        """What may be used now; one cell a host until its check has authorised more."""
        self._authorised: set[str] = set()
        """Hosts whose width stands."""
        self._launcher = Launcher(equipment, why=self._why)
        self._placed = placed(self._protocol.file, self._options)
        self._lanes: list[asyncio.Task[Any]] = []
        self._stopped_by: set[tuple[int, str, str]] = set()

    # -------------------------------------------------------------------------- life

    async def run(self) -> Ending:
        """Run until nothing is left to do; every process is gone when this returns."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told_to_end)
        self._beat("running")
        heart = asyncio.create_task(self._heartbeat())
        try:
            await self._authorise()
            await self._work()
        except EnvironmentFailure as error:
            self._ending.failure = str(error)
        finally:
            heart.cancel()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return self._ending

    def farewell(self, message: str) -> None:
        """Write the last ``controller.json`` of this life."""
        phase = "finished"
        if self._ending.failure:
            phase = "failed"
        elif self._ending.asked or self._ending.stop is not None:
            phase = "stopped"
        with contextlib.suppress(EnvironmentFailure):
            # On a full disk the lock, which is free now, says as much.
            self._beat(phase, message)

    def _told_to_end(self) -> None:
        """First signal: end gracefully; second: at once."""
        if self._ending.asked:
            self._launcher.halt.now = True
        self._ending.asked = True
        self._say("told to end: stopping what this campaign started")
        with contextlib.suppress(EnvironmentFailure):
            self._beat("stopping")
        for lane in self._lanes:
            lane.cancel()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._options.limits.heartbeat_s)
            if not self._holds_lock():
                self._ending.failure = "the lock file is gone: another controller could start"
                self._cancel_lanes()
                return
            if (stop := self._over_budget()) is not None:
                self._stop_matrix(stop)
            try:
                self._beat(self._phase)
            except EnvironmentFailure as error:
                self._ending.failure = str(error)
                self._cancel_lanes()
                return

    def _cancel_lanes(self) -> None:
        for lane in self._lanes:
            lane.cancel()

    def _beat(self, phase: str, message: str = "") -> None:
        self._record = msgspec.structs.replace(
            self._record, phase=phase, heartbeat_wall_ns=self._store.wall_ns(), message=message
        )
        self._store.write_controller(self._record)

    @property
    def _phase(self) -> str:
        return "stopping" if self._ending.asked else "running"

    @property
    def _over(self) -> bool:
        ending = self._ending
        return ending.asked or ending.stop is not None or bool(ending.failure)

    # -------------------------------------------------------------------------- waves

    async def _authorise(self) -> None:
        """Find out how wide each host may be used; the check is made on those that need it."""
        engine = self._campaign.engine
        free = is_free(engine, self._placed)
        widths = {each.host: self._width(each, free=free) for each in self._hosts}
        where = Where(tuple(self._hosts), widths, self._options.base_port or 1)
        found = hosts_to_check(engine, self._options, self._placed, self._hosts)
        self._use(where, {each.host for each in self._hosts} - {each.host for each in found})
        rule = self._placed.colocation
        if not found or rule is None:
            return
        for host in found:
            await self._burn_in(host, rule.config)
        if self._over:
            return
        self._lanes = [
            asyncio.create_task(self._check(host)) for host in found if self._holds(host.host)
        ]
        results = await asyncio.gather(*self._lanes, return_exceptions=True)
        self._lanes = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _check(self, host: Topology) -> None:
        """Make one host's check and use it as wide as its gate says; a failure stops the matrix."""
        assert self._where is not None
        campaign, version = self._campaign, self._engine_version
        place = CheckedPlace(host, campaign.engine, version, self._launcher.pace)
        port = self._where.port_base + self._where.ordinal(host.host)
        check = Check(
            self._equipment,
            self._launcher,
            place,
            port,
            over=lambda: not self._may_launch(),
            stop=lambda stops: self._stop_matrix(*stops),
        )
        try:
            gate = await colocation_gate(check)
        except BudgetSpent as error:
            self._stop_matrix(self._budget_stop(error.reason))
            return
        except PlaceLost:
            self._lose(host.host)
            return
        except (OpprofError, OSError):
            # Nothing good can follow; the checks of other hosts end too.
            self._cancel_lanes()
            raise
        if gate is None:
            return
        if gate.outcome == "stop":
            reason = f"{host.host}: {gate.reason}"
            self._stop_matrix(self._stop(0, f"co-location gate of {host.host}", reason))
            return
        sha256s, scale = {self._protocol.sha256}, campaign.time_scale
        bound = PlaceBinding(sha256s, host, campaign.engine, version, scale)
        width = authorised_width(gate, self._placed, bound)
        widths = {**self._where.widths, host.host: width}
        self._use(replace(self._where, widths=widths), {*self._authorised, host.host})

    def _use(self, where: Where, authorised: set[str]) -> None:
        """Use these hosts so wide from now on, and say so in ``controller.json``."""
        self._where, self._authorised = where, authorised
        left = {host.host for host in where.hosts}
        self._record = msgspec.structs.replace(
            self._record,
            hosts=[
                HostUse(
                    topology=host,
                    width=where.widths[host.host] if host.host in authorised & left else None,
                    lost=host.host not in left,
                )
                for host in self._hosts
            ],
        )
        self._beat(self._phase)

    def _lose(self, name: str) -> None:
        """Go on without a host."""
        if self._where is not None and self._holds(name):
            self._use(without_host(self._where, name), self._authorised)

    def _width(self, host: Topology, *, free: bool) -> int:
        if self._options.serial or not free:
            return 1
        return min(len(host.gpus), self._placed.placement.gpus)

    @property
    def _engine_version(self) -> str:
        if self._campaign.simulated:
            return __version__
        return self._protocol.file.pinned.engine_version

    async def _burn_in(self, host: Topology, config: str) -> None:
        """Warm a host's caches of a configuration: no run of it there has a cold start.

        A host whose own burn-in comes to nothing is used no more in this life.
        """
        record = self._burnin_on(host.host, config)
        while record is not None and not self._over and self._holds(host.host):
            assert self._where is not None
            where = Where((host,), {host.host: 1}, self._where.port_base)
            mine = [self._store.run(record.run)]
            balance, pace = self._ledger.balance, self._launcher.pace
            step = next_wave(mine, where, self._placed, balance, pace, beside=self._planned())
            if isinstance(step, Refusal):
                self._refused(step)
                return
            if isinstance(step, Done):
                for run, reason in step.blocked.items():
                    self._say(f"{run} does not run: {reason}")
                    if is_of_host(run):
                        self._lose(host.host)
                return
            await self._wave(step)

    async def _warm(self, wave: Wave) -> bool:
        """Burn in what a wave's hosts have not run yet; False where all of them are warm."""
        assert self._where is not None
        configs = {record.run: record.config for record in self._planned()}
        wanted = dict.fromkeys((lane.slot.host, configs[lane.runs[0]]) for lane in wave.lanes)
        cold = [] if wave.group == "burnin" else [each for each in wanted if self._cold(*each)]
        hosts = {host.host: host for host in self._where.hosts}
        for host, config in cold:
            await self._burn_in(hosts[host], config)
        return bool(cold)

    def _cold(self, host: str, config: str) -> bool:
        """Whether a configuration has burn-ins, but none that is complete on a host."""
        burnins = [r for r in self._planned() if r.role == "burnin" and r.config == config]
        slots = [r.attempt.slot for r in burnins if r.state == "complete" and r.attempt]
        return bool(burnins) and not any(slot and slot.host == host for slot in slots)

    def _burnin_on(self, host: str, config: str) -> RunRecord | None:
        """Return the configuration's burn-in for a host; None where nothing of it is planned.

        The planned one is the first host's. Every other host has its own, which is no run of the
        matrix but counts as any burn-in does.
        """
        burnins = [r for r in self._planned() if r.role == "burnin" and r.config == config]
        name = f"{burnins[0].run}@{host}" if burnins else ""
        for record in burnins:
            slot = record.attempt.slot if record.attempt else None
            done_here = record.state == "complete" and slot is not None and slot.host == host
            if done_here or record.run == name:
                return record
        planned = next(iter(burnins), None)
        if planned is None or (planned.state != "complete" and host == self._hosts[0].host):
            return planned
        own = msgspec.structs.replace(
            planned, run=name, state="pending", attempts=[], accepted=None, drain_quarantined=None
        )
        self._store.save(own)
        return own

    async def _work(self) -> None:
        while not self._over and self._where is not None:
            planned = self._planned()
            step = next_wave(
                [record for record in planned if not is_of_host(record.run)],
                self._where,
                self._placed,
                self._ledger.balance,
                self._launcher.pace,
                stop=standing(self._store),
                beside=planned,
            )
            if isinstance(step, Done):
                for run, reason in step.blocked.items():
                    self._say(f"{run} does not run: {reason}")
                self._stop_matrix(*self._judge_matrix(finished=True))
                return
            if isinstance(step, Refusal):
                self._refused(step)
                return
            if not await self._warm(step):
                await self._wave(step)

    def _planned(self) -> list[RunRecord]:
        """Return the runs of the matrix; those of the co-location check are no part of it."""
        return [record for record in self._store.runs() if record.role != "colocation"]

    def _refused(self, step: Refusal) -> None:
        if step.kind == "stop":
            self._ending.stop = standing(self._store)
            return
        if step.kind == "budget":
            self._stop_matrix(self._budget_stop(step.reason, step.numbers))
        else:
            self._stop_matrix(self._stop(0, step.kind, step.reason, step.numbers))

    def _may_launch(self) -> bool:
        """Whether anything more may be launched; shares, disk and budget are judged for it."""
        if not self._over:
            self._stop_matrix(*self._judge_matrix(finished=False))
        return not self._over

    async def _wave(self, wave: Wave) -> None:
        if not self._may_launch():
            return
        simulated, now = self._ledger.simulated, self._store.wall_ns()
        self._ledger.append(
            reserve(wave.reservations, wave=wave.number, wall_ns=now, simulated=simulated)
        )
        names = ", ".join("+".join(lane.runs) for lane in wave.lanes)
        self._say(f"wave {wave.number} ({wave.group}): {names}")
        self._lanes = [asyncio.create_task(self._lane(lane)) for lane in wave.lanes]
        await asyncio.wait(self._lanes, return_when=asyncio.FIRST_EXCEPTION)
        # Here all lanes have ended, or one has failed (a full disk): nothing good can follow.
        self._cancel_lanes()
        results = await asyncio.gather(*self._lanes, return_exceptions=True)
        self._lanes = []
        for lane in wave.lanes:
            for run in lane.runs:
                self._launcher.release(run, wave.number)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _lane(self, lane: Lane) -> None:
        while not self._over and self._holds(lane.slot.host):
            run = next_in_lane(lane, self._planned(), self._protocol.file)
            if run is None:
                return
            await self._one(self._store.run(run), lane.slot)

    # --------------------------------------------------------------------- one attempt

    async def _one(self, record: RunRecord, slot: Slot) -> None:
        place = Place(f"runs/{record.run}", self._saturation(record))
        try:
            record, outcome = await self._launcher.attempt(record, slot, place)
        except PlaceLost:
            # What the attempt left is kept; its run and all others go on elsewhere.
            self._lose(slot.host)
            return
        try:
            self._launcher.finish(record, outcome)
        finally:
            # Also where its folder cannot be put aside: the state tells of the stop already.
            self._stop_matrix(*outcome.stops)
        self._stop_matrix(*self._judge_matrix(finished=False))

    def _saturation(self, record: RunRecord) -> str | None:
        """Return the result that a moderate rate comes from, relative to the campaign.

        A run that an amendment accepts later has a result with that verdict beside its own.
        """
        name = run_name(record.pattern, record.config, "saturation")
        needed = next((each for each in self._planned() if each.run == name), None)
        if needed is None or needed.attempt is None:
            return None
        if not needed.accepted and needed.adjudications and needed.adjudications[-1].accepted:
            return f"{needed.adjudications[-1].artefact}/{RESULT}"
        return f"{needed.attempt.folder}/client/result.json"

    def _holds(self, host: str) -> bool:
        """Whether the host is one of the campaign's, and not lost."""
        return self._where is not None and host in self._where.widths

    def _why(self) -> str:
        ending = self._ending
        if ending.failure:
            return ending.failure
        if ending.stop is not None:
            return f"hard stop {ending.stop.condition}: {ending.stop.reason}"
        return "the controller was told to end"

    # --------------------------------------------------------------------------- stops

    def _judge_matrix(self, *, finished: bool) -> list[Stop]:
        """Look at shares, disk and budget over the whole campaign."""
        facts = tally.matrix_facts(
            self._planned(),
            finished=finished,
            host=self._host,
            folder=self._store.folder,
            private=self._equipment.sources.private,
            gpu_seconds=self._spent_gpu_s(),
        )
        return judge_matrix(
            facts,
            self._protocol.file,
            wall_ns=self._store.wall_ns(),
            released=self._store.released_stops(),
        )

    def _spent_gpu_s(self) -> float:
        return self._ledger.balance.consumed_ns / 1e9 + self._launcher.running_gpu_s()

    def _over_budget(self) -> Stop | None:
        """Attempts under way may overrun what was reserved for them, but never the cap."""
        budget = self._protocol.file.budget
        if not applies(self._protocol.file, BUDGET_CONDITION):
            return None
        if not self._launcher.busy or self._ending.stop is not None:
            return None
        if not over_budget(
            self._ledger.balance, self._launcher.running_gpu_s(shutdown=True), budget
        ):
            return None
        reason = f"{self._spent_gpu_s() / 3600:.3f} GPU hours, cap {budget.gpu_hours_max:g}"
        return self._budget_stop(reason)

    def _budget_stop(self, reason: str, numbers: Mapping[str, object] | None = None) -> Stop:
        """No wave goes over the cap of [budget], whether the protocol lists condition 9 or not."""
        listed = applies(self._protocol.file, BUDGET_CONDITION)
        condition = BUDGET_CONDITION if listed else 0
        return self._stop(condition, NAMES[BUDGET_CONDITION], reason, numbers)

    def _stop(
        self, condition: int, name: str, reason: str, numbers: Mapping[str, object] | None = None
    ) -> Stop:
        return Stop(
            schema=1,
            condition=condition,
            name=name,
            reason=reason,
            run="",
            wall_ns=self._store.wall_ns(),
            numbers=dict(numbers or {}),
        )

    def _stop_matrix(self, *stops: Stop) -> None:
        """Write ``stop.json``: nothing is launched until somebody has looked.

        What speaks against the host or the whole campaign ends the attempts under way too; what
        speaks against one run lets the others finish, whose GPU time is spent already. What they,
        or further conditions of one run, call for then stands beside the first for the same review.
        """
        stand = self._ending.stop
        for stop in stops:
            key = (stop.condition, stop.name, stop.run)
            if key not in self._stopped_by:
                self._stopped_by.add(key)
                stand = stop if stand is None else joined(stand, stop)
                self._say(f"hard stop {stop.condition} ({stop.name}): {stop.reason}")
        if stand is None or stand is self._ending.stop:
            return
        self._ending.stop = stand
        self._record = msgspec.structs.replace(self._record, stop=stand)
        self._store.write_stop(stand)
        if any(stop.condition in EVERYBODYS_CONDITIONS for stop in stops):
            self._cancel_lanes()
