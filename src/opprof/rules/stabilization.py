"""A-P3-6: has service reached a steady state by the end of the warm-up?

Scheduled-token throughput in the three equal bins of the warm-up's trailing quartile, a straight
line through them by ordinary least squares, and the drift of that line over the whole quartile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from opprof.artifacts.common import Value
from opprof.rules.durations import NS_PER_S

BINS = 3


@dataclass(frozen=True, slots=True)
class Stabilization:
    """Every number of the test; those that could not be computed are None."""

    bin_steps: tuple[int, ...]
    """Steps that executed the model, by submit time."""
    bin_tokens_per_s: tuple[float, ...]
    mean_tokens_per_s: float | None
    slope_tokens_per_s2: float | None
    normalized_drift: float | None
    """``|slope| * quartile seconds / mean``."""
    passed: bool
    reason: str

    def numbers(self) -> dict[str, Value]:
        """The numbers as a gate lists them."""
        return {
            "bin_steps": list(self.bin_steps),
            "bin_tokens_per_s": list(self.bin_tokens_per_s),
            "mean_tokens_per_s": self.mean_tokens_per_s,
            "slope_tokens_per_s2": self.slope_tokens_per_s2,
            "normalized_drift": self.normalized_drift,
            "stabilized": self.passed,
        }


def bin_edges(start_ns: int, end_ns: int) -> list[int]:
    """Return the four borders of the bins of the trailing quartile of ``[start, end)``.

    Bin ``i`` is ``[edge i, edge i + 1)``; of the protocol's 60 s they begin at 45, 50 and 55 s.
    """
    # Rounded up: the first nanosecond that lies in the bin.
    parts = 4 * BINS
    firsts = range(parts - BINS, parts + 1)
    return [start_ns - ((start_ns - end_ns) * first // parts) for first in firsts]


def judge_stabilization(
    steps: Sequence[int],
    tokens: Sequence[int],
    *,
    quartile_ns: int,
    accounting_fault: str | None,
    steps_min: int,
    drift_max: float,
) -> Stabilization:
    """Judge the bins; nothing is imputed.

    Args:
        steps: ``int[3]``, executed steps submitted in each bin.
        tokens: ``int[3]``, tokens that they scheduled (prefill and decode).
        quartile_ns: length of the three bins together.
        accounting_fault: why the Layer-1 accounting or the step indices are unsound; None if sound.
        steps_min: least executed steps of a bin (protocol).
        drift_max: largest drift that is stable (protocol).
    """
    bin_s = Fraction(quartile_ns, BINS * NS_PER_S)
    rates = [Fraction(count) / bin_s if bin_s else Fraction(0) for count in tokens]
    shown = tuple(float(rate) for rate in rates)
    fault = _unfit(steps, rates, accounting_fault, steps_min)
    if fault is not None:
        return Stabilization(tuple(steps), shown, None, None, None, False, fault)
    mean = sum(rates, Fraction(0)) / BINS
    # Bin centres are evenly spaced: the middle point does not move the least-squares slope.
    slope = (rates[-1] - rates[0]) / ((BINS - 1) * bin_s)
    drift = abs(slope) * bin_s * BINS / mean
    # In exact arithmetic, so that a drift of just the limit passes.
    passed = drift <= Fraction(str(drift_max))
    relation = "at most" if passed else "over"
    return Stabilization(
        tuple(steps),
        shown,
        float(mean),
        float(slope),
        float(drift),
        passed,
        f"drift {float(drift):.4f} is {relation} {drift_max:g}",
    )


def _unfit(
    steps: Sequence[int], rates: Sequence[Fraction], accounting_fault: str | None, steps_min: int
) -> str | None:
    if accounting_fault is not None:
        return f"a Layer-1 accounting invariant failed: {accounting_fault}"
    if min(steps) < steps_min:
        return f"a bin has {min(steps)} executed steps, fewer than {steps_min}"
    if min(rates) <= 0:
        return "a bin scheduled no token"
    return None
