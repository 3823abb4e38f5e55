"""An attempt whose controller died between its checks and ``complete``: the files must be those."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from campaign_small import small_protocol
from test_store import record as begun

from opprof.artifacts.campaign import RunRecord
from opprof.artifacts.common import Gate
from opprof.campaign import state
from opprof.campaign.attempt import Outcome
from opprof.campaign.store import Store
from opprof.errors import StateConflict
from opprof.integrity.provenance import (
    listing_sha256,
    read_folder_record,
    record_campaign,
    record_path,
)

RUN = "P01-C00-saturation"
PASSED = Outcome(
    checks={"clock_load": Gate("clock_load", "pass", "fine")},
    reason="",
    fault="",
    accepted=True,
    drain_quarantined=False,
    gpu_seconds=1.0,
    signal_wall_ns=None,
)


class Died(Exception):
    """The controller, at a crash point."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "c", wall_ns=lambda: 5)
    made.folder.mkdir()
    record_campaign(
        made.folder,
        campaign_id="c",
        protocol=small_protocol(tmp_path / "protocol.toml"),
        mappings=["v1"],
        launches={},
        wall_ns=1,
    )
    for name in ("result.json", "timeline.json"):
        path = made.run_folder(RUN) / "client" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return made


def die_at(store: Store, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finish an attempt that has passed, with a controller that dies at the point."""

    def reached(_: str, place: str) -> None:
        if place == point:
            raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(store, "crash_point", reached)
        state.finish(store, begun(), PASSED, "0" * 64)


def recovered(store: Store) -> tuple[RunRecord, list[str]]:
    lines: list[str] = []
    (record,) = state.recover(store, "0" * 64, lines.append)
    return record, lines


@pytest.mark.parametrize("point", ["judged", "hashed"])
def test_what_was_checked_is_completed(
    store: Store, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(store, point, monkeypatch)
    record, lines = recovered(store)
    assert record.state == "complete"
    assert lines == [f"{RUN}: had passed its checks and is complete"]
    attempt = record.attempt
    assert attempt is not None
    kept = read_folder_record(record_path(store.folder, attempt.folder))
    assert attempt.judged_sha256 == listing_sha256(kept.files)


@pytest.mark.parametrize("point", ["judged", "hashed"])
@pytest.mark.parametrize("change", ["edited", "damaged", "gone", "added"])
def test_what_was_changed_since_its_checks_is_never_completed(
    store: Store, point: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(store, point, monkeypatch)
    client = store.run_folder(RUN) / "client"
    if change == "edited":
        (client / "result.json").write_text('{"more": 1}')
    elif change == "damaged":
        (client / "result.json").write_bytes(b'{"metrics": {"traces": [1')
    elif change == "gone":
        (client / "timeline.json").unlink()
    else:
        (client / "more.json").write_text("{}")
    record, lines = recovered(store)
    assert record.state == "interrupted"
    assert "no longer those that were checked" in lines[0]
    attempt = record.attempt
    assert attempt is not None
    assert attempt.folder == f"attempts/{RUN}.1"
    assert record_path(store.folder, attempt.folder).is_file()
    # The next attempt has the run's place, and its record, to itself.
    assert not store.run_folder(RUN).exists()
    assert not record_path(store.folder, f"runs/{RUN}").exists()


def test_an_attempt_that_names_no_files_is_made_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(store, "judged", monkeypatch)
    judged = store.run(RUN)
    assert judged.attempt is not None
    unknown = msgspec.structs.replace(judged.attempt, judged_sha256=None)
    store.save(msgspec.structs.replace(judged, attempts=[unknown]))
    assert recovered(store)[0].state == "interrupted"


def test_a_crash_while_it_is_put_aside_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(store, "hashed", monkeypatch)
    (store.run_folder(RUN) / "client" / "result.json").write_text('{"more": 1}')
    with monkeypatch.context() as patch, pytest.raises(StateConflict):
        patch.setattr(state, "interrupt", _refuse)
        recovered(store)
    assert recovered(store)[0].state == "interrupted"


def _refuse(*_: object, **__: object) -> RunRecord:
    raise StateConflict("the controller died here")
