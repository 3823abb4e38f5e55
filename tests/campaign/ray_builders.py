"""Values for the Ray executor's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from ray_nodes import LocalCluster
from ray_standin import ENTRY

from opprof.artifacts.campaign import Campaign, Phase, ProcessRecord, Slot
from opprof.campaign.attempt import AttemptSpec
from opprof.campaign.executors.ray import RayExecutor, RaySettings
from opprof.campaign.executors.ray_cluster import RayLimits
from opprof.campaign.options import Limits, Options
from opprof.code_hash import client_sha256, code_sha256
from opprof.files import sha256_bytes, sha256_file

LIMITS = RayLimits(connect_s=5, place_s=90, answer_s=60, loss_s=60)


class Notes:
    """A journal that only remembers, and calls back."""

    def __init__(self, on_phase: Callable[[Phase], None] | None = None) -> None:
        self.lines: list[str] = []
        self.processes: list[ProcessRecord] = []
        self.finished: list[ProcessRecord] = []
        self._on_phase = on_phase

    async def phase(self, phase: Phase, reason: str = "") -> None:
        self.lines.append(f"phase {phase} {reason}".strip())
        if self._on_phase is not None:
            self._on_phase(phase)

    async def started(self, process: ProcessRecord) -> None:
        self.processes.append(process)
        if process.role != "worker":
            self.lines.append(f"started {process.role}")

    async def ended(self, process: ProcessRecord) -> None:
        self.finished.append(process)
        if process.role != "worker":
            self.lines.append(f"ended {process.role}")

    async def signalled(self, wall_ns: int) -> None:
        self.lines.append("signalled")

    def of(self, role: str) -> ProcessRecord:
        """Return the one process of a role."""
        (found,) = [each for each in self.processes if each.role == role]
        return found


def identity_of(folder: Path) -> str:
    """A campaign's id that no other test has: names of folders recur in pytest's other workers."""
    return f"test-{sha256_bytes(str(folder).encode())[:12]}"


def make_campaign(identity: str = "test-ray") -> Campaign:
    """A campaign whose processes are killed quickly."""
    limits = Limits(exit_s=1, grace_s=1)
    return Campaign(
        schema=1,
        id=identity,
        protocol_id="test",
        protocol_sha256="0" * 64,
        engine="sim",
        variables={},
        manifests={"P01": "0" * 64},
        time_scale=1.0,
        seed=1,
        hosts=[],
        executor="ray",
        options=msgspec.to_builtins(Options(limits=limits)),
        code_version="0",
        code_sha256="0" * 64,
        created_wall_ns=0,
    )


def make_spec(
    folder: Path,
    host: str,
    *launch: str,
    run: str = "P01-C00-moderate",
    number: int = 1,
    background: bool = False,
) -> AttemptSpec:
    """An attempt in the campaign folder ``folder`` that does what ``launch`` says."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "private").mkdir(exist_ok=True)
    manifest = folder / "private" / "P01.jsonl"
    files = {folder / "protocol.toml": "protocol;", manifest: "manifest;"}
    files[folder / "saturation.json"] = "rate;"
    files[folder / "private" / "P01.manifest.sha256"] = "companion"
    for path, text in files.items():
        path.write_text(text)
    return AttemptSpec(
        campaign=make_campaign(identity_of(folder)),
        run=run,
        pattern="P01",
        config="C00",
        load_point="moderate",
        role="primary",
        number=number,
        slot=Slot(host, [0], [], 0, "", 1),
        folder=str(folder / "runs" / run),
        logs=str(folder / "logs" / f"{run}.{number}"),
        protocol=str(folder / "protocol.toml"),
        manifest=str(manifest),
        manifest_sha256=sha256_file(manifest),
        saturation=str(folder / "saturation.json"),
        launch=list(launch),
        environment={},
        shutdown_timeout_s=1.0,
        model="model",
        source_hashes={
            "protocol": sha256_file(folder / "protocol.toml"),
            "code": code_sha256(),
            "client": client_sha256(),
            "manifest": sha256_file(manifest),
            "launch": "0" * 64,
        },
        expected_s=1.0,
        unrepresentative_before=0,
        redacted={str(folder / "private"): "${PRIVATE}"},
        background=background,
    )


@asynccontextmanager
async def executor_on(
    cluster: LocalCluster, folder: Path, *, ship: bool = False, wanted: tuple[str, ...] = ()
) -> AsyncIterator[RayExecutor]:
    """Yield an executor over the cluster's nodes, with the stand-in as its attempt function.

    Only over those that stand in it now: Ray may still count one that has just been stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scratch = cluster.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    executor = await RayExecutor.open(
        make_campaign(identity_of(folder)),
        folder,
        RaySettings(cluster.address, str(scratch), ship, ENTRY, LIMITS),
        grace_s=1.0,
        say=print,
        wanted=wanted or tuple(cluster.nodes),
    )
    try:
        yield executor
    finally:
        await executor.close()


def tree(folder: Path) -> dict[str, str]:
    """Return every name below a folder with what kind of thing it is, or its bytes' hash."""
    return {
        path.relative_to(folder).as_posix(): "folder" if path.is_dir() else sha256_file(path)
        for path in sorted(folder.rglob("*"))
    }
