"""Two tests beside the registered permutation test, with weaker assumptions about steps.

The registered test exchanges single steps. Neighbouring engine steps depend on each other, which
makes its p too small; these say how much of it survives when larger units are exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opprof.statistics.distributions import student_t_tail
from opprof.statistics.draws import Stream
from opprof.statistics.permutation import WindowSteps, permutation_test

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]


def in_pairs(window: WindowSteps) -> WindowSteps:
    """Join neighbouring steps two by two; an odd last step stays alone.

    Shares are ratios of sums, so a pair's times simply add.
    """
    import numpy as np

    starts = np.arange(0, len(window.total_ns), 2)
    return WindowSteps(
        np.add.reduceat(window.family_ns, starts, axis=0),
        np.add.reduceat(window.total_ns, starts),
    )


def blocked_p(p: Sequence[WindowSteps], q: Sequence[WindowSteps]) -> Float64 | None:
    """Return the exact two-sided p of all family pairs when pairs of steps are exchanged together.

    With 4 + 4 pairs a window there are 4,900 joint labellings: p is 4.1e-4 at least, so it can
    never meet Holm's bars and decides nothing. None where it cannot be counted.
    """
    first, second = ([in_pairs(window) for window in side] for side in (p, q))
    found = permutation_test(first, second, permutations=1, stream=Stream(0, "blocked"))
    return found.exact_p


def windows_p(p: Sequence[float], q: Sequence[float]) -> float | None:
    """Return Welch's two-sided p for a lead with the windows as the only replicates.

    ``p`` and ``q`` hold the lead in each window. It holds whatever happens inside a window; with
    two windows a side it has one to two degrees of freedom and little power. None with fewer than
    two windows a side.
    """
    if min(len(p), len(q)) < 2:
        return None
    means = [math.fsum(side) / len(side) for side in (p, q)]
    parts = [
        math.fsum((value - mean) ** 2 for value in side) / (len(side) - 1) / len(side)
        for side, mean in zip((p, q), means, strict=True)
    ]
    variance, difference = sum(parts), abs(means[0] - means[1])
    if variance == 0:
        return 1.0 if difference == 0 else 0.0
    spread = sum(v**2 / (len(side) - 1) for v, side in zip(parts, (p, q), strict=True))
    return 2 * student_t_tail(difference / math.sqrt(variance), variance**2 / spread)
