"""Processes: nothing runs unrecorded, and nothing is signalled that the campaign did not start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opprof.artifacts.campaign import ProcessRecord
from opprof.campaign.processes import (
    CAMPAIGN_VARIABLE,
    RUN_VARIABLE,
    ProcessTable,
    Seen,
    end_marked,
    spawn,
)
from opprof.errors import EnvironmentFailure

BOOT = "11111111-2222-3333-4444-555555555555"


class FakeProc:
    """A ``/proc`` of files, and the signals that would have been sent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sent: list[tuple[int, int]] = []
        boot = root / "sys" / "kernel" / "random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text(f"{BOOT}\n")

    def add(
        self,
        pid: int,
        start: int,
        *,
        name: str = "python",
        state: str = "S",
        env: str = "",
        session: int = 0,
        cwd: Path | None = None,
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, "1", str(pid), str(session), *["0"] * 15, str(start), "0", "0"]
        if cwd is not None:
            (folder / "cwd").symlink_to(cwd)
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "environ").write_bytes(env.encode())

    def table(self) -> ProcessTable:
        return ProcessTable(self.root, kill=lambda pid, number: self.sent.append((pid, number)))


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def record(pid: int = 42, start: int = 1000, boot: str = BOOT) -> ProcessRecord:
    return ProcessRecord("server", "here", pid, start, boot, pid, ["x"], 1)


def test_the_recorded_process_is_signalled(proc: FakeProc) -> None:
    proc.add(42, 1000)
    assert proc.table().send(record(), signal.SIGTERM)
    assert proc.sent == [(42, signal.SIGTERM)]


def test_a_reused_pid_is_never_signalled(proc: FakeProc) -> None:
    proc.add(42, 1001)
    assert not proc.table().send(record(), signal.SIGTERM)
    assert proc.sent == []


def test_a_process_of_another_boot_is_never_signalled(proc: FakeProc) -> None:
    proc.add(42, 1000)
    other = record(boot="99999999-2222-3333-4444-555555555555")
    assert not proc.table().send(other, signal.SIGTERM)
    assert proc.sent == []


def test_a_zombie_is_gone(proc: FakeProc) -> None:
    proc.add(42, 1000, state="Z")
    assert not proc.table().is_alive(record())


@pytest.mark.parametrize("name", ["a b", "x) S 1 2 3", "(((", "vLLM::EngineCor"])
def test_a_name_cannot_shift_the_fields(proc: FakeProc, name: str) -> None:
    proc.add(42, 1000, name=name)
    assert proc.table().look(42) == Seen(42, 1000, 42, "S")


def test_a_process_that_ends_between_look_and_signal_is_no_error(proc: FakeProc) -> None:
    proc.add(42, 1000)

    def gone(_pid: int, _number: int) -> None:
        raise ProcessLookupError

    assert not ProcessTable(proc.root, kill=gone).send(record(), signal.SIGTERM)


def test_marks_are_whole_variables(proc: FakeProc) -> None:
    proc.add(1, 10, env=f"{CAMPAIGN_VARIABLE}=c-1\0{RUN_VARIABLE}=P01\0")
    proc.add(2, 20, env=f"{CAMPAIGN_VARIABLE}=c-11\0")
    proc.add(3, 30, env=f"NOT_{CAMPAIGN_VARIABLE}=c-1\0")
    proc.add(4, 40, env=f"OTHER=x\0{CAMPAIGN_VARIABLE}=c-1\0", state="Z")
    proc.add(5, 50, env=f"{CAMPAIGN_VARIABLE}=c-1\0{RUN_VARIABLE}=P02\0")
    table = proc.table()
    assert [seen.pid for seen in sorted(table.marked("c-1"), key=lambda s: s.pid)] == [1, 5]
    assert [seen.pid for seen in table.marked("c-1", run="P02")] == [5]


def test_a_found_process_whose_pid_was_reused_is_left_alone(proc: FakeProc) -> None:
    proc.add(7, 70, env=f"{CAMPAIGN_VARIABLE}=c\0")
    table = proc.table()
    (seen,) = table.marked("c")
    proc.add(7, 71)
    assert not table.send_seen(seen, signal.SIGKILL)
    assert proc.sent == []


