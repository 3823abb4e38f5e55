"""A duration of the protocol in nanoseconds, under a run's declared time scale: rounded once."""

from __future__ import annotations

from fractions import Fraction

NS_PER_S = 1_000_000_000


def seconds_to_ns(seconds: float) -> int:
    """Return a duration in nanoseconds, exact for decimal seconds down to 1 ns."""
    return round(Fraction(str(seconds)) * NS_PER_S)


def scaled_ns(seconds: float, time_scale: float) -> int:
    """Return the nanoseconds that a duration of the protocol takes in a run.

    ``time_scale``: the timeline's declared factor on durations.
    """
    return round(seconds_to_ns(seconds) * time_scale)
