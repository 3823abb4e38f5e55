"""A machine with NVIDIA GPUs, through NVML and psutil. Reads only; changes no setting.

GPUs are numbered as the driver numbers them (PCI bus order). CUDA_VISIBLE_DEVICES of this process
plays no part, and servers must be started with ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` or by UUID for
their numbers to mean the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from opprof.artifacts.environment import GpuDevice, GpuProcess, HostKind, Snapshot, Topology
from opprof.errors import EnvironmentFailure, InputError
from opprof.host import machine, nvml_fields
from opprof.host.local import LocalHost
from opprof.host.nvml_library import NotTold, Nvml, import_pynvml
from opprof.host.ownership import Ownership
from opprof.host.procfs import ProcFs

_RUNNING = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("compute", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


class NvmlHost(LocalHost):
    """:class:`~opprof.host.ports.Host` over NVML; safe to call from threads and after a fork.

    Args:
        name: The host's name; the machine's own by default.
        ownership: How the campaign's own processes are known.
        library: ``pynvml``, or what behaves like it in tests.
        processes: Process table.

    Raises:
        EnvironmentFailure: nvidia-ml-py is not installed.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        ownership: Ownership | None = None,
        library: Any = None,
        processes: ProcFs | None = None,
    ) -> None:
        super().__init__(name, processes=processes)
        self._ownership = Ownership() if ownership is None else ownership
        self._nvml = Nvml(import_pynvml() if library is None else library)
        self._topology: Topology | None = None
        self._lock = threading.Lock()

    @property
    def kind(self) -> HostKind:
        """Always ``nvml``."""
        return "nvml"

    def topology(self) -> Topology:
        """Return GPUs, NUMA nodes and CPUs; looked up once.

        Raises:
            EnvironmentFailure: the driver cannot be asked.
        """
        with self._lock:
            if self._topology is None:
                self._topology = self._look_up()
            return self._topology

    def snapshot(self, gpus: Sequence[int], label: str = "") -> Snapshot:
        """Return the machine's and the GPUs' state now."""
        devices = self._devices(gpus)
        began, wall = time.monotonic_ns(), time.time_ns()
        missing: dict[str, str] = {}
        states = [nvml_fields.state(self._nvml, self._handle(gpu), gpu) for gpu in devices]
        processes = self._nvml.optional("processes", missing, lambda: self._running(devices))
        return Snapshot(
            label=label,
            wall_ns=wall,
            mono_ns=began,
            elapsed_ns=time.monotonic_ns() - began,
            host=machine.host_state(),
            gpus=states,
            processes=processes or [],
            not_available=missing,
        )

    def gpu_memory_used(self, gpus: Sequence[int], label: str = "") -> list[int]:  # noqa: ARG002
        """Return the bytes in use on each GPU, in the order asked for."""
        try:
            return [
                nvml_fields.memory_used(self._nvml, self._handle(gpu))
                for gpu in self._devices(gpus)
            ]
        except NotTold as reason:
            raise EnvironmentFailure(f"cannot read GPU memory: {reason}") from reason

    def gpu_processes(self, gpus: Sequence[int], label: str = "") -> list[GpuProcess]:  # noqa: ARG002
        """Return the processes with a context on these GPUs, by GPU and pid."""
        try:
            return self._running(self._devices(gpus))
        except NotTold as reason:
            raise EnvironmentFailure(f"cannot list GPU processes: {reason}") from reason

    def driver(self) -> tuple[str | None, str | None]:
        """Return the driver's version and the newest CUDA version that it supports."""
        missing: dict[str, str] = {}
        version = self._nvml.optional(
            "driver", missing, lambda: self._nvml.call("nvmlSystemGetDriverVersion")
        )
        cuda = self._nvml.optional(
            "cuda", missing, lambda: self._nvml.call("nvmlSystemGetCudaDriverVersion")
        )
        return (
            None if version is None else nvml_fields.text(version),
            None if cuda is None else nvml_fields.cuda_version(int(cuda)),
        )

    def close(self) -> None:
        """Release NVML in this process."""
        self._nvml.close()

    def _look_up(self) -> Topology:
        missing: dict[str, str] = {}
        try:
            count = int(self._nvml.call("nvmlDeviceGetCount"))
            gpus = [
                nvml_fields.device(
                    self._nvml,
                    self._nvml.call("nvmlDeviceGetHandleByIndex", index),
                    index,
                    missing,
                )
                for index in range(count)
            ]
        except NotTold as reason:
            raise EnvironmentFailure(f"cannot list the GPUs: {reason}") from reason
        nodes = machine.numa_nodes()
        if not nodes:
            missing["numa_nodes"] = "the kernel shows none"
        return Topology(
            host=self._name,
            kind=self.kind,
            boot_id=self.boot_id(),
            gpus=gpus,
            numa_nodes=nodes,
            cpus=machine.usable_cpus(),
            not_available=missing,
        )

    def _devices(self, gpus: Sequence[int]) -> list[GpuDevice]:
        known = {gpu.index: gpu for gpu in self.topology().gpus}
        for index in gpus:
            if index not in known:
                raise InputError(f"host {self._name} has no GPU {index}, only {len(known)} of them")
        return [known[index] for index in gpus]

    def _handle(self, gpu: GpuDevice) -> Any:
        # Handles die with a re-initialisation, so none is kept; looking one up costs microseconds.
        try:
            return self._nvml.call("nvmlDeviceGetHandleByIndex", gpu.index)
        except NotTold as reason:
            raise EnvironmentFailure(f"cannot open GPU {gpu.index}: {reason}") from reason

    def _running(self, devices: Sequence[GpuDevice]) -> list[GpuProcess]:
        """Processes of every kind; a kind that is not supported holds none (MPS, graphics)."""
        found: dict[tuple[int, int], GpuProcess] = {}
        for gpu in devices:
            handle = self._handle(gpu)
            for kind, function in _RUNNING:
                try:
                    running = self._nvml.call(function, handle)
                except NotTold:
                    if function == _RUNNING[0][1]:
                        raise
                    continue
                for entry in running:
                    found.setdefault(
                        (gpu.index, int(entry.pid)), self._process(gpu.index, kind, entry)
                    )
        return [found[key] for key in sorted(found)]

    def _process(self, gpu: int, kind: str, entry: Any) -> GpuProcess:
        process = self._processes.process(int(entry.pid))
        memory = entry.usedGpuMemory
        return GpuProcess(
            gpu=gpu,
            pid=int(entry.pid),
            owner=self._ownership.of(process),
            kind="graphics" if kind == "graphics" else "compute",
            name=None if process is None else process.name,
            memory_bytes=None if memory is None else int(memory),
        )