def test_a_session_finds_what_has_lost_its_mark(proc: FakeProc, tmp_path: Path) -> None:
    campaign = tmp_path / "campaign"
    run = campaign / "runs" / "P01"
    run.mkdir(parents=True)
    proc.add(42, 1000, session=42, cwd=run)
    proc.add(43, 1001, session=42, cwd=run, name="VLLM::EngineCor")
    proc.add(44, 1002, session=42, cwd=tmp_path)
    proc.add(45, 1003, session=41, cwd=run)
    proc.add(46, 1004, session=42, cwd=run, state="Z")
    proc.add(47, 1005, session=42)
    table = proc.table()
    found = table.members([record()], campaign)
    assert sorted(seen.pid for seen in found) == [42, 43]
    other_boot = record(boot="99999999-2222-3333-4444-555555555555")
    assert table.members([other_boot], campaign) == []
    assert table.members([], campaign) == []


# ------------------------------------------------------------------------ real processes


def test_a_child_does_nothing_before_its_gate_opens(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    async def go() -> None:
        with (tmp_path / "log").open("wb") as log:
            child = await spawn(
                ProcessTable(),
                "server",
                ["/bin/sh", "-c", f"echo yes > {mark}; exit 7"],
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
            )
        assert child.record.pid == child.process.pid
        assert ProcessTable().is_alive(child.record)
        assert await child.wait(0.2) is None
        assert not mark.exists()
        child.go()
        assert await child.wait(20) == 7

    asyncio.run(go())
    assert mark.read_text() == "yes\n"


_PARENT = """
import asyncio, os, sys
from pathlib import Path
from opprof.campaign.processes import ProcessTable, spawn
async def go():
    folder = Path(sys.argv[1])
    with (folder / "log").open("wb") as log:
        child = await spawn(ProcessTable(), "server", ["/bin/touch", str(folder / "ran")],
                            environment=dict(os.environ), log=log, cwd=folder)
    print(child.record.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(go())
"""


def test_a_child_whose_controller_dies_first_never_runs(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    table = ProcessTable()
    give_up = time.monotonic() + 60
    while (seen := table.look(pid)) is not None and seen.state != "Z":
        assert time.monotonic() < give_up, "the child outlived its gate"
        time.sleep(0.05)
    assert not (tmp_path / "ran").exists()


def test_a_program_that_is_not_there_is_a_status(tmp_path: Path) -> None:
    async def go() -> int | None:
        with (tmp_path / "log").open("wb") as log:
            child = await spawn(
                ProcessTable(),
                "server",
                ["/no/such/program"],
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
            )
        child.go()
        return await child.wait(20)

    assert asyncio.run(go()) == 127


def test_cpus_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        with (tmp_path / "log").open("wb") as log:
            await spawn(
                ProcessTable(),
                "server",
                ["/bin/true"],
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
                cpus=[60000],
            )

    with pytest.raises(EnvironmentFailure, match="CPUs"):
        asyncio.run(go())


def test_descendants_that_left_the_group_are_ended(tmp_path: Path) -> None:
    """A daemon of its own session that ignores SIGTERM is found by its mark."""
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & sleep 1000"
    campaign = f"test-{os.getpid()}"
    environment = {**os.environ, CAMPAIGN_VARIABLE: campaign}
    leader = subprocess.Popen(
        ["/bin/sh", "-c", script], env=environment, start_new_session=True, cwd=tmp_path
    )
    table = ProcessTable()

    async def go() -> None:
        while len(table.marked(campaign)) < 3:
            await asyncio.sleep(0.02)
        met = await end_marked(table, campaign, run=None, grace_s=0.5)
        assert leader.pid in {seen.pid for seen in met}
        assert len(met) >= 3

    asyncio.run(asyncio.wait_for(go(), 60))
    assert leader.wait() == -signal.SIGKILL
    assert table.marked(campaign) == []
