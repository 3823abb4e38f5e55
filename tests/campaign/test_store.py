"""The campaign's folder: whole files, readable after any crash, one owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.campaign import (
    Attempt,
    Phase,
    RunRecord,
    Slot,
    Stop,
    Transition,
)
from opprof.campaign import state
from opprof.campaign.processes import Ended
from opprof.campaign.store import (
    CRASH_VARIABLE,
    CrashPoints,
    Store,
    campaign_lock,
    is_locked,
)
from opprof.errors import EnvironmentFailure, InputError, SchemaError, StateConflict
from opprof.host.birthmark import birthmark

PHASES: tuple[Phase, ...] = ("serving", "loading", "draining", "cleaning", "checking", "complete")


def record(run: str = "P01-C00-saturation", order: int = 0) -> RunRecord:
    return RunRecord(
        schema=1,
        run=run,
        pattern="P01",
        config="C00",
        load_point="saturation",
        role="primary",
        order=order,
        needs=[],
        state="starting",
        attempts=[
            Attempt(
                number=1,
                folder=f"runs/{run}",
                phase="starting",
                transitions=[Transition("starting", 1)],
                slot=Slot("here", [0], [""], 0, "", 1),
                processes=[],
                source_hashes={},
                checks={},
            )
        ],
    )


def store(folder: Path) -> Store:
    return Store(folder, wall_ns=lambda: 5, mono_ns=lambda: 7, boot_id="boot")


def test_a_transition_keeps_the_earlier_ones(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.save(record())
    after = here.transition(here.run("P01-C00-saturation"), "serving", "healthy")
    assert here.run("P01-C00-saturation") == after
    assert after.state == "serving"
    assert after.attempt is not None
    assert [step.phase for step in after.attempt.transitions] == ["starting", "serving"]
    assert after.attempt.transitions[-1] == Transition("serving", 5, "healthy", 7, "boot")


def test_records_come_in_the_order_of_execution(tmp_path: Path) -> None:
    here = store(tmp_path)
    for order, run in enumerate(["P09-C00-moderate", "P01-C00-moderate", "P05-C00-moderate"]):
        here.save(record(run, order))
    assert [item.order for item in here.runs()] == [0, 1, 2]


def test_a_torn_temporary_file_is_never_read(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.save(record())
    (tmp_path / "state" / ".P01-C00-saturation.json.x1.tmp").write_bytes(b'{"schema": 1, "ru')
    assert [item.run for item in here.runs()] == ["P01-C00-saturation"]


def test_a_damaged_state_is_refused_by_name(tmp_path: Path) -> None:
    here = store(tmp_path)
    here.save(record())
    path = tmp_path / "state" / "P01-C00-saturation.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SchemaError, match=r"P01-C00-saturation\.json"):
        here.runs()


def test_moving_aside_twice_is_moving_once(tmp_path: Path) -> None:
    here = store(tmp_path)
    first = record()
    here.save(first)
    folder = here.run_folder(first.run)
    (folder / "client").mkdir(parents=True)
    moved = here.move_aside(first)
    assert moved.attempt is not None
    assert moved.attempt.folder == "attempts/P01-C00-saturation.1"
    assert (tmp_path / moved.attempt.folder / "client").is_dir()
    assert not folder.exists()
    assert here.move_aside(first) == moved
    assert here.move_aside(moved) == moved


@pytest.fixture
def kept_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without provenance there is nothing to record a moved folder in."""
    monkeypatch.setattr(state, "put_aside", lambda store, record, sha256: record)


@pytest.mark.usefixtures("kept_in_place")
@pytest.mark.parametrize(("written_s", "gpu_s"), [(40, 40.0), (0, 0.0)])
def test_an_attempt_its_controller_left_is_charged_to_its_last_sign_of_life(
    tmp_path: Path, written_s: int, gpu_s: float
) -> None:
    here = Store(tmp_path, wall_ns=lambda: 50 * 10**9)
    here.save(record())
    log = tmp_path / "runs" / "P01-C00-saturation" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("alive\n")
    os.utime(log, ns=(1, written_s * 10**9 + 1))
    (recovered,) = state.recover(here, "0" * 64, lambda _: None)
    assert recovered.attempt is not None
    assert recovered.attempt.phase == "interrupted"
    assert recovered.attempt.gpu_seconds == gpu_s


