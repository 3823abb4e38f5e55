"""The process table, read from ``/proc``; the same for a real and for a fake host.

A process can end between two reads: every read that fails because of that means "no such process",
never an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from opprof.host.birthmark import birthmark_in
from opprof.host.ports import CAMPAIGN_VARIABLE, ROLE_VARIABLE, RUN_VARIABLE, Process

_ENVIRON_BYTES = 1 << 20
"""More of an environment is not looked at; ours comes nowhere near it."""
_CHUNK_BYTES = 1 << 16


class ProcFs:
    """:class:`~opprof.host.ports.ProcessTable` over a ``/proc`` folder.

    Args:
        root: The folder; another one in tests.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root

    def process(self, pid: int) -> Process | None:
        """Return a process, null when there is none (any more)."""
        folder = self._root / str(pid)
        stat = _read(folder / "stat")
        parsed = None if stat is None else parse_stat(stat)
        if parsed is None:
            return None
        name, fields = parsed
        environment = self.environment(pid)
        return Process(
            pid=pid,
            start_ticks=int(fields[19]),
            ppid=int(fields[1]),
            pgid=int(fields[2]),
            session=int(fields[3]),
            state=fields[0],
            same_user=_same_user(folder),
            name=name,
            campaign=environment.get(CAMPAIGN_VARIABLE),
            run=environment.get(RUN_VARIABLE),
            role=environment.get(ROLE_VARIABLE),
            visible_gpus=environment.get("CUDA_VISIBLE_DEVICES"),
            birthmark=birthmark_in((_read(folder / "limits") or b"").decode("ascii", "replace")),
        )

    def environment(self, pid: int) -> dict[str, str]:
        """Return the variables a process was started with; empty when they may not be read.

        They are read to find marks and are never stored: a foreign environment may hold secrets.
        """
        data = _read(self._root / str(pid) / "environ")
        if data is None:
            return {}
        found: dict[str, str] = {}
        for entry in data.split(b"\0"):
            key, separator, value = entry.partition(b"=")
            if separator:
                found[os.fsdecode(key)] = os.fsdecode(value)
        return found

    def living(self) -> list[Process]:
        """Return every living process, by pid."""
        found = (self.process(pid) for pid in self.pids())
        return [process for process in found if process is not None and process.alive]

    def marked(self, campaign: str) -> list[Process]:
        """Return every living process that carries the campaign's mark, by pid.

        Called again and again while GPU memory is waited for: one read tells an unmarked one.
        """
        mark = os.fsencode(f"{CAMPAIGN_VARIABLE}={campaign}")
        found = []
        for pid in self.pids():
            data = _read(self._root / str(pid) / "environ")
            if data is None or mark not in data:
                continue
            process = self.process(pid)
            if process is not None and process.alive and process.campaign == campaign:
                found.append(process)
        return found

    def group(self, pgid: int) -> list[Process]:
        """Return every living process of a process group, by pid."""
        return [process for process in self.living() if process.pgid == pgid]

    def pids(self) -> list[int]:
        """Return all process ids, ascending."""
        try:
            names = [entry.name for entry in self._root.iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def boot_id(self) -> str:
        """Return the kernel's id of this boot; ``unknown`` where it tells none."""
        data = _read(self._root / "sys" / "kernel" / "random" / "boot_id")
        return "unknown" if data is None else data.decode("ascii", "replace").strip()


def parse_stat(data: bytes) -> tuple[str, list[str]] | None:
    """Split ``/proc/PID/stat``: the command's name, then the fields from the third on.

    The name stands in parentheses and may itself hold spaces and parentheses, so it ends at the
    last closing one: ``4242 (a (b) c) S 1 4242 …``. Null for a line that is none.
    """
    start, end = data.find(b"("), data.rfind(b")")
    if start < 0 or end < start:
        return None
    fields = data[end + 1 :].decode("ascii", "replace").split()
    if len(fields) < 20 or not all(field.lstrip("-").isdecimal() for field in fields[1:20]):
        return None
    return data[start + 1 : end].decode("utf-8", "replace"), fields


def _same_user(folder: Path) -> bool | None:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return None


def _read(path: Path) -> bytes | None:
    """Read a small file of ``/proc``; a buffered stream would cost thirty times as much."""
    parts: list[bytes] = []
    total = 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while total < _ENVIRON_BYTES and (part := os.read(descriptor, _CHUNK_BYTES)):
                parts.append(part)
                total += len(part)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return b"".join(parts)
