"""Moments by both clocks: a length is what the monotonic clock says, wall time stands in records.

CLOCK_MONOTONIC is comparable within one boot of one machine. The controller stamps attempts,
wherever their servers run, so only a reboot between two stamps leaves the wall clock to go by.
"""

from __future__ import annotations

from dataclasses import dataclass

from opprof.artifacts.campaign import RunRecord, Transition

_APART_NS = 1_000_000_000
_APART_SHARE = 1e-3
"""Clocks are disciplined by at most 500 ppm; what is beyond a second and this share was set."""


@dataclass(frozen=True)
class Stamp:
    """A moment."""

    wall_ns: int
    mono_ns: int | None = None
    boot_id: str = ""

    def back(self, ns: int) -> Stamp:
        """Return the moment ``ns`` earlier."""
        mono_ns = None if self.mono_ns is None else self.mono_ns - ns
        return Stamp(self.wall_ns - ns, mono_ns, self.boot_id)


def stamp_of(step: Transition) -> Stamp:
    """Return when a transition was made."""
    return Stamp(step.wall_ns, step.mono_ns, step.boot_id)


def _monotonic_ns(first: Stamp, second: Stamp) -> int | None:
    if first.mono_ns is None or second.mono_ns is None or first.boot_id != second.boot_id:
        return None
    return second.mono_ns - first.mono_ns


def elapsed_ns(first: Stamp, second: Stamp) -> int:
    """Return the time between two moments; a clock that was set back counts as none.

    By the wall clock only where the monotonic one cannot say: across a reboot, and in records of
    versions that did not note it.
    """
    found = _monotonic_ns(first, second)
    return max(0, second.wall_ns - first.wall_ns if found is None else found)


def wall_step_ns(first: Stamp, second: Stamp) -> int:
    """Return by how much the wall clock was set in between; 0 where both clocks agree."""
    found = _monotonic_ns(first, second)
    if found is None:
        return 0
    step = second.wall_ns - first.wall_ns - found
    return step if abs(step) > _APART_NS + _APART_SHARE * abs(found) else 0


def clock_lines(record: RunRecord) -> list[str]:
    """Return a line for the log for every time that the wall clock was set in the last attempt."""
    steps = record.attempt.transitions if record.attempt else []
    return [
        f"{record.run}: the wall clock was set by {step.wall_step_s:+.3f} s before {step.phase}; "
        "GPU time is charged by the monotonic clock"
        for step in steps
        if step.wall_step_s
    ]
