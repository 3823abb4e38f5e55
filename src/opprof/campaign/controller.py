"""The controller: wave after wave until the protocol is done, a stop is met, or it is told to end.

It owns the campaign by a lock, writes every state, starts and ends every process, and can be killed
at any moment: what is on disk is enough for the next one. Wall time stands in records only; every
wait is on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from opprof.artifacts.campaign import Campaign, ControllerRecord, RunRecord, Slot, Stop
from opprof.campaign import state
from opprof.campaign.attempt import AttemptSpec, Halt, Outcome, RunExecutor
from opprof.campaign.binding import Binding
from opprof.campaign.costs import Pace
from opprof.campaign.ledger import attempt_cost, charge_attempt, release, reserve
from opprof.campaign.ledger_file import Ledger
from opprof.campaign.options import Options, Sources, options_of
from opprof.campaign.server import served_model
from opprof.campaign.state import StoreJournal
from opprof.campaign.store import Store, lock_is_ours
from opprof.campaign.waves import Done, Lane, Refusal, Wave, Where, next_in_lane, next_wave
from opprof.errors import EnvironmentFailure

_BUDGET_CONDITION = 9
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
        store: Store,
        binding: Binding,
        sources: Sources,
        executor: RunExecutor,
        where: Where,
        ledger: Ledger,
        record: ControllerRecord,
        *,
        say: Callable[[str], None],
    ) -> None:
        self._store, self._binding, self._sources = store, binding, sources
        self._campaign: Campaign = store.campaign()
        self._options: Options = options_of(self._campaign)
        self._executor, self._where, self._ledger = executor, where, ledger
        self._record, self._say = record, say
        self._halt, self._ending = Halt(), Ending()
        self._lanes: list[asyncio.Task[None]] = []

    # -------------------------------------------------------------------------- life

    async def run(self) -> Ending:
        """Run until nothing is left to do; every process is gone when this returns."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._told_to_end)
        self._beat("running")
        heart = asyncio.create_task(self._heartbeat())
        try:
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
            self._halt.now = True
        self._ending.asked = True
        self._say("told to end: stopping what this campaign started")
        with contextlib.suppress(EnvironmentFailure):
            self._beat("stopping")
        for lane in self._lanes:
            lane.cancel()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._options.limits.heartbeat_s)
            if not lock_is_ours(self._store.folder):
                self._ending.failure = "the lock file is gone: another controller could start"
                self._cancel_lanes()
                return
            try:
                self._beat("stopping" if self._ending.asked else "running")
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
    def _over(self) -> bool:
        ending = self._ending
        return ending.asked or ending.stop is not None or bool(ending.failure)

    # -------------------------------------------------------------------------- waves

    async def _work(self) -> None:
        while not self._over:
            step = next_wave(
                self._store.runs(),
                self._where,
                self._binding.protocol.file,
                self._ledger.balance,
                Pace(self._campaign.time_scale, self._options.limits.shutdown_timeout_s),
                stop=self._store.stop(),
            )
            if isinstance(step, Done):
                for run, reason in step.blocked.items():
                    self._say(f"{run} does not run: {reason}")
                return
            if isinstance(step, Refusal):
                self._refused(step)
                return
            await self._wave(step)

    def _refused(self, step: Refusal) -> None:
        if step.kind == "stop":
            self._ending.stop = self._store.stop()
            return
        condition = _BUDGET_CONDITION if step.kind == "budget" else 0
        self._stop_matrix(condition, step.kind, step.reason, "", dict(step.numbers))

    async def _wave(self, wave: Wave) -> None:
        simulated, now = self._ledger.simulated, self._store.wall_ns()
        self._ledger.append(
            reserve(wave.reservations, wave=wave.number, wall_ns=now, simulated=simulated)
        )
        names = ", ".join("+".join(lane.runs) for lane in wave.lanes)
        self._say(f"wave {wave.number} ({wave.group}): {names}")
        self._lanes = [asyncio.create_task(self._lane(lane)) for lane in wave.lanes]
        results = await asyncio.gather(*self._lanes, return_exceptions=True)
        self._lanes = []
        for lane in wave.lanes:
            for run in lane.runs:
                self._release(run, wave.number)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _release(self, run: str, wave: int) -> None:
        self._ledger.append(
            release(
                self._ledger.charges,
                run,
                wave,
                wall_ns=self._store.wall_ns(),
                simulated=self._ledger.simulated,
            )
        )

    async def _lane(self, lane: Lane) -> None:
        while not self._over:
            run = next_in_lane(lane, self._store.runs())
            if run is None:
                return
            await self._one(self._store.run(run), lane.slot)

    # --------------------------------------------------------------------- one attempt

    async def _one(self, record: RunRecord, slot: Slot) -> None:
        binding, store = self._binding, self._store
        hashes = binding.source_hashes(record.pattern, record.config)
        slot = self._slot(slot)
        record = state.begin_attempt(store, record, slot, hashes, wall_ns=store.wall_ns())
        journal = StoreJournal(store, record)
        spec = self._spec(record, slot)
        self._say(f"{record.run}: attempt {spec.number} begins")
        outcome: Outcome | None = None
        try:
            outcome = await self._executor.execute(spec, journal, self._halt)
        finally:
            record = journal.record
            if outcome is None:
                reason = self._ending.failure or "the controller was told to end"
                record = state.interrupt(store, record, reason, binding.protocol.sha256)
            else:
                record = self._ended(record, outcome)
            self._charge(record)
            assert record.attempt is not None
            words = record.state if not record.attempt.reason else f"{record.state}: "
            self._say(f"{record.run}: {words}{record.attempt.reason}")

    def _ended(self, record: RunRecord, outcome: Outcome) -> RunRecord:
        record = state.finish(self._store, record, outcome, self._binding.protocol.sha256)
        for found in outcome.stops[:1]:
            self._stop_matrix(found.condition, found.name, found.reason, record.run)
        return record

    def _slot(self, slot: Slot) -> Slot:
        cpus = slot.cpus if self._options.bind_cpus else ""
        port = slot.port if self._options.base_port else 0
        return msgspec.structs.replace(slot, cpus=cpus, port=port)

    def _spec(self, record: RunRecord, slot: Slot) -> AttemptSpec:
        campaign, binding, folder = self._campaign, self._binding, self._store.folder
        manifest = self._sources.manifest(record.pattern)
        launch = binding.launches[record.config]
        saturation = None
        if record.load_point == "moderate":
            needed = f"runs/{record.pattern}-{record.config}-saturation"
            saturation = str(folder / needed / "client" / "result.json")
        assert record.attempt is not None
        return AttemptSpec(
            campaign=campaign,
            run=record.run,
            pattern=record.pattern,
            config=record.config,
            load_point=record.load_point,
            role=record.role,
            number=record.attempt.number,
            slot=slot,
            folder=str(folder / record.attempt.folder),
            logs=str(folder / "logs" / f"{record.run}.{record.attempt.number}"),
            protocol=str(self._store.protocol),
            manifest=str(manifest),
            manifest_sha256=campaign.manifests[record.pattern],
            saturation=saturation,
            launch=list(launch.words),
            model=served_model(launch),
            redacted=self._sources.names(),
        )

    def _charge(self, record: RunRecord) -> None:
        attempt = record.attempt
        assert attempt is not None and attempt.slot is not None
        now, simulated = self._store.wall_ns(), self._ledger.simulated
        cost = attempt_cost(attempt)
        self._ledger.append(charge_attempt(record, attempt, cost, wall_ns=now, simulated=simulated))
        self._release(record.run, attempt.slot.wave)

    def _stop_matrix(
        self,
        condition: int,
        name: str,
        reason: str,
        run: str,
        numbers: dict[str, float | int | str] | None = None,
    ) -> None:
        """Write ``stop.json``; nothing is launched until somebody has looked."""
        if self._ending.stop is not None:
            return
        stop = Stop(
            schema=1,
            condition=condition,
            name=name,
            reason=reason,
            run=run,
            wall_ns=self._store.wall_ns(),
            numbers=dict(numbers or {}),
        )
        self._store.write_stop(stop)
        self._ending.stop = stop
        self._say(f"hard stop {condition} ({name}): {reason}")
