"""What every real machine has, with GPUs or without: a name, a process table, a disk."""

from __future__ import annotations

import platform
from pathlib import Path

from opprof.host import disk
from opprof.host.procfs import ProcFs


class LocalHost:
    """The part of :class:`~opprof.host.ports.Host` that asks no GPU.

    Args:
        name: The host's name; the machine's own by default.
        processes: Process table.
    """

    def __init__(self, name: str | None = None, *, processes: ProcFs | None = None) -> None:
        self._name = platform.node() or "localhost" if name is None else name
        self._processes = ProcFs() if processes is None else processes

    @property
    def name(self) -> str:
        """The host's name in slots and reports."""
        return self._name

    @property
    def processes(self) -> ProcFs:
        """The process table."""
        return self._processes

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        return self._processes.boot_id()

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that this user may still write to the file system of ``path``."""
        return disk.free_bytes(path)

    def tree_bytes(self, path: Path) -> int:
        """Return the bytes of all files below ``path``."""
        return disk.tree_bytes(path)
