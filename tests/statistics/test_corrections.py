"""Holm against statsmodels, t and Wilson against scipy, bounds by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from opprof.statistics.bounds import inversion_depth_bounds, leads, upper_bounds
from opprof.statistics.distributions import (
    incomplete_beta,
    normal_quantile,
    student_t_tail,
    student_t_upper,
    wilson_interval,
)
from opprof.statistics.multiplicity import holm, holm_levels
from opprof.statistics.permutation import WindowSteps


def test_holm_as_statsmodels_has_it() -> None:
    # statsmodels 0.15.0: multipletests(p, method="holm")[1]
    p = [0.01, 0.04, 0.03, 0.005, 0.5, 0.04]
    assert holm(p) == pytest.approx([0.05, 0.12, 0.12, 0.03, 0.5, 0.12])


def test_holm_by_hand_with_registered_tests_that_are_missing() -> None:
    # Eight registered, two with a p-value: 8 x 0.006, then 7 x 0.007 = 0.049.
    assert holm([0.007, 0.006], family_size=8) == pytest.approx([0.049, 0.048])
    levels = holm_levels([0.007, 0.006], 0.05, family_size=8)
    assert levels == pytest.approx([1 - 0.05 / 7, 1 - 0.05 / 8])


def test_the_first_step_of_the_full_matrix_needs_what_the_specification_says() -> None:
    # 1,980 tests: 2 / 100,001 is rejected alone, 3 / 100,001 is not.
    assert holm([2 / 100_001], family_size=1980)[0] < 0.05
    assert holm([3 / 100_001], family_size=1980)[0] > 0.05


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_keeps_order_and_lies_between_raw_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    for raw, value in zip(p, adjusted, strict=True):
        assert raw <= value <= min(1.0, raw * len(p)) or value == pytest.approx(raw)
    order = sorted(range(len(p)), key=lambda index: p[index])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        holm([1.5])
    with pytest.raises(ValueError, match="family of 1"):
        holm([0.1, 0.2], family_size=1)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2, 1.96)
    with pytest.raises(ValueError, match="tail"):
        student_t_upper(0.7, 5)
    with pytest.raises(ValueError, match="x ="):
        incomplete_beta(1, 1, 2)


@pytest.mark.parametrize("df", [1, 2.5, 7, 14, 300])
@pytest.mark.parametrize("tail", [0.4, 0.025, 6.3e-5, 1e-9])
def test_students_t_as_scipy_has_it(df: float, tail: float) -> None:
    found = student_t_upper(tail, df)
    assert found == pytest.approx(stats.t.isf(tail, df), rel=1e-8)
    assert student_t_tail(-found, df) == pytest.approx(1 - tail)


@given(st.floats(0.1, 60), st.floats(0.1, 60), st.floats(0, 1))
def test_incomplete_beta_as_scipy_has_it(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), abs=1e-11)


@pytest.mark.parametrize(("count", "n"), [(0, 100_000), (1, 100_000), (7, 20), (20, 20)])
def test_wilson_as_scipy_has_it(count: int, n: int) -> None:
    reference = stats.binomtest(count, n).proportion_ci(method="wilson")
    found = wilson_interval(count, n, normal_quantile(0.975))
    assert found == pytest.approx((reference.low, reference.high), abs=1e-12)


def window(*rows: tuple[float, float, float]) -> WindowSteps:
    table = np.array(rows, float)
    return WindowSteps(table[:, :2], table[:, 2])


def test_leads_and_bounds_by_hand() -> None:
    # Equal totals make the ratio a mean: leads .2 .4 in one window, .6 .6 in the other.
    found = leads([window((60, 40, 100), (70, 30, 100)), window((80, 20, 100), (80, 20, 100))])
    assert found.lead[0, 1] == pytest.approx(0.45)
    assert found.lead[1, 0] == pytest.approx(-0.45)
    # Variance of the first mean: 0.02 / 2 = 0.01; of the mean of both: a quarter; df 1.
    assert found.standard_error[0, 1] == pytest.approx(0.05)
    assert found.df[0, 1] == pytest.approx(1)
    bounds = upper_bounds(found, alpha=0.05, bounded=2)
    assert bounds[0, 1] == pytest.approx(0.45 + stats.t.isf(0.025, 1) * 0.05)
    assert bounds[0, 0] == 0


def test_degrees_of_freedom_are_those_of_welch() -> None:
    first = window((61, 40, 101), (70, 30, 100), (50, 45, 95))
    second = window((80, 20, 100), (82, 20, 102), (70, 25, 95))
    found = leads([first, second])
    own = [leads([item]) for item in (first, second)]
    variances = [item.standard_error[0, 1] ** 2 / 4 for item in own]
    expected = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    assert found.df[0, 1] == pytest.approx(expected)
    assert 2 <= expected <= 4


def test_a_single_step_has_no_error_to_bound_with() -> None:
    with pytest.raises(ValueError, match="fewer than two"):
        leads([window((1, 1, 2))])


def test_an_inversion_is_as_deep_as_its_lesser_side() -> None:
    p = np.array([[0.0, 0.3], [-0.1, 0.0]])
    q = np.array([[0.0, -0.2], [0.04, 0.0]])
    depth = inversion_depth_bounds(p, q)
    assert depth[0, 1] == 0.04  # a leads by at most .3 in p, b leads by at most .04 in q
    assert depth[1, 0] == -0.2
