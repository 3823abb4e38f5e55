"""A mark that a process cannot lose: a resource limit that the kernel hands on and nobody uses.

RLIMIT_LOCKS has had no effect since Linux 2.4.25, RLIMIT_RSS none since 2.4.30 (getrlimit(2)). Such
a soft limit takes any 64-bit number, passes on to every descendant through fork(2) and execve(2),
and stands in ``/proc/PID/limits``. It is set on a child before that does anything. Other than a
variable, a session, a working folder, an open file or a parent, it survives a daemon that puts off
all of these, and the death of whoever launched it. The hard limit is left alone, so that a marked
process can mark children of its own.

RLIMIT_LOCKS is taken first, since batch systems cap the other; gVisor lets only RLIMIT_RSS be set.

::

    bit 62      62 ... 31          30 ... 0
    1           SHA-256(campaign)  SHA-256(run)
"""

from __future__ import annotations

import hashlib
import re
import resource
import sys

from opprof.errors import EnvironmentFailure

_RLIMIT_LOCKS = 10
"""include/uapi/asm-generic/resource.h; the same number on every architecture."""
_LIMITS = (_RLIMIT_LOCKS, resource.RLIMIT_RSS)
_BITS = 31
_MARKED = 1 << 2 * _BITS
_LINE = re.compile(r"^Max (?:file locks|resident set) +(\d+) ", re.MULTILINE)


def birthmark(campaign: str, run: str) -> int:
    """Return the mark of a run's processes; ``run`` is empty for the campaign's own."""
    return _MARKED | _number(campaign) << _BITS | _number(run)


def birthmark_in(limits: str) -> int | None:
    """Return the mark that the text of a ``/proc/PID/limits`` shows; None for any other limit."""
    marks = (int(number) for number in _LINE.findall(limits))
    return next((mark for mark in marks if mark >> 2 * _BITS == 1), None)


def is_born_of(mark: int | None, campaign: str, run: str | None = None) -> bool:
    """Tell whether a mark is the campaign's; ``run``: of one run only."""
    if mark is None:
        return False
    if run is not None:
        return mark == birthmark(campaign, run)
    return mark >> _BITS == birthmark(campaign, "") >> _BITS


def is_born_in(mark: int, run: str) -> bool:
    """Tell whether a campaign's mark is that of its run."""
    return mark % (1 << _BITS) == _number(run)


def usable_limit() -> int | None:
    """Return the limit that this system lets be set to a mark; None where it lets none."""
    if sys.platform != "linux":
        return None
    for kind in _LIMITS:
        soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY and hard < 2 * _MARKED:
            continue
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            continue
        return kind
    return None


def give_birthmark(pid: int, mark: int) -> None:
    """Mark a process, 0 for this one; what it starts from now on has the mark too.

    Where no limit is usable, nothing happens.

    Raises:
        EnvironmentFailure: the process cannot be marked, though limits can be set.
    """
    kind = usable_limit()
    if kind is None:
        return
    try:
        _, hard = resource.prlimit(pid, kind)
        resource.prlimit(pid, kind, (mark, hard))
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(
            f"cannot mark pid {pid} as the campaign's by a resource limit: {error}"
        ) from error


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 32 - _BITS
