"""Absolute arrival schedules (protocol, "Arrival shape").

Request k of a steady schedule is due at ``t0 + k/rate``; of a burst schedule with size b at
``t0 + (k // b) * b/rate``. Every time is computed from ``t0`` by integer arithmetic: nothing is
accumulated, so nothing drifts, and a late request never moves a later one.
"""

from __future__ import annotations

import re
from fractions import Fraction

from opprof.errors import InputError
from opprof.rules.durations import NS_PER_S

_ARRIVAL = re.compile(r"(?:steady|burst:([1-9][0-9]{0,5}))")


def burst_size(arrival: str) -> int:
    """Return the requests that arrive together: 1 for ``steady``, N for ``burst:N``.

    Raises:
        InputError: the arrival class is neither.
    """
    match = _ARRIVAL.fullmatch(arrival)
    if match is None:
        raise InputError(f"arrival class {arrival!r} is neither 'steady' nor 'burst:N'")
    return int(match.group(1) or 1)


class Schedule:
    """Due times of an open loop of ``rate_rps`` requests per second in groups of ``burst``."""

    __slots__ = ("_denominator", "_numerator", "burst", "rate_rps", "t0_ns")

    def __init__(self, t0_ns: int, rate_rps: float, burst: int) -> None:
        rate = Fraction(rate_rps)
        if rate <= 0 or burst < 1:
            raise InputError(f"no schedule of {rate_rps} requests/s in groups of {burst}")
        self.t0_ns = t0_ns
        self.rate_rps = rate_rps
        self.burst = burst
        self._numerator = rate.denominator * NS_PER_S
        self._denominator = rate.numerator

    def due_ns(self, k: int) -> int:
        """When request ``k`` (from 0) is due, rounded down to a nanosecond."""
        return self.t0_ns + (k - k % self.burst) * self._numerator // self._denominator

    @property
    def period_ns(self) -> int:
        """Time between two groups, rounded down."""
        return self.burst * self._numerator // self._denominator
