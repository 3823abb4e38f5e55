"""Where runs may execute: GPU slots of hosts, their CPU masks, and what the map must satisfy.

Hosts are :class:`~opprof.artifacts.environment.Topology` values: a probe, a file or a cluster gives
them. Source: A-P3-1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from opprof.artifacts.environment import GpuDevice, Topology
from opprof.errors import InputError
from opprof.host.cpus import format_cpus, parse_cpus
from opprof.protocol.model import Placement


@dataclass(frozen=True)
class GpuSlot:
    """One GPU of one host, with the place in the list that its port comes from."""

    host: str
    gpu: GpuDevice
    ordinal: int
    """Over all GPUs of all hosts: ports differ even where two hosts share a network stack."""


def choose_gpus(host: Topology, gpus: Sequence[int]) -> Topology:
    """Return the host with only these physical GPUs; all of its own for an empty choice.

    Raises:
        InputError: the host has not one of them.
    """
    if not gpus:
        return host
    known = {gpu.index: gpu for gpu in host.gpus}
    missing = [index for index in gpus if index not in known]
    if missing:
        have = format_cpus(known) or "none"
        raise InputError(f"{host.host} has no GPU {missing[0]}; it has {have}")
    return msgspec.structs.replace(host, gpus=[known[index] for index in sorted(set(gpus))])


def with_cpu_slots(host: Topology, placement: Placement) -> Topology:
    """Return a host that was looked at without NVML with the placement's slots, for CPU engines.

    A slot without a UUID is no GPU: nothing is asked of a driver for it.
    """
    if host.kind != "cpu" or host.gpus:
        return host
    nodes = placement.numa_nodes
    slots = [
        GpuDevice(
            index=index,
            uuid="",
            name="CPU slot",
            memory_bytes=0,
            numa_node=nodes[index] if index < len(nodes) else None,
        )
        for index in range(placement.gpus)
    ]
    return msgspec.structs.replace(host, gpus=slots)


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


def split_cpus(host: Topology) -> tuple[list[str], list[int]]:
    """Return a map that :func:`placement_problems` accepts: a mask and a NUMA node for each GPU.

    The processors of every node that this process may use are split evenly among its GPUs, in the
    order of both; what is left over goes to no GPU.

    Raises:
        InputError: no GPU, GPUs that do not count from 0, a GPU without a NUMA node on a host that
            has several, or a node with fewer processors than GPUs.
    """
    if not host.gpus:
        raise InputError(
            f"{host.host} has no GPU, so there is nothing to map: look on the machine that the"
            " campaign will run on, or name one with --host-file; a campaign without GPUs starts"
            " with --no-cpu-masks and needs no map"
        )
    if [gpu.index for gpu in host.gpus] != list(range(len(host.gpus))):
        have = format_cpus(gpu.index for gpu in host.gpus)
        raise InputError(f"{host.host}: a map counts its GPUs from 0; GPUs here: {have}")
    usable = set(parse_cpus(host.cpus))
    local = {node.node: sorted(usable & set(parse_cpus(node.cpus))) for node in host.numa_nodes}
    only = next(iter(local)) if len(local) == 1 else None
    nodes: list[int] = []
    for gpu in host.gpus:
        node = only if gpu.numa_node is None else gpu.numa_node
        if node is None or node not in local:
            raise InputError(
                f"{host.host}: the machine does not tell the NUMA node of GPU {gpu.index}"
            )
        nodes.append(node)
    masks = []
    for index, node in enumerate(nodes):
        each = len(local[node]) // nodes.count(node)
        if not each:
            raise InputError(f"{host.host}: NUMA node {node} has fewer usable CPUs than GPUs")
        first = nodes[:index].count(node) * each
        masks.append(format_cpus(local[node][first : first + each]))
    return masks, nodes


def placement_problems(placement: Placement, host: Topology) -> list[str]:
    """Compare the protocol's map with the host's real topology; one sentence a difference.

    ``nvidia-smi topo -m`` must show every GPU local to the protocol's NUMA node; masks must be
    disjoint, inside their node, and usable by this process (A-P3-1). What the host does not tell is
    no difference.
    """
    problems: list[str] = []
    owner: dict[int, int] = {}
    indices = [gpu.index for gpu in host.gpus]
    if len(set(indices)) != len(indices):
        problems.append(f"{host.host}: a GPU index occurs twice: {indices}")
    for gpu in host.gpus:
        problems += _gpu_problems(placement, host, gpu)
        if not placement.cpu_map:
            continue
        if gpu.index >= len(placement.cpu_map):
            problems.append(f"{host.host}: placement.cpu_map has no mask for GPU {gpu.index}")
            continue
        problems += _mask_problems(placement, host, gpu, owner)
    return problems


def _gpu_problems(placement: Placement, host: Topology, gpu: GpuDevice) -> list[str]:
    problems = []
    where = f"{host.host}: GPU {gpu.index}"
    if gpu.mig_enabled:
        problems.append(f"{where} is partitioned (MIG), so it is not one GPU")
    if gpu.index < len(placement.numa_nodes) and gpu.numa_node is not None:
        wanted = placement.numa_nodes[gpu.index]
        if gpu.numa_node != wanted:
            problems.append(
                f"{where} is local to NUMA node {gpu.numa_node}, the protocol's map says {wanted}"
            )
    return problems


def _mask_problems(
    placement: Placement, host: Topology, gpu: GpuDevice, owner: dict[int, int]
) -> list[str]:
    problems = []
    where = f"{host.host}: mask of GPU {gpu.index}"
    mask = set(parse_cpus(placement.cpu_map[gpu.index]))
    if not mask:
        problems.append(f"{where} is empty")
    shared = sorted(mask & owner.keys())
    if shared:
        problems.append(f"{where} shares CPU {shared[0]} with that of GPU {owner[shared[0]]}")
    owner.update(dict.fromkeys(mask, gpu.index))
    node = gpu.numa_node
    if gpu.index < len(placement.numa_nodes):
        node = placement.numa_nodes[gpu.index]
    nodes = {each.node: set(parse_cpus(each.cpus)) for each in host.numa_nodes}
    if nodes and node is not None:
        if node not in nodes:
            problems.append(f"{where}: the host has no NUMA node {node}")
        elif mask - nodes[node]:
            outside = format_cpus(mask - nodes[node])
            problems.append(f"{where}: CPUs {outside} are not in NUMA node {node}")
    usable = set(parse_cpus(host.cpus))
    if usable and mask - usable:
        problems.append(f"{where}: CPUs {format_cpus(mask - usable)} may not be used here")
    return problems


def visible_devices(gpus: Sequence[int], uuids: Sequence[str]) -> str:
    """Return ``CUDA_VISIBLE_DEVICES``: UUIDs, which no renumbering moves; indices without them.

    vLLM 0.24.0 takes both (``platforms/cuda.py``, ``device_control_id_to_physical_device_id``).
    Indices are the driver's, so they need ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` beside them.
    """
    if uuids and all(uuids):
        return ",".join(uuids)
    return ",".join(map(str, gpus))


def gpu_slots(hosts: Sequence[Topology], widths: Mapping[str, int]) -> list[GpuSlot]:
    """Return the GPU slots that may be used at once: the first ``width`` of every host."""
    slots: list[GpuSlot] = []
    ordinal = 0
    for host in hosts:
        for rank, gpu in enumerate(host.gpus):
            if rank < widths[host.host]:
                slots.append(GpuSlot(host.host, gpu, ordinal))
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
            and (slot.gpu.numa_node == first.gpu.numa_node or not one_node)
            for offset, slot in enumerate(block)
        ):
            return block
    return None
