"""Holm's step-down correction, and the interval level that goes with each step."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float], family_size: int | None = None) -> list[float]:
    """Return Holm-adjusted p-values in the order given (Holm 1979).

    ``family_size`` counts registered tests, those without a p-value included: they stand at the end
    as if their p were 1, so leaving a test out never makes the others easier.

    Raises:
        ValueError: a p-value outside [0, 1], or a family smaller than the tests given.
    """
    size = _size(p_values, family_size)
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for step, index in enumerate(_order(p_values)):
        running = max(running, min(1.0, (size - step) * p_values[index]))
        adjusted[index] = running
    return adjusted


def holm_levels(
    p_values: Sequence[float], alpha: float, family_size: int | None = None
) -> list[float]:
    """Return the confidence level that Holm's procedure gives each test's interval.

    The test in step ``j`` (from 0) of ``m`` is judged at ``alpha / (m - j)``; its interval has that
    complement as level, and excludes the reference when the step rejects.
    """
    size = _size(p_values, family_size)
    levels = [0.0] * len(p_values)
    for step, index in enumerate(_order(p_values)):
        levels[index] = 1 - alpha / (size - step)
    return levels


def _order(p_values: Sequence[float]) -> list[int]:
    return sorted(range(len(p_values)), key=lambda index: (p_values[index], index))


def _size(p_values: Sequence[float], family_size: int | None) -> int:
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError("a p-value outside 0..1")
    size = len(p_values) if family_size is None else family_size
    if size < len(p_values):
        raise ValueError(f"{len(p_values)} tests in a family of {size}")
    return size
