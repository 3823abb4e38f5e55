"""Is service back at clean segment C's level when a recovery interval ends?

Source: protocol, "Warm-up, clean measurement, and profiler placement": "the 10-second rolling
completion rate and waiting-queue depth must return within 10 % of clean-segment-C medians by the
end of the fixed 30-second recovery". The second window opens at that end, so the state there
decides: the rolling length up to the recovery's end, against the medians of C (rates: of the same
rolling rate, looked at every tenth of its length; depth: over C's steps). A rate that was back
earlier and has gone again does not pass; when it was back first is reported beside the verdict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from opprof.artifacts.common import Outcome, Value
from opprof.protocol.model import Gates
from opprof.rules.durations import NS_PER_S, scaled_ns

_LOOKS_PER_LENGTH = 10
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """The protocol's numbers."""

    rolling_ns: int
    tolerance: float
    """Largest relative deviation from C's medians."""
    zero_median_waiting_max: int
    """Largest depth where C's median depth is zero and no relative deviation exists."""

    @classmethod
    def of(cls, gates: Gates, time_scale: float) -> Limits:
        """Return a protocol's limits for a run of a declared time scale."""
        return cls(
            scaled_ns(gates.recovery_rolling_s, time_scale),
            gates.recovery_tolerance,
            gates.recovery_zero_median_waiting_max,
        )


@dataclass(frozen=True, slots=True)
class Depths:
    """Waiting depth at each step, ordered by the steps' submit times."""

    times_ns: Sequence[int]
    waiting: Sequence[int]

    def median(self, start_ns: int, end_ns: int) -> float | None:
        """Median over the steps submitted in ``[start, end)``; None without any."""
        first, last = (bisect_left(self.times_ns, border) for border in (start_ns, end_ns))
        inside = self.waiting[first:last]
        return median(inside) if inside else None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The verdict on one recovery interval; numbers are None where they could not be computed."""

    passed: bool | None
    """None when it cannot be judged."""
    reason: str
    rate_rps: float | None = None
    """Of the last ``rolling_ns`` of the recovery."""
    clean_rate_rps: float | None = None
    waiting: float | None = None
    clean_waiting: float | None = None
    rates_rps: tuple[float, ...] = ()
    """Every rolling rate that lies inside the recovery, the deciding one last."""
    rate_back_after_s: float | None = None
    """When the rolling rate was first within the tolerance, from the recovery's start."""

    @property
    def outcome(self) -> Outcome:
        """The gate's outcome."""
        if self.passed is None:
            return "not_evaluable"
        return "pass" if self.passed else "fail"

    def numbers(self, limits: Limits) -> dict[str, Value]:
        """Every number of the gate, with the limits that it was judged by."""
        return {
            "rate_rps": self.rate_rps,
            "clean_median_rate_rps": self.clean_rate_rps,
            "waiting_median": self.waiting,
            "clean_median_waiting": self.clean_waiting,
            "rate_back_after_s": self.rate_back_after_s,
            "rolling_s": limits.rolling_ns / NS_PER_S,
            "tolerance": limits.tolerance,
            "zero_median_waiting_max": limits.zero_median_waiting_max,
            "recovery_rates_rps": list(self.rates_rps),
        }


def scope_of(index: int) -> str:
    """Return the gate's scope: the profile window that the recovery follows."""
    return f"window{index}"


def judge_recovery(
    completions_ns: Sequence[int],
    depths: Depths | None,
    *,
    recovery: Span,
    clean: Span,
    limits: Limits,
) -> Recovery:
    """Judge ``[recovery)`` against the last clean segment ``[clean)``.

    Args:
        completions_ns: times of successful completions, ascending.
        depths: waiting depths by step; None where there is no Layer-1 stream.
        recovery: the interval to judge.
        clean: segment C.
        limits: the protocol's numbers.
    """
    length_ns = limits.rolling_ns
    for name, span in (("recovery", recovery), ("clean", clean)):
        if span[1] - span[0] < length_ns:
            return Recovery(None, f"the {name} interval is shorter than the rolling window")
    clean_count = median(_counts(completions_ns, _looks(clean, length_ns), length_ns))
    if clean_count == 0:
        return Recovery(None, "no completions in the usual rolling window of the clean segment")
    looks = _looks(recovery, length_ns)
    counts = _counts(completions_ns, looks, length_ns)
    tolerance = Fraction(str(limits.tolerance))
    back = [_within(count, clean_count, tolerance) for count in counts]
    rates = [count * NS_PER_S / length_ns for count in counts]
    clean_rate = clean_count * NS_PER_S / length_ns
    waiting = None if depths is None else depths.median(recovery[1] - length_ns, recovery[1])
    clean_waiting = None if depths is None else depths.median(*clean)
    faults = (
        []
        if back[-1]
        else [f"completion rate {rates[-1]:.3g}/s against {clean_rate:.3g}/s in segment C"]
    )
    passed, reason = _verdict(faults, waiting, clean_waiting, limits)
    return Recovery(
        passed,
        reason,
        rate_rps=rates[-1],
        clean_rate_rps=clean_rate,
        waiting=waiting,
        clean_waiting=clean_waiting,
        rates_rps=tuple(rates),
        rate_back_after_s=(looks[back.index(True)] - recovery[0]) / NS_PER_S
        if True in back
        else None,
    )


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _verdict(
    faults: list[str], waiting: float | None, clean_waiting: float | None, limits: Limits
) -> tuple[bool | None, str]:
    """Add the depth's fault to the rate's."""
    if waiting is not None and clean_waiting is not None:
        if clean_waiting == 0:
            good = waiting <= limits.zero_median_waiting_max
        else:
            good = _within(waiting, clean_waiting, Fraction(str(limits.tolerance)))
        if not good:
            faults = [*faults, f"waiting depth {waiting:g} against {clean_waiting:g} in segment C"]
    if faults:
        return False, "; ".join(faults)
    if waiting is None or clean_waiting is None:
        return None, "the rate returned; no step tells the waiting depth"
    return True, f"within {limits.tolerance:.0%} of clean medians"


def _within(value: float, reference: float, tolerance: Fraction) -> bool:
    """Compare exactly, so that a deviation of just the tolerance passes."""
    return abs(Fraction(value) - Fraction(reference)) <= tolerance * Fraction(reference)


def _looks(span: Span, length_ns: int) -> list[int]:
    """Ends of the rolling windows inside ``span``, counted back from its own end."""
    stride_ns = max(1, length_ns // _LOOKS_PER_LENGTH)
    return list(range(span[1], span[0] + length_ns - 1, -stride_ns))[::-1]


def _counts(times_ns: Sequence[int], ends_ns: Sequence[int], length_ns: int) -> list[int]:
    return [bisect_left(times_ns, end) - bisect_left(times_ns, end - length_ns) for end in ends_ns]
