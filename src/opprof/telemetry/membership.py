"""Which steps belong to an interval: by where their span lies, borders counted apart.

A step's span is ``[begin, complete)`` (see :mod:`opprof.telemetry.columns`). It belongs to an
interval when the whole span lies inside; a span over a border belongs to none of the two sides.
The clean union is judged on its own outer borders, so a step over the border between two contiguous
clean segments belongs to the union and to neither segment.

Source: contract, section 2, "Step duration".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.artifacts.run import Interval
from opprof.telemetry.columns import StepColumns
from opprof.telemetry.timeline import union_pieces

if TYPE_CHECKING:
    from opprof.telemetry.columns import Bool, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The steps of one interval, or of the pieces of a union."""

    rows: Int64
    """Rows whose span lies inside, in file order; shape int64[members]."""
    border_rows: Int64
    """Rows whose span overlaps the interval and crosses a border of it."""


def members(columns: StepColumns, start_mono_ns: int, end_mono_ns: int) -> Members:
    """Return the steps of ``[start, end)``.

    A span of zero length belongs to the interval that holds its moment. A step with a negative
    duration (its completion lies before an earlier step's) is placed by both of its ends.
    """
    import numpy as np

    inside, border = _masks(columns, start_mono_ns, end_mono_ns)
    return Members(np.flatnonzero(inside), np.flatnonzero(border))


def union_members(columns: StepColumns, intervals: Sequence[Interval]) -> Members:
    """Return the steps of the union, each contiguous piece judged on its outer borders."""
    import numpy as np

    inside = np.zeros(len(columns), np.bool_)
    border = np.zeros(len(columns), np.bool_)
    for start_mono_ns, end_mono_ns in union_pieces(intervals):
        piece_inside, piece_border = _masks(columns, start_mono_ns, end_mono_ns)
        inside |= piece_inside
        border |= piece_border
    return Members(np.flatnonzero(inside), np.flatnonzero(border))


def overlapping_rows(columns: StepColumns, start_mono_ns: int, end_mono_ns: int) -> Int64:
    """Rows whose span has any time in common with ``[start, end)``."""
    import numpy as np

    inside, border = _masks(columns, start_mono_ns, end_mono_ns)
    return np.flatnonzero(inside | border)


def leaked_rows(
    columns: StepColumns, clean: Members, intervals: Sequence[Interval]
) -> dict[str, Int64]:
    """Rows of the clean union that were profiled or recovering: must all be empty.

    Keys are ``profile0``, ``recovery1`` … for rows that overlap such an interval of the client, a
    profile interval taken from just before ``/start_profile`` to its end; and ``recorded`` for rows
    of which the recorder says that a profiler window was open, whoever opened it.
    """
    import numpy as np

    found: dict[str, Int64] = {"recorded": clean.rows[columns.profiled[clean.rows]]}
    for interval in intervals:
        if interval.kind not in ("profile", "recovery"):
            continue
        start = interval.start_mono_ns
        if interval.start_call_mono_ns is not None:
            start = min(start, interval.start_call_mono_ns[0])
        rows = overlapping_rows(columns, start, interval.end_mono_ns)
        found[f"{interval.kind}{interval.index}"] = np.intersect1d(rows, clean.rows)
    return found


def _masks(columns: StepColumns, start_mono_ns: int, end_mono_ns: int) -> tuple[Bool, Bool]:
    """Masks of the steps inside, and of those that overlap without being inside."""
    import numpy as np

    begin = np.minimum(columns.begin_mono_ns, columns.complete_mono_ns)
    end = np.maximum(columns.begin_mono_ns, columns.complete_mono_ns)
    # ``begin < end_mono_ns`` decides for spans of zero length: the moment of the interval's end
    # is no longer part of it.
    if start_mono_ns == end_mono_ns:
        nothing = np.zeros(len(columns), np.bool_)
        return nothing, nothing
    inside = (begin >= start_mono_ns) & (end <= end_mono_ns) & (begin < end_mono_ns)
    border = (begin < end_mono_ns) & (end > start_mono_ns) & ~inside
    return inside, border
