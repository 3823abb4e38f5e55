"""How records change: a new attempt, its journal, its end, and what a crash left of one.

Every function leaves the folder in a state that the next controller understands: folders are moved
before or after the state that explains them, never without one, and repeating a step is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from opprof.artifacts.campaign import (
    Attempt,
    Phase,
    ProcessRecord,
    RunRecord,
    Slot,
)
from opprof.artifacts.common import Outcome as GateOutcome
from opprof.campaign.attempt import Fault, Outcome
from opprof.campaign.ledger import attempt_cost
from opprof.campaign.naming import round_of
from opprof.campaign.plan import ACTIVE
from opprof.campaign.processes import Ended
from opprof.campaign.stamps import Stamp, clock_lines
from opprof.campaign.store import Store, with_attempt
from opprof.campaign.unseen import NOTHING, Known, end_of
from opprof.errors import OpprofError, StateConflict
from opprof.host.birthmark import is_born_in
from opprof.integrity.provenance import hash_folder, listing_sha256, record_folder, record_path

_BAD: frozenset[GateOutcome] = frozenset({"fail"})


class StoreJournal:
    """A run's journal straight into its state file (local attempts)."""

    def __init__(self, store: Store, record: RunRecord) -> None:
        self._store = store
        self.record = record

    async def phase(self, phase: Phase, reason: str = "") -> None:
        """Save the next phase."""
        self.record = self._store.transition(self.record, phase, reason)

    async def started(self, process: ProcessRecord) -> None:
        """Save a child that waits at its gate."""
        attempt = self._attempt
        processes = [*attempt.processes, process]
        self._save(msgspec.structs.replace(attempt, processes=processes))
        self._store.crash_point(self.record.run, f"{process.role}.recorded")

    async def ended(self, process: ProcessRecord) -> None:
        """Save a child's end in the place of its start."""
        attempt = self._attempt
        key = (process.pid, process.start_ticks, process.boot_id)
        processes = [
            process if (old.pid, old.start_ticks, old.boot_id) == key else old
            for old in attempt.processes
        ]
        self._save(msgspec.structs.replace(attempt, processes=processes))

    async def signalled(self, wall_ns: int) -> None:
        """Save when the server was told to end."""
        self._save(msgspec.structs.replace(self._attempt, signal_wall_ns=wall_ns))

    @property
    def _attempt(self) -> Attempt:
        assert self.record.attempt is not None
        return self.record.attempt

    def _save(self, attempt: Attempt) -> None:
        self.record = with_attempt(self.record, attempt)
        self._store.save(self.record)


def begin_attempt(
    store: Store,
    record: RunRecord,
    slot: Slot,
    hashes: Mapping[str, str],
    *,
    folder: str,
) -> RunRecord:
    """Save and return the record with a new attempt in phase ``starting``."""
    attempt = Attempt(
        number=len(record.attempts) + 1,
        folder=folder,
        phase="starting",
        transitions=[store.step("starting")],
        slot=slot,
        processes=[],
        source_hashes=dict(hashes),
        checks={},
    )
    record = msgspec.structs.replace(record, attempts=[*record.attempts, attempt], state="starting")
    store.save(record)
    return record


def finish(store: Store, record: RunRecord, outcome: Outcome, protocol_sha256: str) -> RunRecord:
    """Bring an attempt to ``complete`` or ``failed``.

    ``complete`` is written last: checks first, then the run directory's hashes, then the state.
    A crash in between is finished by :func:`recover`, not repeated. The attempt's hard stops are
    written with its state, so that no crash parts them.
    """
    assert record.attempt is not None
    cost = attempt_cost(record.attempt)
    attempt = msgspec.structs.replace(
        record.attempt,
        checks=outcome.checks,
        reason=outcome.reason,
        gpu_seconds=cost.gpu_s,
        sanity=outcome.sanity,
        stops=outcome.stops,
    )
    record = msgspec.structs.replace(
        with_attempt(record, attempt),
        accepted=outcome.accepted,
        drain_quarantined=outcome.drain_quarantined,
    )
    if outcome.reason:
        record = store.transition(record, "failed", outcome.reason, fault=outcome.fault)
        return put_aside(store, record, protocol_sha256)
    attempt = msgspec.structs.replace(attempt, judged_sha256=_contents(store, attempt))
    record = with_attempt(record, attempt)
    store.save(record)
    return complete(store, record, protocol_sha256)


