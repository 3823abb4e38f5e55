"""Bootstrap intervals of percentiles of events in time bins, without any resample's percentile.

A resample's percentile is at most ``x`` exactly when enough of its events are at most ``x``, which
is a sum over bins. So an end of the percentile interval is found by bisection over the observed
values: one matrix product a step for all percentiles at once, in integers that float32 holds.

The percentile of a resample is the inverse of its empirical distribution (the smallest value that
at least ``q`` percent of its events do not exceed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.statistics.bootstrap import BlockPlan, block_sums, start_counts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]
    Int32 = NDArray[np.int32]
    Int64 = NDArray[np.int64]

_CHUNK_RESAMPLES = 500
_EXACT_FLOAT32 = 1 << 24
_PILOT_PART = 20
"""One resample in so many gives the first bracket."""
_PILOT_ERRORS = 5
"""Half width of the bracket in standard errors; a bracket that misses costs time, nothing else."""


@dataclass(frozen=True)
class Events:
    """Values that occur in bins: ``values`` float64[events], ``bins`` int64[events]."""

    values: Float64
    bins: Int64


@dataclass(frozen=True)
class _Target:
    """One end of one interval: where ``share`` of the resamples have their percentile."""

    values: Float64
    """Distinct observed values, ascending."""
    ranked: Int64
    """Each event's position in ``values``."""
    bins: Int64
    percent: int
    share: float


def percentile_ends(
    events: Sequence[Events], percents: Sequence[int], plan: BlockPlan, starts: Int32, level: float
) -> Float64:
    """Return the interval's ends, float64[events, percents, 2]; NaN for a series without events.

    A resample without any event of a series counts as having the least value.

    Raises:
        ValueError: the bins are no multiple of the block, or more events than float32 counts.
    """
    import numpy as np

    if plan.rest_bins:
        raise ValueError(f"{plan.bins} bins are no multiple of {plan.block_bins}")
    if any(len(item.values) * 100 >= _EXACT_FLOAT32 for item in events):
        raise ValueError("too many events for exact sums in float32")
    result = np.full((len(events), len(percents), 2), np.nan)
    tail = (1 - level) / 2
    targets, places = [], []
    for index, item in enumerate(events):
        if not len(item.values):
            continue
        values, ranked = np.unique(item.values, return_inverse=True)
        for column, percent in enumerate(percents):
            for end, share in enumerate((tail, 1 - tail)):
                targets.append(_Target(values, ranked.reshape(-1), item.bins, percent, share))
                places.append((index, column, end))
    found = _bisect(targets, plan, starts)
    for place, target, position in zip(places, targets, found, strict=True):
        result[place] = target.values[position]
    return result


def _bisect(targets: Sequence[_Target], plan: BlockPlan, starts: Int32) -> list[int]:
    """Find for each target the least position whose share of resamples is reached.

    The first resamples alone give a narrow bracket; it is checked against all of them, and widened
    to every position where it does not hold.
    """
    if not targets:
        return []
    counts = _counts(plan, starts)
    pilot = counts[: max(1, len(counts) // _PILOT_PART)]
    drawn = sum(len(chunk) for chunk in pilot)
    last = [len(target.values) - 1 for target in targets]
    ends = []
    for sign in (-1, 1):
        shares = [
            min(
                1.0, max(0.0, t.share + sign * (_PILOT_ERRORS * _error(t.share, drawn) + 1 / drawn))
            )
            for t in targets
        ]
        ends.append(_search(targets, shares, [0] * len(last), last, plan, pilot))
    low, high = ends
    total = len(starts)
    below = _reached(targets, [max(0, at - 1) for at in low], plan, counts)
    above = _reached(targets, high, plan, counts)
    for i, target in enumerate(targets):
        if below[i] >= target.share * total:
            low[i] = 0
        if above[i] < target.share * total:
            high[i] = last[i]
    return _search(targets, [target.share for target in targets], low, high, plan, counts)


def _error(share: float, drawn: int) -> float:
    """Standard error of a share among so many resamples."""
    return math.sqrt(share * (1 - share) / drawn)


def _search(
    targets: Sequence[_Target],
    shares: Sequence[float],
    low: Sequence[int],
    high: Sequence[int],
    plan: BlockPlan,
    counts: Sequence[NDArray[np.uint8]],
) -> list[int]:
    """Bisect between ``low`` and ``high`` for the least position that reaches its share."""
    total = sum(len(chunk) for chunk in counts)
    left, right = list(low), list(high)
    while still := [i for i in range(len(targets)) if left[i] < right[i]]:
        middle = [(left[i] + right[i]) // 2 for i in still]
        reached = _reached([targets[i] for i in still], middle, plan, counts)
        for column, i in enumerate(still):
            if reached[column] >= shares[i] * total:
                right[i] = middle[column]
            else:
                left[i] = middle[column] + 1
    return left


def _reached(
    targets: Sequence[_Target],
    positions: Sequence[int],
    plan: BlockPlan,
    counts: Sequence[NDArray[np.uint8]],
) -> Int64:
    """Count the resamples whose percentile is at most the value at each target's position."""
    import numpy as np

    pairs = zip(targets, positions, strict=True)
    columns = np.column_stack([_excess(target, at, plan) for target, at in pairs])
    blocks = block_sums(columns, plan, plan.block_bins).astype(np.float32)
    reached = np.zeros(len(targets), np.int64)
    for chunk in counts:
        reached += np.count_nonzero(chunk.astype(np.float32) @ blocks >= 0, axis=0)
    return reached


def _excess(target: _Target, position: int, plan: BlockPlan) -> Float64:
    """``100 #{events at most x} - percent #{events}`` in each bin, float64[bins].

    Empty resamples reach 0 as well; a tiny deficit in their place would cost exactness, and with
    five-second blocks over minutes they do not occur where percentiles mean anything.
    """
    import numpy as np

    below = np.bincount(target.bins[target.ranked <= position], minlength=plan.bins)
    every = np.bincount(target.bins, minlength=plan.bins)
    return (100 * below - target.percent * every).astype(np.float64)


def _counts(plan: BlockPlan, starts: Int32) -> list[NDArray[np.uint8]]:
    """Counts of block starts, one byte each: all resamples in a few megabytes."""
    import numpy as np

    if plan.whole_blocks > 255:
        raise ValueError(f"{plan.whole_blocks} blocks do not fit a byte")
    return [
        start_counts(starts[first : first + _CHUNK_RESAMPLES], plan.starts).astype(np.uint8)
        for first in range(0, len(starts), _CHUNK_RESAMPLES)
    ]
