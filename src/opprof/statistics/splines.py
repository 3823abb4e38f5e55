"""Nonnegative robust spline surfaces ``t = F(tokens, requests)``.

A tensor product of B-splines with nonnegative coefficients is nonnegative everywhere (the basis
is). A penalty on second differences of neighbouring coefficients (P-splines: Eilers and Marx 1996)
carries the surface straight over gaps in the data, and Huber's weights with the median absolute
residual as scale keep single slow steps from bending it. Knots are uniform over the data's range:
a step time that is linear in tokens is then represented exactly and costs no penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.statistics.support import Hull, convex_hull

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]
    Int64 = NDArray[np.int64]
    Bool = NDArray[np.bool_]

_MAD_TO_SD = 1.482602218505602
"""Standard deviations in a median absolute deviation, for normal residuals."""
_RIDGE = 1e-10
"""Relative ridge: picks one of several equal solutions where the data leave a coefficient free."""


@dataclass(frozen=True)
class SplineRule:
    """Everything a fit depends on besides the data."""

    degree: int
    tokens_basis: int
    requests_basis: int
    penalty: float
    """Weight of the squared second differences, relative to the data's information."""
    huber_k: float
    """Residuals beyond this many scales are weighted down."""
    iterations_max: int
    tolerance: float
    """Stops when no coefficient moves by more than this part of the largest."""


@dataclass(frozen=True)
class Axis:
    """One coordinate's basis: uniform knots over ``[low, high]``."""

    low: float
    high: float
    size: int
    degree: int

    def basis(self, values: Int64) -> Float64:
        """Return the basis functions, float64[values, size]; each row sums to 1 in the range."""
        import numpy as np

        if self.size == 1:
            return np.ones((len(values), 1))
        spans = self.size - self.degree
        at = (np.asarray(values, np.float64) - self.low) / (self.high - self.low) * spans
        cell = np.clip(np.floor(at), 0, spans - 1)
        knots = np.arange(-self.degree, spans + self.degree + 1, dtype=np.float64)
        table = np.zeros((len(at), len(knots) - 1))
        table[np.arange(len(at)), cell.astype(np.int64) + self.degree] = 1.0
        for order in range(1, self.degree + 1):
            left = (at[:, None] - knots[: -order - 1]) / order
            right = (knots[order + 1 :] - at[:, None]) / order
            table = left * table[:, :-1] + right * table[:, 1:]
        return table


@dataclass(frozen=True)
class Surface:
    """A fitted surface with the convex support of its data."""

    tokens: Axis
    requests: Axis
    coefficients: Float64
    """float64[tokens.size * requests.size], none negative."""
    support: Hull
    steps: int
    scale: float
    """Robust scale of the residuals, in the unit of the durations."""
    iterations: int
    converged: bool

    def predict(self, tokens: Int64, requests: Int64) -> Float64:
        """Return the surface at points of its support; elsewhere the value means nothing."""
        return _design(self.tokens, self.requests, tokens, requests) @ self.coefficients

    def supports(self, tokens: Int64, requests: Int64) -> Bool:
        """Which points lie in the convex support."""
        return self.support.holds(tokens, requests)


