"""The Ray executor over a real cluster of several nodes on this machine (no GPU, no network)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra: `make ray`")

from ray_builders import Notes, executor_on, identity_of, make_spec, tree
from ray_nodes import (
    REPOSITORY,
    LocalCluster,
    local_cluster,
    node_environment,
    processes_naming,
)
from ray_standin import run as run_standin

from opprof.artifacts.campaign import Attempt, RunRecord
from opprof.campaign.attempt import Halt, Outcome, PlaceLost
from opprof.campaign.meeting import RoundMeeting
from opprof.campaign.store import pretty
from opprof.code_hash import code_sha256
from opprof.errors import EnvironmentFailure

pytestmark = [pytest.mark.ray]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster() as made:
        made.add("alpha")
        made.add("beta")
        yield made
    assert not processes_naming(str(made.folder))
    assert not made.folder.exists()


def marked(folder: Path) -> list[int]:
    return processes_naming(f"OPPROF_CAMPAIGN={identity_of(folder)}")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up, what
        time.sleep(0.1)


@pytest.mark.parametrize(("ship", "host"), [(False, "alpha"), (True, "beta")])
def test_the_same_reports_and_files_as_without_ray(
    cluster: LocalCluster, tmp_path: Path, ship: bool, host: str
) -> None:
    here, there = tmp_path / "here", tmp_path / f"there-{host}"
    direct, remote = Notes(), Notes()
    spec = make_spec(there, host, "read")

    async def both() -> tuple[Outcome, Outcome]:
        first = await run_standin(make_spec(here, host, "read"), direct, Halt())
        async with executor_on(cluster, there, ship=ship) as executor:
            return first, await executor.execute(spec, remote, Halt())

    first, second = asyncio.run(both())
    assert second == first
    assert remote.lines == direct.lines
    names = tree(Path(spec.folder))
    expected = tree(here / "runs" / spec.run)
    assert {**names, "facts.txt": ""} == {**expected, "facts.txt": ""}
    assert (there / "runs" / spec.run / "inputs.txt").read_text() == "protocol;manifest;rate;"
    assert sorted(path.name for path in (there / "logs").iterdir()) == [
        path.name for path in (here / "logs").iterdir()
    ]
    assert {process.host for process in remote.processes} == {host}
    assert [process.role for process in remote.finished] == ["worker"]
    assert not marked(there)


def test_what_ray_does_to_its_workers_is_undone(cluster: LocalCluster, tmp_path: Path) -> None:
    spec = make_spec(tmp_path, "beta")

    async def once() -> None:
        async with executor_on(cluster, tmp_path) as executor:
            await executor.execute(spec, Notes(), Halt())

    asyncio.run(once())
    lines = (Path(spec.folder) / "facts.txt").read_text().splitlines()
    facts = dict(line.split(": ", 1) for line in lines)
    assert facts["nice"] == str(os.getpriority(os.PRIO_PROCESS, cluster.nodes["beta"].raylet()))
    assert facts["blocked"] == "[]"
    assert facts["omp"] == os.environ.get("OMP_NUM_THREADS", "(none)")
    assert facts["ray"] == "[]"


def test_files_travel_in_pieces_and_nothing_stays(cluster: LocalCluster, tmp_path: Path) -> None:
    spec = make_spec(tmp_path, "beta", "write", str(9_000_001))
    scratch = cluster.folder / "scratch"

    async def once() -> str:
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            await executor.execute(spec, Notes(), Halt())
            return (Path(spec.folder) / "facts.txt").read_text()

    facts = asyncio.run(once())
    assert (Path(spec.folder) / "traces" / "big.bin").stat().st_size == 9_000_001
    assert f"manifest: {scratch}" in facts and "/P01.jsonl" in facts
    assert not list(scratch.iterdir())


def test_errors_come_back_as_themselves_and_crashes_as_a_fault(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    fails = make_spec(tmp_path, "alpha", "fail", "disk full", run="P01-C00-saturation")
    crashes = make_spec(tmp_path, "alpha", "crash", "a bug")

    async def both() -> Outcome:
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            with pytest.raises(EnvironmentFailure, match="disk full") as caught:
                await executor.execute(fails, Notes(), Halt())
            assert type(caught.value) is EnvironmentFailure
            return await executor.execute(crashes, Notes(), Halt())

    outcome = asyncio.run(both())
    assert outcome.fault == "infrastructure"
    assert "TypeError: a bug" in outcome.reason
    assert (Path(fails.folder) / "server.log").is_file()
    assert (Path(crashes.folder) / "server.log").is_file()
    assert not marked(tmp_path)


@pytest.mark.parametrize("now", [False, True])
def test_cancelling_ends_the_processes_and_keeps_the_folder(
    cluster: LocalCluster, tmp_path: Path, now: bool
) -> None:
    spec, halt = make_spec(tmp_path, "beta", "hold"), Halt()

    async def once() -> None:
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            loading = asyncio.Event()
            notes = Notes(lambda phase: loading.set() if phase == "loading" else None)
            task = asyncio.create_task(executor.execute(spec, notes, halt))
            await loading.wait()
            halt.now = now
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not marked(tmp_path)

    asyncio.run(once())
    assert (Path(spec.folder) / "cancelled").read_text() == str(now)


@pytest.mark.parametrize("victim", ["actor", "worker"])
def test_a_dead_actor_or_worker_is_an_infrastructure_fault(
    cluster: LocalCluster, tmp_path: Path, victim: str
) -> None:
    spec = make_spec(tmp_path, "beta", "hold")

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def once() -> Outcome:
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            notes = Notes()
            task = asyncio.create_task(executor.execute(spec, notes, Halt()))
            while "phase loading" not in notes.lines:
                assert not task.done(), notes.lines
                await asyncio.sleep(0.05)
            pid = notes.of("worker").pid
            if victim == "actor":
                (pid,) = [p for p in cluster.nodes["beta"].pids() if is_bridge(p)]
            kill(pid)
            outcome = await task
            assert not marked(tmp_path)
            # The node itself goes on working.
            again = make_spec(tmp_path, "beta", "read", run="P01-C00-saturation")
            assert (await executor.execute(again, Notes(), Halt())).reason == ""
            return outcome

    outcome = asyncio.run(once())
    assert outcome.fault == "infrastructure" and outcome.reason
    assert (Path(spec.folder) / "server.log").read_text().startswith("up")


def test_slots_are_held_and_real_gpus_are_those_that_ray_gave(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text(
        "from nvml_stub import *\n"
        "from nvml_stub import StubNvml\n"
        "_stub = StubNvml()\n"
        "def __getattr__(name):\n"
        "    return getattr(_stub, name)\n"
    )
    path = os.pathsep.join([str(tmp_path), node_environment()["PYTHONPATH"]])
    seen = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "1"}
    node = cluster.add("epsilon", slots=0, gpus=1, environment=seen)

    async def look() -> None:
        import ray

        async with executor_on(cluster, tmp_path / "c", wanted=("alpha", "epsilon")) as executor:
            alpha, epsilon = executor.hosts()
            assert [(gpu.index, gpu.uuid) for gpu in alpha.gpus] == [(0, "")]
            assert [gpu.index for gpu in epsilon.gpus] == [1]
            assert epsilon.gpus[0].uuid and epsilon.kind == "nvml" and alpha.kind == "cpu"
            # What is left is beta's; Ray's own count of it follows by and by.
            wait_until(
                lambda: (
                    (left := ray.available_resources()).get("GPU", 0) == 0
                    and left["opprof_gpu"] == 1
                ),
                "slots that are held count as available",
            )

    try:
        asyncio.run(look())
    finally:
        node.stop()
        del cluster.nodes[node.name]


def test_a_round_meets_at_the_controller(cluster: LocalCluster, tmp_path: Path) -> None:
    specs = [
        make_spec(tmp_path, "beta", run="target"),
        make_spec(tmp_path, "beta", run="beside", background=True),
    ]

    async def once() -> list[Outcome]:
        meeting = RoundMeeting("target", ["beside"])
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            return await asyncio.gather(
                *(executor.execute(each, Notes(), Halt(), meeting) for each in specs)
            )

    assert [outcome.reason for outcome in asyncio.run(once())] == ["", ""]
    target, beside = (
        [line.split() for line in (Path(spec.folder) / "round.txt").read_text().splitlines()]
        for spec in specs
    )
    assert int(beside[0][0]) + 200_000_000 <= int(target[0][0])
    assert int(target[1][0]) <= int(beside[1][0])


def test_a_dead_background_breaks_its_round_off(cluster: LocalCluster, tmp_path: Path) -> None:
    target = make_spec(tmp_path, "beta", run="target")
    beside = make_spec(tmp_path, "beta", "hold", run="beside", background=True)

    async def once() -> Outcome:
        meeting, notes = RoundMeeting("target", ["beside"]), Notes()
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            first = asyncio.create_task(executor.execute(target, Notes(), Halt(), meeting))
            second = asyncio.create_task(executor.execute(beside, notes, Halt(), meeting))
            while "phase loading" not in notes.lines:
                await asyncio.sleep(0.05)
            os.kill(notes.of("worker").pid, signal.SIGKILL)
            with pytest.raises(EnvironmentFailure, match="the background beside broke off"):
                await first
            return await second

    assert asyncio.run(once()).fault == "infrastructure"
    assert not marked(tmp_path)


def is_bridge(pid: int) -> bool:
    return b"ray::Bridge" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_lost_node_is_told_apart_and_leaves_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    gamma = cluster.add("gamma")
    spec = make_spec(tmp_path, "gamma", "hold")

    async def once() -> None:
        async with executor_on(cluster, tmp_path) as executor:
            assert [host.host for host in executor.hosts()] == ["alpha", "beta", "gamma"]
            notes = Notes(lambda phase: gamma.kill() if phase == "loading" else None)
            with pytest.raises(PlaceLost, match="gamma was lost"):
                await executor.execute(spec, notes, Halt())
            assert [host.host for host in executor.hosts()] == ["alpha", "beta"]
            assert not marked(tmp_path)
            with pytest.raises(PlaceLost, match="no living Ray node 'gamma'"):
                await executor.execute(spec, Notes(), Halt())
            elsewhere = make_spec(tmp_path, "beta", "read", run="P01-C00-saturation")
            assert (await executor.execute(elsewhere, Notes(), Halt())).reason == ""

    try:
        asyncio.run(once())
    finally:
        gamma.stop()
        del cluster.nodes[gamma.name]
    assert (Path(spec.folder) / "server.log").is_file()


_CONTROLLER = """
import asyncio, pathlib, sys
from ray_builders import Notes, executor_on, make_spec
from ray_nodes import LocalCluster
from opprof.artifacts.campaign import Attempt, RunRecord  # noqa: E402
from opprof.campaign.attempt import Halt
import ray_builders

