"""Moving-block bootstrap of sums over time bins; ratios are formed anew in every resample.

Variant (Künsch 1989; Liu and Singh 1992): the series of ``n`` equal time bins is resampled by
``ceil(n / b)`` blocks of ``b`` neighbouring bins, the last one cut so that each resample has ``n``
bins. Starts are uniform over ``0 .. n - b``: no block crosses the ends, so the first and last
``b - 1`` bins are drawn less often than the others. The circular variant (Politis and Romano 1992)
starts anywhere and wraps round, which gives every bin the same weight and joins the two ends.

A resample is kept only as the vector of its sums: counts of block starts times block sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.statistics.draws import Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]
    Int32 = NDArray[np.int32]

_CHUNK_RESAMPLES = 500
"""Resamples at a time, so that their counts stay in the cache; never the result."""


@dataclass(frozen=True)
class BlockPlan:
    """How a series of bins is cut and drawn."""

    bins: int
    block_bins: int
    circular: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.block_bins <= self.bins:
            raise ValueError(f"blocks of {self.block_bins} bins from {self.bins}")

    @property
    def starts(self) -> int:
        """Positions where a block may begin."""
        return self.bins if self.circular else self.bins - self.block_bins + 1

    @property
    def whole_blocks(self) -> int:
        """Blocks of full length in one resample."""
        return self.bins // self.block_bins

    @property
    def rest_bins(self) -> int:
        """Bins of the last, cut block; 0 when the blocks fit."""
        return self.bins % self.block_bins

    @property
    def drawn_blocks(self) -> int:
        """Blocks drawn for one resample, the cut one included."""
        return self.whole_blocks + (self.rest_bins > 0)


def block_starts(plan: BlockPlan, resamples: int, stream: Stream) -> Int32:
    """Return the start bins of each resample's blocks, int32[resamples, drawn_blocks]."""
    drawn = stream.below(plan.starts, resamples * plan.drawn_blocks)
    return drawn.reshape(resamples, plan.drawn_blocks)


def block_sums(values: Float64, plan: BlockPlan, length: int) -> Float64:
    """Sum ``length`` neighbouring bins from every start, float64[starts, columns].

    ``values``: float64[bins, columns]. Integers up to 2**53 stay exact.
    """
    import numpy as np

    padded = np.concatenate([values, values[: length - 1]]) if plan.circular else values
    windows = np.lib.stride_tricks.sliding_window_view(padded, length, axis=0)
    sums: Float64 = windows[: plan.starts].sum(axis=-1)
    return sums


def resampled_sums(values: Float64, plan: BlockPlan, starts: Int32) -> Float64:
    """Return every resample's column sums, float64[resamples, columns].

    ``values``: float64[bins, columns]; ``starts``: int32[resamples, drawn_blocks].

    Raises:
        ValueError: the shapes do not fit the plan.
    """
    import numpy as np

    if values.ndim != 2 or len(values) != plan.bins or starts.shape[1] != plan.drawn_blocks:
        raise ValueError(f"values {values.shape} and starts {starts.shape} do not fit {plan}")
    whole = block_sums(values, plan, plan.block_bins)
    result = np.empty((len(starts), values.shape[1]))
    for first in range(0, len(starts), _CHUNK_RESAMPLES):
        chunk = starts[first : first + _CHUNK_RESAMPLES]
        counts = start_counts(chunk[:, : plan.whole_blocks], plan.starts)
        result[first : first + len(chunk)] = counts @ whole
    if plan.rest_bins:
        result += block_sums(values, plan, plan.rest_bins)[starts[:, -1]]
    return result


def start_counts(starts: Int32, positions: int) -> Float64:
    """Count how often each resample uses each start, float64[resamples, positions]."""
    import numpy as np

    rows = np.arange(len(starts), dtype=np.int64)[:, None] * positions
    flat = np.bincount((starts + rows).ravel(), minlength=len(starts) * positions)
    return flat.reshape(len(starts), positions).astype(np.float64)


def ratio(numerator: Float64, denominator: Float64) -> Float64:
    """Return ``numerator / denominator``, NaN where the denominator is 0."""
    import numpy as np

    result = np.full(np.shape(numerator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


@dataclass(frozen=True)
class Interval:
    """A percentile interval; ``undefined`` resamples had no value."""

    low: float
    high: float
    level: float
    undefined: int


def percentile_interval(values: Float64, level: float) -> Interval:
    """Return the percentile interval of resampled values (Efron 1979).

    Undefined values (NaN) are placed below all others for the lower end and above all others for
    the upper one: they only ever widen the interval, to an infinite end when they reach it.

    Raises:
        ValueError: no values, or a level outside (0, 1).
    """
    import numpy as np

    if not len(values) or not 0 < level < 1:
        raise ValueError(f"an interval at level {level} from {len(values)} values")
    # NaN sorts last: with m of them the order statistic r of "all undefined first" is the sorted
    # value r - m, and of "all undefined last" the sorted value r.
    missing = int(np.isnan(values).sum())
    n, tail = len(values), (1 - level) / 2
    low_rank, high_rank = tail * (n - 1), (1 - tail) * (n - 1)
    wanted = {int(low_rank) - missing, int(low_rank) + 1 - missing, int(high_rank)}
    wanted |= {min(int(high_rank) + 1, n - 1)}
    part = np.partition(values, sorted(r for r in wanted if r >= 0))
    return Interval(
        low=_between(part, low_rank, missing, -math.inf),
        high=_between(part, high_rank, 0, math.inf),
        level=level,
        undefined=missing,
    )


def _between(part: Float64, rank: float, missing: int, undefined: float) -> float:
    """Linear between two order statistics; ``undefined`` as soon as one of them is."""
    below = int(rank)
    ends = []
    for index in (below, min(below + 1, len(part) - 1)):
        value = float(part[index - missing]) if index >= missing else undefined
        ends.append(undefined if math.isnan(value) else value)
    if ends[0] == ends[1] or rank == below:
        return ends[0]
    if not math.isfinite(ends[0] + ends[1]):
        return undefined
    return ends[0] + (rank - below) * (ends[1] - ends[0])


def two_sided_p(values: Float64, reference: float = 0.0) -> float:
    """Return the bootstrap's two-sided p-value of ``reference`` (achieved significance level).

    ``min(1, 2 min(#{v <= r} + 1, #{v >= r} + 1) / (n + 1))``; undefined values count on both sides.
    A percentile interval of level ``1 - p`` just reaches the reference.
    """
    import numpy as np

    missing = int(np.isnan(values).sum())
    below = int((values <= reference).sum()) + missing
    above = int((values >= reference).sum()) + missing
    return min(1.0, 2 * (min(below, above) + 1) / (len(values) + 1))


def mean_resamples(groups: Sequence[Float64], resamples: int, stream: Stream) -> Float64:
    """Resample each group by itself and return the mean over all values, float64[resamples].

    For coefficients of active steps: a group holds one window's steps, so a resample keeps each
    window's number of steps.
    """
    import numpy as np

    total = np.zeros(resamples)
    for group in groups:
        drawn = stream.below(len(group), resamples * len(group))
        total += np.asarray(group)[drawn].reshape(resamples, len(group)).sum(axis=1)
    return total / sum(len(group) for group in groups)