def fit_surface(tokens: Int64, requests: Int64, durations: Float64, rule: SplineRule) -> Surface:
    """Fit durations by tokens and requests (all of one length, at least one step).

    Raises:
        ValueError: no steps.
    """
    import numpy as np

    # Steps with the same coordinates share a row of the design: a few thousand rows at most.
    keys, group = np.unique((np.asarray(tokens, np.int64) << 32) + requests, return_inverse=True)
    points = np.column_stack([keys >> 32, keys & 0xFFFFFFFF])
    group = group.reshape(-1)
    support = convex_hull(points[:, 0], points[:, 1])
    axes = (
        _axis(points[:, 0], rule.tokens_basis, rule),
        _axis(points[:, 1], rule.requests_basis, rule),
    )
    design = _design(*axes, points[:, 0], points[:, 1])
    penalty = _penalty(*axes)
    weights = np.ones(len(durations))
    coefficients = np.zeros(design.shape[1])
    scale, converged, iterations = 0.0, False, 0
    while not converged and iterations < rule.iterations_max:
        iterations += 1
        heavy = np.bincount(group, weights, minlength=len(points))
        target = np.bincount(group, weights * durations, minlength=len(points))
        gram = design.T @ (design * heavy[:, None])
        gram += _relative(penalty, gram, rule.penalty) + _relative(np.eye(len(gram)), gram, _RIDGE)
        found = nonnegative_solution(gram, design.T @ target)
        moved = float(np.abs(found - coefficients).max())
        coefficients = found
        residual = np.abs(durations - (design @ coefficients)[group])
        scale = float(np.median(residual)) * _MAD_TO_SD
        # With a scale of 0 most steps are met exactly, and no weight can be formed.
        converged = scale == 0 or moved <= rule.tolerance * float(found.max(initial=0.0))
        weights = np.minimum(1.0, rule.huber_k * scale / np.maximum(residual, 1e-300))
    return Surface(*axes, coefficients, support, len(durations), scale, iterations, converged)


def nonnegative_solution(gram: Float64, target: Float64) -> Float64:
    """Minimise ``c'Gc/2 - c't`` over ``c >= 0`` for positive definite G, float64[n].

    Active set on the normal equations (Bro and de Jong 1997, after Lawson and Hanson 1974).
    """
    import numpy as np

    size = len(target)
    solution, free = np.zeros(size), np.zeros(size, np.bool_)
    gradient = target.copy()
    tolerance = 1e-12 * float(np.abs(target).max(initial=0.0))
    for _ in range(10 * size):
        if free.all() or float(gradient[~free].max()) <= tolerance:
            break
        free[int(np.argmax(np.where(free, -np.inf, gradient)))] = True
        trial = _free_solution(gram, target, free)
        while free.any() and float(trial[free].min()) <= 0:
            falling = np.flatnonzero(free & (trial <= 0))
            here, there = solution[falling], trial[falling]
            ratios = here / np.maximum(here - there, np.finfo(np.float64).tiny)
            step = float(ratios.min())
            solution += step * (trial - solution)
            # What bounds the step leaves by name: rounding may keep it just above zero, and then
            # the same step would be taken for ever.
            free[falling[ratios <= step]] = False
            free &= solution > 0
            solution[~free] = 0.0
            trial = _free_solution(gram, target, free)
        solution = trial
        gradient = target - gram @ solution
    return solution


def _free_solution(gram: Float64, target: Float64, free: Bool) -> Float64:
    import numpy as np

    result = np.zeros(len(target))
    if free.any():
        result[free] = np.linalg.solve(gram[np.ix_(free, free)], target[free])
    return result


def _axis(values: Int64, size: int, rule: SplineRule) -> Axis:
    import numpy as np

    distinct = len(np.unique(values))
    size = min(size, distinct)
    return Axis(float(values.min()), float(values.max()), size, min(rule.degree, size - 1))


def _design(tokens: Axis, requests: Axis, x: Int64, y: Int64) -> Float64:
    """Tensor product of both bases, float64[points, tokens.size * requests.size]."""
    left, right = tokens.basis(x), requests.basis(y)
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), left.shape[1] * right.shape[1])


def _penalty(tokens: Axis, requests: Axis) -> Float64:
    import numpy as np

    along_tokens = np.kron(_differences(tokens.size), np.eye(requests.size))
    along_requests = np.kron(np.eye(tokens.size), _differences(requests.size))
    result: Float64 = along_tokens + along_requests
    return result


def _differences(size: int) -> Float64:
    """Squared second differences of neighbouring coefficients; first ones below three."""
    import numpy as np

    rows = np.diff(np.eye(size), n=min(2, size - 1), axis=0) if size > 1 else np.zeros((1, 1))
    return rows.T @ rows


def _relative(matrix: Float64, gram: Float64, weight: float) -> Float64:
    """Scale a penalty so that its weight is relative to the data's information."""
    trace = float(matrix.trace())
    return matrix * (weight * float(gram.trace()) / trace if trace else 0.0)
