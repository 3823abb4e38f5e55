"""Hosts, records and attempts for the campaign's tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opprof.artifacts.campaign import Attempt, Phase, RunRecord, Slot, Transition
from opprof.campaign.costs import Pace
from opprof.campaign.places import GpuPlace, HostPlace
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
) -> HostPlace:
    """A host like dash0: four GPUs and 80 processors a NUMA node."""
    places = tuple(GpuPlace(i, f"GPU-{name}-{i}", i // per_node) for i in range(gpus))
    nodes = sorted({gpu.numa for gpu in places if gpu.numa is not None})
    width = per_node * cpus_per_gpu
    cpus = tuple((node, frozenset(range(node * width, (node + 1) * width))) for node in nodes)
    return HostPlace(name, places, cpus)


def where(hosts: Sequence[HostPlace] = (), width: int = 8) -> Where:
    chosen = tuple(hosts) or (host(),)
    return Where(chosen, {each.name: width for each in chosen}, 18000)


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
