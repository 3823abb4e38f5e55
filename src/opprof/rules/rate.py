"""Were requests admitted at the rate that the load point stands for?

Source: protocol, "Unit of analysis and load points": the achieved offered rate is within
``gates.offered_rate_error_max`` of its target over the clean interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from opprof.rules.durations import NS_PER_S


@dataclass(frozen=True, slots=True)
class OfferedRate:
    """The verdict and its numbers."""

    passed: bool
    offered_rps: float
    error: float
    """Of the target: positive when more was offered."""


def judge_offered_rate(
    admitted: int, *, clean_ns: int, rate_rps: float, error_max: float
) -> OfferedRate:
    """Judge ``admitted`` requests in ``clean_ns`` nanoseconds (positive) against the target.

    Exact, so that a deviation of just the bound passes.
    """
    offered = Fraction(admitted * NS_PER_S, clean_ns)
    error = offered / Fraction(rate_rps) - 1
    return OfferedRate(abs(error) <= Fraction(str(error_max)), float(offered), float(error))
