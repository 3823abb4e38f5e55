"""Stopping a controller that cannot react: the user hears why, and what helps, within seconds."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner
from ray_builders import make_campaign

from opprof.artifacts.campaign import ControllerRecord, ProcessRecord
from opprof.campaign import watch
from opprof.campaign.processes import ProcessTable
from opprof.campaign.store import Store, is_locked, pretty
from opprof.campaign.watch import standstill, stop_controller
from opprof.cli import root
from opprof.errors import EnvironmentFailure

_OWNER = """
import signal, sys, time
from pathlib import Path
from opprof.campaign.store import campaign_lock
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[2] == "deaf" else signal.SIG_DFL)
with campaign_lock(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(1000)
"""
Owner = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """Start what owns the campaign in ``tmp_path`` and stands in its record."""
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str) -> subprocess.Popen[bytes]:
        (tmp_path / "campaign.json").write_bytes(
            pretty(msgspec.structs.replace(make_campaign(), simulated=True))
        )
        process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(tmp_path), kind], stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        _record(tmp_path, process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _record(folder: Path, pid: int, **changes: object) -> None:
    table = ProcessTable()
    seen = table.look(pid)
    assert seen is not None
    process = ProcessRecord(
        "controller", "here", pid, seen.start_ticks, table.boot_id, seen.pgid, ["x"], 1
    )
    process = msgspec.structs.replace(process, **changes)
    record = ControllerRecord(1, "test-ray", process, 1, "running", 1, 0)
    Store(folder, wall_ns=time.time_ns).write_controller(record)


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and see it stopped: of two signals that wait, SIGTERM would come first."""
    process.send_signal(signal.SIGSTOP)
    give_up = time.monotonic() + 300
    while (seen := ProcessTable().look(process.pid)) is None or seen.state != "T":
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_stopped_controller_is_named_within_seconds(owner: Owner, tmp_path: Path) -> None:
    process = owner("plain")
    freeze(process)
    done = CliRunner().invoke(root, ["campaign", "stop", str(tmp_path)])
    assert isinstance(done.exception, EnvironmentFailure) or done.exit_code == 1
    said = done.stderr + str(done.exception)
    assert "does not react: its process is stopped (state T)" in said
    assert f"kill -CONT {process.pid}" in said
    assert "it has been told to end, and does once it goes on" in said
    assert is_locked(tmp_path)
    # The signal waits for it: let go on, it ends.
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == -signal.SIGTERM


def test_a_controller_that_is_let_go_on_in_time_ends(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = owner("plain")
    freeze(process)

    def let_go_on(table: ProcessTable, record: ControllerRecord) -> str:
        held = standstill(table, record)
        process.send_signal(signal.SIGCONT)
        return held

    monkeypatch.setattr(watch, "standstill", let_go_on)
    assert stop_controller(tmp_path, now=False, say=list[str]().append).startswith("stopped")


def test_a_long_time_between_two_looks_is_no_standstill(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks may have been held up himself; the controller stands still only at one look."""
    looks = iter(["", "it is stopped"])
    process, now = owner("deaf"), itertools.count(0.0, 10.0)
    clock = SimpleNamespace(monotonic=lambda: next(now), sleep=time.sleep, time_ns=time.time_ns)

    def look(_table: ProcessTable, _record: ControllerRecord) -> str:
        held = next(looks, "")
        if held:
            process.kill()
        return held

    monkeypatch.setattr(watch, "standstill", look)
    monkeypatch.setattr(watch, "time", clock)
    assert stop_controller(tmp_path, now=False, say=list[str]().append).startswith("stopped")


@pytest.mark.parametrize(
    ("changes", "why"),
    [({}, "is busy, or belongs to another user"), ({"boot_id": "old"}, "of host here")],
)
def test_a_controller_that_does_not_confirm_is_told_of(
    owner: Owner, tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    process, said = owner("deaf"), list[str]()
    _record(tmp_path, process.pid, **changes)
    with pytest.raises(EnvironmentFailure, match=f"did not end in 6 s.*{why}"):
        stop_controller(tmp_path, now=True, say=said.append, patience_s=6)
    assert len(said) == 1
    assert why in said[0]
