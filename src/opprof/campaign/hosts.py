"""Which :class:`~opprof.host.ports.Host` an attempt asks: NVML, no GPUs, or one from a file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opprof.artifacts.campaign import Campaign, EngineKind, Slot
from opprof.artifacts.environment import GpuDevice, Topology
from opprof.campaign.options import Options
from opprof.campaign.places import choose_gpus
from opprof.campaign.waves import Where
from opprof.errors import EnvironmentFailure, StateConflict
from opprof.host.cpu import CpuHost
from opprof.host.fake import FakeHost
from opprof.host.fake_file import load_machine
from opprof.host.nvml import NvmlHost
from opprof.host.ownership import Ownership
from opprof.host.ports import Host
from opprof.protocol.model import ProtocolFile

NO_GPU_NAME = "no GPU: one place for one server"


def open_host(options: Options, engine: EngineKind, campaign: str, name: str | None = None) -> Host:
    """Return the host as the campaign wants to see it; ``name``: in slots, its own by default.

    A host file wins. The embedded engine touches no GPU, so none is looked for. A real engine gets
    NVML where the driver answers, else a machine without GPUs (vLLM on a CPU).

    Raises:
        InputError: the host file cannot be used.
    """
    if options.host_file:
        return FakeHost(load_machine(options.host_file), campaign=campaign)
    if engine == "vllm":
        try:
            host = NvmlHost(name, ownership=Ownership(campaign=campaign))
            host.topology()
        except EnvironmentFailure:
            return CpuHost(name)
        return host
    return CpuHost(name)


def place_of(topology: Topology, gpus: Sequence[int]) -> Topology:
    """Return the host with at least one place: a machine without GPUs runs one server at a time.

    Such a place has the index of a GPU and is none: nothing is asked of it.
    """
    if topology.gpus:
        return topology
    places = [GpuDevice(index, "", NO_GPU_NAME, 0, None) for index in gpus or [0]]
    return msgspec.structs.replace(topology, gpus=places)


def where_of(
    campaign: Campaign, options: Options, protocol: ProtocolFile, topology: Topology
) -> Where:
    """Return what the campaign may use of one host.

    Raises:
        InputError: a chosen GPU does not exist.
        StateConflict: several cells at once are not authorised (A-P3-1).
    """
    host = choose_gpus(place_of(topology, options.gpus), options.gpus)
    width = 1 if options.serial else min(len(host.gpus), protocol.placement.gpus)
    if width > 1 and not (campaign.simulated and protocol.colocation is None):
        raise StateConflict(
            "several cells at once need the protocol's co-location check: run one at a time "
            "(--serial)"
        )
    return Where((host,), {host.host: width}, options.base_port or 1)


def where_of_all(
    campaign: Campaign, options: Options, protocol: ProtocolFile, hosts: Sequence[Topology]
) -> Where:
    """Return what the campaign may use of all its hosts; at least one.

    Raises:
        InputError, StateConflict: as :func:`where_of`.
    """
    each = [where_of(campaign, options, protocol, host) for host in hosts]
    widths = {name: width for where in each for name, width in where.widths.items()}
    return Where(tuple(host for where in each for host in where.hosts), widths, each[0].port_base)


def without_host(where: Where, name: str) -> Where:
    """Return what is left when a host is lost.

    Raises:
        EnvironmentFailure: nothing is.
    """
    left = tuple(host for host in where.hosts if host.host != name)
    if not left:
        raise EnvironmentFailure(f"the last host, {name}, was lost: resume when one is back")
    widths = {host.host: where.widths[host.host] for host in left}
    return Where(left, widths, where.port_base)


def placed(protocol: ProtocolFile, options: Options) -> ProtocolFile:
    """Return the protocol, without its CPU map where the campaign declared not to bind to it."""
    if options.bind_cpus:
        return protocol
    unbound = msgspec.structs.replace(protocol.placement, cpu_map=[], numa_nodes=[])
    return msgspec.structs.replace(protocol, placement=unbound)


def known_gpus(host: Host, slot: Slot) -> list[int]:
    """Return the slot's GPUs that the host can be asked about."""
    return [] if host.kind == "cpu" else list(slot.gpus)
