"""What Linux and psutil tell of a machine: NUMA nodes, load, memory, governors, OOM kills."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import ModuleType

from opprof.artifacts.environment import HostState, NumaNode
from opprof.errors import EnvironmentFailure
from opprof.host.cpus import format_cpus

_NODE = re.compile(r"^node(\d+)$")
_CPU = re.compile(r"^cpu(\d+)$")
SYSTEM = Path("/sys/devices/system")
VMSTAT = Path("/proc/vmstat")


def numa_nodes(system: Path = SYSTEM) -> list[NumaNode]:
    """Return the NUMA nodes that have CPUs, by number; empty where the kernel shows none."""
    found = []
    for number, folder in _numbered(system / "node", _NODE):
        cpus = _text(folder / "cpulist")
        if cpus:
            found.append(NumaNode(node=number, cpus=cpus))
    return found


def usable_cpus() -> str:
    """Return the CPUs that this process may use, as a mask."""
    return format_cpus(os.sched_getaffinity(0))


def governors(system: Path = SYSTEM) -> dict[str, int]:
    """Return CPU frequency governor to number of CPUs under it; empty where there are none."""
    counts: dict[str, int] = {}
    for _, folder in _numbered(system / "cpu", _CPU):
        governor = _text(folder / "cpufreq" / "scaling_governor")
        if governor:
            counts[governor] = counts.get(governor, 0) + 1
    return dict(sorted(counts.items()))


def oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Return how many processes the kernel has killed for want of memory since boot."""
    for line in (_text(vmstat) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def host_state(system: Path = SYSTEM, vmstat: Path = VMSTAT) -> HostState:
    """Return load, memory, governors and OOM kills now.

    Raises:
        EnvironmentFailure: psutil is not installed.
    """
    psutil = import_psutil()
    load_1m, load_5m, load_15m = os.getloadavg()
    memory = psutil.virtual_memory()
    missing: dict[str, str] = {}
    found_governors = governors(system)
    if not found_governors:
        missing["cpu_governors"] = "the kernel shows no CPU frequency governor"
    kills = oom_kills(vmstat)
    if kills is None:
        missing["oom_kills"] = "the kernel counts no OOM kills"
    swap = _swap(psutil, missing)
    return HostState(
        load_1m=load_1m,
        load_5m=load_5m,
        load_15m=load_15m,
        cpus=psutil.cpu_count(logical=True) or os.cpu_count() or 1,
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        swap_used_bytes=swap,
        cpu_governors=found_governors or None,
        oom_kills=kills,
        not_available=missing,
    )


def import_psutil() -> ModuleType:
    """Return psutil.

    Raises:
        EnvironmentFailure: it is not installed.
    """
    try:
        import psutil
    except ImportError as error:
        raise EnvironmentFailure(
            "psutil is not installed: pip install 'opprof[campaign]'"
        ) from error
    module: ModuleType = psutil
    return module


def pci_numa_node(bus_id: str, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node of a PCI device; null where the firmware assigns none (-1).

    NVML writes a domain of eight digits (``00000000:1B:00.0``), the kernel one of four.
    """
    domain, _, rest = bus_id.lower().partition(":")
    text = _text(root / f"{domain[-4:]}:{rest}" / "numa_node")
    return int(text) if text is not None and text.isdecimal() else None


def _swap(psutil: ModuleType, missing: dict[str, str]) -> int | None:
    try:
        used: int = psutil.swap_memory().used
    except (OSError, RuntimeError) as error:
        missing["swap_used_bytes"] = f"psutil cannot read it: {error}"
        return None
    return used


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    found = [(match, entry) for entry in entries if (match := pattern.match(entry.name))]
    return sorted((int(match.group(1)), entry) for match, entry in found)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
