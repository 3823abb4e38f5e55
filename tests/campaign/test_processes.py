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
from opprof.host.birthmark import birthmark, usable_limit

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
        mark: int | None = None,
        env: str = "",
        limit: str = "Max file locks",
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, "1", str(pid), *["0"] * 16, str(start), "0", "0"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "environ").write_text(env)
        soft = "unlimited" if mark is None else str(mark)
        (folder / "limits").write_text(
            f"Max address space         unlimited            unlimited            bytes     \n"
            f"{limit:<25} {soft:<20} unlimited            locks     \n"
        )

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


def test_a_birthmark_names_campaign_and_run(proc: FakeProc) -> None:
    proc.add(1, 10, mark=birthmark("c-1", "P01"))
    proc.add(2, 20, mark=birthmark("c-11", "P01"))
    proc.add(3, 30)
    proc.add(4, 40, mark=birthmark("c-1", "P01"), state="Z")
    proc.add(5, 50, mark=birthmark("c-1", "P02"))
    proc.add(6, 60, mark=birthmark("c-1", ""))
    proc.add(7, 70, mark=65536)
    proc.add(8, 80, mark=birthmark("c-1", "P03"), limit="Max resident set")
    table = proc.table()
    assert {seen.pid for seen in table.marked("c-1")} == {1, 5, 6, 8}
    assert [seen.pid for seen in table.marked("c-1", run="P02")] == [5]
    assert [seen.pid for seen in table.marked("c-1", run="")] == [6]


def test_without_a_birthmark_the_environment_tells(proc: FakeProc) -> None:
    """On a system that lets no limit be set."""
    proc.add(1, 10, env="OPPROF_CAMPAIGN=c-1\0OPPROF_RUN=P01\0")
    proc.add(2, 20, env="OPPROF_CAMPAIGN=c-11\0")
    proc.add(3, 30, env="NOT_OPPROF_CAMPAIGN=c-1\0")
    proc.add(4, 40, env="OTHER=x\0OPPROF_CAMPAIGN=c-1\0", mark=birthmark("c-2", "P01"))
    proc.add(5, 50, env="A=b\0OPPROF_CAMPAIGN=c-1\0")
    table = proc.table()
    assert {seen.pid for seen in table.marked("c-1")} == {1, 5}
    (found,) = table.marked("c-1", run="P01")
    assert (found.pid, found.birthmark) == (1, birthmark("c-1", "P01"))


def test_a_process_that_wakes_between_two_looks_is_not_missed(proc: FakeProc) -> None:
    """It slept at the first look and runs at the second: the same process, and alive."""
    proc.add(7, 70, mark=birthmark("c", "P01"))

    class Waking(ProcessTable):
        def look(self, pid: int) -> Seen | None:
            seen = super().look(pid)
            proc.add(7, 70, mark=birthmark("c", "P01"), state="R")
            return seen

    assert [seen.pid for seen in Waking(proc.root).marked("c")] == [7]


def test_a_found_process_whose_pid_was_reused_is_left_alone(proc: FakeProc) -> None:
    proc.add(7, 70, mark=birthmark("c", "P01"))
    table = proc.table()
    (seen,) = table.marked("c")
    proc.add(7, 71)
    assert not table.send_seen(seen, signal.SIGKILL)
    assert proc.sent == []


# ------------------------------------------------------------------------ real processes


def test_a_child_does_nothing_before_its_gate_opens(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    async def go() -> None:
        with (tmp_path / "log").open("wb") as log:
            child = await spawn(
                ProcessTable(),
                "server",
                ["/bin/sh", "-c", f"echo yes > {mark}; exit 7"],
                campaign="c",
                run="r",
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
            )
        assert child.record.pid == child.process.pid
        assert ProcessTable().is_alive(child.record)
        assert await child.wait(0.2) is None
        assert not mark.exists()
        child.go()
        assert await child.wait(300) == 7

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
                            campaign="c", run="r", environment=dict(os.environ), log=log,
                            cwd=folder)
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
    give_up = time.monotonic() + 300
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
                campaign="c",
                run="r",
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
            )
        child.go()
        return await child.wait(300)

    assert asyncio.run(go()) == 127


