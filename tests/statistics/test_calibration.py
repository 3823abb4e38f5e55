"""A small calibration: coverage, uniform p-values, dependent steps (see bench/calibration.py)."""

from __future__ import annotations

import numpy as np
import pytest

from opprof.decision.planted import Truth, ar1, step_nanoseconds
from opprof.decision.stepwise import lead_correlation
from opprof.statistics.bootstrap import (
    BlockPlan,
    block_starts,
    percentile_interval,
    ratio,
    resampled_sums,
    two_sided_p,
)
from opprof.statistics.bounds import leads, upper_bounds
from opprof.statistics.draws import Stream
from opprof.statistics.permutation import WindowSteps, permutation_test


def coverage(correlation: float, series: int) -> float:
    generator = np.random.default_rng(1)
    plan = BlockPlan(240, 5)
    hits = 0
    for index in range(series):
        drawn = ar1(240, 2, correlation, generator)
        bottom = 100.0 + 10.0 * drawn[:, 1]
        columns = np.column_stack([0.1 * bottom + 2.0 * drawn[:, 0], bottom])
        sums = resampled_sums(columns, plan, block_starts(plan, 400, Stream(index)))
        found = percentile_interval(ratio(sums[:, 0], sums[:, 1]), 0.95)
        hits += found.low <= 0.1 <= found.high
    return hits / series


def test_intervals_cover_without_dependence_and_fall_short_with_it() -> None:
    # 300 series: three standard errors of 0.95 are 0.038.
    assert 0.90 <= coverage(0.0, 300) <= 0.985
    # Blocks of five bins cannot hold a dependence that lasts ten: this must stay visible.
    assert coverage(0.9, 300) < 0.85


def windows(truth: Truth, generator: np.random.Generator) -> list[WindowSteps]:
    found = []
    for _ in range(2):
        rows = np.array([list(s.values()) for s in step_nanoseconds(truth, 6, generator)], float)
        found.append(WindowSteps(rows, rows.sum(axis=1)))
    return found


def rejections(correlation: float, pairs: int) -> float:
    generator = np.random.default_rng(2)
    truth = Truth(share_noise=0.3, step_correlation=correlation)
    below = []
    for index in range(pairs):
        found = permutation_test(
            windows(truth, generator),
            windows(truth, generator),
            permutations=1,
            stream=Stream(index),
        )
        assert found.exact_p is not None
        below.append(float((found.exact_p <= 0.05).mean()))
    return float(np.mean(below))


def test_p_values_are_uniform_for_exchangeable_steps_and_too_small_for_correlated_ones() -> None:
    assert rejections(0.0, 300) == pytest.approx(0.05, abs=0.02)
    assert rejections(0.7, 60) > 0.15


def test_bootstrap_p_of_two_like_runs_is_about_uniform() -> None:
    generator = np.random.default_rng(3)
    plan = BlockPlan(240, 5)
    small = 0
    for index in range(200):
        drawn = []
        for side in range(2):
            columns = 100.0 + 10.0 * generator.standard_normal((240, 2))
            starts = block_starts(plan, 300, Stream(index, str(side)))
            sums = resampled_sums(columns, plan, starts)
            drawn.append(ratio(sums[:, 0], sums[:, 1]))
        small += two_sided_p(drawn[0] - drawn[1]) <= 0.1
    assert small / 200 == pytest.approx(0.1, abs=0.07)


def test_simultaneous_bounds_hold_for_even_steps() -> None:
    generator = np.random.default_rng(4)
    truth = Truth(share_noise=0.05)
    names = list(truth.shares.values())
    target = np.subtract.outer(names, names)
    missed = 0
    for _ in range(60):
        found = leads(windows(truth, generator))
        upper = upper_bounds(found, alpha=0.05, bounded=target.size - len(names))
        missed += bool((upper < target - 1e-3).any())
    assert missed <= 6


def test_correlation_of_leads_is_seen() -> None:
    generator = np.random.default_rng(5)
    found = {
        correlation: np.mean(
            [
                lead_correlation(
                    windows(Truth(share_noise=0.3, step_correlation=correlation), generator), 0, 1
                )
                for _ in range(80)
            ]
        )
        for correlation in (0.0, 0.8)
    }
    assert found[0.0] < 0.0 < found[0.8]
    constant = WindowSteps(np.ones((4, 2)), np.full(4, 2.0))
    assert lead_correlation([constant], 0, 1) is None
