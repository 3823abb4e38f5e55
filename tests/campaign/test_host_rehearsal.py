"""Campaigns on a fake host: contamination, memory left over, throttling, all from a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import campaign_small
import msgspec
import pytest
from campaign_small import small_manifests, small_protocol

from opprof.artifacts.environment import Environment
from opprof.campaign.store import Store
from opprof.host.fake_file import Event, FakeProcess, load_machine

pytestmark = pytest.mark.slow
SATURATION = "P01-C00-saturation"


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest never wraps, so virtual runs are kept short."""
    for name in ("warmup_s", "clean_segment_s", "recovery_s"):
        monkeypatch.setitem(campaign_small.VALUES, name, "3")


class Rehearsal:
    """A campaign of one cell, in virtual time, on a machine with scripted events."""

    def __init__(self, folder: Path, *events: Event) -> None:
        self.folder, self.out = folder, folder / "campaign"
        self.protocol = small_protocol(folder / "small.toml")
        self.private = small_manifests(folder / "private")
        machine = msgspec.structs.replace(load_machine("dash0"), events=list(events))
        self.host_file = folder / "host.json"
        self.host_file.write_bytes(msgspec.json.encode(machine))

    def opprof(self, *words: str, code: int) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "opprof", "campaign", *words],
            capture_output=True,
            text=True,
            env=os.environ.copy(),
            timeout=900,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *, code: int) -> str:
        words = ["start", str(self.protocol), "--out", str(self.out), "--engine", "sim"]
        words += ["--virtual", "--private", str(self.private), "--var", "MODEL=tiny"]
        words += [
            "--no-cpu-masks",
            "--serial",
            "--only",
            "P01",
            "--foreground",
            # A fake GPU that keeps its memory keeps it for good: a minute would show no more.
            "--limit",
            "memory_s=2",
        ]
        return self.opprof(*words, "--host-file", str(self.host_file), code=code)

    @property
    def store(self) -> Store:
        return Store(self.out, wall_ns=time.time_ns)


def test_a_foreign_process_stops_the_matrix_and_one_exact_rerun_follows_the_review(
    tmp_path: Path,
) -> None:
    stranger = FakeProcess(pid=4242, owner="other_user", memory_bytes=10**9)
    site = Rehearsal(tmp_path, Event(label=f"{SATURATION}/1/after", processes=[stranger]))
    site.start(code=1)
    stop = site.store.stop()
    assert stop is not None
    assert (stop.condition, stop.run) == (2, SATURATION)
    assert "4242" in stop.reason
    record = site.store.run(SATURATION)
    assert record.attempt is not None
    assert record.attempt.fault == "infrastructure"
    site.opprof("resume", str(site.out), "--private", str(site.private), "--foreground", code=2)
    reviewed = ["--reviewed", "the other user has left", "--foreground"]
    site.opprof("resume", str(site.out), "--private", str(site.private), *reviewed, code=0)
    record = site.store.run(SATURATION)
    assert [attempt.phase for attempt in record.attempts] == ["failed", "complete"]
    assert (site.out / "attempts" / f"{SATURATION}.1" / "environment.json").is_file()
    data = (site.out / "runs" / SATURATION / "environment.json").read_bytes()
    environment = msgspec.json.decode(data, type=Environment)
    assert environment.topology.kind == "fake"
    assert environment.before is not None and environment.after is not None
    assert environment.before.gpus[0].uuid == environment.gpu_uuids[0]
    owners = {process.owner for process in environment.before.processes}
    assert owners == {"campaign"}, "the server is on its GPU"
    assert environment.simulated


@pytest.mark.parametrize(
    ("event", "condition", "words"),
    [
        (Event(label=f"{SATURATION}/1/idle", memory_left_bytes=10**9), 2, "GPU not idle"),
        (Event(label=f"{SATURATION}/*/cleanup", memory_left_bytes=10**9), 2, "still holds"),
        (Event(label=f"{SATURATION}/1/after", fail="the driver is gone"), 10, "driver is gone"),
    ],
)
def test_a_gpu_that_is_not_as_it_must_be_stops_the_matrix(
    tmp_path: Path, event: Event, condition: int, words: str
) -> None:
    site = Rehearsal(tmp_path, event)
    told = site.start(code=1)
    assert words in told
    stop = site.store.stop()
    assert stop is not None
    assert stop.condition == condition
    assert site.store.run("P01-C00-moderate").attempts == []


def test_a_drain_over_its_allowance_marks_the_run_and_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-P3-5: quarantined runs stay usable; only their share of the matrix stops it."""
    monkeypatch.setitem(campaign_small.VALUES, "drain_budget_s", "0.01")
    monkeypatch.setitem(campaign_small.VALUES, "drain_quarantine_share_max", "1.0")
    site = Rehearsal(tmp_path)
    site.start(code=0)
    runs = site.store.runs()
    assert [(run.state, len(run.attempts)) for run in runs] == [("complete", 1)] * 3
    assert [run.drain_quarantined for run in runs] == [True] * 3
    assert "drain quarantined" in (site.out / "decision.md").read_text()
