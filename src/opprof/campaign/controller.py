"""The controller: wave after wave until the protocol is done, a stop is met, or it is told to end.

It owns the campaign by a lock, writes every state, starts and ends every process, and can be killed
at any moment: what is on disk is enough for the next one. Wall time stands in records only; every
wait is on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from opprof.artifacts.campaign import Campaign, ControllerRecord, RunRecord, Slot, Stop
from opprof.campaign import state, tally
from opprof.campaign.attempt import AttemptSpec, Halt, PlaceLost, RunExecutor
from opprof.campaign.binding import Binding
from opprof.campaign.costs import Pace, run_cost
from opprof.campaign.hosts import placed, without_host
from opprof.campaign.ledger import attempt_cost, charge_attempt, over_budget, release, reserve
from opprof.campaign.ledger_file import Ledger
from opprof.campaign.options import Options, Sources, options_of
from opprof.campaign.server import served_model
from opprof.campaign.state import StoreJournal
from opprof.campaign.stops import NAMES, judge_matrix
from opprof.campaign.store import Store, lock_is_ours
from opprof.campaign.waves import Done, Lane, Refusal, Wave, Where, next_in_lane, next_wave
from opprof.errors import EnvironmentFailure
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
        store: Store,
        binding: Binding,
        sources: Sources,
        executor: RunExecutor,
        host: Host,
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
        self._host = host
        self._record, self._say = record, say
        self._pace = Pace(self._campaign.time_scale, self._options.limits.shutdown_timeout_s)
        self._halt, self._ending = Halt(), Ending()
        self._active: dict[str, StoreJournal] = {}
        self._placed = placed(binding.protocol.file, self._options)
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
            if (stop := self._over_budget()) is not None:
                self._stop_matrix(stop)
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
                self._placed,
                self._ledger.balance,
                self._pace,
                stop=self._store.stop(),
            )
            if isinstance(step, Done):
                for run, reason in step.blocked.items():
                    self._say(f"{run} does not run: {reason}")
                for stop in self._judge_matrix(finished=True)[:1]:
                    self._stop_matrix(stop)
                return
            if isinstance(step, Refusal):
                self._refused(step)
                return
            await self._wave(step)

    def _refused(self, step: Refusal) -> None:
        if step.kind == "stop":
            self._ending.stop = self._store.stop()
            return
        condition = BUDGET_CONDITION if step.kind == "budget" else 0
        name = NAMES[condition] if condition else step.kind
        self._stop_matrix(self._stop(condition, name, step.reason, step.numbers))

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
        while not self._over and lane.slot.host in self._where.widths:
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
        self._active[record.run] = journal
        try:
            outcome = await self._executor.execute(spec, journal, self._halt)
        except PlaceLost as error:
            self._lost(slot.host, str(error), journal.record)
            return
        except (asyncio.CancelledError, EnvironmentFailure) as error:
            reason = str(error) or self._why()
            self._end_attempt(state.interrupt(store, journal.record, reason, self._sha256))
            raise
        finally:
            del self._active[record.run]
        self._end_attempt(state.finish(store, journal.record, outcome, self._sha256))
        for stop in [*outcome.stops, *self._judge_matrix(finished=False)][:1]:
            self._stop_matrix(stop)

    def _lost(self, host: str, reason: str, record: RunRecord) -> None:
        """Keep what the attempt left; its run and all others go on elsewhere.

        Raises:
            EnvironmentFailure: there is no other host.
        """
        self._end_attempt(
            state.interrupt(self._store, record, reason, self._sha256, "infrastructure")
        )
        if host in self._where.widths:
            self._where = without_host(self._where, host)

    def _end_attempt(self, record: RunRecord) -> None:
        attempt = record.attempt
        assert attempt is not None and attempt.slot is not None
        self._ledger.append(
            charge_attempt(
                record,
                attempt,
                attempt_cost(attempt),
                wall_ns=self._store.wall_ns(),
                simulated=self._ledger.simulated,
            )
        )
        self._release(record.run, attempt.slot.wave)
        words = record.state if not attempt.reason else f"{record.state}: "
        self._say(f"{record.run}: {words}{attempt.reason}")

    @property
    def _sha256(self) -> str:
        return self._binding.protocol.sha256

    def _why(self) -> str:
        ending = self._ending
        if ending.failure:
            return ending.failure
        if ending.stop is not None:
            return f"hard stop {ending.stop.condition}: {ending.stop.reason}"
        return "the controller was told to end"

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
            source_hashes=dict(record.attempt.source_hashes),
            expected_s=run_cost(self._binding.protocol.file, record, self._pace).expected_s,
            unrepresentative_before=tally.unrepresentative_before(record),
            redacted=self._sources.names(),
        )

    # --------------------------------------------------------------------------- stops

    def _judge_matrix(self, *, finished: bool) -> list[Stop]:
        """Look at shares, disk and budget over the whole campaign."""
        file = self._binding.protocol.file
        facts = tally.matrix_facts(
            self._store.runs(),
            finished=finished,
            host=self._host,
            folder=self._store.folder,
            private=self._sources.private,
            gpu_seconds=self._spent_gpu_s(),
        )
        return judge_matrix(facts, file.gates, file.budget, wall_ns=self._store.wall_ns())

    def _spent_gpu_s(self) -> float:
        return self._ledger.balance.consumed_ns / 1e9 + self._running_gpu_s()

    def _running_gpu_s(self) -> float:
        now = self._store.wall_ns()
        attempts = [journal.record.attempt for journal in self._active.values()]
        return sum(
            attempt_cost(attempt, until_wall_ns=now).gpu_s for attempt in attempts if attempt
        )

    def _over_budget(self) -> Stop | None:
        """Attempts under way may overrun what was reserved for them, but never the cap."""
        budget = self._binding.protocol.file.budget
        if not self._active or self._ending.stop is not None:
            return None
        if not over_budget(self._ledger.balance, self._running_gpu_s(), budget):
            return None
        reason = f"{self._spent_gpu_s() / 3600:.3f} GPU hours, cap {budget.gpu_hours_max:g}"
        return self._stop(BUDGET_CONDITION, NAMES[BUDGET_CONDITION], reason)

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

    def _stop_matrix(self, stop: Stop) -> None:
        """Write ``stop.json``: nothing is launched until somebody has looked.

        What speaks against the host or the whole campaign ends the attempts under way too; what
        speaks against one run lets the others finish, whose GPU time is spent already.
        """
        if self._ending.stop is not None:
            return
        self._store.write_stop(stop)
        self._ending.stop = stop
        self._say(f"hard stop {stop.condition} ({stop.name}): {stop.reason}")
        if stop.condition in EVERYBODYS_CONDITIONS:
            self._cancel_lanes()
