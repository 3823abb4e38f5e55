"""From NVML's values to the artefact's fields: units, names, nulls."""

from __future__ import annotations

from typing import Any

from opprof.artifacts.environment import GpuDevice, GpuState
from opprof.host.machine import pci_numa_node
from opprof.host.nvml_library import NotTold, Nvml

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), whose values never change.
_CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

SLOWING = frozenset(_CLOCK_EVENTS.values()) - {"gpu_idle", "applications_clocks_setting"}
"""Reasons that hold a working GPU below the clock it would otherwise run at."""

_COMPUTE_MODES = {
    0: "default",
    1: "exclusive_thread",
    2: "prohibited",
    3: "exclusive_process",
}
_PSTATE_UNKNOWN = 32
_NODE_WORDS = 16
"""64 NUMA nodes a word."""


def clock_events(mask: int) -> list[str]:
    """Return the names of a clock event mask, sorted; bits that nobody has named keep theirs."""
    names = []
    for bit in range(mask.bit_length()):
        value = 1 << bit
        if mask & value:
            names.append(_CLOCK_EVENTS.get(value, f"bit_{bit}"))
    return sorted(names)


def cuda_version(number: int) -> str:
    """Return ``13.0`` for 13000, as the driver counts (1000 * major + 10 * minor)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def text(value: Any) -> str:
    """Return a name; older releases of the library answer bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def device(nvml: Nvml, handle: Any, index: int, missing: dict[str, str]) -> GpuDevice:
    """Return what does not change about a GPU.

    Raises:
        EnvironmentFailure: driver or GPU cannot be asked at all.
    """
    key = f"gpu{index}."
    bus_id = nvml.optional(
        f"{key}pci_bus_id",
        missing,
        lambda: text(nvml.call("nvmlDeviceGetPciInfo", handle).busId),
    )
    name = nvml.optional(
        f"{key}name", missing, lambda: text(nvml.call("nvmlDeviceGetName", handle))
    )
    node = nvml.optional(f"{key}numa_node", missing, lambda: _numa_node(nvml, handle, bus_id))
    total = nvml.optional(
        f"{key}memory_bytes", missing, lambda: int(_memory(nvml, handle, {}).total)
    )
    mig: dict[str, str] = {}
    modes = nvml.optional("mig", mig, lambda: nvml.call("nvmlDeviceGetMigMode", handle))
    return GpuDevice(
        index=index,
        uuid=text(nvml.call("nvmlDeviceGetUUID", handle)),
        name=name or "",
        memory_bytes=total or 0,
        numa_node=node,
        pci_bus_id=bus_id or "",
        mig_enabled=bool(modes and modes[0]),
    )


def state(nvml: Nvml, handle: Any, gpu: GpuDevice) -> GpuState:
    """Return a GPU's state now; every field that is not told is null with its reason.

    Raises:
        EnvironmentFailure: driver or GPU cannot be asked at all.
    """
    missing: dict[str, str] = {}

    def clock(field: str, function: str, domain: str) -> Any:
        return nvml.optional(
            field, missing, lambda: int(nvml.call(function, handle, nvml.constant(domain)))
        )

    def simple(field: str, function: str) -> Any:
        return nvml.optional(field, missing, lambda: nvml.call(function, handle))

    memory = nvml.optional("memory_used_bytes", missing, lambda: _memory(nvml, handle, missing))
    if memory is None:
        reason = missing["memory_used_bytes"]
        missing |= {"memory_total_bytes": reason, "memory_reserved_bytes": reason}
    power_mw = simple("power_w", "nvmlDeviceGetPowerUsage")
    limit_mw = simple("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit")
    utilization = simple("utilization_percent", "nvmlDeviceGetUtilizationRates")
    ecc = simple("ecc_enabled", "nvmlDeviceGetEccMode")
    persistence = simple("persistence", "nvmlDeviceGetPersistenceMode")
    mode = simple("compute_mode", "nvmlDeviceGetComputeMode")
    return GpuState(
        index=gpu.index,
        uuid=gpu.uuid,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_reserved_bytes=_reserved(memory, missing),
        memory_total_bytes=None if memory is None else int(memory.total),
        sm_clock_mhz=clock("sm_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
        mem_clock_mhz=clock("mem_clock_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
        sm_clock_max_mhz=clock("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
        mem_clock_max_mhz=clock("mem_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
        sm_clock_application_mhz=clock(
            "sm_clock_application_mhz", "nvmlDeviceGetApplicationsClock", "NVML_CLOCK_SM"
        ),
        pstate=nvml.optional("pstate", missing, lambda: _pstate(nvml, handle)),
        power_w=None if power_mw is None else power_mw / 1000,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        temperature_c=clock("temperature_c", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
        utilization_percent=None if utilization is None else int(utilization.gpu),
        throttle_reasons=nvml.optional("throttle_reasons", missing, lambda: _events(nvml, handle)),
        ecc_enabled=None if ecc is None else bool(ecc[0]),
        ecc_uncorrected=nvml.optional("ecc_uncorrected", missing, lambda: _ecc(nvml, handle)),
        persistence=None if persistence is None else bool(persistence),
        compute_mode=None if mode is None else _COMPUTE_MODES.get(int(mode), f"mode_{mode}"),
        not_available=missing,
    )


def memory_used(nvml: Nvml, handle: Any) -> int:
    """Return the bytes in use, without the driver's reserve where the driver tells it apart.

    Raises:
        NotTold: the driver does not tell memory at all.
        EnvironmentFailure: driver or GPU cannot be asked at all.
    """
    return int(_memory(nvml, handle, {}).used)


def _memory(nvml: Nvml, handle: Any, missing: dict[str, str]) -> Any:
    """The second version counts the driver's reserve apart; the first adds it to ``used``."""
    try:
        version = nvml.constant("nvmlMemory_v2")
        return nvml.call("nvmlDeviceGetMemoryInfo", handle, version)
    except NotTold as reason:
        missing["memory_reserved_bytes"] = f"held in memory_used_bytes: {reason}"
        return nvml.call("nvmlDeviceGetMemoryInfo", handle)


def _reserved(memory: Any, missing: dict[str, str]) -> int | None:
    if memory is None or "memory_reserved_bytes" in missing:
        return None
    return int(memory.reserved)


def _events(nvml: Nvml, handle: Any) -> list[str]:
    try:
        mask = nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle)
    except NotTold:
        # The name before driver 535.
        mask = nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return clock_events(int(mask))


def _pstate(nvml: Nvml, handle: Any) -> int:
    value = int(nvml.call("nvmlDeviceGetPerformanceState", handle))
    if value == _PSTATE_UNKNOWN:
        raise NotTold("the driver calls it unknown")
    return value


def _ecc(nvml: Nvml, handle: Any) -> int:
    kind = nvml.constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
    since = nvml.constant("NVML_VOLATILE_ECC")
    return int(nvml.call("nvmlDeviceGetTotalEccErrors", handle, kind, since))


def _numa_node(nvml: Nvml, handle: Any, bus_id: str | None) -> int:
    """The node that ``nvidia-smi topo -m`` shows; the kernel's word where the driver has none."""
    try:
        scope = nvml.constant("NVML_AFFINITY_SCOPE_NODE")
        words = nvml.call("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, scope)
    except NotTold as reason:
        node = None if bus_id is None else pci_numa_node(bus_id)
        if node is None:
            raise NotTold(f"neither the driver ({reason}) nor the kernel assigns one") from reason
        return node
    nodes = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    if len(nodes) != 1:
        raise NotTold(f"the driver names {len(nodes)} nodes")
    return nodes[0]
