"""Which kind of host this machine is, so that a GPU machine never passes for one without GPUs."""

from __future__ import annotations

from pathlib import Path

from opprof.errors import EnvironmentFailure
from opprof.host.cpu import CpuHost
from opprof.host.nvml import NvmlHost
from opprof.host.ownership import Ownership

DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")


def has_nvidia_gpu(driver: Path = DRIVER_FOLDER, devices: Path = DEVICES) -> bool:
    """Whether the kernel shows an NVIDIA GPU, by its driver's folder or a device file."""
    if driver.is_dir() and any(driver.iterdir()):
        return True
    return any(path.name[len("nvidia") :].isdecimal() for path in devices.glob("nvidia*"))


def open_real_host(
    name: str | None = None,
    *,
    ownership: Ownership | None = None,
    driver: Path = DRIVER_FOLDER,
    devices: Path = DEVICES,
) -> NvmlHost | CpuHost:
    """Return a host with NVML where there is a GPU, and a machine without GPUs where there is none.

    Raises:
        EnvironmentFailure: the kernel shows a GPU that NVML cannot be asked about (driver and
            library differ, GPU lost, extra not installed): running on would skip every GPU check.
    """
    try:
        host = NvmlHost(name, ownership=ownership)
        host.topology()
    except EnvironmentFailure as error:
        if has_nvidia_gpu(driver, devices):
            raise EnvironmentFailure(
                f"there is a GPU that cannot be asked: {error.reason}"
            ) from error
        return CpuHost(name)
    return host
