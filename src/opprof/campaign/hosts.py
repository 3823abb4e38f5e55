"""Which :class:`~opprof.host.ports.Host` an attempt asks: NVML, no GPUs, or one from a file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opprof.artifacts.campaign import EngineKind, Slot
from opprof.artifacts.environment import GpuDevice, Topology
from opprof.campaign.colocation import needs_gate, placeable
from opprof.campaign.naming import HOST_NAME
from opprof.campaign.options import Options
from opprof.campaign.places import choose_gpus, placement_problems
from opprof.campaign.waves import Where
from opprof.errors import EnvironmentFailure, StateConflict
from opprof.host.cpu import CpuHost
from opprof.host.detect import open_real_host
from opprof.host.fake import FakeHost
from opprof.host.fake_file import load_machine
from opprof.host.ownership import Ownership
from opprof.host.ports import Host
from opprof.protocol.model import ProtocolFile

NO_GPU_NAME = "no GPU: one place for one server"


def open_host(options: Options, engine: EngineKind, campaign: str, name: str | None = None) -> Host:
    """Return the host as the campaign wants to see it; ``name``: in slots, its own by default.

    A host file wins. The embedded engine touches no GPU, so none is looked for. A real engine gets
    NVML, or a machine without GPUs (vLLM on a CPU) where the kernel shows none.

    Raises:
        EnvironmentFailure: there are GPUs and NVML does not answer.
        InputError: the host file cannot be used.
    """
    if options.host_file:
        return FakeHost(load_machine(options.host_file), campaign=campaign)
    if engine == "vllm":
        return open_real_host(name, ownership=Ownership(campaign=campaign))
    return CpuHost(name)


def place_of(topology: Topology, gpus: Sequence[int]) -> Topology:
    """Return the host with the chosen GPUs.

    A machine without GPUs has as many places as were asked for, at least one; such a place has the
    index of a GPU and is none: nothing is asked of it.

    Raises:
        InputError: a chosen GPU does not exist.
    """
    if topology.gpus:
        return choose_gpus(topology, gpus)
    places = [GpuDevice(index, "", NO_GPU_NAME, 0, None) for index in gpus or [0]]
    return msgspec.structs.replace(topology, gpus=places)


def is_free(engine: EngineKind, protocol: ProtocolFile) -> bool:
    """Whether cells may run side by side without a check: on a simulated engine with none to make.

    It shares nothing with its neighbours. A protocol with the check is rehearsed with it, but not
    in virtual time: each server has a clock of its own there, and none is beside another.
    """
    return engine == "sim-virtual" or (engine == "sim" and protocol.colocation is None)


def hosts_to_check(
    engine: EngineKind, options: Options, protocol: ProtocolFile, hosts: Sequence[Topology]
) -> list[Topology]:
    """Return the hosts on which the co-location check must authorise the placement (A-P3-1).

    One cell at a time needs none.

    Raises:
        StateConflict: several cells at once on real hardware and no check is defined; or a host's
            name can stand in no folder's.
    """
    several = [host for host in hosts if needs_gate(protocol, host, serial=options.serial)]
    if is_free(engine, protocol) or not several:
        return []
    if protocol.colocation is None:
        raise StateConflict(
            "several cells at once on one host need the protocol's co-location check, which it "
            "does not define: run one cell a host at a time (--serial)"
        )
    found = [host for host in several if placeable(protocol, host)]
    for host in found:
        if not HOST_NAME.fullmatch(host.host):
            raise StateConflict(
                f"the host {host.host!r} needs a name of letters, digits, '.', '_' and '-': its "
                "co-location check is filed under it"
            )
    return found


def require_alike(hosts: Sequence[Topology]) -> None:
    """See to it that the hosts of a real engine are machines of their own with equal GPUs.

    Cells of one machine disturb each other, whatever its nodes are called, and cells on different
    GPUs could not be compared.

    Raises:
        StateConflict: two hosts are one machine, or GPUs of several hosts differ.
    """
    machines: dict[str, str] = {}
    for host in hosts:
        other = machines.setdefault(host.boot_id or host.host, host.host)
        if other != host.host:
            raise StateConflict(
                f"{other} and {host.host} are one machine: their cells would run beside each other "
                "unchecked; use one node of it"
            )
    kinds = {gpu.name: host.host for host in hosts for gpu in host.gpus}
    if len(hosts) > 1 and len(kinds) > 1:
        seen = ", ".join(f"{name} in {host}" for name, host in sorted(kinds.items()))
        raise StateConflict(f"the hosts' GPUs differ ({seen}): their cells cannot be compared")


def require_map(protocol: ProtocolFile, hosts: Sequence[Topology]) -> None:
    """See to it that the protocol's map of GPUs, CPUs and NUMA nodes is these hosts' (A-P3-1).

    Raises:
        StateConflict: it differs from a host.
    """
    problems = [
        problem for host in hosts for problem in placement_problems(protocol.placement, host)
    ]
    if problems:
        raise StateConflict(
            f"the protocol's [placement] is not this host's: {'; '.join(problems)} "
            "(--no-cpu-masks declares that nothing is bound to it)"
        )


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


def beside(host: Host, slot: Slot, options: Options) -> tuple[list[int], list[int]]:
    """Return the host's GPUs that are not the slot's, and those of them in its placement regime.

    A regime is the GPU slots that were authorised together (A-P3-1): what runs on one of them is
    beside every cell of it, also where the slot stands empty. A cell by itself has no others.
    """
    if not known_gpus(host, slot):
        return [], []
    topology = host.topology()
    others = [gpu.index for gpu in topology.gpus if gpu.index not in slot.gpus]
    together = [gpu.index for gpu in place_of(topology, options.gpus).gpus][: slot.width]
    return others, [index for index in others if index in together] if slot.width > 1 else []
