"""A module that behaves like ``pynvml`` over a machine described by plain values.

Every function may be told to fail: ``stub.errors["nvmlDeviceGetPowerUsage"] = 3``. Functions that a
release lacks are named in ``absent``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, UNINITIALIZED, GPU_IS_LOST, FUNCTION_NOT_FOUND = 3, 4, 1, 15, 13
NAMES = {
    1: "Uninitialized",
    3: "Not Supported",
    4: "Insufficient Permissions",
    13: "Function Not Found",
    15: "GPU is lost",
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return NAMES.get(self.value, f"NVML Error with code {self.value}")


class StubNvml:
    """Two H200s, as seen on a real machine (driver 580), GPU 1 on NUMA node 1."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_AFFINITY_SCOPE_NODE = 0
    nvmlMemory_v2: int | None = 0x02000028

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.gpu_errors: dict[tuple[str, int], int] = {}
        self.absent: set[str] = set()
        self.initialised = 0
        self.calls: list[str] = []
        self.processes: dict[int, list[tuple[int, int | None]]] = {0: [], 1: []}
        self.graphics: dict[int, list[tuple[int, int | None]]] = {0: [], 1: []}
        self.used = {0: 0, 1: 0}
        self.events = {0: 0x1, 1: 0x0}
        self.nodes = {0: 1 << 0, 1: 1 << 1}
        self.bytes_names = False
        self.mig = False

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return object.__getattribute__(self, name)
        if name in self.absent:
            raise AttributeError(name)
        function = object.__getattribute__(self, name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            error = self.errors.get(name)
            if arguments and isinstance(arguments[0], tuple):
                error = self.gpu_errors.get((name, arguments[0][1]), error)
            if error is None and name != "nvmlInit" and not self.initialised:
                error = UNINITIALIZED
            if error is not None:
                raise NVMLError(error)
            return function(*arguments)

        return call

    def nvmlInit(self) -> None:
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[str, int]:
        return ("handle", index)

    def nvmlDeviceGetUUID(self, handle: tuple[str, int]) -> str | bytes:
        text = f"GPU-0000000{handle[1]}"
        return text.encode() if self.bytes_names else text

    def nvmlDeviceGetName(self, handle: tuple[str, int]) -> str | bytes:
        return b"NVIDIA H200" if self.bytes_names else "NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, handle: tuple[str, int]) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x1B + handle[1]:02X}:00.0")

    def nvmlDeviceGetMemoryAffinity(self, handle: tuple[str, int], words: int, scope: int) -> Any:
        return [self.nodes[handle[1]], *[0] * (words - 1)]

    def nvmlDeviceGetMigMode(self, handle: tuple[str, int]) -> list[int]:
        return [int(self.mig), 0]

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[str, int], version: int | None = None) -> Any:
        used, reserved = self.used[handle[1]], 600
        if version is None:
            return SimpleNamespace(total=150_000, used=used + reserved, free=0)
        return SimpleNamespace(total=150_000, used=used, reserved=reserved, free=0)

    def nvmlDeviceGetClockInfo(self, handle: tuple[str, int], domain: int) -> int:
        return {1: 1980, 2: 3201}[domain]

    def nvmlDeviceGetMaxClockInfo(self, handle: tuple[str, int], domain: int) -> int:
        return {1: 1980, 2: 3201}[domain]

    def nvmlDeviceGetApplicationsClock(self, handle: tuple[str, int], domain: int) -> int:
        return 1980

    def nvmlDeviceGetPerformanceState(self, handle: tuple[str, int]) -> int:
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: tuple[str, int]) -> int:
        return 119_780

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: tuple[str, int]) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: tuple[str, int], sensor: int) -> int:
        return 37

    def nvmlDeviceGetUtilizationRates(self, handle: tuple[str, int]) -> Any:
        return SimpleNamespace(gpu=3, memory=1)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: tuple[str, int]) -> int:
        return self.events[handle[1]]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: tuple[str, int]) -> int:
        return self.events[handle[1]]

    def nvmlDeviceGetEccMode(self, handle: tuple[str, int]) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetTotalEccErrors(self, handle: tuple[str, int], kind: int, since: int) -> int:
        return 0

    def nvmlDeviceGetPersistenceMode(self, handle: tuple[str, int]) -> int:
        return 1

    def nvmlDeviceGetComputeMode(self, handle: tuple[str, int]) -> int:
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: tuple[str, int]) -> Any:
        return _entries(self.processes[handle[1]])

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: tuple[str, int]) -> Any:
        raise NVMLError(NOT_SUPPORTED)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: tuple[str, int]) -> Any:
        return _entries(self.graphics[handle[1]])


def _entries(found: list[tuple[int, int | None]]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in found]
