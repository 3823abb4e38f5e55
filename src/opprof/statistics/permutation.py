"""Window-stratified permutation test between two patterns, on shares as ratios of sums.

For window ``w`` with steps of both patterns, families' times ``x`` and totals ``T``, a labelling
``L`` gives ``D_w(L) = sum_p x / sum_p T - sum_q x / sum_q T`` for each family. The statistic of two
families a, b is the mean over windows of ``D_w[a] - D_w[b]``: how much more a leads b in p than in
q. Under the null hypothesis (steps of one window are exchangeable between the patterns) every
labelling that keeps the window's counts is equally likely, and windows are labelled independently.

With 8 + 8 steps a window has 12,870 labellings. They are enumerated once per pattern pair and serve
all family pairs; a Monte-Carlo permutation is one random labelling of each window, and the exact
p-value of two windows is a convolution of their two distributions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import combinations
from typing import TYPE_CHECKING

from opprof.statistics.draws import Stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]
    Int32 = NDArray[np.int32]
    Int64 = NDArray[np.int64]

_ENUMERATION_LIMIT = 200_000
"""Labellings of one window that are enumerated; above it, labellings are drawn one by one."""
_TIE = 1e-12
"""Differences of shares below this are rounding: such a labelling reaches the observed value."""


@dataclass(frozen=True)
class WindowSteps:
    """One window's active steps of one pattern."""

    family_ns: Float64
    """float64[steps, families]."""
    total_ns: Float64
    """float64[steps]: everything in the shares' denominator."""


@dataclass(frozen=True)
class PermutationResult:
    """All pairs of families of one pattern pair; arrays have one entry per pair."""

    pairs: tuple[tuple[int, int], ...]
    """Column numbers (a, b), a < b."""
    observed: Float64
    """Mean over windows of the lead's difference, in shares; positive when a leads more in p."""
    reached: Int64
    """Permutations at least as extreme, two-sided."""
    p_value: Float64
    """``(reached + 1) / (permutations + 1)``."""
    reached_one_sided: Int64
    """Permutations at least as extreme in the observed direction."""
    reached_pooled: Int64
    """Two-sided count of the other statistic: shares pooled over the windows' sums."""
    exact_p: Float64 | None
    """Two-sided over every joint labelling; None where it cannot be had."""
    permutations: int
    labellings: int | None
    """Joint labellings behind ``exact_p``."""


def permutation_test(
    p: Sequence[WindowSteps], q: Sequence[WindowSteps], *, permutations: int, stream: Stream
) -> PermutationResult:
    """Test every pair of families between two patterns with as many windows each.

    Raises:
        ValueError: no windows, unequal numbers of them, an empty window, or a step without time.
    """
    if not p or len(p) != len(q):
        raise ValueError(f"{len(p)} and {len(q)} windows")
    windows = [_pool(mine, theirs) for mine, theirs in zip(p, q, strict=True)]
    families = windows[0].sums.shape[1] - 1
    tables = [window.labelled(permutations, stream) for window in windows]
    shares = _total(table.difference.take(table.drawn, axis=1) for table in tables) / len(tables)
    observed = _total(window.observed for window in windows) / len(windows)
    pooled, pooled_observed = _pooled(windows, tables)
    pairs = tuple(combinations(range(families), 2))
    first, second = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [])
    lead = observed[first] - observed[second]
    counts = _counts(shares, pairs, lead)
    pooled_lead = pooled_observed[first] - pooled_observed[second]
    exact, labellings = _exact(tables, pairs, lead)
    return PermutationResult(
        pairs=pairs,
        observed=lead,
        reached=counts[0],
        p_value=(counts[0] + 1) / (permutations + 1),
        reached_one_sided=counts[1],
        reached_pooled=_counts(pooled, pairs, pooled_lead)[0],
        exact_p=exact,
        permutations=permutations,
        labellings=labellings,
    )


@dataclass(frozen=True)
class _Labelled:
    """Distinct labellings of one window and which of them each permutation uses."""

    difference: Float64
    """float64[families, labellings]: share under label p less share under label q."""
    sums: Float64
    """float64[families + 1, labellings]: sums under label p, the total last."""
    drawn: Int32
    enumerated: bool
    mirrored: bool
    """Both patterns have as many steps: each labelling's mirror image is one too."""


@dataclass(frozen=True)
class _Pool:
    """One window's steps of both patterns; the first ``mine`` rows are p's."""

    sums: Float64
    mine: int

    @property
    def observed(self) -> Float64:
        """The difference of shares as labelled."""
        mine = self.sums[: self.mine].sum(axis=0)[:, None]
        first: Float64 = self._differences(mine)[:, 0]
        return first

    def labelled(self, permutations: int, stream: Stream) -> _Labelled:
        """Enumerate the labellings, or draw one for each permutation when there are too many."""
        import numpy as np

        steps = len(self.sums)
        enumerated = math.comb(steps, self.mine) <= _ENUMERATION_LIMIT
        if enumerated:
            labels = _all_labels(steps, self.mine)
            drawn = stream.below(labels.shape[1], permutations)
        else:
            labels = _random_labels(steps, self.mine, permutations, stream)
            drawn = np.arange(permutations, dtype=np.int32)
        sums = self.sums.T @ labels
        mirrored = 2 * self.mine == steps
        return _Labelled(self._differences(sums), sums, drawn, enumerated, mirrored)

    def _differences(self, sums: Float64) -> Float64:
        rest = self.sums.sum(axis=0)[:, None] - sums
        return _share_differences(sums, rest)


