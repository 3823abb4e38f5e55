"""A campaign on two Ray nodes ends as the same campaign on this host does; a lost node costs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra: `make ray`")

from campaign_small import small_manifests, small_protocol
from ray_nodes import LocalCluster, local_cluster, node_environment, processes_naming

from opprof.artifacts.campaign import Attempt, RunRecord
from opprof.campaign.store import Store, is_locked
from opprof.host.cpu import CpuHost

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
    small_protocol(folder / "small.toml")
    small_manifests(folder / "private")
    return folder


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

    def start(self, code: int = 0) -> str:
        command = ["start", str(self.sources / "small.toml"), "--out", str(self.out)]
        command += ["--engine", "sim", "--time-scale", "0.03", "--var", "MODEL=tiny"]
        command += ["--private", str(self.sources / "private"), "--no-cpu-masks"]
        return self.opprof(*command, *self.flags, code=code)

    def wait_end(self) -> None:
        self.wait(lambda: not is_locked(self.out))

    def wait(self, holds: Callable[[], Any]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up, self.log()
            time.sleep(0.05)

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
            [re.sub(r"\b\d{4,5}\b", "PORT", word) for word in each.command]
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
    cluster: LocalCluster, sources: Path, tmp_path: Path
) -> None:
    local = Site(sources, tmp_path / "local" / "campaign", "--gpus", "0")
    spread = Site(sources, tmp_path / "ray" / "campaign", *on_ray(cluster, "--ray-ship"))
    for site in (local, spread):
        site.out.parent.mkdir()
        site.start()
        site.wait_end()
        assert {run.state for run in site.runs} == {"complete"}, site.log()
        assert not site.left()
    at = str(local.out), str(spread.out)
    for one, two in zip(local.runs, spread.runs, strict=True):
        mine, theirs = story(one), story(two)
        text = str(mine).replace(at[0], "CAMPAIGN"), str(theirs).replace(at[1], "CAMPAIGN")
        assert text[0] == text[1]
        assert names(local.out / "runs" / one.run) == names(spread.out / "runs" / two.run)
    assert names(local.out / "logs") == names(spread.out / "logs")
    scratch = f"/opprof-{os.geteuid()}-"
    assert holding(spread.out / "runs", scratch) == holding(local.out / "runs", at[0])
    used = [last.slot.host for run in spread.runs if (last := run.attempt) and last.slot]
    assert set(used) == {"alpha", "beta"}
    assert CpuHost().name not in used