def test_cpus_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        with (tmp_path / "log").open("wb") as log:
            await spawn(
                ProcessTable(),
                "server",
                ["/bin/true"],
                campaign="c",
                run="r",
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
                cpus=[60000],
            )

    with pytest.raises(EnvironmentFailure, match="CPUs"):
        asyncio.run(go())


_ORPHAN = """
import os, sys, time
# What a daemon can put off: parent, session, group, environment, folder, open files, command name.
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 1024)
    os.execve("/bin/sh", ["sh", "-c", "trap '' TERM; while :; do /bin/sleep 1; done"], {})
os.wait()
time.sleep(1000)
"""
"""An engine that leaves an orphan which nothing but the birthmark connects with it."""
_LAUNCHER = """
import asyncio, os, sys
from pathlib import Path
from opprof.campaign.processes import ProcessTable, spawn
from opprof.host import birthmark
birthmark._LIMITS = birthmark._LIMITS[int(sys.argv[4]):]
async def go():
    folder = Path(sys.argv[1])
    with (folder / "log").open("wb") as log:
        child = await spawn(ProcessTable(), "server", [sys.executable, "-c", sys.argv[3]],
                            campaign=sys.argv[2], run="P01", environment=dict(os.environ),
                            log=log, cwd=folder)
    child.go()
    print(child.record.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(go())
"""


@pytest.mark.parametrize("limit", [0, 1])
def test_an_orphan_that_put_everything_off_is_ended_after_its_controller(
    tmp_path: Path, limit: int
) -> None:
    """Both the controller and the engine are killed first: nobody is left to tell whose it is."""
    campaign = f"test-{tmp_path}"
    controller = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(tmp_path), campaign, _ORPHAN, str(limit)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert controller.stdout is not None
    server = int(controller.stdout.readline())
    table = ProcessTable()

    def orphans() -> list[Seen]:
        found = [seen for seen in table.marked(campaign) if seen.pgid != server]
        return [s for s in found if not Path(f"/proc/{s.pid}/environ").read_bytes()]

    give_up = time.monotonic() + 300
    while not orphans():
        assert time.monotonic() < give_up, "no orphan was left"
        time.sleep(0.05)
    controller.kill()
    controller.wait()
    controller.stdout.close()
    os.kill(server, signal.SIGKILL)
    met = asyncio.run(end_marked(table, campaign, run=None, grace_s=0.2))
    assert met
    assert table.marked(campaign) == []


def test_a_child_that_cannot_be_marked_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _kind: int, *_limits: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("resource.prlimit", refuse)

    async def go() -> None:
        with (tmp_path / "log").open("wb") as log:
            await spawn(
                ProcessTable(),
                "server",
                ["/bin/touch", str(tmp_path / "ran")],
                campaign="c",
                run="r",
                environment=dict(os.environ),
                log=log,
                cwd=tmp_path,
            )

    with pytest.raises(EnvironmentFailure, match="cannot mark"):
        asyncio.run(go())
    assert not (tmp_path / "ran").exists()


def test_where_no_limit_can_be_set_a_child_runs_with_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_kind: int, _limits: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr("resource.setrlimit", refuse)
    assert usable_limit() is None
    campaign = f"test-{tmp_path}"

    async def go() -> list[Seen]:
        with (tmp_path / "log").open("wb") as log:
            child = await spawn(
                ProcessTable(),
                "server",
                ["/bin/sleep", "1000"],
                campaign=campaign,
                run="r",
                environment=dict(os.environ) | {CAMPAIGN_VARIABLE: campaign, RUN_VARIABLE: "r"},
                log=log,
                cwd=tmp_path,
            )
        child.go()
        met = await end_marked(ProcessTable(), campaign, run="r", grace_s=10)
        assert await child.wait(300) is not None
        assert [seen.pid for seen in met] == [child.record.pid]
        return met

    assert asyncio.run(go())
