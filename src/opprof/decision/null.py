"""The null of H1a: one top family everywhere, and no inversion that could be material.

Source: protocol, "Decision rule"; protocol file, ``null`` and ``ranking.other_may_be_top``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from opprof.artifacts.comparison import Comparison
from opprof.artifacts.decision import LeadBound, NullEvidence
from opprof.decision.design import Matrix, run_name
from opprof.decision.h1a import table_of
from opprof.decision.stepwise import window_steps
from opprof.statistics.bounds import Leads, inversion_depth_bounds, leads, upper_bounds
from opprof.statistics.distributions import student_t_upper
from opprof.statistics.permutation import WindowSteps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]

_OTHER = "other"


def null_evidence(comparison: Comparison, version: str, matrix: Matrix) -> NullEvidence:
    """Collect what speaks for and against the null under one mapping table."""
    families = matrix.file.ranking.families
    evaluable = [p for p in matrix.patterns if not matrix.h1a_reasons(p)]
    steps: dict[str, list[WindowSteps]] = {}
    reasons = [r for p in matrix.patterns for r in matrix.h1a_reasons(p)]
    for pattern in evaluable:
        found = window_steps(matrix.facts[matrix.primary(pattern)].kernels, version, families)
        if isinstance(found, str):
            reasons.append(f"{pattern}: {found}")
        elif any(len(window.total_ns) < 2 for window in found):
            reasons.append(f"{pattern}: a window with fewer than two steps")
        else:
            steps[pattern] = found
    tops = _tops(comparison, version, matrix, evaluable)
    common = _common_top(tops, matrix)
    alpha, gap = matrix.file.statistics.alpha, matrix.file.ranking.inversion_gap_share
    bounds, bounded = _bounds(steps, families, alpha)
    greatest = bounds[0].bound if bounds else None
    same_top = bool(common) if tops else None
    below = None if greatest is None else greatest < gap
    complete = not reasons
    return NullEvidence(
        evaluable=complete,
        reasons=list(dict.fromkeys(reasons)),
        tops=tops,
        common_top=common,
        same_top=same_top,
        bounds=bounds,
        greatest_bound=greatest,
        bounds_below=below,
        bounded=bounded,
        alpha=alpha,
        share_difference_bound=_share_difference_bound(steps, families, alpha),
        supported=bool(same_top and below) if complete else None,
    )


def _tops(
    comparison: Comparison, version: str, matrix: Matrix, patterns: Sequence[str]
) -> dict[str, list[list[str]]]:
    windows = table_of(comparison, version).windows
    return {
        pattern: [
            window.top
            for window in windows
            if window.run == run_name(matrix.primary(pattern)) and window.rank == 0
        ]
        for pattern in patterns
    }


def _common_top(tops: Mapping[str, list[list[str]]], matrix: Matrix) -> list[str]:
    """Families in first place in every window; ``other`` only where the protocol lets it be."""
    every = [set(window) for windows in tops.values() for window in windows]
    common = set.intersection(*every) if every else set()
    if not matrix.file.ranking.other_may_be_top:
        common.discard(_OTHER)
    return [family for family in matrix.file.ranking.families if family in common]


def _bounds(
    steps: Mapping[str, list[WindowSteps]], families: Sequence[str], alpha: float
) -> tuple[list[LeadBound], int]:
    """Greatest simultaneous inversion-depth bound of each pattern pair, greatest first."""
    import numpy as np

    if len(steps) < 2:
        return [], 0
    bounded = len(steps) * len(families) * (len(families) - 1)
    upper = {
        pattern: upper_bounds(leads(found), alpha=alpha, bounded=bounded)
        for pattern, found in steps.items()
    }
    found = []
    for p, q in combinations(upper, 2):
        depth = inversion_depth_bounds(upper[p], upper[q])
        np.fill_diagonal(depth, -np.inf)
        a, b = divmod(int(np.argmax(depth)), len(families))
        found.append(LeadBound(p, q, families[a], families[b], float(depth[a, b])))
    return sorted(found, key=lambda item: (-item.bound, item.pattern_p, item.pattern_q)), bounded


def _share_difference_bound(
    steps: Mapping[str, list[WindowSteps]], families: Sequence[str], alpha: float
) -> float | None:
    """The other reading of "family share gaps": one family's difference between two patterns."""
    if len(steps) < 2:
        return None
    shares = {pattern: _share_leads(found) for pattern, found in steps.items()}
    pairs = list(combinations(shares, 2))
    tests = 2 * len(pairs) * len(families)
    greatest = 0.0
    for p, q in pairs:
        for family in range(len(families)):
            greatest = max(greatest, _difference_bound(shares[p], shares[q], family, alpha / tests))
    return greatest


def _share_leads(windows: Sequence[WindowSteps]) -> Leads:
    """Shares as leads over an empty family, in the last column."""
    import numpy as np

    return leads(
        [
            WindowSteps(
                np.column_stack([window.family_ns, np.zeros(len(window.total_ns))]),
                window.total_ns,
            )
            for window in windows
        ]
    )


def _difference_bound(p: Leads, q: Leads, family: int, tail: float) -> float:
    difference = abs(float(p.lead[family, -1] - q.lead[family, -1]))
    variances = [float(side.standard_error[family, -1]) ** 2 for side in (p, q)]
    total = sum(variances)
    if not total:
        return difference
    spread = sum(
        variance**2 / float(side.df[family, -1])
        for variance, side in zip(variances, (p, q), strict=True)
        if variance
    )
    return difference + student_t_upper(tail, total**2 / spread) * math.sqrt(total)
