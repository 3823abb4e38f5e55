"""Moving blocks: agreement with arch on its own indices, hand-worked sums, intervals, p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.statistics.bootstrap import (
    BlockPlan,
    block_starts,
    mean_resamples,
    percentile_interval,
    ratio,
    resampled_sums,
    start_counts,
    two_sided_p,
)
from opprof.statistics.draws import Stream

# arch 8.0.0, numpy 2.4.6: bs = MovingBlockBootstrap(5, num, den, seed=20260714), and the circular
# one; three iterations of bs.bootstrap(3): bs.index and num.sum() / den.sum() of the resample.
NUMERATOR = np.array([(7 * i * i + 3 * i) % 11 + 1 for i in range(13)], float)
DENOMINATOR = np.array([(5 * i + 2) % 7 + 3 for i in range(13)], float)
ARCH = {
    False: [
        ([1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 4, 5, 6], 0.9),
        ([8, 9, 10, 11, 12, 6, 7, 8, 9, 10, 1, 2, 3], 0.9868421052631579),
        ([3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 7, 8, 9], 0.8571428571428571),
    ],
    True: [
        ([1, 2, 3, 4, 5, 12, 0, 1, 2, 3, 5, 6, 7], 0.8902439024390244),
        ([12, 0, 1, 2, 3, 9, 10, 11, 12, 0, 2, 3, 4], 0.7901234567901234),
        ([5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 10, 11, 12], 0.8641975308641975),
    ],
}


@pytest.mark.parametrize("circular", [False, True])
def test_the_same_blocks_as_arch_give_the_same_ratios(circular: bool) -> None:
    indices = np.array([index for index, _ in ARCH[circular]])
    plan = BlockPlan(bins=13, block_bins=5, circular=circular)
    sums = resampled_sums(np.column_stack([NUMERATOR, DENOMINATOR]), plan, indices[:, ::5])
    expected = [value for _, value in ARCH[circular]]
    assert ratio(sums[:, 0], sums[:, 1]).tolist() == expected


def test_a_hand_worked_resample() -> None:
    # Bins 1, 2, 3, 4 in blocks of 2: starts 0..2; blocks (1,2), (2,3), (3,4).
    plan = BlockPlan(bins=4, block_bins=2)
    starts = np.array([[0, 2], [1, 1]])
    sums = resampled_sums(np.array([[1.0], [2.0], [3.0], [4.0]]), plan, starts)
    assert sums.tolist() == [[10.0], [10.0]]
    assert (plan.starts, plan.drawn_blocks, plan.rest_bins) == (3, 2, 0)


@given(
    bins=st.integers(1, 40),
    block=st.integers(1, 40),
    circular=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_sums_equal_those_of_the_written_out_series(
    bins: int, block: int, circular: bool, seed: int
) -> None:
    block = min(block, bins)
    plan = BlockPlan(bins, block, circular)
    values = Stream(seed, "values").below(1000, bins * 2).reshape(bins, 2).astype(float)
    starts = block_starts(plan, 7, Stream(seed, "starts"))
    written = []
    for row in starts:
        index = np.concatenate([np.arange(start, start + block) for start in row])[:bins] % bins
        assert circular or index.max() < bins
        written.append(values[index].sum(axis=0))
    assert resampled_sums(values, plan, starts).tolist() == np.array(written).tolist()
    assert start_counts(starts, plan.starts).sum() == starts.size


def test_without_wrapping_the_ends_are_drawn_less_often() -> None:
    def weights(circular: bool) -> np.ndarray:
        plan = BlockPlan(20, 5, circular)
        starts = block_starts(plan, 20_000, Stream(1, "ends"))
        return resampled_sums(np.eye(20), plan, starts).mean(axis=0)

    moving, circular = weights(False), weights(True)
    # An inner bin lies in 5 of 16 blocks, the first bin in 1; four blocks a resample.
    assert moving[10] == pytest.approx(4 * 5 / 16, abs=0.02)
    assert moving[0] == pytest.approx(4 * 1 / 16, abs=0.02)
    assert circular == pytest.approx(np.ones(20), abs=0.03)


def test_intervals_are_linear_between_order_statistics_as_numpy_has_them() -> None:
    values = Stream(3, "interval").below(1000, 501).astype(float)
    found = percentile_interval(values, 0.95)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert found.undefined == 0


def test_undefined_resamples_only_widen_an_interval() -> None:
    values = np.array([math.nan] * 10 + [float(i) for i in range(90)])
    found = percentile_interval(values, 0.5)
    assert found.undefined == 10
    assert found.low == np.quantile([-1.0] * 10 + list(range(90)), 0.25)
    assert found.high == np.quantile([*range(90), *[99.0] * 10], 0.75)
    wide = percentile_interval(values, 0.95)
    assert (wide.low, wide.high) == (-math.inf, math.inf)


def test_two_sided_p_by_hand() -> None:
    assert two_sided_p(np.array([1.0] * 99)) == pytest.approx(2 * 1 / 100)
    assert two_sided_p(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert two_sided_p(np.array([0.0] * 99)) == 1.0
    assert two_sided_p(np.array([1.0] * 98 + [math.nan])) == pytest.approx(2 * 2 / 100)


def test_ratios_of_nothing_are_undefined() -> None:
    found = ratio(np.array([1.0, 2.0]), np.array([0.0, 4.0]))
    assert math.isnan(found[0])
    assert found[1] == 0.5


def test_step_means_are_resampled_within_each_window() -> None:
    groups = [np.array([1.0, 1.0]), np.array([5.0, 9.0])]
    found = mean_resamples(groups, 4000, Stream(5, "steps"))
    assert set(found.tolist()) == {(2 + 10) / 4, (2 + 14) / 4, (2 + 18) / 4}
    assert found.mean() == pytest.approx(4.0, abs=0.05)


def test_streams_depend_on_seed_and_label_and_on_nothing_else() -> None:
    first = Stream(20260714, "P01", "P02").below(12870, 8)
    assert first.tolist() == Stream(20260714, "P01", "P02").below(12870, 8).tolist()
    assert first.tolist() != Stream(20260714, "P01P02").below(12870, 8).tolist()
    assert first.tolist() != Stream(20260713, "P01", "P02").below(12870, 8).tolist()
    # Frozen: these very draws stand behind every number of a published decision.
    assert first.tolist() == FROZEN


FROZEN = [3467, 10862, 12465, 1775, 10247, 9982, 11042, 4473]


def test_draws_cover_the_range_evenly() -> None:
    counts = np.bincount(Stream(0, "even").below(7, 70_000), minlength=7)
    assert len(counts) == 7
    # Chi-square with 6 degrees of freedom: 22.5 is its 99.9th percentile.
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 22.5


@pytest.mark.parametrize(
    "call",
    [
        lambda: BlockPlan(4, 5),
        lambda: BlockPlan(4, 0),
        lambda: Stream(0).below(0, 1),
        lambda: Stream(0).below(1 << 32, 1),
        lambda: percentile_interval(np.zeros(0), 0.95),
        lambda: percentile_interval(np.zeros(3), 1.0),
        lambda: resampled_sums(np.zeros((4, 1)), BlockPlan(5, 2), np.zeros((1, 3), np.int64)),
    ],
)
def test_what_makes_no_sense_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        call()
