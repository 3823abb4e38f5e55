"""May this process hold as many connections at once as the load point wants?

A protocol's concurrency is at most what any system could serve; what this one allows is found out
before the first request, and not as a failure of requests in the middle of a run.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from opprof.errors import EnvironmentFailure

_RESERVE = 64
"""Files beside the connections: logs, records, pipes, libraries, and connections kept in spare."""
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def allow_connections(count: int) -> None:
    """Raise this process' limit of open files where that is needed for ``count`` connections.

    Raises:
        EnvironmentFailure: the system allows too few open files, or has too few local ports.
    """
    ports = _local_ports()
    if ports is not None and count > ports:
        raise EnvironmentFailure(
            f"{count} requests at once need as many local ports, this system has {ports} ({_PORTS})"
        )
    needed = count + _RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _holds(soft, needed):
        return
    if not _holds(hard, needed):
        raise EnvironmentFailure(
            f"{count} requests at once need {needed} open files, this process may have {hard} "
            "(ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _holds(limit: int, needed: int) -> bool:
    return limit in (resource.RLIM_INFINITY, -1) or limit >= needed


def _local_ports() -> int | None:
    """Return how many ports connections to one server can have; None where nobody says."""
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, _PORTS.read_text().split())
        return last - first + 1
    return None
