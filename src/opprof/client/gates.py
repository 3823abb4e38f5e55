"""The client's own validity gates; every threshold comes from the protocol's ``[gates]`` table.

A gate whose input is absent is ``not_evaluable``, which is neither pass nor fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from opprof.artifacts.common import Gate, Outcome
from opprof.client.facts import RunFacts
from opprof.client.journal import COUNT_ERRORS
from opprof.client.profiler import stop_event
from opprof.client.recovery import recovery_gate
from opprof.client.summary import admitted_in, completed_in, quantile
from opprof.client.warmup import warmup_gate
from opprof.protocol.model import Gates
from opprof.rules.durations import NS_PER_S, scaled_ns
from opprof.rules.lag import lag_passes, sustained_lag_ns
from opprof.rules.rate import judge_offered_rate
from opprof.rules.recovery import Limits

NAMES = frozenset(
    {
        "timeline",
        "warmup",
        "clean_requests",
        "token_counts",
        "concurrency_cap",
        "offered_rate",
        "client_lag",
        "client_cpu",
        "client_loop_delay",
        "profile_window",
        "recovery",
        "drain",
    }
)
"""Every gate that :func:`run_gates` can return."""


def run_gates(facts: RunFacts, gates: Gates, *, warmup_rule: str) -> list[Gate]:
    """Judge a run; the order is the order of the timeline."""
    return [
        _ended_as_planned(facts),
        _warmup(facts, gates, warmup_rule),
        _clean_requests(facts),
        _token_counts(facts),
        _concurrency_cap(facts),
        _offered_rate(facts, gates),
        _client_lag(facts, gates),
        _client_cpu(facts, gates),
        _client_loop_delay(facts, gates),
        *_profile_windows(facts),
        *_recoveries(facts, gates),
        _drain(facts),
    ]


def failed_reasons(gates: list[Gate]) -> list[str]:
    """Return one line for every failed gate."""
    return [
        f"{gate.name}{'' if gate.scope == 'run' else f' ({gate.scope})'}: {gate.reason}"
        for gate in gates
        if gate.outcome == "fail"
    ]


def _ended_as_planned(facts: RunFacts) -> Gate:
    reason = facts.ending.abort_reason
    return Gate(
        name="timeline",
        outcome="pass" if reason is None else "fail",
        reason=reason or "every phase ran to its planned end",
        numbers={"requests": len(facts.records)},
        meaning="The run stopped before its planned end.",
        action="Remove the cause and repeat the run in a new folder.",
    )


def _warmup(facts: RunFacts, gates: Gates, rule: str) -> Gate:
    if facts.plan.role == "burnin" or facts.plan.until_told:
        what = "background" if facts.plan.until_told else "burn-in"
        return _absent("warmup", f"a {what} is not measured", "")
    start_ns, end_ns = facts.t0_ns, facts.plan.clean_start_ns(facts.t0_ns)
    done = len(completed_in(facts.records, start_ns, end_ns))
    return warmup_gate(done, start_ns, end_ns, rule=rule, gates=gates, stream=facts.stream)


def _clean_requests(facts: RunFacts) -> Gate:
    meaning = "A request of a clean segment did not get the whole answer that it asked for."
    clean = facts.clean
    if facts.plan.until_told and facts.kind("warmup"):
        # A background is measured nowhere, but it must have loaded its server all the time.
        active = facts.kind("warmup")[0]
        clean = (active.start_mono_ns, active.end_mono_ns)
    if clean is None:
        return _absent("clean_requests", "the run has no clean segment", meaning)
    start_ns, end_ns = clean
    inside = [f for f in facts.failures if f.admitted_ns < end_ns and f.ended_ns >= start_ns]
    done = len(completed_in(facts.records, start_ns, end_ns))
    codes = _codes(failure.code for failure in inside)
    if inside:
        outcome, reason = _fail(f"{len(inside)} requests failed: {codes}")
    elif done == 0:
        outcome, reason = _fail("no request completed in the clean interval")
    else:
        outcome, reason = "pass", f"{done} completed, none failed"
    outside = Counter(failure.code for failure in facts.failures)
    outside.subtract(failure.code for failure in inside)
    return Gate(
        name="clean_requests",
        outcome=outcome,
        reason=reason,
        numbers={
            "completed": done,
            "failed": len(inside),
            "codes": codes,
            "failed_outside": len(facts.failures) - len(inside),
            "codes_outside": _codes(outside.elements()),
        },
        meaning=meaning,
        action="Look at the server's log at the failed requests' times (requests.jsonl).",
    )


def _token_counts(facts: RunFacts) -> Gate:
    wrong = [failure.code for failure in facts.failures if failure.code in COUNT_ERRORS]
    reason = f"{len(wrong)} answers: {_codes(wrong)}" if wrong else "all as the manifest says"
    return Gate(
        name="token_counts",
        outcome="fail" if wrong else "pass",
        reason=reason,
        numbers={"checked": len(facts.records), "wrong": len(wrong)},
        meaning="Input or output tokens by the server's usage differ from the manifest.",
        action="Check that the server runs the manifest's tokenizer and honours ignore_eos.",
    )


def _concurrency_cap(facts: RunFacts) -> Gate:
    cap = facts.plan.load.max_concurrency
    over = facts.outstanding_max > cap
    return Gate(
        name="concurrency_cap",
        outcome="fail" if over else "pass",
        reason=f"at most {facts.outstanding_max} outstanding, {cap} allowed",
        numbers={"outstanding_max": facts.outstanding_max, "cap": cap},
        meaning="More requests were outstanding than the protocol allows.",
        action="Report this as a defect of the client.",
    )


def _offered_rate(facts: RunFacts, gates: Gates) -> Gate:
    meaning = "Requests were not admitted at the rate that the load point stands for."
    rate, clean = facts.plan.load.rate_rps, facts.clean
    if rate is None or clean is None:
        text = "the closed loop has no rate" if rate is None else "the run has no clean segment"
        return _absent("offered_rate", text, meaning)
    start_ns, end_ns = clean
    count = len(admitted_in(facts.records, start_ns, end_ns))
    found = judge_offered_rate(
        count,
        clean_ns=end_ns - start_ns,
        rate_rps=rate,
        error_max=gates.offered_rate_error_max,
    )
    return Gate(
        name="offered_rate",
        outcome="pass" if found.passed else "fail",
        reason=f"{found.offered_rps:.4f} requests/s offered, {rate:.4f} wanted "
        f"({found.error:+.2%})",
        numbers={
            "offered_rps": found.offered_rps,
            "rate_rps": rate,
            "error": found.error,
            "error_max": gates.offered_rate_error_max,
            "never_admitted": facts.unsent,
        },
        meaning=meaning,
        action="If the cap was reached, the server could not carry the rate; else see client_lag.",
    )


def _client_lag(facts: RunFacts, gates: Gates) -> Gate:
    """The smallest lag of some stretch of the pinned length exceeds the limit: sustained."""
    meaning = "Requests left late for so long that latencies describe the client's queue."
    clean = facts.clean
    if clean is None:
        return _absent("client_lag", "the run has no clean segment", meaning)
    if facts.plan.load.rate_rps is None:
        return _absent("client_lag", "a closed loop has no schedule to fall behind", meaning)
    sent = sorted(
        (record.admitted_mono_ns or 0, record.scheduled_mono_ns)
        for record in admitted_in(facts.records, *clean)
    )
    lags = [admitted - scheduled for admitted, scheduled in sent]
    window_s = gates.client_lag_sustained_window_s
    lag_ns = sustained_lag_ns(
        [admitted for admitted, _ in sent],
        lags,
        end_ns=clean[1],
        window_ns=scaled_ns(window_s, facts.plan.time_scale),
    )
    if lag_ns is None:
        return _absent("client_lag", "no admissions in the clean interval", meaning)
    limit_s = gates.client_lag_sustained_max_s
    return Gate(
        name="client_lag",
        outcome="pass" if lag_passes(lag_ns, limit_s) else "fail",
        reason=f"lag of {lag_ns / NS_PER_S:.3g} s held for {window_s:g} s, "
        f"at most {limit_s:g} s allowed",
        numbers={
            "lag_max_ms": max(lags) / 1e6,
            "limit_s": limit_s,
            "sustained_lag_s": lag_ns / NS_PER_S,
            "window_s": window_s,
        },
        meaning=meaning,
        action="Give the client a core of its own, or lower the rate.",
    )


def _client_cpu(facts: RunFacts, gates: Gates) -> Gate:
    meaning = "The client itself may have bound the result: its one core was busy."
    share = facts.health.cpu_share if facts.health else None
    if share is None:
        return _absent("client_cpu", "the client's processor time was not measured", meaning)
    limit = gates.client_cpu_share_max
    return Gate(
        name="client_cpu",
        outcome="pass" if share <= limit else "fail",
        reason=f"{share:.0%} of a core in the clean interval, at most {limit:.0%}",
        numbers={"cpu_share": share, "cpu_share_max": limit},
        meaning=meaning,
        action="Give the client a core of its own; the latencies are not the server's.",
    )


def _client_loop_delay(facts: RunFacts, gates: Gates) -> Gate:
    meaning = "The client itself may have bound the result: its event loop was late."
    delays = sorted(facts.health.loop_delays_ms) if facts.health else []
    if not delays:
        return _absent("client_loop_delay", "the event loop's delay was not measured", meaning)
    p99, limit = quantile(delays, 0.99), gates.client_loop_delay_p99_max_ms
    return Gate(
        name="client_loop_delay",
        outcome="pass" if p99 <= limit else "fail",
        reason=f"event loop late by {p99:.2f} ms at p99, at most {limit:g} ms",
        numbers={"p99_ms": p99, "p99_max_ms": limit, "max_ms": delays[-1], "samples": len(delays)},
        meaning=meaning,
        action="Give the client a core of its own; other work on it delays arrivals.",
    )


def _profile_windows(facts: RunFacts) -> list[Gate]:
    return [_profile_window(facts, index) for index in range(facts.plan.windows.count)]


def _profile_window(facts: RunFacts, index: int) -> Gate:
    """Both calls answered 200, the iterations were over, and the engine reports no fault."""
    record = next((w for w in facts.windows if w.index == index), None)
    start = None if record is None or record.start is None else record.start.status
    stop = None if record is None or record.stop is None else record.stop.status
    over = record is not None and record.iterations_over_ns is not None
    event = None if record is None else stop_event(facts.profiler_events, record)
    traces = None if event is None else len(event.traces)
    expected = None if event is None else event.expected_ranks
    if not (start == 200 and stop == 200 and over):
        outcome, reason = _fail(
            f"start {start}, stop {stop}, iterations {'over' if over else 'not over'}"
        )
    elif event is not None and event.fault is not None:
        outcome, reason = _fail("the engine's profiler reports a fault")
    elif traces is not None and expected is not None and traces != expected:
        outcome, reason = _fail(f"{traces} traces were written, {expected} are needed")
    else:
        outcome, reason = "pass", "both calls answered 200 and the iterations were over"
    return Gate(
        name="profile_window",
        outcome=outcome,
        reason=reason,
        numbers={
            "start_status": start,
            "stop_status": stop,
            "steps_seen": None if record is None else record.steps,
            "steps_wanted": facts.plan.windows.steps,
            "source": facts.window_source,
            "traces": traces,
            "traces_expected": expected,
            "fault": None if event is None else event.fault,
        },
        scope=f"window{index}",
        meaning="The profile window has no complete trace.",
        action="Start the server with the protocol's --profiler-config and the opprof plugin.",
    )


def _recoveries(facts: RunFacts, gates: Gates) -> list[Gate]:
    clean = facts.kind("clean")
    if not clean:
        return []
    segment = (clean[-1].start_mono_ns, clean[-1].end_mono_ns)
    times = sorted(
        record.completed_mono_ns
        for record in facts.records
        if record.error is None and record.completed_mono_ns is not None
    )
    limits = Limits.of(gates, facts.plan.time_scale)
    return [
        recovery_gate(
            interval.index,
            (interval.start_mono_ns, interval.end_mono_ns),
            segment,
            completions_ns=times,
            stream=facts.stream,
            limits=limits,
        )
        for interval in facts.kind("recovery")
    ]


def _drain(facts: RunFacts) -> Gate:
    """A-P3-5, drain quarantine: over budget is flagged and stays usable; a hang is a failure."""
    drain, budget = facts.kind("drain"), facts.plan.drain
    seconds = (drain[-1].end_mono_ns - drain[-1].start_mono_ns) / NS_PER_S if drain else None
    if facts.ending.drain_given_up:
        outcome, reason = _fail("requests were still running at the watchdog")
    elif facts.ending.drain_over_budget:
        outcome, reason = "pass", "drain-quarantined: over budget, then complete"
    else:
        outcome, reason = "pass", "within budget"
    return Gate(
        name="drain",
        outcome=outcome,
        reason=reason,
        numbers={
            "drain_s": seconds,
            "budget_s": budget.budget_ns / NS_PER_S,
            "requested_s": budget.requested_ns / NS_PER_S,
            "watchdog_s": budget.watchdog_ns / NS_PER_S,
            "quarantined": facts.ending.drain_over_budget,
        },
        meaning="Outstanding requests did not end after admission had stopped.",
        action="Look for a hang in the server's log.",
    )


def _absent(name: str, reason: str, meaning: str) -> Gate:
    return Gate(name=name, outcome="not_evaluable", reason=reason, meaning=meaning)


def _fail(reason: str) -> tuple[Outcome, str]:
    return "fail", reason


def _codes(codes: Iterable[str]) -> str:
    counts = Counter(codes)
    return ", ".join(f"{code} x{count}" for code, count in sorted(counts.items()) if count)
