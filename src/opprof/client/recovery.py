"""The recovery gate: after a profile window service is back where clean segment C had it.

Source: protocol, "Warm-up, clean measurement, and profiler placement". The rolling completion rate
and waiting depth are looked at on a grid of a tenth of the rolling length, over windows that lie
wholly inside the recovery. The gate passes when at some grid time both are within the tolerance of
the medians that the same looks gave in segment C, so "return ... by the end of the recovery". Depth
is the median over the steps of a window; with a median of zero in C it is judged by the protocol's
absolute limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from opprof.artifacts.common import Gate, Outcome, Value
from opprof.client.schedule import NS_PER_S
from opprof.client.steps import StepStream
from opprof.client.summary import quantile, rolling_counts
from opprof.protocol.model import Gates

_GRID_PARTS = 10
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Looks:
    """Rolling values of one interval."""

    ends_ns: list[int]
    rates: list[float]
    depths: list[float | None]


def recovery_gate(
    index: int,
    recovery: Span,
    segment: Span,
    *,
    completions_ns: Sequence[int],
    stream: StepStream | None,
    gates: Gates,
    rolling_ns: int,
) -> Gate:
    """Judge recovery ``index``; ``completions_ns`` are sorted times of successful completions."""
    length_ns = min(rolling_ns, recovery[1] - recovery[0], segment[1] - segment[0])
    clean = _look(segment, length_ns, completions_ns, stream)
    after = _look(recovery, length_ns, completions_ns, stream)
    rate_median = quantile(sorted(clean.rates), 0.5) if clean.rates else 0.0
    depths = sorted(depth for depth in clean.depths if depth is not None)
    depth_median = quantile(depths, 0.5) if depths else None
    tolerance = Fraction(str(gates.recovery_tolerance))
    rate_ok = [_within(rate, rate_median, tolerance) for rate in after.rates]
    depth_ok = [
        _depth_ok(depth, depth_median, tolerance, gates.recovery_zero_median_waiting_max)
        for depth in after.depths
    ]
    both = [rate and depth is not False for rate, depth in zip(rate_ok, depth_ok, strict=True)]
    first = both.index(True) if True in both else None
    numbers: dict[str, Value] = {
        "rolling_s": length_ns / NS_PER_S,
        "tolerance": gates.recovery_tolerance,
        "clean_rate_median_rps": rate_median,
        "clean_waiting_median": depth_median,
        "zero_median_waiting_max": gates.recovery_zero_median_waiting_max,
        "rates_rps": list(after.rates),
        "waiting": list(after.depths),
        "returned_after_s": None
        if first is None
        else (after.ends_ns[first] - recovery[0]) / NS_PER_S,
    }
    return _verdict(index, rate_median, first is not None, depth_ok, numbers)


def _verdict(
    index: int,
    rate_median: float,
    returned: bool,
    depth_ok: list[bool | None],
    numbers: dict[str, Value],
) -> Gate:
    outcome: Outcome = "pass"
    if rate_median == 0:
        outcome, reason = "fail", "clean segment C has no completions to return to"
    elif not returned:
        outcome, reason = "fail", "completion rate and waiting depth did not return in time"
    elif all(ok is None for ok in depth_ok):
        outcome, reason = "not_evaluable", "the rate returned; no Layer-1 stream for the depth"
    else:
        reason = "completion rate and waiting depth returned"
    return Gate(
        name="recovery",
        outcome=outcome,
        reason=reason,
        numbers=numbers,
        scope=f"window{index}",
        meaning="The profiler's disturbance lasted beyond the fixed recovery.",
        action="The run is invalid; repeat it. The recovery is never extended.",
    )


def _depth_ok(
    depth: float | None, median: float | None, tolerance: Fraction, zero_max: int
) -> bool | None:
    if depth is None or median is None:
        return None
    if median == 0:
        return depth <= zero_max
    return _within(depth, median, tolerance)


def _within(value: float, median: float, tolerance: Fraction) -> bool:
    """Compare exactly, so that a deviation of just the tolerance passes."""
    return abs(Fraction(value) - Fraction(median)) <= tolerance * Fraction(median)


def _look(
    span: Span, length_ns: int, completions_ns: Sequence[int], stream: StepStream | None
) -> _Looks:
    start_ns, end_ns = span
    grid_ns = max(1, length_ns // _GRID_PARTS)
    # Counted back from the border, so that the interval's very end is always looked at.
    ends = list(range(end_ns, start_ns + length_ns - 1, -grid_ns))[::-1]
    counts = rolling_counts(completions_ns, ends, length_ns)
    rates = [count * NS_PER_S / length_ns for count in counts]
    if stream is None:
        return _Looks(ends, rates, [None] * len(ends))
    times = [step.complete_mono_ns for step in stream.steps]
    waiting = [step.waiting for step in stream.steps]
    depths: list[float | None] = []
    for end in ends:
        window = waiting[bisect_left(times, end - length_ns) : bisect_left(times, end)]
        depths.append(quantile(sorted(window), 0.5) if window else None)
    return _Looks(ends, rates, depths)
