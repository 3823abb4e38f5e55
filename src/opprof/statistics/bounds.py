"""Simultaneous upper bounds of leads between families, from the active steps of a few windows.

A lead is a mean over windows of a ratio of sums. Its variance comes from the linearised residuals
of each window's steps (delta method), its degrees of freedom from Welch and Satterthwaite, and
Bonferroni's inequality makes the bounds simultaneous whatever the dependence between leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.statistics.distributions import student_t_upper
from opprof.statistics.permutation import WindowSteps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Leads:
    """Leads of every ordered pair of families of one pattern, mean over windows, in shares."""

    lead: Float64
    """float64[families, families]: row leads column."""
    standard_error: Float64
    df: Float64
    """Welch-Satterthwaite degrees of freedom; infinite where the error is 0."""


def leads(windows: Sequence[WindowSteps]) -> Leads:
    """Return the leads with their standard errors.

    Raises:
        ValueError: no windows, or fewer than two steps in one.
    """
    import numpy as np

    if not windows or any(len(window.total_ns) < 2 for window in windows):
        raise ValueError("a window with fewer than two steps")
    families = windows[0].family_ns.shape[1]
    mean = np.zeros((families, families))
    variance, spread = np.zeros_like(mean), np.zeros_like(mean)
    for window in windows:
        steps = len(window.total_ns)
        difference = window.family_ns[:, :, None] - window.family_ns[:, None, :]
        share = difference.sum(axis=0) / window.total_ns.sum()
        residual = (difference - share * window.total_ns[:, None, None]) / window.total_ns.mean()
        own = (residual**2).sum(axis=0) / (steps * (steps - 1)) / len(windows) ** 2
        mean += share / len(windows)
        variance += own
        spread += own**2 / (steps - 1)
    df = np.full_like(mean, np.inf)
    np.divide(variance**2, spread, out=df, where=spread > 0)
    return Leads(mean, np.sqrt(variance), df)


def upper_bounds(found: Leads, *, alpha: float, bounded: int) -> Float64:
    """Return upper bounds of all leads, simultaneous over ``bounded`` of them at ``1 - alpha``.

    ``lead + t(1 - alpha / bounded, df) * se``, float64[families, families].
    """
    import numpy as np

    result = found.lead.copy()
    # Error and degrees of freedom of a lead are those of its reverse.
    for a, b in zip(*np.nonzero(np.triu(found.standard_error > 0)), strict=True):
        margin = student_t_upper(alpha / bounded, float(found.df[a, b]))
        margin *= float(found.standard_error[a, b])
        result[a, b] += margin
        result[b, a] += margin
    return result


def inversion_depth_bounds(p: Float64, q: Float64) -> Float64:
    """Bound how far any inversion between two patterns can reach, float64[families, families].

    Entry (a, b): a leads b by ``p[a, b]`` at most in p, and b leads a by ``q[b, a]`` at most in q;
    both are needed, so the smaller one bounds the depth. The mean over windows bounds the least.
    """
    import numpy as np

    return np.minimum(p, q.T)