def _pool(mine: WindowSteps, theirs: WindowSteps) -> _Pool:
    import numpy as np

    totals = np.concatenate([mine.total_ns, theirs.total_ns]).astype(np.float64)
    if not len(mine.total_ns) or not len(theirs.total_ns) or (totals <= 0).any():
        raise ValueError("a window without steps, or a step without time")
    families = np.concatenate([mine.family_ns, theirs.family_ns]).astype(np.float64)
    return _Pool(np.column_stack([families, totals]), len(mine.total_ns))


@lru_cache(maxsize=8)
def _all_labels(steps: int, mine: int) -> Float64:
    """Every choice of ``mine`` steps, float64[steps, labellings]."""
    import numpy as np

    chosen = np.asarray(list(combinations(range(steps), mine)), dtype=np.int64)
    labels = np.zeros((steps, len(chosen)))
    np.put_along_axis(labels, chosen.T, 1.0, axis=0)
    return labels


def _random_labels(steps: int, mine: int, count: int, stream: Stream) -> Float64:
    """Draw labellings by a partial Fisher-Yates shuffle of all at once, float64[steps, count]."""
    import numpy as np

    order = np.tile(np.arange(steps), (count, 1))
    rows = np.arange(count)
    for position in range(mine):
        other = position + stream.below(steps - position, count)
        moved = order[rows, other].copy()
        order[rows, other] = order[:, position]
        order[:, position] = moved
    labels = np.zeros((steps, count))
    np.put_along_axis(labels, order[:, :mine].T, 1.0, axis=0)
    return labels


def _pooled(windows: Sequence[_Pool], tables: Sequence[_Labelled]) -> tuple[Float64, Float64]:
    """The other statistic: sums over all windows first, one share for each pattern then."""
    whole = _total(window.sums.sum(axis=0) for window in windows)[:, None]
    as_labelled = _total(window.sums[: window.mine].sum(axis=0) for window in windows)[:, None]
    drawn = _total(table.sums.take(table.drawn, axis=1) for table in tables)
    observed = _share_differences(as_labelled, whole - as_labelled)[:, 0]
    return _share_differences(drawn, whole - drawn), observed


def _share_differences(sums: Float64, rest: Float64) -> Float64:
    """Shares under one label less shares under the other; the last row is the total."""
    difference: Float64 = sums[:-1] / sums[-1:] - rest[:-1] / rest[-1:]
    return difference


def _total(arrays: Iterable[Float64]) -> Float64:
    return reduce(operator.add, arrays)


def _counts(
    shares: Float64, pairs: Sequence[tuple[int, int]], observed: Float64
) -> tuple[Int64, Int64]:
    """Count permutations that reach the observed lead: two-sided, and in its direction."""
    import numpy as np

    both, one = np.zeros(len(pairs), np.int64), np.zeros(len(pairs), np.int64)
    for index, (a, b) in enumerate(pairs):
        lead = shares[a] - shares[b]
        if observed[index] < 0:
            np.negative(lead, out=lead)
        bar = abs(observed[index]) - _TIE
        one[index] = np.count_nonzero(lead >= bar)
        both[index] = np.count_nonzero(np.abs(lead, out=lead) >= bar)
    return both, one


def _exact(
    tables: Sequence[_Labelled], pairs: Sequence[tuple[int, int]], observed: Float64
) -> tuple[Float64 | None, int | None]:
    """Count over all joint labellings of one or two windows, both tails."""
    import numpy as np

    if len(tables) > 2 or not all(table.enumerated for table in tables):
        return None, None
    labellings = math.prod(table.difference.shape[1] for table in tables)
    mirrored = all(table.mirrored for table in tables)
    reached = np.zeros(len(pairs), np.int64)
    for index, (a, b) in enumerate(pairs):
        bar = abs(observed[index]) * len(tables) - _TIE * len(tables)
        leads = [np.sort(table.difference[a] - table.difference[b]) for table in tables]
        if bar <= 0:
            reached[index] = labellings
        elif len(leads) == 1:
            reached[index] = np.count_nonzero(np.abs(leads[0]) >= bar)
        else:
            reached[index] = _joint_tails(leads[0], leads[1], bar, mirrored)
    return reached / labellings, labellings


def _joint_tails(first: Float64, second: Float64, bar: float, mirrored: bool) -> int:
    """Count pairs with ``|first + second| >= bar``; both arrays ascend.

    Where every labelling has its mirror image the two tails are equal.
    """
    import numpy as np

    above = len(second) - np.searchsorted(second, bar - first, side="left")
    if mirrored:
        return 2 * int(above.sum())
    below = np.searchsorted(second, -bar - first, side="right")
    return int(above.sum() + below.sum())
