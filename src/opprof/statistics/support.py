"""Convex support of integer points in the plane: hull and membership, exact in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Hull:
    """Corners counter-clockwise, int64[corners, 2]; one or two for a point or a segment."""

    corners: Int64

    def holds(self, x: Int64, y: Int64) -> Bool:
        """Which points lie inside or on the border, bool[points]."""
        import numpy as np

        corners = self.corners
        inside = np.ones(len(x), np.bool_)
        if len(corners) < 3:
            low, high = corners.min(axis=0), corners.max(axis=0)
            inside &= (x >= low[0]) & (x <= high[0]) & (y >= low[1]) & (y <= high[1])
        for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            turn = (end[0] - start[0]) * (y - start[1]) - (end[1] - start[1]) * (x - start[0])
            inside &= turn >= 0
        return inside


def convex_hull(x: Int64, y: Int64) -> Hull:
    """Return the convex hull of at least one point (Andrew's monotone chain).

    Coordinates are not negative and below 2**30, so every product is exact.

    Raises:
        ValueError: there is no point.
    """
    import numpy as np

    if not len(x):
        raise ValueError("no points")
    keys = np.unique((np.asarray(x, np.int64) << 32) + y)
    points = _extremes(np.column_stack([keys >> 32, keys & 0xFFFFFFFF])).tolist()
    if len(points) <= 2:
        return Hull(np.asarray(points, np.int64))
    lower, upper = _chain(points), _chain(points[::-1])
    return Hull(np.asarray(lower[:-1] + upper[:-1], np.int64))


def _extremes(points: Int64) -> Int64:
    """Keep the least and greatest y of each x: no other point of a column can be a corner."""
    import numpy as np

    first = np.flatnonzero(np.diff(points[:, 0], prepend=-1))
    last = np.append(first[1:], len(points)) - 1
    kept: Int64 = points[np.unique(np.concatenate([first, last]))]
    return kept


def _chain(points: list[list[int]]) -> list[list[int]]:
    chain: list[list[int]] = []
    for point in points:
        while len(chain) >= 2 and _turn(chain[-2], chain[-1], point) <= 0:
            chain.pop()
        chain.append(point)
    return chain


def _turn(a: list[int], b: list[int], c: list[int]) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
