"""The recovery gate over the client's own records; the rule is in ``opprof.rules``."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import Gate, Outcome
from opprof.client.schedule import NS_PER_S
from opprof.client.steps import StepStream
from opprof.protocol.model import Gates
from opprof.rules.recovery import Depths, Limits, Span, judge_recovery


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
    found = judge_recovery(
        completions_ns,
        None if stream is None else _depths(stream),
        recovery=recovery,
        clean=segment,
        limits=Limits(
            rolling_ns=rolling_ns,
            tolerance=gates.recovery_tolerance,
            zero_median_waiting_max=gates.recovery_zero_median_waiting_max,
        ),
    )
    outcomes: dict[bool | None, Outcome] = {True: "pass", False: "fail", None: "not_evaluable"}
    return Gate(
        name="recovery",
        outcome=outcomes[found.passed],
        reason=found.reason,
        numbers=found.numbers()
        | {
            "rolling_s": rolling_ns / NS_PER_S,
            "tolerance": gates.recovery_tolerance,
            "zero_median_waiting_max": gates.recovery_zero_median_waiting_max,
            "recovery_rates_rps": list(found.rates_rps),
        },
        scope=f"window{index}",
        meaning="The profiler's disturbance lasted beyond the fixed recovery.",
        action="The run is invalid; repeat it. The recovery is never extended.",
    )


def _depths(stream: StepStream) -> Depths:
    pairs = sorted((step.submit_mono_ns, step.waiting) for step in stream.steps)
    return Depths([time for time, _ in pairs], [waiting for _, waiting in pairs])
