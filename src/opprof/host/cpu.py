"""A machine looked at without NVML: processes, load, disk. No GPU is known, and none invented."""

from __future__ import annotations

import time
from collections.abc import Sequence

from opprof.artifacts.environment import GpuProcess, HostKind, Snapshot, Topology
from opprof.errors import InputError
from opprof.host import machine
from opprof.host.local import LocalHost

NO_GPU = "this host is looked at without NVML: no GPU is known on it"


class CpuHost(LocalHost):
    """:class:`~opprof.host.ports.Host` of a machine without GPUs; every list of GPUs is empty."""

    @property
    def kind(self) -> HostKind:
        """Always ``cpu``."""
        return "cpu"

    def topology(self) -> Topology:
        """Return NUMA nodes and CPUs; no GPUs, with the reason."""
        return Topology(
            host=self._name,
            kind=self.kind,
            boot_id=self.boot_id(),
            gpus=[],
            numa_nodes=machine.numa_nodes(),
            cpus=machine.usable_cpus(),
            not_available={"gpus": NO_GPU},
        )

    def snapshot(self, gpus: Sequence[int], label: str = "") -> Snapshot:
        """Return the machine's state now; GPUs and their processes are not available."""
        self._refuse(gpus)
        began = time.monotonic_ns()
        state = machine.host_state()
        return Snapshot(
            label=label,
            wall_ns=time.time_ns(),
            mono_ns=began,
            elapsed_ns=time.monotonic_ns() - began,
            host=state,
            gpus=[],
            processes=[],
            not_available={"gpus": NO_GPU, "processes": NO_GPU},
        )

    def gpu_memory_used(self, gpus: Sequence[int], label: str = "") -> list[int]:  # noqa: ARG002
        """Return an empty list; a GPU asked for is refused."""
        self._refuse(gpus)
        return []

    def gpu_processes(self, gpus: Sequence[int], label: str = "") -> list[GpuProcess]:  # noqa: ARG002
        """Return an empty list; a GPU asked for is refused."""
        self._refuse(gpus)
        return []

    def driver(self) -> tuple[str | None, str | None]:
        """Return nothing: no driver is asked."""
        return None, None

    def _refuse(self, gpus: Sequence[int]) -> None:
        if gpus:
            raise InputError(f"host {self._name} has no GPU {gpus[0]}: {NO_GPU}")
