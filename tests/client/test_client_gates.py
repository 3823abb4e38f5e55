"""Gates and figures of a finished run, on made facts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.engine import ProfilerEvent
from opprof.artifacts.run import Interval, RequestRecord
from opprof.client.facts import Health, RunFacts
from opprof.client.gates import NAMES, failed_reasons, run_gates
from opprof.client.journal import Failure
from opprof.client.plan import DrainBudget, Load, RunPlan, Windows
from opprof.client.ports import ControlReply
from opprof.client.summary import quantile, segment_result, series
from opprof.client.timeline import Ending, WindowRecord
from opprof.protocol import load_protocol

S = 1_000_000_000
T0 = 100 * S
PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None
GATES = PROTOCOL.file.gates


def record(k: int, scheduled: int, *, lag: int = 0, took: int = S, **changes: Any) -> RequestRecord:
    admitted = scheduled + lag
    values: dict[str, Any] = {
        "request_id": k,
        "scheduled_mono_ns": scheduled,
        "admitted_mono_ns": admitted,
        "first_token_mono_ns": admitted + took // 10,
        "completed_mono_ns": admitted + took,
        "prompt_tokens": 10,
        "requested_output_tokens": 4,
        "output_tokens": 4,
        "http_status": 200,
        **changes,
    }
    return RequestRecord(**values)


def facts(*, rate: float | None = 1.0, profile: int = 0, **changes: Any) -> RunFacts:
    """One request a second over 60 s of warm-up and 240 clean seconds, all well."""
    plan = RunPlan(
        pattern="P01",
        config="C00",
        load_point="moderate" if rate else "saturation",
        role="primary",
        load=Load(256, rate, 1),
        warmup_ns=60 * S,
        segment_ns=80 * S,
        segments=3,
        windows=Windows(profile, 11, 30 * S, 180 * S),
        drain=DrainBudget(120 * S, 120 * S, 1800 * S),
        time_scale=1.0,
    )
    intervals = [Interval("warmup", 0, T0, T0 + 60 * S)]
    for k in range(3):
        start = T0 + (60 + 80 * k) * S
        intervals.append(Interval("clean", k, start, start + 80 * S))
    intervals.append(Interval("drain", 0, T0 + 300 * S, T0 + 301 * S))
    base = RunFacts(
        plan=plan,
        t0_ns=T0,
        intervals=intervals,
        windows=[],
        ending=Ending(end_ns=T0 + 301 * S),
        records=[record(k, T0 + k * S) for k in range(300)],
        failures=[],
        unsent=0,
        finish_reasons={},
        outstanding_max=2,
        stream=None,
        health=Health(10.0, 240.0, [0.5] * 100),
        window_source=None,
        profiler_events=[],
    )
    return dataclasses.replace(base, **changes)


def failed(value: RunFacts) -> list[str]:
    gates = run_gates(value, GATES, warmup_rule="completions")
    return [gate.name for gate in gates if gate.outcome == "fail"]


def test_a_good_run_fails_nothing() -> None:
    gates = run_gates(facts(), GATES, warmup_rule="completions")
    assert failed_reasons(gates) == []
    assert all(gate.meaning and gate.action for gate in gates if gate.outcome == "pass")


def test_every_gate_is_in_the_list() -> None:
    value = dataclasses.replace(facts(profile=1), windows=[window()], profiler_events=[])
    gates = run_gates(value, GATES, warmup_rule="completions")
    assert {gate.name for gate in gates} | {"recovery"} == NAMES


def test_few_completions_in_the_warm_up() -> None:
    late = [record(k, T0 + k * S) for k in range(30, 300)]
    assert failed(facts(records=late)) == ["warmup"]


@pytest.mark.parametrize(
    ("admitted", "ended", "fails"),
    [
        (10, 59, False),  # all of it in the warm-up
        (59, 61, True),  # failed inside
        (299, 310, True),  # admitted inside
        (50, 310, True),  # spans all of it
        (300, 310, False),  # admitted at the border, which is exclusive
    ],
)
def test_failures_that_touch_the_clean_interval(admitted: int, ended: int, fails: bool) -> None:
    failures = [Failure(T0 + admitted * S, T0 + ended * S, "cut_stream")]
    assert failed(facts(failures=failures)) == (["clean_requests"] if fails else [])


def test_a_wrong_count_fails_wherever_it_happens() -> None:
    failures = [Failure(T0, T0 + S, "output_count")]
    assert failed(facts(failures=failures)) == ["token_counts"]


def test_offered_rate() -> None:
    # Every twentieth left out is 5 % exactly; every fifteenth is more.
    for every, fails in ((20, []), (15, ["offered_rate"])):
        kept = [record(k, T0 + k * S) for k in range(300) if k % every]
        assert failed(facts(records=kept)) == fails
    assert failed(facts(rate=None, records=[record(k, T0 + k * S) for k in range(200)])) == []


def test_one_late_wake_up_is_no_sustained_lag() -> None:
    records = [record(k, T0 + k * S, lag=3 * S if k == 150 else 0) for k in range(300)]
    assert failed(facts(records=records)) == []


def test_a_client_that_does_not_catch_up_is_invalid() -> None:
    records = [record(k, T0 + k * S, lag=2 * S if 150 <= k < 160 else 0) for k in range(300)]
    assert failed(facts(records=records)) == ["client_lag"]
    just_short = [record(k, T0 + k * S, lag=2 * S if 150 <= k < 154 else 0) for k in range(300)]
    assert failed(facts(records=just_short)) == []


def test_the_lag_is_the_analysis_lag_and_a_closed_loop_has_none() -> None:
    """The client's number is the shared rule's: 2 s held from request 150 on, 0 before."""
    late = [record(k, T0 + k * S, lag=2 * S if 150 <= k < 160 else 0) for k in range(300)]
    gates = {
        gate.name: gate for gate in run_gates(facts(records=late), GATES, warmup_rule="completions")
    }
    assert gates["client_lag"].numbers["sustained_lag_s"] == 2.0
    assert gates["client_lag"].numbers["lag_max_ms"] == 2000.0
    closed = run_gates(facts(rate=None, records=late), GATES, warmup_rule="completions")
    assert {gate.name: gate.outcome for gate in closed}["client_lag"] == "not_evaluable"


def test_the_client_watches_itself() -> None:
    assert failed(facts(health=Health(230.0, 240.0, [1.0] * 100))) == ["client_cpu"]
    assert failed(facts(health=Health(1.0, 240.0, [1.0] * 98 + [80.0] * 2))) == [
        "client_loop_delay"
    ]
    gates = run_gates(facts(health=None), GATES, warmup_rule="completions")
    outcomes = {gate.name: gate.outcome for gate in gates}
    assert outcomes["client_cpu"] == outcomes["client_loop_delay"] == "not_evaluable"


def test_quarantine_is_no_failure_and_a_hang_is_one() -> None:
    assert failed(facts(ending=Ending(drain_over_budget=True))) == []
    assert failed(facts(ending=Ending(drain_over_budget=True, drain_given_up=True))) == ["drain"]


def test_an_aborted_run_fails_with_its_reason() -> None:
    gates = run_gates(
        facts(ending=Ending("the manifest ran out")), GATES, warmup_rule="completions"
    )
    assert failed_reasons(gates) == ["timeline: the manifest ran out"]


def window(**changes: Any) -> WindowRecord:
    values: dict[str, Any] = {
        "index": 0,
        "start": ControlReply(1, 2, 200),
        "stop": ControlReply(10, 20, 200),
        "iterations_over_ns": 9,
        "steps": 11,
        **changes,
    }
    return WindowRecord(**values)


def event(**changes: Any) -> ProfilerEvent:
    values: dict[str, Any] = {
        "schema": 1,
        "event": "stop",
        "window": 4,
        "call_mono_ns": [11, 19],
        "traces": ["a"],
        "expected_ranks": 1,
        "fault": None,
        **changes,
    }
    return ProfilerEvent(**values)


@pytest.mark.parametrize(
    ("record_", "events", "reason"),
    [
        (window(), [], None),
        (window(), [event()], None),
        (window(stop=ControlReply(10, 20, 500)), [], "stop 500"),
        (window(iterations_over_ns=None), [], "not over"),
        (window(), [event(fault="no trace was written")], "reports a fault"),
        (window(), [event(expected_ranks=2)], "1 traces were written, 2 are needed"),
        (window(), [event(call_mono_ns=[50, 60], fault="of another run")], None),
    ],
)
def test_profile_windows(
    record_: WindowRecord, events: list[ProfilerEvent], reason: str | None
) -> None:
    value = dataclasses.replace(facts(profile=1), windows=[record_], profiler_events=events)
    gate = next(
        gate
        for gate in run_gates(value, GATES, warmup_rule="completions")
        if gate.name == "profile_window"
    )
    assert gate.outcome == ("pass" if reason is None else "fail")
    assert reason is None or reason in gate.reason


def test_completions_count_where_they_complete_and_admissions_where_they_are_admitted() -> None:
    records = [
        record(0, 9 * S, took=S),  # completes at 10: inside [10, 20)
        record(1, 10 * S - 1, took=S // 2),  # admitted before, completes inside
        record(2, 19 * S, took=S),  # completes at 20: outside, admitted inside
        record(3, 15 * S, error="cut_stream", completed_mono_ns=None),
    ]
    result = segment_result("A", 10 * S, 20 * S, records, [Failure(15 * S, 16 * S, "cut_stream")])
    assert (result.completed, result.admitted, result.failed) == (2, 2, 1)
    assert result.completed_rps == 0.2 and result.offered_rps == 0.2
    assert (result.input_tokens, result.output_tokens) == (20, 8)


def test_latencies_from_admission_and_from_schedule() -> None:
    result = segment_result("A", 0, 20 * S, [record(0, S, lag=2 * S, took=3 * S)], [])
    assert result.e2e_ms.p50 == 3000 and result.e2e_from_schedule_ms.p50 == 5000
    assert result.ttft_ms.p50 == 300 and result.ttft_from_schedule_ms.p50 == 2300
    assert result.tpot_ms.p50 == 900 and result.lag_ms.p50 == 2000


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(np.quantile(values, q), abs=1e-6)


def test_a_series_of_nothing_is_null() -> None:
    assert series([]).n == 0 and series([]).mean is None
    assert series([2.0]).sd is None and series([1.0, 3.0]).sd == pytest.approx(2**0.5)
