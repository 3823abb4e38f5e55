"""Distributions of one unit: the only place that computes a :class:`Series`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opprof.artifacts.common import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_PERCENTS = (50.0, 95.0, 99.0)
_COUNTED_RANGE_MAX = 1 << 16
"""Integers within a range narrower than this (and than their number) are summarised by counting."""

EMPTY = Series(n=0, mean=None, sd=None, min=None, p50=None, p95=None, p99=None, max=None, sum=None)


def series(values: NDArray[Any], divisor: int = 1) -> Series:
    """Summarise ``values[n]`` after division by ``divisor`` (1e6 turns ns into ms).

    Percentiles interpolate linearly between order statistics; ``sd`` has n - 1 degrees of freedom.
    Sums of integers are exact before the division.
    """
    import numpy as np

    if not len(values):
        return EMPTY
    low, high = values.min(), values.max()
    if np.issubdtype(values.dtype, np.integer):
        if int(high) - int(low) < min(len(values), _COUNTED_RANGE_MAX):
            return _counted(values, int(low), divisor)
        total: int | float = int(values.sum())
    else:
        total = math.fsum(values.tolist())
    p50, p95, p99 = (float(value) for value in np.percentile(values, _PERCENTS))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Series(
        n=len(values),
        mean=total / len(values) / divisor,
        sd=None if deviation is None else deviation / divisor,
        min=float(low) / divisor,
        p50=p50 / divisor,
        p95=p95 / divisor,
        p99=p99 / divisor,
        max=float(high) / divisor,
        sum=float(total / divisor),
    )


def _counted(values: NDArray[Any], low: int, divisor: int) -> Series:
    """The same summary of integers in a narrow range, from how often each occurs."""
    import numpy as np

    counts = np.bincount(values - low)
    n = len(values)
    steps = np.flatnonzero(counts)
    times = counts[steps]
    total = low * n + int((steps * times).sum())
    ends = np.cumsum(times)
    percentiles = []
    for percent in _PERCENTS:
        rank = percent / 100 * (n - 1)
        below, above = (
            low + int(steps[np.searchsorted(ends, order, side="right")])
            for order in (math.floor(rank), math.ceil(rank))
        )
        percentiles.append(below + (above - below) * (rank - math.floor(rank)))
    squares = math.fsum((times * (steps + low - total / n) ** 2).tolist())
    return Series(
        n=n,
        mean=total / n / divisor,
        sd=math.sqrt(squares / (n - 1)) / divisor if n > 1 else None,
        min=(low + int(steps[0])) / divisor,
        p50=percentiles[0] / divisor,
        p95=percentiles[1] / divisor,
        p99=percentiles[2] / divisor,
        max=(low + int(steps[-1])) / divisor,
        sum=float(total / divisor),
    )