@pytest.mark.usefixtures("kept_in_place")
@pytest.mark.parametrize(
    ("run", "gpu_s"), [("P01-C00-saturation", 9.0), ("P01-C00-moderate", 0.0), ("", 0.0)]
)
def test_an_attempt_whose_server_lived_on_is_charged_until_it_was_ended(
    tmp_path: Path, run: str, gpu_s: float
) -> None:
    """A server that has written nothing yet gives no other sign of life."""
    here = Store(tmp_path, wall_ns=lambda: 9 * 10**9 + 1)
    here.save(record())
    (tmp_path / "runs" / "P01-C00-saturation").mkdir(parents=True)
    os.utime(tmp_path / "runs" / "P01-C00-saturation", ns=(1, 1))
    survivors = [Ended(birthmark("c", run), "ended")]
    (recovered,) = state.recover(here, "0" * 64, lambda _: None, survivors)
    assert recovered.attempt is not None
    assert recovered.attempt.gpu_seconds == gpu_s


@pytest.mark.usefixtures("kept_in_place")
def test_an_attempt_broken_off_now_is_charged_until_now(tmp_path: Path) -> None:
    here = Store(tmp_path, wall_ns=lambda: 7 * 10**9 + 1)
    here.save(record())
    (tmp_path / "runs" / "P01-C00-saturation").mkdir(parents=True)
    ended = state.interrupt(here, record(), "told to stop", "0" * 64)
    assert ended.attempt is not None
    assert ended.attempt.gpu_seconds == 7.0


def test_a_kept_attempt_is_never_overwritten(tmp_path: Path) -> None:
    here = store(tmp_path)
    first = record()
    here.save(first)
    here.run_folder(first.run).mkdir(parents=True)
    (tmp_path / "attempts" / "P01-C00-saturation.1").mkdir(parents=True)
    with pytest.raises(StateConflict, match="kept already"):
        here.move_aside(first)


def test_one_controller_a_campaign(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with campaign_lock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(StateConflict, match="owns this campaign"), campaign_lock(tmp_path):
            pass
    assert not is_locked(tmp_path)


def test_a_deleted_lock_is_lost_even_when_there_is_a_new_one(tmp_path: Path) -> None:
    with campaign_lock(tmp_path) as holds_lock:
        assert holds_lock()
        (tmp_path / "controller.lock").rename(tmp_path / "old")
        assert not holds_lock()
        with campaign_lock(tmp_path) as other:
            assert other()
            assert not holds_lock()


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no campaign folder"):
        store(tmp_path).campaign()


def test_a_released_stop_stays_on_record(tmp_path: Path) -> None:
    here = store(tmp_path)
    stop = Stop(1, 2, "host", "another user's process", "P01-C00-saturation", 7)
    here.write_stop(stop)
    assert here.stop() == stop
    here.archive_stop()
    assert here.stop() is None
    assert json.loads((tmp_path / "stops" / "001.json").read_bytes())["condition"] == 2


def test_a_full_disk_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = store(tmp_path)
    here.save(record())

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="No space left"):
        here.transition(here.run("P01-C00-saturation"), "serving")
    monkeypatch.undo()
    assert here.run("P01-C00-saturation").state == "starting"
    assert [path.suffix for path in (tmp_path / "state").iterdir()] == [".json"]


_SCRIPT = """
import sys
from pathlib import Path
from opprof.campaign.store import Store
store = Store(Path(sys.argv[1]), wall_ns=lambda: 5)
record = store.run("P01-C00-saturation")
for phase in sys.argv[2:]:
    record = store.transition(record, phase)
store.move_aside(record)
"""


@pytest.mark.parametrize("point", range(1, 16))
def test_any_crash_point_leaves_a_readable_state(tmp_path: Path, point: int) -> None:
    here = store(tmp_path)
    first = record()
    here.save(first)
    here.run_folder(first.run).mkdir(parents=True)
    environment = {**os.environ, CRASH_VARIABLE: f"#{point}"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path), *PHASES], env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL
    left = here.run(first.run)
    assert left.attempt is not None
    written = [step.phase for step in left.attempt.transitions]
    assert written == ["starting", *PHASES][: len(written)]
    moved = tmp_path / "attempts" / "P01-C00-saturation.1"
    assert here.run_folder(first.run).is_dir() != moved.is_dir()
    assert here.move_aside(left).attempt is not None
    assert moved.is_dir()


@given(
    wanted=st.sampled_from(["a:x.before", "b:x.before", "a:y.after"]),
    count=st.integers(1, 4),
    seen=st.lists(st.sampled_from(["a:x.before", "b:x.before", "a:y.after"]), max_size=12),
)
def test_a_crash_comes_at_its_own_occurrence_only(wanted: str, count: int, seen: list[str]) -> None:
    died: list[int] = []
    points = CrashPoints(f"{wanted}*{count}", die=lambda: died.append(len(told)))
    told: list[str] = []
    for name in seen:
        told.append(name)
        points.reached(name)
    places = [i + 1 for i, name in enumerate(seen) if name == wanted]
    assert died == places[count - 1 : count]


def test_without_the_variable_nothing_dies() -> None:
    points = CrashPoints("", die=lambda: pytest.fail("died"))
    for _ in range(3):
        points.reached("a:x.before")
