"""Hulls, surfaces, additive prediction, factorial effects, percentile ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import interpolate, optimize

from opprof.statistics.bootstrap import BlockPlan, block_starts
from opprof.statistics.draws import Stream
from opprof.statistics.effects import factorial, run_delta
from opprof.statistics.interference import StepTimes, fit_others, predict_steps
from opprof.statistics.quantiles import Events, percentile_ends
from opprof.statistics.splines import Axis, SplineRule, fit_surface, nonnegative_solution
from opprof.statistics.support import convex_hull

RULE = SplineRule(
    degree=2,
    tokens_basis=6,
    requests_basis=4,
    penalty=1e-4,
    huber_k=1.345,
    iterations_max=50,
    tolerance=1e-6,
)


def integers(seed: int, bound: int, count: int) -> np.ndarray:
    return Stream(seed, "test").below(bound, count)


def test_hull_of_a_square_with_a_point_inside() -> None:
    hull = convex_hull(np.array([0, 4, 4, 0, 2]), np.array([0, 0, 4, 4, 1]))
    assert hull.corners.tolist() == [[0, 0], [4, 0], [4, 4], [0, 4]]
    x, y = np.array([0, 2, 4, 5, -1]), np.array([0, 4, 2, 2, 0])
    assert hull.holds(x, y).tolist() == [True, True, True, False, False]


def test_a_line_supports_only_itself() -> None:
    # Pure decode steps have as many tokens as requests: the support is a segment.
    hull = convex_hull(np.array([1, 5, 9]), np.array([1, 5, 9]))
    assert hull.holds(np.array([3, 3, 10]), np.array([3, 4, 10])).tolist() == [True, False, False]
    point = convex_hull(np.array([3, 3]), np.array([2, 2]))
    assert point.holds(np.array([3, 3]), np.array([2, 3])).tolist() == [True, False]
    with pytest.raises(ValueError, match="no points"):
        convex_hull(np.zeros(0, np.int64), np.zeros(0, np.int64))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_every_point_and_every_midpoint_is_supported(points: list[tuple[int, int]]) -> None:
    table = np.array(points) * 2
    hull = convex_hull(table[:, 0], table[:, 1])
    assert hull.holds(table[:, 0], table[:, 1]).all()
    middle = (table + table[0]) // 2
    assert hull.holds(middle[:, 0], middle[:, 1]).all()


def test_basis_as_scipy_has_it() -> None:
    axis = Axis(low=2.0, high=11.0, size=6, degree=2)
    values = np.array([2, 3, 5, 8, 11])
    spans = 4
    knots = np.arange(-2, spans + 3) * (9.0 / spans) + 2.0
    expected = interpolate.BSpline.design_matrix(values.astype(float), knots, 2).toarray()
    assert axis.basis(values) == pytest.approx(expected)
    assert axis.basis(values).sum(axis=1) == pytest.approx(np.ones(5))


@given(st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_nonnegative_solution_as_scipy_has_it(seed: int) -> None:
    table = integers(seed, 2001, 60).reshape(12, 5) / 1000.0 - 1.0
    target = integers(seed + 1000, 2001, 12) / 1000.0 - 1.0
    gram = table.T @ table + 1e-9 * np.eye(5)
    found = nonnegative_solution(gram, table.T @ target)
    expected, _ = optimize.nnls(table, target)
    assert (found >= 0).all()
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_plane_is_met_exactly_and_one_wild_step_does_not_bend_it() -> None:
    tokens, requests = integers(1, 4000, 600) + 1, integers(2, 30, 600) + 1
    times = 2.0 + 0.01 * tokens + 0.3 * requests
    noisy = times.copy()
    noisy[::50] += 400.0
    surface = fit_surface(tokens, requests, noisy, RULE)
    assert surface.converged
    assert np.abs(surface.predict(tokens, requests) - times).mean() < 0.1
    plain = fit_surface(tokens, requests, noisy, SplineRule(6 - 4, 6, 4, 1e-4, 1e9, 50, 1e-6))
    assert np.abs(plain.predict(tokens, requests) - times).mean() > 3.0
    assert (surface.coefficients >= 0).all()


def test_times_that_would_extrapolate_below_zero_stay_nonnegative() -> None:
    tokens = np.repeat(np.arange(1, 101), 3)
    requests = np.ones(300, np.int64)
    surface = fit_surface(tokens, requests, np.maximum(0.0, tokens - 60.0), RULE)
    assert (surface.predict(tokens, requests) >= 0).all()
    assert surface.requests.size == 1


def test_a_surface_on_a_line_of_points() -> None:
    decode = np.repeat(np.arange(1, 65), 5)
    surface = fit_surface(decode, decode, 5.0 + 0.1 * decode, RULE)
    assert surface.predict(decode, decode) == pytest.approx(5.0 + 0.1 * decode, rel=0.01)


def step_times(
    seed: int, *, mixed_extra: float = 0.0, count: int = 400, empty: int = 5
) -> StepTimes:
    """Pure prefill, pure decode, mixed and empty steps of an additive engine (alpha 1 ms)."""
    kind = np.arange(count) % 3
    prefill = np.where(kind != 1, integers(seed, 2000, count) + 50, 0)
    decode = np.where(kind != 0, integers(seed + 1, 60, count) + 1, 0)
    mine = np.where(prefill > 0, prefill // 700 + 1, 0)
    duration = 1.0 + 0.02 * prefill + 0.1 * decode + 0.5 * mine
    duration = np.where(kind == 2, duration * (1 + mixed_extra), duration)
    zeros = np.zeros(empty, np.int64)
    return StepTimes(
        np.concatenate([prefill, zeros]),
        np.concatenate([mine, zeros]),
        np.concatenate([decode, zeros]),
        np.concatenate([decode, zeros]),
        np.concatenate([duration, np.ones(empty)]),
    )


def test_additive_steps_have_no_interference_and_slower_mixed_steps_do() -> None:
    others = [step_times(10), step_times(20), step_times(30)]
    fits = fit_others(others, others, RULE, requests="component", pure_steps_min=30)
    assert fits.alpha_ms == 1.0
    for extra in (0.0, 0.25):
        reported = step_times(40, mixed_extra=extra)
        found = predict_steps(reported, fits, requests="component")
        known = ~np.isnan(found.t_add_ms) & reported.mixed
        gap = (reported.duration_ms - found.t_add_ms)[known].sum() / found.t_add_ms[known].sum()
        assert gap == pytest.approx(extra, abs=0.01)
        assert found.mixed_supported == known.sum()
        assert found.mixed_supported + found.mixed_unsupported == reported.mixed.sum()
        assert found.reason is None


def test_requests_of_the_whole_step_leave_no_mixed_step_supported() -> None:
    # A pure decode step has D = N, so a mixed step's (D, D + prefills) is never in the support.
    others = [step_times(10), step_times(20)]
    fits = fit_others(others, others, RULE, requests="step", pure_steps_min=30)
    found = predict_steps(step_times(40), fits, requests="step")
    assert found.mixed_supported == 0
    assert found.mixed_unsupported > 100
    assert found.pure_supported > 100


def test_without_zero_token_steps_there_is_no_alpha_and_no_mixed_prediction() -> None:
    others = [step_times(10, empty=0)]
    fits = fit_others(others, others, RULE, requests="component", pure_steps_min=30)
    found = predict_steps(step_times(40), fits, requests="component")
    assert fits.alpha_ms is None
    assert found.mixed_supported == 0
    assert found.reason is not None
    assert "alpha" in found.reason


def test_too_few_pure_steps_fit_nothing() -> None:
    fits = fit_others([step_times(10, count=30)], [], RULE, requests="component", pure_steps_min=30)
    assert (fits.prefill, fits.decode, fits.prefill_steps) == (None, None, 10)
    nothing = fit_others([], [], RULE, requests="component", pure_steps_min=0)
    assert nothing.prefill is None
    found = predict_steps(step_times(40), fits, requests="component")
    assert np.isnan(found.t_add_ms).all()


def test_factorial_effects_by_hand() -> None:
    cells = [np.array([value]) for value in (10.0, 14.0, 11.0, 19.0)]
    found = factorial(*cells)
    assert found.first[0] == ((14 - 10) + (19 - 11)) / 2
    assert found.second[0] == ((11 - 10) + (19 - 14)) / 2
    assert found.interaction[0] == (19 - 11) - (14 - 10)


def test_run_deltas_are_absolute_and_relative() -> None:
    found = run_delta(4.0, 5.0)
    assert (found.absolute, found.relative) == (1.0, 0.25)
    assert run_delta(0.0, 5.0).relative is None


def test_percentile_ends_as_written_out() -> None:
    plan = BlockPlan(bins=24, block_bins=3)
    starts = block_starts(plan, 400, Stream(1, "ends"))
    bins, values = integers(1, 24, 300), integers(2, 500, 300).astype(float)
    empty = Events(np.zeros(0), np.zeros(0, np.int64))
    found = percentile_ends([Events(values, bins), empty], [50, 95], plan, starts, 0.9)
    per_resample: list[list[float]] = []
    for row in starts:
        index = np.concatenate([np.arange(start, start + 3) for start in row])
        sample = np.concatenate([values[bins == i] for i in index])
        per_resample.append(
            [float(np.quantile(sample, q, method="inverted_cdf")) for q in (0.5, 0.95)]
        )
    table = np.array(per_resample)
    for column in range(2):
        for end, share in ((0, 0.05), (1, 0.95)):
            ordered = np.sort(table[:, column])
            expected = ordered[int(np.ceil(share * 400 - 1e-9)) - 1]
            assert found[0, column, end] == expected
    assert np.isnan(found[1]).all()


def test_percentile_ends_refuse_what_they_cannot_do_exactly() -> None:
    plan = BlockPlan(bins=7, block_bins=3)
    with pytest.raises(ValueError, match="multiple"):
        percentile_ends([], [50], plan, np.zeros((1, 3), np.int64), 0.9)


def test_the_active_set_ends_where_rounding_keeps_a_bounding_variable_above_zero() -> None:
    # Normal equations of a rehearsed run: without the bound leaving by name this never returned.
    with np.load(Path(__file__).parent / "data" / "nnls_cycle.npz") as found:
        gram, target = found["gram"], found["target"]
    solution = nonnegative_solution(gram, target)
    gradient = target - gram @ solution
    assert (solution >= 0).all()
    assert np.abs(gradient[solution > 0]).max() < 1e-6 * np.abs(target).max()
    assert gradient.max() < 1e-6 * np.abs(target).max()


def test_a_surface_predicts_nothing_for_no_points() -> None:
    tokens, requests = integers(1, 400, 60), integers(1, 4, 60)
    surface = fit_surface(tokens, requests, tokens * 0.1, RULE)
    empty = np.zeros(0, np.int64)
    assert surface.predict(empty, empty).shape == (0,)
