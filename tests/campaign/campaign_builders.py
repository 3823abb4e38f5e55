"""Hosts, records and attempts for the campaign's tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opprof.artifacts.campaign import Attempt, Phase, RunRecord, Slot, Transition
from opprof.artifacts.environment import GpuDevice, NumaNode, Topology
from opprof.campaign.costs import Pace
from opprof.campaign.waves import Where
from opprof.protocol.load import load_protocol
from opprof.protocol.model import ProtocolFile

PACE = Pace(time_scale=1.0, shutdown_timeout_s=10.0)
NS = 1_000_000_000


def phase3() -> ProtocolFile:
    protocol = load_protocol("phase3")
    assert protocol is not None
    return protocol.file


def host(
    name: str = "dash0", gpus: int = 8, *, per_node: int = 4, cpus_per_gpu: int = 20
) -> Topology:
    """A host like dash0: four GPUs and 80 processors a NUMA node."""
    places = [GpuDevice(i, f"GPU-{name}-{i}", "fake", 0, i // per_node) for i in range(gpus)]
    width = per_node * cpus_per_gpu
    nodes = sorted({i // per_node for i in range(gpus)})
    return Topology(
        host=name,
        kind="fake",
        boot_id="boot",
        gpus=places,
        numa_nodes=[NumaNode(n, f"{n * width}-{(n + 1) * width - 1}") for n in nodes],
        cpus=f"0-{max(1, len(nodes)) * width - 1}",
    )


def where(hosts: Sequence[Topology] = (), width: int = 8) -> Where:
    chosen = tuple(hosts) or (host(),)
    return Where(chosen, {each.host: width for each in chosen}, 18000)


def attempt(
    number: int,
    phase: Phase,
    slot: Slot | None = None,
    *,
    start_s: float = 0.0,
    cleaning_s: float | None = None,
    end_s: float | None = None,
    fault: str = "",
    reason: str = "",
    gpu_seconds: float = 0.0,
) -> Attempt:
    """An attempt with the transitions that its times tell."""
    steps = [("starting", start_s), ("cleaning", cleaning_s), (phase, end_s)]
    return msgspec.convert(
        {
            "number": number,
            "folder": "runs/x",
            "phase": phase,
            "transitions": [
                msgspec.to_builtins(Transition(name, round(at * NS)))  # type: ignore[arg-type]
                for name, at in steps
                if at is not None
            ],
            "slot": None if slot is None else msgspec.to_builtins(slot),
            "processes": [],
            "source_hashes": {},
            "checks": {},
            "reason": reason,
            "fault": fault,
            "gpu_seconds": gpu_seconds,
        },
        Attempt,
    )


def ended(
    record: RunRecord,
    phase: Phase,
    slot: Slot | None = None,
    *,
    accepted: bool | None = None,
    fault: str = "",
    quarantined: bool | None = None,
    gpu_seconds: float = 0.0,
) -> RunRecord:
    """The record after one more attempt that ended in ``phase``."""
    last = attempt(
        len(record.attempts) + 1, phase, slot, end_s=1.0, fault=fault, gpu_seconds=gpu_seconds
    )
    if phase == "complete" and accepted is None and record.role != "burnin":
        accepted = True
    return msgspec.structs.replace(
        record,
        state=phase,
        attempts=[*record.attempts, last],
        accepted=accepted,
        drain_quarantined=quarantined,
    )
