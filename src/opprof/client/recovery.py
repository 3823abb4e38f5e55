"""The recovery gate: at the end of a recovery, service is back where clean segment C had it.

The completion rate of the recovery's last rolling length against the median of the same rolling
rate, read once a second, in segment C; and the median waiting depth of those last seconds against
the segment's. With a median depth of zero there is no relative error: the depth is then judged by
the protocol's absolute limit. The analysis judges the same by the same definitions from the files
(``opprof.telemetry.recovery``); a test holds the two together.

Source: protocol, "Warm-up, clean measurement, and profiler placement".
"""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import Gate, Outcome, Value
from opprof.client.schedule import NS_PER_S
from opprof.client.steps import StepStream
from opprof.client.summary import quantile, rolling_counts
from opprof.protocol.model import Gates

Span = tuple[int, int]


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
    if min(recovery[1] - recovery[0], segment[1] - segment[0]) < rolling_ns:
        reason = "the recovery or segment C is shorter than the rolling length"
        return _gate(index, "not_evaluable", reason, {"rolling_s": rolling_ns / NS_PER_S})
    rates = _rates(completions_ns, segment, rolling_ns)
    clean_rate = quantile(sorted(rates), 0.5)
    last = (recovery[1] - rolling_ns, recovery[1])
    rate = _rates(completions_ns, last, rolling_ns)[0]
    waiting, clean_waiting = _waiting(stream, last), _waiting(stream, segment)
    numbers: dict[str, Value] = {
        "rolling_s": rolling_ns / NS_PER_S,
        "tolerance": gates.recovery_tolerance,
        "rate_rps": rate,
        "clean_median_rate_rps": clean_rate,
        "waiting_median": waiting,
        "clean_median_waiting": clean_waiting,
        "zero_median_waiting_max": gates.recovery_zero_median_waiting_max,
        "recovery_rates_rps": list(_rates(completions_ns, recovery, rolling_ns)),
    }
    if clean_rate == 0:
        return _gate(index, "not_evaluable", "segment C has no completions", numbers)
    faults = []
    if abs(rate - clean_rate) > gates.recovery_tolerance * clean_rate:
        faults.append(
            f"completion rate {rate:.3g}/s against {clean_rate:.3g}/s, the median of segment C"
        )
    if waiting is not None and clean_waiting is not None:
        allowed = gates.recovery_tolerance * clean_waiting
        if clean_waiting == 0:
            allowed = gates.recovery_zero_median_waiting_max
        if abs(waiting - clean_waiting) > allowed:
            faults.append(
                f"waiting depth {waiting:g} against {clean_waiting:g}, the median of segment C"
            )
    if faults:
        return _gate(index, "fail", "; ".join(faults), numbers)
    if waiting is None or clean_waiting is None:
        return _gate(index, "not_evaluable", "the rate is back; no steps tell the depth", numbers)
    return _gate(index, "pass", "completion rate and waiting depth are back", numbers)


def _gate(index: int, outcome: Outcome, reason: str, numbers: dict[str, Value]) -> Gate:
    return Gate(
        name="recovery",
        outcome=outcome,
        reason=reason,
        numbers=numbers,
        scope=f"window{index}",
        meaning="The profiler's disturbance lasted beyond the fixed recovery.",
        action="The run is invalid; repeat it. The recovery is never extended.",
    )


def _rates(completions_ns: Sequence[int], span: Span, rolling_ns: int) -> list[float]:
    """Completions per second of every rolling length inside ``span``, once a second."""
    ends = list(range(span[0] + rolling_ns, span[1] + 1, NS_PER_S))
    return [
        count * NS_PER_S / rolling_ns for count in rolling_counts(completions_ns, ends, rolling_ns)
    ]


def _waiting(stream: StepStream | None, span: Span) -> float | None:
    """Median waiting depth of the steps submitted inside ``span``; None without any."""
    if stream is None:
        return None
    depths = sorted(s.waiting for s in stream.steps if span[0] <= s.submit_mono_ns < span[1])
    return quantile(depths, 0.5) if depths else None
