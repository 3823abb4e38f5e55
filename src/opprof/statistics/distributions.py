"""The two distributions that are needed in closed form: Student's t and a binomial proportion."""

from __future__ import annotations

import math


def wilson_interval(count: int, n: int, z: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927), ``z`` normal quantile.

    For the Monte-Carlo error of a permutation p-value: ``count`` of ``n`` permutations reached it.

    Raises:
        ValueError: ``n`` is not positive or the count not in 0..n.
    """
    if n <= 0 or not 0 <= count <= n:
        raise ValueError(f"{count} of {n}")
    p, square = count / n, z * z
    centre = (p + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(p * (1 - p) / n + square / (4 * n * n))
    low = 0.0 if count == 0 else max(0.0, centre - half)
    return low, 1.0 if count == n else min(1.0, centre + half)


def normal_quantile(q: float) -> float:
    """Return the standard normal quantile of ``0 < q < 1``."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(q)


def student_t_tail(t: float, df: float) -> float:
    """Return ``P(T > t)`` of Student's t with ``df`` degrees of freedom."""
    tail = incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2
    return tail if t >= 0 else 1 - tail


def student_t_upper(tail: float, df: float) -> float:
    """Return the ``t`` with ``P(T > t) = tail``, for tails in (0, 0.5].

    Found on the logarithm of the tail by the Illinois variant of the secant method, which keeps its
    bracket.

    Raises:
        ValueError: the tail or the degrees of freedom are out of range.
    """
    if not 0 < tail <= 0.5 or df <= 0:
        raise ValueError(f"tail {tail} at {df} degrees of freedom")

    def excess(t: float) -> float:
        return math.log(student_t_tail(t, df) / tail)

    if tail == 0.5:
        return 0.0
    low, high, over = 0.0, 1.0, math.log(0.5 / tail)
    while (under := excess(high)) > 0:
        low, high, over = high, high * 2, under
    side = 0
    for _ in range(200):
        if high - low <= 1e-13 * high or not under:
            break
        middle = (low * under - high * over) / (under - over)
        value = excess(middle)
        if value > 0:
            low, over = middle, value
            under = under / 2 if side == 1 else under
            side = 1
        else:
            high, under = middle, value
            over = over / 2 if side == -1 else over
            side = -1
        if abs(value) < 1e-14:
            return middle
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function by Lentz's continued fraction.

    Source: DLMF 8.17.22, evaluated on the side where the fraction converges.
    """
    if not 0 <= x <= 1:
        raise ValueError(f"x = {x}")
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    tiny, precision = 1e-300, 1e-15
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 1_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1) < precision:
            return result
    return result
