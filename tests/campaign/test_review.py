"""A hard stop stands until a review has released it, whatever became of ``stop.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from campaign_builders import attempt

from opprof.artifacts.campaign import ControllerRecord, ProcessRecord, RunRecord, Stop
from opprof.campaign.review import check_review, release, standing
from opprof.campaign.stops import joined
from opprof.campaign.store import Store
from opprof.errors import SchemaError, StateConflict

RUN = "P01-C00-saturation"


def stop(condition: int, run: str = RUN, number: int = 1, wall_ns: int = 7) -> Stop:
    return Stop(1, condition, "name", "a reason", run, wall_ns, attempts=[f"{run}.{number}"])


def failed(store: Store, *stops: Sequence[Stop], run: str = RUN) -> None:
    """Give the run one failed attempt for each list of stops."""
    attempts = [
        msgspec.structs.replace(attempt(number, "failed"), stops=list(found))
        for number, found in enumerate(stops, start=1)
    ]
    store.save(RunRecord(1, run, "P01", "C00", "saturation", "primary", 0, [], "failed", attempts))


def controller(stands: Stop | None) -> ControllerRecord:
    process = ProcessRecord("controller", "h", 1, 1, "boot", 1, [], 1)
    return ControllerRecord(1, "c", process, 1, "stopped", 1, 0, stop=stands)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "state").mkdir()
    return Store(tmp_path, wall_ns=lambda: 9)


def test_a_stop_is_looked_at_before_anything_changes(store: Store) -> None:
    assert check_review(store, "") is None
    store.write_stop(Stop(1, 3, "clean", "a request failed", "r", 1))
    with pytest.raises(StateConflict, match="waits for review"):
        check_review(store, " ")
    assert check_review(store, "Ann") == store.stop()
    assert store.stop() is not None, "only looked at"
    told: list[str] = []
    release(store, "Ann", told.append)
    assert told == ["hard stop 3 (clean) released after review: Ann"]
    assert store.stop() is None and standing(store) is None
    assert [kept.reviewed for kept in store.released_stops()] == ["Ann"]


def test_a_failed_attempt_stops_the_matrix_without_any_stop_file(store: Store) -> None:
    failed(store, [stop(6), stop(2)])
    found = standing(store)
    assert found is not None
    assert (found.condition, found.run, found.attempts) == (6, RUN, [f"{RUN}.1"])
    assert "also hard stop 2" in found.reason
    with pytest.raises(StateConflict, match="hard stop 6"):
        check_review(store, "")
    release(store, "Ann: looked", print)
    assert standing(store) is None
    assert store.released_stops()[0].attempts == [f"{RUN}.1"]


def test_each_attempt_needs_its_own_release(store: Store) -> None:
    failed(store, [stop(6)])
    release(store, "Ann", print)
    failed(store, [stop(6)], [stop(6, number=2)])
    found = standing(store)
    assert found is not None and found.attempts == [f"{RUN}.2"]
    (store.folder / "stops" / "001.json").unlink()
    found = standing(store)
    assert found is not None and found.attempts == [f"{RUN}.1", f"{RUN}.2"]


def test_a_stop_file_is_completed_by_what_other_runs_called_for(store: Store) -> None:
    other = "P09-C00-saturation"
    store.write_stop(stop(2))
    failed(store, [stop(2)])
    failed(store, [stop(5, other)], run=other)
    found = standing(store)
    assert found == joined(stop(2), stop(5, other))
    assert found is not None and found.reason.count("a reason") == 2


def test_a_lost_stop_of_the_whole_campaign_is_what_the_controller_knew(store: Store) -> None:
    whole = Stop(1, 0, "co-location gate of h", "fails four wide", "", 4)
    store.write_controller(controller(whole))
    assert standing(store) == whole
    release(store, "Ann", print)
    assert standing(store) is None, "the last controller's record is older than the review"
    store.write_controller(controller(msgspec.structs.replace(whole, wall_ns=5)))
    assert standing(store) is not None


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_is_no_release(store: Store, kind: str) -> None:
    path = store.folder / "stop.json"
    path.mkdir() if kind == "folder" else path.symlink_to("nowhere")
    with pytest.raises(SchemaError, match=r"stop\.json: is no file"):
        standing(store)


def test_a_later_release_replaces_no_earlier_one(store: Store) -> None:
    for wall_ns in (1, 2):
        store.write_stop(stop(2, wall_ns=wall_ns))
        store.archive_stop()
    (store.folder / "stops" / "001.json").unlink()
    store.write_stop(stop(2, wall_ns=3))
    store.archive_stop()
    assert [kept.wall_ns for kept in store.released_stops()] == [2, 3]
