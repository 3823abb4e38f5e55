"""Whose server answers on a port: a health check of another process' server is no health.

A port that was free when it was chosen can be taken before the server binds it. Seen on a machine
with several campaigns: ``/health`` answered at once, from the neighbour's server.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"
"""State of a listening socket in ``/proc/net/tcp`` (include/net/tcp_states.h)."""


def listening_inodes(port: int, proc: Path = Path("/proc")) -> set[str]:
    """Return the inodes of the sockets that listen on a TCP port, both families."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            rows = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            # sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """Return ``pid N (name)`` of a process that listens on the port; empty where none is seen."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port, proc)}
    for entry in proc.iterdir() if wanted else ():
        if entry.name.isdigit() and _holds(entry / "fd", wanted):
            try:
                return f"pid {entry.name} ({(entry / 'comm').read_text().strip()})"
            except OSError:
                continue
    return ""


def listens(port: int, pids: Iterable[int], proc: Path = Path("/proc")) -> bool:
    """Tell whether one of the processes holds a socket that listens on the port."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port, proc)}
    return any(_holds(proc / str(pid) / "fd", wanted) for pid in pids)


def _holds(folder: Path, wanted: set[str]) -> bool:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if str(entry.readlink()) in wanted:
                return True
        except OSError:
            continue
    return False
