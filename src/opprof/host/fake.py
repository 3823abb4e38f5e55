"""A host from a file: GPUs that do not exist, for tests and for rehearsals of schedules.

Memory of a GPU follows the campaign's real processes: each living one that carries the campaign's
mark, plays the server and names the GPU in CUDA_VISIBLE_DEVICES takes ``server_memory_bytes``
there, and gives it back by ending. Where a rehearsal starts no processes,
:meth:`FakeHost.occupy` does it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from opprof.artifacts.environment import (
    GpuDevice,
    GpuProcess,
    GpuState,
    HostKind,
    HostState,
    Snapshot,
    Topology,
)
from opprof.errors import EnvironmentFailure, InputError
from opprof.host import disk
from opprof.host.cpus import format_cpus, parse_cpus
from opprof.host.fake_file import CallKind, Event, FakeMachine, FakeProcess
from opprof.host.procfs import ProcFs

_SERVER_ROLES = (None, "server", "worker")


class FakeHost:
    """:class:`~opprof.host.ports.Host` over a :class:`FakeMachine`; safe to call from threads.

    Args:
        machine: What the machine is like (:func:`~opprof.host.fake_file.load_machine`).
        campaign: Its processes' mark; without one no real process takes GPU memory.
        mono_ns: Monotonic clock in nanoseconds; a virtual one in rehearsals.
        wall_ns: Wall clock in nanoseconds.
        processes: Process table.
    """

    def __init__(
        self,
        machine: FakeMachine,
        *,
        campaign: str | None = None,
        mono_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        processes: ProcFs | None = None,
    ) -> None:
        self._machine = machine
        self._campaign = campaign
        self._mono_ns = mono_ns
        self._wall_ns = wall_ns
        self._processes = ProcFs() if processes is None else processes
        self._opened_ns = mono_ns()
        self._calls = [0] * len(machine.events)
        self._occupied: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The host's name in slots and reports."""
        return self._machine.name

    @property
    def kind(self) -> HostKind:
        """Always ``fake``."""
        return "fake"

    @property
    def processes(self) -> ProcFs:
        """The real process table: a rehearsal's servers and clients are real."""
        return self._processes

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        return self._processes.boot_id()

    def topology(self) -> Topology:
        """Return the file's GPUs and NUMA nodes."""
        nodes = self._machine.numa_nodes
        cpus = [cpu for node in nodes for cpu in parse_cpus(node.cpus)]
        return Topology(
            host=self.name,
            kind=self.kind,
            boot_id=self.boot_id(),
            gpus=list(self._machine.gpus),
            numa_nodes=list(nodes),
            cpus=format_cpus(cpus),
        )

    def occupy(self, gpus: Sequence[int], memory_bytes: int | None = None) -> None:
        """Take memory as a server would, until :meth:`release`; where no process does it."""
        self._devices(gpus)
        taken = self._machine.server_memory_bytes if memory_bytes is None else memory_bytes
        with self._lock:
            for gpu in gpus:
                self._occupied[gpu] = taken

    def release(self, gpus: Sequence[int]) -> None:
        """Give back what :meth:`occupy` took."""
        with self._lock:
            for gpu in gpus:
                self._occupied.pop(gpu, None)

    def snapshot(self, gpus: Sequence[int], label: str = "") -> Snapshot:
        """Return the machine's and the GPUs' state now, as the file scripts it."""
        began = self._mono_ns()
        events = self._acting("snapshot", gpus, label)
        host = msgspec.to_builtins(self._machine.host)
        for event in events:
            host |= event.host
        processes = self._on(gpus, events)
        states = [self._state(device, events, processes) for device in self._devices(gpus)]
        return Snapshot(
            label=label,
            wall_ns=self._wall_ns(),
            mono_ns=began,
            elapsed_ns=self._mono_ns() - began,
            host=msgspec.convert(host, HostState),
            gpus=states,
            processes=processes,
        )

    def gpu_memory_used(self, gpus: Sequence[int], label: str = "") -> list[int]:
        """Return the bytes in use on each GPU, in the order asked for."""
        events = self._acting("memory", gpus, label)
        processes = self._on(gpus, events)
        return [self._memory(device, events, processes) for device in self._devices(gpus)]

    def gpu_processes(self, gpus: Sequence[int], label: str = "") -> list[GpuProcess]:
        """Return the processes on these GPUs: the campaign's own and the scripted ones."""
        return self._on(gpus, self._acting("processes", gpus, label))

    def driver(self) -> tuple[str | None, str | None]:
        """Return the versions that the file gives."""
        return self._machine.driver, self._machine.cuda_driver

    def free_bytes(self, path: Path) -> int:
        """Return the scripted free space, else the real one."""
        scripted = [event.free_bytes for event in self._acting("disk", (), str(path))]
        given = [value for value in scripted if value is not None]
        if given:
            return given[-1]
        machine = self._machine.free_bytes
        return disk.free_bytes(path) if machine is None else machine

    def tree_bytes(self, path: Path) -> int:
        """Return the scripted size, else the real one."""
        scripted = [event.tree_bytes for event in self._acting("disk", (), str(path))]
        given = [value for value in scripted if value is not None]
        return given[-1] if given else disk.tree_bytes(path)

    def _devices(self, gpus: Collection[int]) -> list[GpuDevice]:
        found = []
        for index in gpus:
            device = self._machine.gpu(index)
            if device is None:
                raise InputError(
                    f"host {self.name} has no GPU {index}, only {len(self._machine.gpus)} of them"
                )
            found.append(device)
        return found

    def _acting(self, kind: CallKind, gpus: Collection[int], label: str) -> list[Event]:
        """Return the events that act on this call, counting it for each that it matches."""
        self._devices(gpus)
        at_s = (self._mono_ns() - self._opened_ns) / 1e9
        acting = []
        with self._lock:
            for number, event in enumerate(self._machine.events):
                if event.kinds and kind not in event.kinds:
                    continue
                if event.gpus and gpus and not set(event.gpus) & set(gpus):
                    continue
                if not fnmatchcase(label, event.label):
                    continue
                call = self._calls[number]
                self._calls[number] += 1
                last = None if event.calls is None else event.first_call + event.calls
                if call < event.first_call or (last is not None and call >= last):
                    continue
                if at_s < event.from_s or (event.until_s is not None and at_s >= event.until_s):
                    continue
                acting.append(event)
        for event in acting:
            if event.fail:
                raise EnvironmentFailure(f"host {self.name}: {event.fail}")
        return acting

    def _on(self, gpus: Sequence[int], events: Sequence[Event]) -> list[GpuProcess]:
        found: dict[tuple[int, int], GpuProcess] = {}
        taken = self._machine.server_memory_bytes
        for gpu, pid, name in self._servers(gpus):
            own = FakeProcess(pid=pid, owner="campaign", memory_bytes=taken, name=name)
            found[gpu, pid] = _process(gpu, own)
        for event in events:
            for gpu in (gpu for gpu in gpus if not event.gpus or gpu in event.gpus):
                for process in event.processes:
                    found[gpu, process.pid] = _process(gpu, process)
        return [found[key] for key in sorted(found)]

    def _servers(self, gpus: Sequence[int]) -> list[tuple[int, int, str]]:
        """Living servers of the campaign as (GPU, pid, name)."""
        if self._campaign is None:
            return []
        found = []
        for process in self._processes.marked(self._campaign):
            if process.role not in _SERVER_ROLES or not process.visible_gpus:
                continue
            visible = {part.strip() for part in process.visible_gpus.split(",")}
            found += [
                (device.index, process.pid, process.name)
                for device in self._devices(gpus)
                if {str(device.index), device.uuid} & visible
            ]
        return found

    def _memory(
        self, device: GpuDevice, events: Sequence[Event], processes: Sequence[GpuProcess]
    ) -> int:
        here = [event for event in events if not event.gpus or device.index in event.gpus]
        if any(event.memory_full for event in here):
            return device.memory_bytes
        with self._lock:
            used = self._occupied.get(device.index, 0)
        used += sum(event.memory_left_bytes for event in here)
        used += sum(p.memory_bytes or 0 for p in processes if p.gpu == device.index)
        return min(used, device.memory_bytes)

    def _state(
        self, device: GpuDevice, events: Sequence[Event], processes: Sequence[GpuProcess]
    ) -> GpuState:
        with self._lock:
            busy = device.index in self._occupied
        busy = busy or any(p.gpu == device.index for p in processes)
        fields = self._machine.idle | (self._machine.busy if busy else {})
        missing: dict[str, str] = {}
        for event in events:
            if not event.gpus or device.index in event.gpus:
                fields = fields | event.gpu
                missing |= event.unavailable
        known: dict[str, object] = {
            "index": device.index,
            "uuid": device.uuid,
            "memory_total_bytes": device.memory_bytes,
            "memory_used_bytes": self._memory(device, events, processes),
            "not_available": missing,
        }
        silent = dict.fromkeys(missing)
        return msgspec.convert(known | fields | silent, GpuState)


def _process(gpu: int, process: FakeProcess) -> GpuProcess:
    return GpuProcess(
        gpu=gpu,
        pid=process.pid,
        owner=process.owner,
        kind=process.kind,
        name=process.name,
        memory_bytes=process.memory_bytes,
    )
