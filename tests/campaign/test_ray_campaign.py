"""A campaign on two Ray nodes ends as the same campaign on this host does; a lost node costs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("ray", reason="needs the extra: `make ray`")

from campaign_small import small_manifests, small_protocol
from crash_site import digest
from ray_nodes import (
    LocalCluster,
    free_port,
    local_cluster,
    node_environment,
    processes_naming,
)

from opprof.artifacts.campaign import Attempt, RunRecord
from opprof.campaign.naming import is_of_host
from opprof.campaign.processes import ProcessTable
from opprof.campaign.store import Store, is_locked
from opprof.host.cpu import CpuHost

T = TypeVar("T")
pytestmark = pytest.mark.ray
PATIENCE_S = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster() as made:
        made.add("alpha")
        made.add("beta")
        yield made
    assert not processes_naming(str(made.folder))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    # In virtual time every second has its full number of requests.
    short = {"warmup_s": "4", "clean_segment_s": "4", "recovery_s": "4"}
    small_protocol(folder / "small.toml", changes=short)
    small_manifests(folder / "private")
    return folder


@pytest.fixture(scope="module")
def local(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The campaign as this host alone runs it."""
    site = Site(sources, tmp_path_factory.mktemp("local") / "campaign", "--serial")
    site.start()
    site.wait_end()
    assert {run.state for run in site.runs} == {"complete"}, site.log()
    return site


class Site:
    """One campaign and its command line."""

    def __init__(self, sources: Path, out: Path, *flags: str) -> None:
        self.sources, self.out, self.flags = sources, out, flags

    def opprof(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "opprof", "campaign", *arguments],
            capture_output=True,
            text=True,
            env=node_environment(),
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr + self.log()
        return done.stdout + done.stderr

    def start(self, *clock: str, code: int = 0) -> str:
        command = ["start", str(self.sources / "small.toml"), "--out", str(self.out)]
        command += ["--engine", "sim", *(clock or ["--virtual"]), "--var", "MODEL=tiny"]
        command += ["--private", str(self.sources / "private"), "--no-cpu-masks"]
        return self.opprof(*command, *self.flags, code=code)

    def wait_end(self) -> None:
        self.wait(lambda: not is_locked(self.out))

    def wait(self, look: Callable[[], T]) -> T:
        """Return what ``look`` finds, as soon as it finds something."""
        give_up = time.monotonic() + PATIENCE_S
        while not (found := look()):
            assert time.monotonic() < give_up, self.log()
            time.sleep(0.05)
        return found

    def log(self) -> str:
        path = self.out / "controller.log"
        return path.read_text() if path.is_file() else ""

    @property
    def runs(self) -> list[RunRecord]:
        return Store(self.out, wall_ns=time.time_ns).runs()

    def left(self) -> list[int]:
        return processes_naming(
            f"OPPROF_CAMPAIGN={Store(self.out, wall_ns=time.time_ns).campaign().id}"
        )

    def last(self, run: RunRecord) -> Attempt:
        assert run.attempt is not None
        return run.attempt


def on_ray(cluster: LocalCluster, *more: str) -> list[str]:
    return ["--executor", "ray", "--ray-address", cluster.address, *more]


def story(run: RunRecord) -> dict[str, Any]:
    """What a run's record says, without hosts, processes' numbers, ports and times."""
    last = run.attempt
    assert last is not None
    return {
        "state": run.state,
        "accepted": run.accepted,
        "attempts": len(run.attempts),
        "phases": [step.phase for step in last.transitions],
        "roles": [each.role for each in last.processes if each.role != "worker"],
        "exits": [each.exit_status for each in last.processes if each.role != "worker"],
        "commands": [
            # The worker's log, which its scan looks into as well, is a node's alone.
            re.sub(r" --also \S+\.worker\.log|\b\d{4,5}\b", "", " ".join(each.command))
            for each in last.processes
            if each.role != "worker"
        ],
        "checks": {name: gate.outcome for name, gate in last.checks.items()},
        "sources": last.source_hashes,
        "slot": (last.slot.gpus, last.slot.cpus) if last.slot else None,
    }