async def main(folder, root, port):
    async with executor_on(LocalCluster(root, port), folder, ship=True) as executor:
        notes = Notes(lambda phase: print("phase", phase, flush=True))
        await executor.execute(make_spec(folder, "beta", "hold"), notes, Halt())

asyncio.run(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])))
"""


def test_a_killed_controller_leaves_no_process_and_its_successor_brings_files_home(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    spec = make_spec(tmp_path, "beta", "hold")
    command = [sys.executable, "-c", _CONTROLLER, str(tmp_path), str(cluster.folder)]
    with subprocess.Popen(
        [*command, str(cluster.port)], stdout=subprocess.PIPE, env=node_environment()
    ) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if line == b"phase loading\n":
                break
        assert marked(tmp_path)
        first.kill()
    wait_until(lambda: not marked(tmp_path), "processes of a dead controller are left")
    write_record(tmp_path, spec.run)

    async def resume() -> list[str]:
        async with executor_on(cluster, tmp_path, ship=True) as executor:
            return (await executor.clean_up(identity_of(tmp_path))).lines

    lines = asyncio.run(resume())
    # Both nodes are one machine, and what lies there is the machine's.
    assert [line for line in lines if line.endswith(f": brought home attempt {spec.run}.1")]
    assert (Path(spec.folder) / "cancelled").read_text() == "True"
    assert not list((cluster.folder / "scratch").iterdir())


def write_record(folder: Path, run: str) -> None:
    """The state that the dead controller left."""
    last = Attempt(1, f"runs/{run}", "loading", [], None, [], {}, {})
    record = RunRecord(
        1, run, "P01", "C00", "moderate", "primary", 0, needs=[], state="loading", attempts=[last]
    )
    path = folder / "state" / f"{run}.json"
    path.parent.mkdir()
    path.write_bytes(pretty(record))


@pytest.mark.parametrize(
    ("package", "words"),
    [("other", "has other code: "), ("none", "has no opprof (ImportError: not here")],
)
def test_a_node_with_other_code_or_none_is_refused(
    cluster: LocalCluster, tmp_path: Path, package: str, words: str
) -> None:
    sources = tmp_path / "sources"
    if package == "other":
        shutil.copytree(REPOSITORY / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        with (sources / "opprof" / "api.py").open("a") as stream:
            stream.write("# changed\n")
    else:
        (sources / "opprof").mkdir(parents=True)
        (sources / "opprof" / "__init__.py").write_text("raise ImportError('not here')\n")
    node = cluster.add(f"delta-{package}", environment={"PYTHONPATH": str(sources)})

    async def once() -> None:
        async with executor_on(cluster, tmp_path / "campaign"):
            raise AssertionError("was opened")

    try:
        with pytest.raises(EnvironmentFailure) as caught:
            asyncio.run(once())
    finally:
        node.stop()
        del cluster.nodes[node.name]
    assert f"delta-{package} {words}" in str(caught.value)
    assert str(caught.value).count(code_sha256()) == 1
