"""Campaigns on a fake host whose hard stop was not written, was lost, or was to be released."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import campaign_small
import pytest
from test_host_rehearsal import SATURATION, Rehearsal

from opprof.campaign.review import standing
from opprof.campaign.store import CRASH_VARIABLE
from opprof.host.fake_file import Event, FakeProcess

pytestmark = pytest.mark.slow
STRANGER = FakeProcess(pid=4242, owner="other_user", memory_bytes=10**9)
DISTURBED = Event(label=f"{SATURATION}/1/after", processes=[STRANGER])
"""Makes the first attempt fail: an infrastructure fault, which has an exact rerun."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    for name in ("warmup_s", "clean_segment_s", "recovery_s"):
        monkeypatch.setitem(campaign_small.VALUES, name, "3")
    yield Rehearsal(tmp_path, DISTURBED)


def resume(site: Rehearsal, *more: str, code: int) -> str:
    words = ["resume", str(site.out), "--private", str(site.private), "--foreground"]
    return site.opprof(*words, *more, code=code)


def phases(site: Rehearsal) -> list[str]:
    return [attempt.phase for attempt in site.store.run(SATURATION).attempts]


@pytest.mark.parametrize("place", ["failed.after", "moved", "attempt.recorded"])
def test_a_controller_killed_after_a_failed_run_loses_no_stop(
    site: Rehearsal, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv(CRASH_VARIABLE, f"{SATURATION}:{place}")
    site.start(code=-signal.SIGKILL)
    monkeypatch.delenv(CRASH_VARIABLE)
    assert phases(site) == ["failed"]
    assert site.store.stop() is None
    assert "STANDS STILL, condition 2" in site.opprof("status", str(site.out), code=1)
    assert "waits for review" in resume(site, code=2)
    assert phases(site) == ["failed"], "no rerun without a review"
    resume(site, "--reviewed", "Ann: the other user has left", code=0)
    assert phases(site) == ["failed", "complete"]
    (kept,) = site.store.released_stops()
    assert (kept.condition, kept.attempts) == (2, [f"{SATURATION}.1"])
    assert kept.reviewed == "Ann: the other user has left"


def test_a_folder_that_cannot_be_put_aside_loses_no_stop(
    site: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CRASH_VARIABLE, f"{SATURATION}:starting.before")
    site.start(code=-signal.SIGKILL)
    monkeypatch.delenv(CRASH_VARIABLE)
    in_the_way = site.out / "attempts"
    in_the_way.write_text("")
    resume(site, code=1)
    found = site.store.stop()
    assert found is not None and found.condition == 2
    in_the_way.unlink()
    (site.out / "stop.json").unlink()
    assert "waits for review" in resume(site, code=2)
    resume(site, "--reviewed", "Ann", code=0)
    assert phases(site) == ["failed", "complete"]


def test_a_refused_resume_releases_nothing(site: Rehearsal) -> None:
    site.start(code=1)
    stop, closing = site.out / "stop.json", site.out / "provenance" / "closing.json"
    before = stop.read_bytes(), closing.read_bytes()
    state = site.out / "state" / "P01-C00-moderate.json"
    kept = state.rename(site.out.parent / "away.json")
    assert "is missing" in resume(site, "--reviewed", "Ann: looked", code=2)
    assert (stop.read_bytes(), closing.read_bytes()) == before
    kept.rename(state)

    # The host is asked later, with the folder owned.
    machine = site.host_file.read_bytes()
    site.host_file.write_text("{")
    resume(site, "--reviewed", "Ann: looked", code=2)
    assert stop.read_bytes() == before[0]
    assert not (site.out / "stops").exists()
    stop.unlink()
    assert standing(site.store) is not None
    site.host_file.write_bytes(machine)
    assert "waits for review" in resume(site, code=2)
    resume(site, "--reviewed", "Ann: looked", code=0)
    assert [each.reviewed for each in site.store.released_stops()] == ["Ann: looked"]
