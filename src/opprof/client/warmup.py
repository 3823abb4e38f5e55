"""The warm-up gate, with the P10 stabilization branch (A-P3-6) computed from Layer 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opprof.artifacts.common import Gate, Value
from opprof.client.steps import StepLine, StepStream
from opprof.protocol.model import Gates

STABILIZED_RULE = "completions_or_stabilized"
"""``warmup_rule`` of the P10 class."""

_BINS = 3


@dataclass(frozen=True, slots=True)
class Stabilization:
    """Every number of A-P3-6; ``passed`` None where the test could not be made."""

    passed: bool
    reason: str
    bin_steps: list[int]
    rates: list[float]
    """Scheduled tokens per second of each bin."""
    mean: float | None
    slope: float | None
    """Tokens per second per second, ordinary least squares."""
    drift: float | None
    """abs(slope) * quartile / mean."""


def stabilization(
    stream: StepStream, start_ns: int, end_ns: int, *, steps_min: int, drift_max: float
) -> Stabilization:
    """Test the trailing quartile of the warm-up ``[start_ns, end_ns)`` in three equal bins.

    Source: A-P3-6, items 1 to 3. With the protocol's 60 s the quartile is [45, 60) and the bins are
    5 s long. Nothing is imputed: a missing bin, a broken stream or a non-positive rate fails.
    """
    quartile_ns = (end_ns - start_ns) // 4
    first_ns = end_ns - quartile_ns
    bins: list[list[StepLine]] = [[] for _ in range(_BINS)]
    for step in stream.steps:
        if step.model_executed and first_ns <= step.submit_mono_ns < end_ns:
            bins[min(_BINS - 1, (step.submit_mono_ns - first_ns) * _BINS // quartile_ns)].append(
                step
            )
    counts = [len(chosen) for chosen in bins]
    bin_s = quartile_ns / _BINS / 1e9
    rates = [sum(s.prefill_tokens + s.decode_tokens for s in chosen) / bin_s for chosen in bins]
    failure = _unfit(stream, counts, rates, steps_min)
    if failure:
        return Stabilization(False, failure, counts, rates, None, None, None)
    mean = math.fsum(rates) / _BINS
    # Bin centres are evenly spaced, so the least-squares slope needs the outer two only.
    slope = (rates[2] - rates[0]) / (2 * bin_s)
    drift = abs(slope) * (quartile_ns / 1e9) / mean
    passed = drift <= drift_max
    text = f"fitted drift {drift:.4f}, at most {drift_max:g} is stable"
    return Stabilization(passed, text, counts, rates, mean, slope, drift)


def _unfit(stream: StepStream, counts: list[int], rates: list[float], steps_min: int) -> str:
    if stream.problems:
        return f"Layer-1 accounting failed: {stream.problems[0]}"
    if min(counts) < steps_min:
        return f"a bin has {min(counts)} executed steps, {steps_min} are needed"
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        return "a bin has no scheduled tokens"
    return ""


def warmup_gate(
    completions: int,
    start_ns: int,
    end_ns: int,
    *,
    rule: str,
    gates: Gates,
    stream: StepStream | None,
) -> Gate:
    """Judge the warm-up ``[start_ns, end_ns)`` by its successful completions or its stability."""
    numbers: dict[str, Value] = {
        "completions": completions,
        "completions_min": gates.warmup_completions_min,
        "rule": rule,
    }
    enough = completions >= gates.warmup_completions_min
    if rule != STABILIZED_RULE:
        text = f"{completions} completions, {gates.warmup_completions_min} are needed"
        return _gate("pass" if enough else "fail", text, numbers)
    numbers["stabilized_completions_min"] = gates.warmup_stabilized_completions_min
    if stream is None:
        if enough:
            return _gate("pass", f"{completions} completions; no Layer-1 stream", numbers)
        return _gate("fail", f"{completions} completions and no Layer-1 stream", numbers)
    test = stabilization(
        stream,
        start_ns,
        end_ns,
        steps_min=gates.warmup_stabilized_bin_steps_min,
        drift_max=gates.warmup_stabilized_drift_max,
    )
    numbers |= {
        "bin_steps": list(test.bin_steps),
        "bin_steps_min": gates.warmup_stabilized_bin_steps_min,
        "bin_tokens_per_s": list(test.rates),
        "mean_tokens_per_s": test.mean,
        "slope_tokens_per_s2": test.slope,
        "normalized_drift": test.drift,
        "normalized_drift_max": gates.warmup_stabilized_drift_max,
        "stabilized": test.passed,
        "branch": "completions" if enough else "stabilized",
    }
    if enough:
        return _gate("pass", f"{completions} completions", numbers)
    if completions < gates.warmup_stabilized_completions_min:
        text = f"{completions} completions; the stabilization branch needs "
        return _gate("fail", f"{text}{gates.warmup_stabilized_completions_min}", numbers)
    text = f"{completions} completions and {test.reason}"
    return _gate("pass" if test.passed else "fail", text, numbers)


def _gate(outcome: str, reason: str, numbers: dict[str, Value]) -> Gate:
    return Gate(
        name="warmup",
        outcome="pass" if outcome == "pass" else "fail",
        reason=reason,
        numbers=numbers,
        meaning="The service had not reached its steady state when the clean interval began.",
        action="Look at the server's log for compilation or a slow start; the run cannot be kept.",
    )
