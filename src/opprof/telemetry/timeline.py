"""``client/timeline.json``: read, and check that its intervals can mean one thing only.

Intervals are half open and must not overlap; zero length is legal, negative length is not
(contract, section 1). Faults name the interval's position in the list, from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from opprof.artifacts.common import oversized_integer
from opprof.artifacts.run import Interval, IntervalKind, Timeline
from opprof.errors import SchemaError
from opprof.files import read_bytes

TIMELINE_BYTES_MAX = 16 << 20


def read_timeline(path: Path) -> Timeline:
    """Read and check one timeline.

    Raises:
        InputError: the file cannot be read.
        SchemaError: it does not fit its schema, or :func:`check_intervals` finds a fault.
    """
    data = read_bytes(path, limit_bytes=TIMELINE_BYTES_MAX)
    try:
        timeline = msgspec.json.decode(data, type=Timeline)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit the schema: {error}", path=path) from error
    if (at := oversized_integer(timeline)) is not None:
        raise SchemaError(f"does not fit the schema: integer beyond 62 bits - at `{at}`", path=path)
    check_intervals(timeline.intervals, path)
    return timeline


def check_intervals(intervals: Sequence[Interval], path: Path | None) -> None:
    """Refuse negative, overlapping, repeated or misnumbered intervals.

    Raises:
        SchemaError: names the intervals by position, kind and index.
    """
    for position, interval in enumerate(intervals):
        if interval.end_mono_ns < interval.start_mono_ns:
            raise SchemaError(
                f"interval {_name(position, interval)} ends "
                f"{interval.start_mono_ns - interval.end_mono_ns} ns before it starts",
                path=path,
            )
    _check_calls(intervals, path)
    _check_indices(intervals, path)
    by_start = sorted(
        enumerate(intervals), key=lambda item: (item[1].start_mono_ns, item[1].end_mono_ns)
    )
    for (first, earlier), (second, later) in pairwise(by_start):
        if later.start_mono_ns < earlier.end_mono_ns:
            raise SchemaError(
                f"interval {_name(second, later)} starts "
                f"{earlier.end_mono_ns - later.start_mono_ns} ns before "
                f"interval {_name(first, earlier)} ends",
                path=path,
            )


def _check_calls(intervals: Sequence[Interval], path: Path | None) -> None:
    """Profile calls: two times each, in order, start before stop."""
    for position, interval in enumerate(intervals):
        calls = [
            time
            for call in (interval.start_call_mono_ns, interval.stop_call_mono_ns)
            if call is not None
            for time in call
        ]
        if calls != sorted(calls):
            raise SchemaError(
                f"interval {_name(position, interval)}: profile call times are not in order",
                path=path,
            )


def _check_indices(intervals: Sequence[Interval], path: Path | None) -> None:
    """Within a kind the indices are 0, 1, 2 … in the order of time."""
    kinds: list[IntervalKind] = ["warmup", "clean", "profile", "recovery", "drain"]
    for kind in kinds:
        of_kind = sorted(
            (item for item in enumerate(intervals) if item[1].kind == kind),
            key=lambda item: (item[1].start_mono_ns, item[1].end_mono_ns, item[1].index),
        )
        for expected, (position, interval) in enumerate(of_kind):
            if interval.index != expected:
                raise SchemaError(
                    f"interval {_name(position, interval)} is number {expected} of its kind",
                    path=path,
                )


def _name(position: int, interval: Interval) -> str:
    return f"{position} ({interval.kind} {interval.index})"


def intervals_of(timeline: Timeline, kind: IntervalKind) -> list[Interval]:
    """The intervals of one kind in the order of time."""
    found = [interval for interval in timeline.intervals if interval.kind == kind]
    return sorted(found, key=lambda interval: interval.index)


def union_pieces(intervals: Sequence[Interval]) -> list[tuple[int, int]]:
    """Merge intervals that touch: ``[(start_mono_ns, end_mono_ns), …]`` in the order of time.

    Two clean segments are contiguous when one ends in the very nanosecond in which the next starts.
    """
    pieces: list[tuple[int, int]] = []
    for interval in sorted(intervals, key=lambda item: (item.start_mono_ns, item.end_mono_ns)):
        if pieces and pieces[-1][1] == interval.start_mono_ns:
            pieces[-1] = (pieces[-1][0], interval.end_mono_ns)
        else:
            pieces.append((interval.start_mono_ns, interval.end_mono_ns))
    return pieces


def adjacent_clean_segment(timeline: Timeline, window: Interval) -> Interval | None:
    """The last clean segment that ends at or before the window's start; null when there is none.

    Source: protocol file, ``representativeness.adjacent_segment = "last_clean_before"``.
    """
    before = [
        segment
        for segment in intervals_of(timeline, "clean")
        if segment.end_mono_ns <= window.start_mono_ns
    ]
    return max(before, key=lambda segment: segment.end_mono_ns, default=None)
