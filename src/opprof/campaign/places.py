"""Where runs may execute: hosts with their GPUs, NUMA nodes and processors; CPU masks (A-P3-1).

Hosts are values here: a probe, a file or a cluster fills them in. Masks are texts as ``taskset -c``
takes them ("0-19,40") and sets of processor numbers inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opprof.errors import InputError
from opprof.protocol.model import Placement

CPU_MAX = 1 << 16
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class GpuPlace:
    """One physical GPU."""

    index: int
    """Physical index, as NVML and PCI bus order number it."""
    uuid: str
    """Empty on a host without real GPUs."""
    numa: int | None
    """NUMA node it is local to; None where the host does not tell."""


@dataclass(frozen=True)
class HostPlace:
    """One engine host as its real topology shows it."""

    name: str
    gpus: tuple[GpuPlace, ...]
    """Those that the campaign may use, in the order of their indices."""
    cpus_by_node: tuple[tuple[int, frozenset[int]], ...]
    """NUMA node to its online processors; empty where the host does not tell."""

    def cpus_of(self, node: int) -> frozenset[int] | None:
        """Return a node's processors; None where they are unknown."""
        return dict(self.cpus_by_node).get(node)


@dataclass(frozen=True)
class GpuSlot:
    """One GPU of one host, with the port that belongs to it in every wave."""

    host: str
    gpu: GpuPlace
    ordinal: int
    """Over all hosts; makes the port unique even where two hosts share a network stack."""


def parse_cpus(text: str) -> frozenset[int]:
    """Return the processors of a mask such as ``0-19,40``; empty for an empty text.

    Raises:
        InputError: the text is no list of numbers and ascending ranges.
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        match = _PART.fullmatch(part)
        if match is None:
            raise InputError(f"CPU mask {text!r}: {part!r} is neither a number nor a range")
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last < first or last >= CPU_MAX:
            raise InputError(f"CPU mask {text!r}: bad range {part!r}")
        found.update(range(first, last + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest mask text of a set of processors, ascending."""
    parts: list[str] = []
    start = last = -2
    for cpu in [*sorted(set(cpus)), CPU_MAX + 1]:
        if cpu == last + 1:
            last = cpu
            continue
        if last >= 0:
            parts.append(str(start) if start == last else f"{start}-{last}")
        start = last = cpu
    return ",".join(parts)


def mask_of(placement: Placement, gpus: Sequence[int]) -> str:
    """Return the mask for a run on these physical GPUs: the union of the protocol's masks.

    Empty where the protocol maps no processors at all.

    Raises:
        InputError: the protocol has no mask for one of them.
    """
    if not placement.cpu_map:
        return ""
    beyond = [index for index in gpus if index >= len(placement.cpu_map)]
    if beyond:
        raise InputError(f"placement.cpu_map has no mask for GPU {beyond[0]}")
    return format_cpus(cpu for index in gpus for cpu in parse_cpus(placement.cpu_map[index]))


def placement_problems(placement: Placement, host: HostPlace) -> list[str]:
    """Compare the protocol's map with the host's real topology; one sentence a difference.

    ``nvidia-smi topo -m`` must show every GPU local to the protocol's NUMA node, masks must be
    disjoint, inside their node and online (A-P3-1). What the host does not tell is no difference.
    """
    problems: list[str] = []
    owner: dict[int, int] = {}
    indices = [gpu.index for gpu in host.gpus]
    if len(set(indices)) != len(indices):
        problems.append(f"{host.name}: a GPU index occurs twice: {indices}")
    for gpu in host.gpus:
        node = gpu.numa
        if gpu.index < len(placement.numa_nodes):
            wanted = placement.numa_nodes[gpu.index]
            if node is not None and node != wanted:
                problems.append(
                    f"{host.name}: GPU {gpu.index} is local to NUMA node {node}, the protocol's map"
                    f" says {wanted}"
                )
            node = wanted
        if not placement.cpu_map:
            continue
        if gpu.index >= len(placement.cpu_map):
            problems.append(f"{host.name}: placement.cpu_map has no mask for GPU {gpu.index}")
            continue
        mask = parse_cpus(placement.cpu_map[gpu.index])
        problems += _mask_problems(host, gpu.index, mask, node, owner)
    return problems


def _mask_problems(
    host: HostPlace, index: int, mask: frozenset[int], node: int | None, owner: dict[int, int]
) -> list[str]:
    problems = []
    where = f"{host.name}: mask of GPU {index}"
    if not mask:
        problems.append(f"{where} is empty")
    shared = sorted(cpu for cpu in mask if cpu in owner)
    if shared:
        problems.append(f"{where} shares CPU {shared[0]} with that of GPU {owner[shared[0]]}")
    owner.update(dict.fromkeys(mask, index))
    inside = None if node is None else host.cpus_of(node)
    if inside is None and host.cpus_by_node and node is not None:
        problems.append(f"{where}: the host has no NUMA node {node}")
    elif inside is not None and mask - inside:
        outside = format_cpus(mask - inside)
        problems.append(f"{where}: CPUs {outside} are not online in NUMA node {node}")
    return problems


def visible_devices(gpus: Sequence[GpuPlace]) -> str:
    """Return ``CUDA_VISIBLE_DEVICES``: UUIDs, which no renumbering moves; indices without them.

    vLLM 0.24.0 takes both (``platforms/cuda.py``, ``device_control_id_to_physical_device_id``).
    """
    if all(gpu.uuid for gpu in gpus):
        return ",".join(gpu.uuid for gpu in gpus)
    return ",".join(str(gpu.index) for gpu in gpus)


def gpu_slots(hosts: Sequence[HostPlace], widths: Mapping[str, int]) -> list[GpuSlot]:
    """Return the GPU slots that may be used at once: the first ``width`` of every host."""
    slots: list[GpuSlot] = []
    ordinal = 0
    for host in hosts:
        for rank, gpu in enumerate(host.gpus):
            if rank < widths[host.name]:
                slots.append(GpuSlot(host.name, gpu, ordinal))
            ordinal += 1
    return slots


def take_adjacent(
    free: Sequence[GpuSlot], count: int, *, one_node: bool = True
) -> list[GpuSlot] | None:
    """Return the first ``count`` free slots with adjacent indices on one NUMA node of one host.

    ``free``: ascending. None where there are none. NUMA nodes that the host does not tell count as
    one node; ``one_node`` False lets a block span nodes.
    """
    for start in range(len(free) - count + 1):
        block = list(free[start : start + count])
        first = block[0]
        if all(
            slot.host == first.host
            and slot.gpu.index == first.gpu.index + offset
            and (slot.gpu.numa == first.gpu.numa or not one_node)
            for offset, slot in enumerate(block)
        ):
            return block
    return None
