"""Do a run's traces lie in their own profile intervals? Swapped and foreign traces do not.

A join by order compares counts and the distances of steps; in pure decode a trace of another
window, or of another run, can fit both. Its wall clock cannot: each trace says when, on the wall
clock, its active steps began, the timeline says when, on CLOCK_MONOTONIC, its window was open, and
the two clocks of one host differ by one offset. Each trace bounds that offset to the length of its
own interval; bounds that do not overlap cannot both be right. No threshold is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from opprof.analysis.windows import ReadWindow
from opprof.artifacts.run import Interval


class OffsetBounds(NamedTuple):
    """What one trace allows: wall clock minus CLOCK_MONOTONIC, in nanoseconds."""

    low_ns: int
    high_ns: int


def offset_bounds(item: ReadWindow, interval: Interval | None) -> OffsetBounds | None:
    """Bound the offset by one trace; None where the trace, its wall clock or a step is missing."""
    trace = item.trace
    if interval is None or trace is None or trace.base_wall_ns is None or not trace.steps:
        return None
    return OffsetBounds(
        low_ns=trace.base_wall_ns + trace.steps[-1].start_ns - interval.end_mono_ns,
        high_ns=trace.base_wall_ns + trace.steps[0].start_ns - interval.start_mono_ns,
    )


def clocks_agree(
    windows: Sequence[ReadWindow], profiles: Mapping[int, Interval]
) -> list[ReadWindow]:
    """Add a reason to every trace whose bounds do not overlap another's.

    Which of two is wrong cannot be told from the two alone, so both are invalid. ``profiles``: the
    timeline's profile intervals by window.
    """
    bounds = [offset_bounds(item, profiles.get(item.window)) for item in windows]
    checked = []
    for item, own in zip(windows, bounds, strict=True):
        apart = []
        if own is not None:
            apart = [
                (max(own.low_ns - other.high_ns, other.low_ns - own.high_ns), against)
                for against, other in zip(windows, bounds, strict=True)
                if other is not None
            ]
        worst_ns, against = max(apart, key=lambda pair: pair[0], default=(0, item))
        if worst_ns > 0:
            reason = (
                f"trace_clock_disagrees: by its wall clock this trace and that of window "
                f"{against.window} rank {against.rank} cannot both lie in their profile intervals "
                f"({worst_ns / 1e9:.3f} s apart): swapped, or of another run"
            )
            item = replace(item, reasons=(*item.reasons, reason))
        checked.append(item)
    return checked
