"""One attempt from the controller's side: begun, handed to an executor, brought to its end, paid.

Waves and the co-location check both launch through here, so that every attempt has its record, its
journal and its charges in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from opprof.artifacts.campaign import Campaign, RunRecord, Slot
from opprof.artifacts.engine import EngineReport
from opprof.campaign import state, tally
from opprof.campaign.attempt import AttemptSpec, Halt, Meeting, Outcome, PlaceLost, RunExecutor
from opprof.campaign.audit import audited
from opprof.campaign.binding import Binding
from opprof.campaign.costs import pace_of, run_cost
from opprof.campaign.engine_checks import first_engine
from opprof.campaign.ledger import attempt_cost, charge_attempt, release
from opprof.campaign.ledger_file import Ledger
from opprof.campaign.options import Options, Sources, options_of
from opprof.campaign.review import attempt_name
from opprof.campaign.server import served_model
from opprof.campaign.site import SiteFacts
from opprof.campaign.stamps import clock_lines
from opprof.campaign.state import StoreJournal
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure


@dataclass(frozen=True)
class Place:
    """Where an attempt's files lie, and what it belongs to."""

    folder: str
    """Of the run directory, relative to the campaign."""
    saturation: str | None
    """Result that a moderate rate comes from, relative to the campaign."""
    background: bool = False
    """Load beside a co-location target, until it is told to stop."""
    meeting: Meeting | None = None


@dataclass(frozen=True)
class Equipment:
    """What one life of a controller works with, in waves and in the co-location check."""

    store: Store
    binding: Binding
    sources: Sources
    executor: RunExecutor
    ledger: Ledger
    site: SiteFacts
    say: Callable[[str], None]


class Launcher:
    """See the module.

    Args:
        equipment: of the controller's life.
        why: Says why attempts that are cancelled now are.
    """

    def __init__(self, equipment: Equipment, *, why: Callable[[], str]) -> None:
        self._equipment, self._why = equipment, why
        self._store, self._ledger, self._say = equipment.store, equipment.ledger, equipment.say
        self._campaign: Campaign = equipment.store.campaign()
        self._options: Options = options_of(self._campaign)
        self._active: dict[str, StoreJournal] = {}
        self.halt = Halt()
        self.pace = pace_of(equipment.binding.protocol.file, self._campaign.time_scale)

    @property
    def busy(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._active)

    async def attempt(
        self, record: RunRecord, slot: Slot, place: Place
    ) -> tuple[RunRecord, Outcome]:
        """Begin and execute one attempt; the returned record still waits for its end.

        Raises:
            asyncio.CancelledError, EnvironmentFailure: it was recorded as broken off.
        """
        binding, store = self._equipment.binding, self._store
        hashes = binding.source_hashes(record.pattern, record.config)
        record = state.begin_attempt(store, record, self._slot(slot), hashes, folder=place.folder)
        journal = StoreJournal(store, record)
        spec = self._spec(record, place)
        self._say(f"{record.run}: attempt {spec.number} begins")
        self._active[record.run] = journal
        try:
            outcome = await self._equipment.executor.execute(
                spec, journal, self.halt, place.meeting
            )
        except PlaceLost as error:
            sha256 = binding.protocol.sha256
            self.pay(state.interrupt(store, journal.record, str(error), sha256, "infrastructure"))
            raise
        except (asyncio.CancelledError, EnvironmentFailure) as error:
            reason = str(error) or self._why()
            self.pay(state.interrupt(store, journal.record, reason, binding.protocol.sha256))
            raise
        finally:
            del self._active[record.run]
        record = journal.record
        assert record.attempt is not None
        outcome = audited(
            record.run, record.attempt, outcome, binding.protocol.file, wall_ns=store.wall_ns()
        )
        name = attempt_name(record.run, record.attempt.number)
        # The artefacts know a run of the co-location check by its name within the round only.
        stops = [
            msgspec.structs.replace(stop, run=record.run, attempts=[name]) for stop in outcome.stops
        ]
        return record, msgspec.structs.replace(outcome, stops=stops)

    def finish(self, record: RunRecord, outcome: Outcome) -> RunRecord:
        """Bring an executed attempt to ``complete`` or ``failed``, and pay for it."""
        sha256 = self._equipment.binding.protocol.sha256
        record = state.finish(self._store, record, outcome, sha256)
        self.pay(record)
        return record

    def pay(self, record: RunRecord) -> None:
        """Charge an ended attempt and release what was reserved for it."""
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
        self.release(record.run, attempt.slot.wave)
        for line in clock_lines(record):
            self._say(line)
        words = record.state if not attempt.reason else f"{record.state}: "
        self._say(f"{record.run}: {words}{attempt.reason}")

    def release(self, run: str, wave: int) -> None:
        """Release what a run of a wave still has reserved."""
        lines = release(
            self._ledger.charges,
            run,
            wave,
            wall_ns=self._store.wall_ns(),
            simulated=self._ledger.simulated,
        )
        self._ledger.append(lines)

    def running_gpu_s(self, *, shutdown: bool = False) -> float:
        """Return the GPU time of the attempts under way, so far.

        ``shutdown``: with what ending them now would still take.
        """
        now, more_s = self._store.now(), self.pace.shutdown_timeout_s
        spent = 0.0
        for journal in self._active.values():
            attempt = journal.record.attempt
            if attempt is not None and attempt.slot is not None:
                spent += attempt_cost(attempt, until=now).gpu_s
                spent += len(attempt.slot.gpus) * more_s if shutdown else 0.0
        return spent

    def _slot(self, slot: Slot) -> Slot:
        cpus = slot.cpus if self._options.bind_cpus else ""
        port = slot.port if self._options.base_port else 0
        return msgspec.structs.replace(slot, cpus=cpus, port=port)

    def _first_server(self, config: str) -> tuple[EngineReport | None, str | None]:
        """Return what the first complete run of a configuration says of its server."""
        for record in self._store.runs():
            if record.config == config and record.state == "complete" and record.attempt:
                return first_engine(self._store.folder / record.attempt.folder)
        return None, None

    def _spec(self, record: RunRecord, place: Place) -> AttemptSpec:
        campaign, folder = self._campaign, self._store.folder
        equipment = self._equipment
        binding, sources, site = equipment.binding, equipment.sources, equipment.site
        launch = binding.launches[record.config]
        attempt = record.attempt
        assert attempt is not None and attempt.slot is not None
        saturation = None
        if place.saturation is not None and record.load_point == "moderate":
            saturation = str(folder / place.saturation)
        first, key = self._first_server(record.config)
        return AttemptSpec(
            campaign=campaign,
            run=record.run,
            pattern=record.pattern,
            config=record.config,
            load_point=record.load_point,
            role=record.role,
            number=attempt.number,
            slot=attempt.slot,
            folder=str(folder / attempt.folder),
            logs=str(folder / "logs" / f"{record.run}.{attempt.number}"),
            protocol=str(self._store.protocol),
            manifest=str(sources.manifest(record.pattern)),
            manifest_sha256=campaign.manifests[record.pattern],
            saturation=saturation,
            launch=list(launch.words),
            environment=dict(launch.environment),
            model=served_model(launch),
            source_hashes=dict(attempt.source_hashes),
            shutdown_timeout_s=self.pace.shutdown_timeout_s,
            expected_s=run_cost(binding.protocol.file, record, self.pace).expected_s,
            unrepresentative_before=tally.unrepresentative_before(record),
            redacted=sources.names(),
            first_engine=first,
            first_cache_key=key,
            versions=site.versions,
            model_files=site.model,
            not_available=dict(site.missing),
            background=place.background,
        )
