"""What a controller may ask of a machine. Three implementations stand behind :class:`Host`.

``NvmlHost`` asks the NVIDIA driver, ``CpuHost`` a machine without GPUs, ``FakeHost`` a file; the
process table is the real one in all three, since even a rehearsal starts real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from opprof.artifacts.environment import GpuProcess, HostKind, Snapshot, Topology

CAMPAIGN_VARIABLE = "OPPROF_CAMPAIGN"
"""Environment variable that marks every process of a campaign with the campaign's id."""
RUN_VARIABLE = "OPPROF_RUN"
"""Names the run a marked process belongs to."""
ROLE_VARIABLE = "OPPROF_ROLE"
"""``server``, ``client``, ``analysis`` or ``worker``: what a marked process is for."""


class Process(Struct, frozen=True):
    """A process of this machine, as ``/proc`` shows it.

    ``pid`` and ``start_ticks`` together name one process for ever within one boot: a process id
    that was reused has another start time.
    """

    pid: int
    start_ticks: int
    """Field 22 of ``/proc/PID/stat``: clock ticks between boot and the process's start."""
    ppid: int
    pgid: int
    session: int
    state: str
    """One letter: ``R``, ``S``, ``D``, ``T``, ``Z`` …; a ``Z`` (zombie) has ended."""
    same_user: bool | None
    name: str
    """The kernel's short command name."""
    campaign: str | None
    """Value of ``OPPROF_CAMPAIGN``; null without one, or where the environment is not readable."""
    run: str | None
    role: str | None
    visible_gpus: str | None
    """Its CUDA_VISIBLE_DEVICES."""
    birthmark: int | None = None
    """See :mod:`opprof.host.birthmark`; null without one."""

    @property
    def alive(self) -> bool:
        """False for a process that has ended and only waits for its parent."""
        return self.state not in ("Z", "X")


class ProcessTable(Protocol):
    """Reads of the process table; nothing here signals anybody."""

    def process(self, pid: int) -> Process | None:
        """Return a process, null when there is none (any more)."""
        ...

    def marked(self, campaign: str) -> list[Process]:
        """Return every living process that carries the campaign's mark, by pid."""
        ...

    def group(self, pgid: int) -> list[Process]:
        """Return every living process of a process group, by pid."""
        ...


class Host(Protocol):
    """A machine with the GPUs that runs are placed on.

    ``gpus`` are physical indices. ``label`` names the moment (``P01-C00-moderate/1/before``): it is
    kept in the snapshot, and a host from a file chooses its scripted events by it.

    Raises (every method that looks):
        EnvironmentFailure: the machine as a whole cannot be asked (driver gone, GPU lost); single
            fields that it does not tell are null with a reason instead.
        InputError: a GPU index that the machine does not have.
    """

    @property
    def name(self) -> str:
        """The host's name in slots and reports."""
        ...

    @property
    def kind(self) -> HostKind:
        """``nvml``, ``cpu`` or ``fake``."""
        ...

    @property
    def processes(self) -> ProcessTable:
        """The process table."""
        ...

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        ...

    def topology(self) -> Topology:
        """Return GPUs, NUMA nodes and CPUs."""
        ...

    def snapshot(self, gpus: Sequence[int], label: str = "") -> Snapshot:
        """Return the machine's and the GPUs' state now."""
        ...

    def gpu_memory_used(self, gpus: Sequence[int], label: str = "") -> list[int]:
        """Return the bytes in use on each GPU, in the order asked for."""
        ...

    def gpu_processes(self, gpus: Sequence[int], label: str = "") -> list[GpuProcess]:
        """Return the processes with a context on these GPUs, by GPU and pid."""
        ...

    def driver(self) -> tuple[str | None, str | None]:
        """Return the driver's version and the newest CUDA version that it supports."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that this user may still write to the file system of ``path``."""
        ...

    def tree_bytes(self, path: Path) -> int:
        """Return the bytes of all files below ``path`` (links not followed, hard links once)."""
        ...