def interrupt(
    store: Store,
    record: RunRecord,
    reason: str,
    protocol_sha256: str,
    fault: Fault = "interrupted",
    *,
    until: Stamp | None = None,
) -> RunRecord:
    """End an attempt that was broken off; its folder is kept.

    ``until``: until when its server may have owned its GPUs (default: now).
    """
    assert record.attempt is not None
    cost = attempt_cost(record.attempt, until=until or store.now())
    record = store.transition(record, "interrupted", reason, fault=fault, gpu_seconds=cost.gpu_s)
    return put_aside(store, record, protocol_sha256)


def put_aside(store: Store, record: RunRecord, protocol_sha256: str) -> RunRecord:
    """Move a failed or broken-off attempt's folder away and record its hashes."""
    assert record.attempt is not None
    record = store.move_aside(record)
    attempt = record.attempt
    assert attempt is not None
    if (store.folder / attempt.folder).is_dir():
        if not record_path(store.folder, attempt.folder).exists():
            record_folder(
                store.folder,
                attempt.folder,
                attempt=attempt.number,
                protocol_sha256=protocol_sha256,
                wall_ns=store.wall_ns(),
                broken=True,
            )
        store.crash_point(record.run, "attempt.recorded")
    return record


def recover(
    store: Store,
    protocol_sha256: str,
    say: Callable[[str], None],
    survivors: Sequence[Ended] = (),
    known: Known = NOTHING,
) -> list[RunRecord]:
    """Bring every run that a dead controller left into order; its processes must be gone already.

    An attempt whose seven checks were saved is completed where its files are still those that were
    checked; any other attempt under way becomes ``interrupted`` and its folder is kept. It is
    charged until now where a process of it is among the ``survivors`` that were just ended, else as
    :mod:`opprof.campaign.unseen` says. Returns the records.
    """
    records, planned = [], store.runs()
    for record in planned:
        attempt = record.attempt
        if attempt is None or record.state == "complete":
            records.append(record)
            continue
        if record.state in ACTIVE:
            if _was_judged(attempt) and _counts_alone(record, planned):
                record = _completed_late(store, record, protocol_sha256, say)
            else:
                say(f"{record.run}: attempt {attempt.number} was broken off in {record.state}")
                lived = any(is_born_in(each.birthmark, record.run) for each in survivors)
                record = interrupt(
                    store,
                    record,
                    f"the controller ended in {record.state}",
                    protocol_sha256,
                    until=None if lived else _unseen_end(store, record.run, attempt, known),
                )
                for line in clock_lines(record):
                    say(line)
        else:
            record = put_aside(store, record, protocol_sha256)
        records.append(record)
    return records


def _unseen_end(store: Store, run: str, attempt: Attempt, known: Known) -> Stamp:
    written_wall_ns = store.last_written_ns(attempt.folder)
    return end_of(run, attempt, known, written_wall_ns=written_wall_ns, now=store.now())


def _was_judged(attempt: Attempt) -> bool:
    return bool(attempt.checks) and not any(
        gate.outcome in _BAD for gate in attempt.checks.values()
    )


def _counts_alone(record: RunRecord, records: Sequence[RunRecord]) -> bool:
    """Whether a judged attempt may be completed: a co-location round counts as a whole.

    Its runs are completed one after the other once all have been judged, so that one complete run
    of the round tells that the others may follow.
    """
    if record.role != "colocation":
        return True
    own = round_of(record.run)
    return any(
        other.role == "colocation" and round_of(other.run) == own and other.state == "complete"
        for other in records
    )


def _completed_late(
    store: Store, record: RunRecord, protocol_sha256: str, say: Callable[[str], None]
) -> RunRecord:
    attempt = record.attempt
    assert attempt is not None
    try:
        if attempt.judged_sha256 != _contents(store, attempt):
            # No state has said complete by these hashes; the folder is recorded as it is now.
            record_path(store.folder, attempt.folder).unlink(missing_ok=True)
            raise StateConflict("its files are no longer those that were checked")
        record = complete(store, record, protocol_sha256)
    except OpprofError as error:
        say(f"{record.run}: passed its checks but cannot be completed: {error}")
        return interrupt(store, record, str(error), protocol_sha256)
    say(f"{record.run}: had passed its checks and is complete")
    return record


def _contents(store: Store, attempt: Attempt) -> str:
    return listing_sha256(hash_folder(store.folder / attempt.folder))


def complete(store: Store, record: RunRecord, protocol_sha256: str, reason: str = "") -> RunRecord:
    """Record a run directory's hashes, then its state, which is written last."""
    assert record.attempt is not None
    store.crash_point(record.run, "judged")
    record_folder(
        store.folder,
        record.attempt.folder,
        attempt=record.attempt.number,
        protocol_sha256=protocol_sha256,
        wall_ns=store.wall_ns(),
    )
    store.crash_point(record.run, "hashed")
    return store.transition(record, "complete", reason)