def names(folder: Path) -> list[str]:
    return sorted(
        re.sub(r"\d{6,}(\.\d+)?", "N", path.relative_to(folder).as_posix())
        for path in folder.rglob("*")
    )


def holding(folder: Path, text: str) -> set[str]:
    """Return the names of files below a folder that hold a text."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    }


def test_two_nodes_give_what_one_host_gives(
    cluster: LocalCluster, sources: Path, local: Site, tmp_path: Path
) -> None:
    spread = Site(sources, tmp_path / "campaign", *on_ray(cluster, "--ray-ship"))
    spread.start()
    spread.wait_end()
    assert {run.state for run in spread.runs} == {"complete"}, spread.log()
    assert not spread.left()
    # Virtual time: client files, step streams and traces have the same bytes.
    assert digest(spread.out) == digest(local.out)
    at = str(local.out), str(spread.out)
    own = [run.run for run in spread.runs if is_of_host(run.run)]
    assert own == ["P01-C00-saturation-burnin@beta"], "the second node is warm too"
    matrix = [run for run in spread.runs if run.run not in own]
    for one, two in zip(local.runs, matrix, strict=True):
        mine, theirs = story(one), story(two)
        text = str(mine).replace(at[0], "CAMPAIGN"), str(theirs).replace(at[1], "CAMPAIGN")
        assert text[0] == text[1]
        assert names(local.out / "runs" / one.run) == names(spread.out / "runs" / two.run)
    logs = [name for name in names(spread.out / "logs") if not is_of_host(name)]
    assert names(local.out / "logs") == logs
    scratch = f"/opprof-{os.geteuid()}-"
    held = {path for path in holding(spread.out / "runs", scratch) if not is_of_host(path)}
    assert held == holding(local.out / "runs", at[0])
    used = [last.slot.host for run in spread.runs if (last := run.attempt) and last.slot]
    assert set(used) == {"alpha", "beta"}
    assert CpuHost().name not in used


def test_a_lost_nodes_run_restarts_on_the_other(
    cluster: LocalCluster, sources: Path, local: Site, tmp_path: Path
) -> None:
    gamma = cluster.add("gamma")
    nodes = on_ray(cluster, "--ray-node", "alpha", "--ray-node", "gamma")
    site = Site(sources, tmp_path / "campaign", *nodes)
    site.start()

    store = Store(site.out, wall_ns=time.time_ns)

    def held_on_gamma() -> RunRecord | None:
        """A run under load there whose client was stopped: it cannot end before its node."""
        for run in site.runs:
            last = run.attempt
            there = last is not None and last.slot is not None and last.slot.host == "gamma"
            if not there or last is None or (run.role, run.state) != ("primary", "loading"):
                continue
            clients = [each for each in last.processes if each.role == "client"]
            if clients and ProcessTable().send(clients[0], signal.SIGSTOP):
                if store.run(run.run).state == "loading" and ProcessTable().is_alive(clients[0]):
                    return run
                ProcessTable().send(clients[0], signal.SIGCONT)
        return None

    victim = site.wait(held_on_gamma)
    gamma.kill()
    site.wait_end()
    assert {run.state for run in site.runs} == {"complete"}, site.log()
    (lost,) = [run for run in site.runs if run.run == victim.run]
    first, second = lost.attempts
    assert (first.phase, first.fault) == ("interrupted", "infrastructure")
    assert "the Ray node gamma was lost" in first.transitions[-1].reason
    assert first.slot is not None and first.slot.host == "gamma"
    assert second.slot is not None and second.slot.host == "alpha"
    assert [step.phase for step in second.transitions][:2] == ["starting", "serving"]
    assert (site.out / first.folder / "server.log").is_file()
    assert first.folder == f"attempts/{lost.run}.1"
    others = [run for run in site.runs if run.run != lost.run]
    assert [len(run.attempts) for run in others] == [1] * len(others)
    assert digest(site.out) == digest(local.out)
    assert not site.left()


def of_cell(hashes: dict[str, str], cell: str) -> dict[str, str]:
    found = {name: value for name, value in hashes.items() if name.startswith(cell)}
    assert found
    return found


def test_head_node_and_controller_die_together_and_a_new_cluster_goes_on(
    sources: Path, local: Site, tmp_path: Path
) -> None:
    run = "P01-C00-saturation"
    with local_cluster() as first:
        head = first.add("alpha", slots=0)
        beta = first.add("beta")
        flags = on_ray(first, "--ray-ship", "--only", "P01/C00")
        site = Site(sources, tmp_path / "campaign", *flags)
        site.start()
        store = Store(site.out, wall_ns=time.time_ns)
        site.wait(lambda: store.run(run).state == "loading")
        last, controller = site.last(store.run(run)), store.controller()
        assert controller is not None
        (worker,) = [each for each in last.processes if each.role == "worker"]
        # It cannot end what it started: server and client become orphans of a lost node.
        assert ProcessTable().send(worker, signal.SIGSTOP)
        head.kill_whole()
        assert ProcessTable().send(controller.process, signal.SIGKILL)
        beta.kill_whole()
        site.wait_end()
    # The client ends by itself sooner or later; these two never would.
    orphans = {each.pid for each in last.processes if each.role in ("worker", "server")}
    killed_ns = time.time_ns()
    assert len(orphans) == 2 and orphans <= set(site.left())
    assert f"no Ray cluster answers at {first.address}" in site.opprof(
        "resume", str(site.out), code=1
    )
    with local_cluster() as second:
        # The node that was lost comes back, in a cluster that was started anew.
        second.add("beta")
        site.opprof("resume", str(site.out), "--ray-address", second.address)
        site.wait(lambda: store.run(run).state == "complete" or not is_locked(site.out))
        # The moderate run is nothing new.
        site.opprof("stop", "--now", str(site.out))
    burnin, saturation, _ = site.runs
    assert [each.state for each in (burnin, saturation)] == ["complete", "complete"], site.log()
    assert [len(each.attempts) for each in (burnin, saturation)] == [1, 2]
    one = saturation.attempts[0]
    assert (one.phase, one.fault) == ("interrupted", "interrupted")
    ended = [line for line in site.log().splitlines() if "ended pid" in line]
    assert all(f"ended pid {pid} " in " ".join(ended) for pid in orphans)
    assert site.log().index(ended[-1]) < site.log().index(f"{run}: attempt 2 begins")
    # They held their slot until then, and the ledger says so.
    assert one.gpu_seconds >= (killed_ns - one.transitions[0].wall_ns) / 1e9
    # What the node held when its controller died was brought home by the next one.
    assert (site.out / "attempts" / f"{run}.1" / "server.log").is_file()
    assert of_cell(digest(site.out), f"{run}/") == of_cell(digest(local.out), f"{run}/")
    assert not site.left()


def test_a_stop_ends_the_attempts_on_the_nodes_and_keeps_their_files(
    cluster: LocalCluster, sources: Path, tmp_path: Path
) -> None:
    site = Site(sources, tmp_path / "campaign", *on_ray(cluster, "--ray-ship", "--only", "P01/C00"))
    site.start()
    store, run = Store(site.out, wall_ns=time.time_ns), "P01-C00-saturation"
    site.wait(lambda: store.run(run).state == "loading")
    site.opprof("stop", str(site.out))
    site.wait_end()
    assert not site.left()
    last = store.run(run).attempt
    assert last is not None
    assert (last.phase, last.fault) == ("interrupted", "interrupted")
    assert last.transitions[-1].reason == "the controller was told to end"
    phases = [step.phase for step in last.transitions]
    assert phases[-3:-1] == ["draining", "cleaning"]
    kept = names(site.out / "attempts" / f"{run}.1")
    assert {"server.log", "commands.log", "opprof"} <= set(kept)


def test_a_cluster_that_cannot_be_used_is_refused_before_anything_is_made(
    cluster: LocalCluster, sources: Path, tmp_path: Path
) -> None:
    silent = f"127.0.0.1:{free_port()}"
    site = Site(sources, tmp_path / "a", "--executor", "ray", "--ray-address", silent)
    assert f"no Ray cluster answers at {silent}" in site.start(code=1)
    assert not site.out.exists()
    site = Site(sources, tmp_path / "b", *on_ray(cluster, "--ray-node", "omega"))
    assert "no living node 'omega'" in site.start(code=1)
