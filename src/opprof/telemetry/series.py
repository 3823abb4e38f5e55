"""Distributions of one unit: the only place that computes a :class:`Series`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opprof.artifacts.common import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

EMPTY = Series(n=0, mean=None, sd=None, min=None, p50=None, p95=None, p99=None, max=None, sum=None)


def series(values: NDArray[Any], divisor: int = 1) -> Series:
    """Summarise ``values[n]`` after division by ``divisor`` (1e6 turns ns into ms).

    Percentiles interpolate linearly between order statistics; ``sd`` has n - 1 degrees of freedom.
    Sums of integers are exact before the division.
    """
    import numpy as np

    if not len(values):
        return EMPTY
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50.0, 95.0, 99.0)))
    exact = np.issubdtype(values.dtype, np.integer)
    total = int(values.sum()) if exact else math.fsum(values.tolist())
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Series(
        n=len(values),
        mean=total / len(values) / divisor,
        sd=None if deviation is None else deviation / divisor,
        min=float(values.min()) / divisor,
        p50=p50 / divisor,
        p95=p95 / divisor,
        p99=p99 / divisor,
        max=float(values.max()) / divisor,
        sum=float(total / divisor),
    )
