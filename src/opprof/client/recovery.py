"""The recovery gate over the client's own records; the rule is in ``opprof.rules``."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import Gate
from opprof.client.steps import StepStream
from opprof.rules.recovery import Depths, Limits, Span, judge_recovery, scope_of


def recovery_gate(
    index: int,
    recovery: Span,
    segment: Span,
    *,
    completions_ns: Sequence[int],
    stream: StepStream | None,
    limits: Limits,
) -> Gate:
    """Judge recovery ``index``; ``completions_ns`` are sorted times of successful completions."""
    found = judge_recovery(
        completions_ns,
        None if stream is None else _depths(stream),
        recovery=recovery,
        clean=segment,
        limits=limits,
    )
    return Gate(
        name="recovery",
        outcome=found.outcome,
        reason=found.reason,
        numbers=found.numbers(limits),
        scope=scope_of(index),
        meaning="The profiler's disturbance lasted beyond the fixed recovery.",
        action="The run is invalid; repeat it. The recovery is never extended.",
    )


def _depths(stream: StepStream) -> Depths:
    pairs = sorted((step.submit_mono_ns, step.waiting) for step in stream.steps)
    return Depths([time for time, _ in pairs], [waiting for _, waiting in pairs])
