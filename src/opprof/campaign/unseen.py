"""Until when the server of an attempt may have owned its GPUs, where nobody saw it end (A-P3-4).

A server can outlive its controller and be gone when the campaign is resumed; nobody noted when it
went. It is charged for the longest that the records support:

- until now, where a process of it had to be ended now;
- until its last sign of life, where it cannot have lived on: no server was ever let go, or the
  machine, which its controller shared, was booted anew;
- else until now, but no longer than what is still reserved for it, or its last sign of life where
  that is later. A campaign that is resumed three days later is not charged three days.

Signs of life are the files that the attempt wrote and the heartbeat of its controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opprof.artifacts.campaign import Attempt
from opprof.campaign.stamps import Stamp, elapsed_ns, stamp_of

_NS = 1_000_000_000


@dataclass(frozen=True)
class Known:
    """What is known of a campaign beside its attempts' own records."""

    beat_wall_ns: int = 0
    """Last heartbeat of the controller before; 0 for none."""
    reserved: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """GPU-seconds that a crash left reserved, by run and wave."""
    elsewhere: bool = False
    """Servers run on other machines than the controller."""


NOTHING = Known()
"""Nothing but the attempts' own records."""


def end_of(run: str, attempt: Attempt, known: Known, *, written_wall_ns: int, now: Stamp) -> Stamp:
    """Return until when an attempt is charged of which nothing is left at ``now``.

    ``written_wall_ns``: when the newest file of the attempt was written.
    """
    start, last = stamp_of(attempt.transitions[0]), stamp_of(attempt.transitions[-1])
    since_ns = elapsed_ns(start, now)
    sign_ns = max(written_wall_ns, known.beat_wall_ns)
    # Signs have wall times. Where that clock was set meanwhile, the later reading counts.
    after_last_ns = elapsed_ns(start, last) + sign_ns - last.wall_ns
    before_now_ns = since_ns - (now.wall_ns - sign_ns)
    longest_ns = max(0, after_last_ns, before_now_ns)
    if not _cannot_have_lived_on(attempt, known, now):
        longest_ns = max(longest_ns, _reserved_ns(run, attempt, known, since_ns))
    return now.back(since_ns - min(since_ns, longest_ns))


def _cannot_have_lived_on(attempt: Attempt, known: Known, now: Stamp) -> bool:
    servers = [process for process in attempt.processes if process.role == "server"]
    if not servers:
        # A server waits at its gate until it is on record, and ends with its controller there.
        return True
    return not known.elsewhere and all(server.boot_id != now.boot_id for server in servers)


def _reserved_ns(run: str, attempt: Attempt, known: Known, unbounded_ns: int) -> int:
    slot = attempt.slot
    gpu_s = known.reserved.get((run, slot.wave)) if slot and slot.gpus else None
    if gpu_s is None or slot is None:
        return unbounded_ns
    return round(gpu_s / len(slot.gpus) * _NS)
