"""The warm-up gate; the P10 branch (A-P3-6) is judged by ``opprof.rules`` from Layer 1."""

from __future__ import annotations

from bisect import bisect_right

from opprof.artifacts.common import Gate, Value
from opprof.client.steps import StepStream
from opprof.protocol.model import Gates
from opprof.rules.stabilization import BINS, Stabilization, bin_edges, judge_stabilization

STABILIZED_RULE = "completions_or_stabilized"
"""``warmup_rule`` of the P10 class."""


def stabilization(
    stream: StepStream, start_ns: int, end_ns: int, *, steps_min: int, drift_max: float
) -> Stabilization:
    """Count the executed steps of the warm-up's trailing quartile and judge them."""
    edges = bin_edges(start_ns, end_ns)
    steps, tokens = [0] * BINS, [0] * BINS
    for step in stream.steps:
        if step.model_executed and edges[0] <= step.submit_mono_ns < edges[-1]:
            index = bisect_right(edges, step.submit_mono_ns) - 1
            steps[index] += 1
            tokens[index] += step.prefill_tokens + step.decode_tokens
    return judge_stabilization(
        steps,
        tokens,
        quartile_ns=edges[-1] - edges[0],
        accounting_fault=stream.problems[0] if stream.problems else None,
        steps_min=steps_min,
        drift_max=drift_max,
    )


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
    numbers |= test.numbers() | {
        "bin_steps_min": gates.warmup_stabilized_bin_steps_min,
        "normalized_drift_max": gates.warmup_stabilized_drift_max,
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
