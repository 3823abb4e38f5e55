"""Whether a hard stop stands, and its release: by the records, whatever became of ``stop.json``.

An attempt's state holds the stops that it called for, ``stops/`` what reviews have released. A
controller that died between the two, a disk that failed or a file that somebody removed leaves a
stop standing: only a review releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from opprof.artifacts.campaign import ControllerRecord, RunRecord, Stop
from opprof.campaign.stops import joined
from opprof.campaign.store import Store
from opprof.errors import StateConflict


def standing(store: Store) -> Stop | None:
    """Return what stops the matrix; None while nothing does, or all of it was released.

    Raises:
        SchemaError: a record is damaged, or ``stop.json`` is no file.
    """
    released = store.released_stops()
    told = store.stop() or _last_known(store.controller(), released)
    return with_attempts(told, store.runs(), released)


def with_attempts(
    told: Stop | None, records: Iterable[RunRecord], released: Sequence[Stop]
) -> Stop | None:
    """Join what attempts called for and neither ``told`` nor a released stop speaks of."""
    heard = [*released] if told is None else [*released, told]
    known = {name for stop in heard for name in stop.attempts}
    found = told
    for record in records:
        for attempt in record.attempts:
            if attempt_name(record.run, attempt.number) in known:
                continue
            for stop in attempt.stops:
                found = stop if found is None else joined(found, stop)
    return found


def attempt_name(run: str, number: int) -> str:
    """Return how a stop names an attempt."""
    return f"{run}.{number}"


def check_review(store: Store, reviewed: str) -> Stop | None:
    """Return the standing stop; it has been looked at, or there is none.

    Raises:
        StateConflict: a stop waits for review and no review is given.
    """
    found = standing(store)
    if found is not None and not reviewed.strip():
        raise StateConflict(
            f"hard stop {found.condition} ({found.name}) waits for review: {found.reason}; "
            "release it with --reviewed TEXT",
            path=store.folder,
        )
    return found


def release(store: Store, reviewed: str, say: Callable[[str], None]) -> None:
    """Release what stands; nothing where nothing does. The caller owns the campaign."""
    found = standing(store)
    if found is None:
        return
    store.write_stop(msgspec.structs.replace(found, reviewed=reviewed))
    store.archive_stop()
    say(f"hard stop {found.condition} ({found.name}) released after review: {reviewed}")


def _last_known(record: ControllerRecord | None, released: Sequence[Stop]) -> Stop | None:
    """The last controller's stop, where no review has released it."""
    stop = None if record is None else record.stop
    if stop is None:
        return None
    key = (stop.wall_ns, stop.condition, stop.run)
    return None if key in [(s.wall_ns, s.condition, s.run) for s in released] else stop
