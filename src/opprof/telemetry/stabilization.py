"""A-P3-6: has service reached a steady state by the end of the warm-up?

Scheduled-token throughput in the three equal bins of the warm-up's trailing quartile, a straight
line through them, and the drift of that line over the quartile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from opprof.artifacts.common import Value
from opprof.protocol.model import Gates
from opprof.telemetry.series import NS_PER_S

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns

_BINS = 3


@dataclass(frozen=True, slots=True)
class Stabilization:
    """Every number of the test; those that could not be computed are null."""

    bin_start_s: tuple[float, ...]
    """Starts of the bins in seconds from the warm-up's start (45, 50, 55 for 60 seconds)."""
    bin_s: float
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


def stabilization(
    columns: StepColumns,
    *,
    start_mono_ns: int,
    end_mono_ns: int,
    accounting_valid: bool,
    gates: Gates,
) -> Stabilization:
    """Run the test on the warm-up ``[start, end)``.

    A failed accounting invariant (which includes step indices that are not continuous), a bin with
    fewer than ``gates.warmup_stabilized_bin_steps_min`` executed steps or without tokens, or a
    drift over ``gates.warmup_stabilized_drift_max`` fails it.
    """
    quartile_ns = (end_mono_ns - start_mono_ns) / 4
    edges = [round(end_mono_ns - quartile_ns * (_BINS - i) / _BINS) for i in range(_BINS + 1)]
    bin_s = quartile_ns / _BINS / NS_PER_S
    executed = columns.model_executed
    submits = columns.submit_mono_ns
    steps: list[int] = []
    rates: list[float] = []
    for low, high in pairwise(edges):
        inside = executed & (submits >= low) & (submits < high)
        steps.append(int(inside.sum()))
        tokens = int(columns.scheduled_tokens[inside].sum())
        rates.append(tokens / bin_s if bin_s > 0 else 0.0)
    mean = sum(rates) / _BINS
    # Least squares through three equidistant points: the middle one does not move the slope.
    slope = (rates[-1] - rates[0]) / (2 * bin_s) if bin_s > 0 else None
    drift = None
    if slope is not None and mean > 0:
        drift = abs(slope) * bin_s * _BINS / mean
    reason = _verdict(steps, rates, drift, accounting_valid, gates)
    return Stabilization(
        bin_start_s=tuple((edge - start_mono_ns) / NS_PER_S for edge in edges[:-1]),
        bin_s=bin_s,
        bin_steps=tuple(steps),
        bin_tokens_per_s=tuple(rates),
        mean_tokens_per_s=mean,
        slope_tokens_per_s2=slope,
        normalized_drift=drift,
        passed=reason is None,
        reason=reason or f"drift {drift:.4f} is at most {gates.warmup_stabilized_drift_max:g}",
    )


def _verdict(
    steps: list[int],
    rates: list[float],
    drift: float | None,
    accounting_valid: bool,
    gates: Gates,
) -> str | None:
    """Why the test fails; null when it passes."""
    if not accounting_valid:
        return "a Layer-1 accounting invariant failed"
    few = gates.warmup_stabilized_bin_steps_min
    if min(steps) < few:
        return f"a bin has {min(steps)} executed steps, fewer than {few}"
    if min(rates) <= 0 or drift is None:
        return "a bin scheduled no token"
    if drift > gates.warmup_stabilized_drift_max:
        return f"drift {drift:.4f} is over {gates.warmup_stabilized_drift_max:g}"
    return None
