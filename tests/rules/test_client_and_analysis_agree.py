"""Client and analysis see a run through different types and must give the same verdict on it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import columns, step
from opprof.analysis import gates_client
from opprof.analysis.inputs import read_inputs
from opprof.analysis.layer1 import read_layer1
from opprof.artifacts.common import Gate
from opprof.artifacts.run import Interval, RequestRecord, Result, Timeline
from opprof.client.recovery import recovery_gate
from opprof.client.steps import StepLine, StepStream
from opprof.client.steps import read_stream as client_stream
from opprof.client.warmup import stabilization as client_stabilization
from opprof.protocol import Protocol, load_protocol
from opprof.rules.durations import scaled_ns
from opprof.rules.rate import judge_offered_rate
from opprof.rules.recovery import Limits
from opprof.rules.stabilization import bin_edges
from opprof.telemetry.recovery import recovery_check
from opprof.telemetry.requests import RequestColumns
from opprof.telemetry.stabilization import stabilization as analysis_stabilization

S = 1_000_000_000
_protocol = load_protocol("phase3")
assert _protocol is not None
PROTOCOL: Protocol = _protocol
GATES = PROTOCOL.file.gates
LIMITS = Limits.of(GATES, 1.0)
RUNS = sorted((Path(__file__).parents[2] / "examples" / "h200-plugin-runs").glob("P*"))


def both(times: list[int], tokens: list[int], waiting: list[int]) -> tuple[StepStream, Any]:
    """The same steps as the client and as the analysis hold them."""
    rows = sorted(zip(times, tokens, waiting, strict=True))
    lines = [
        StepLine(i, at, at + 1, count > 0, count, 0, depth)
        for i, (at, count, depth) in enumerate(rows)
    ]
    made = [
        step(
            i,
            submit_mono_ns=at,
            complete_mono_ns=at + 1,
            model_executed=count > 0,
            prefill_tokens=count,
            decode_tokens=0,
            waiting=depth,
        )
        for i, (at, count, depth) in enumerate(rows)
    ]
    return StepStream(steps=lines), columns(made)


def requests(completed: list[int]) -> RequestColumns:
    zeros = np.zeros(len(completed), np.int64)
    return RequestColumns(
        scheduled_mono_ns=zeros,
        admitted_mono_ns=zeros,
        first_token_mono_ns=zeros,
        completed_mono_ns=np.array(completed, np.int64),
        ended_mono_ns=zeros - 1,
        prompt_tokens=zeros,
        requested_output_tokens=zeros,
        output_tokens=zeros,
        http_status=zeros + 200,
        errored=np.zeros(len(completed), np.bool_),
        errors={},
        torn_line=None,
        duplicate_ids=0,
    )


@given(
    st.lists(st.tuples(st.integers(44 * S, 61 * S), st.integers(0, 40)), max_size=90),
    st.integers(58 * S, 61 * S),
)
def test_stabilization(steps: list[tuple[int, int]], end_ns: int) -> None:
    stream, cols = both([t for t, _ in steps], [n for _, n in steps], [0] * len(steps))
    limits = {"steps_min": GATES.warmup_stabilized_bin_steps_min}
    mine = client_stabilization(
        stream, 0, end_ns, drift_max=GATES.warmup_stabilized_drift_max, **limits
    )
    theirs = analysis_stabilization(
        cols, start_mono_ns=0, end_mono_ns=end_ns, accounting_valid=True, gates=GATES
    )
    assert mine == theirs


@given(st.integers(0, 10**15), st.integers(12, 10**12))
def test_the_bins_are_thirds_of_the_last_quarter(start_ns: int, length_ns: int) -> None:
    edges = bin_edges(start_ns, start_ns + length_ns)
    assert edges == sorted(edges) and edges[-1] == start_ns + length_ns
    quarter = Fraction(length_ns, 4)
    for i, edge in enumerate(edges):
        assert abs(edge - (start_ns + 3 * quarter + quarter * i / 3)) < 1


def test_the_protocols_bins() -> None:
    assert bin_edges(7, 7 + 60 * S) == [7 + second * S for second in (45, 50, 55, 60)]


@given(
    st.lists(st.integers(0, 130 * S), max_size=200),
    st.lists(st.tuples(st.integers(0, 130 * S), st.integers(0, 3)), max_size=60),
    st.integers(85 * S, 125 * S),
)
def test_recovery(completed: list[int], depths: list[tuple[int, int]], end_ns: int) -> None:
    stream, cols = both([t for t, _ in depths], [1] * len(depths), [d for _, d in depths])
    span = Interval("recovery", 0, end_ns - 30 * S, end_ns)
    gate = recovery_gate(
        0,
        (end_ns - 30 * S, end_ns),
        (0, 80 * S),
        completions_ns=sorted(completed),
        stream=stream,
        limits=LIMITS,
    )
    check = recovery_check(
        cols,
        requests(completed),
        recovery=span,
        clean=Interval("clean", 2, 0, 80 * S),
        limits=LIMITS,
    )
    [other] = gates_client.recovery([(span, check)], timeline(1.0), GATES)
    assert told(gate) == told(other)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_recovery_of_real_runs(run: Path) -> None:
    """P08's segment C has no completion: neither side has anything to return to."""
    inputs = read_inputs(run)
    lines = (run / "client" / "requests.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=RequestRecord) for line in lines]
    done = [r.completed_mono_ns for r in records if r.error is None and r.completed_mono_ns]
    spans = [(i.kind, i.index, (i.start_mono_ns, i.end_mono_ns)) for i in inputs.timeline.intervals]
    mine = [
        recovery_gate(
            index,
            span,
            [span for kind, _, span in spans if kind == "clean"][-1],
            completions_ns=sorted(done),
            stream=client_stream(inputs.stream),
            limits=Limits.of(GATES, inputs.timeline.time_scale),
        )
        for kind, index, span in spans
        if kind == "recovery"
    ]
    theirs = [gate for gate in read_layer1(inputs, PROTOCOL).gates if gate.name == "recovery"]
    assert [told(gate) for gate in mine] == [told(gate) for gate in theirs]
    if run.name.startswith("P08"):
        assert {gate.outcome for gate in mine} == {"not_evaluable"}
        assert {gate.reason for gate in mine} == {
            "no completions in the usual rolling window of the clean segment"
        }


def told(gate: Gate) -> tuple[Any, ...]:
    """Everything of a gate but the advice."""
    return gate.name, gate.outcome, gate.reason, gate.numbers, gate.scope


@given(st.integers(0, 10**4), st.integers(1, 10**12), st.floats(0.01, 1e4), st.floats(0, 2))
def test_the_offered_rate_is_judged_exactly(
    admitted: int, clean_ns: int, rate: float, bound: float
) -> None:
    found = judge_offered_rate(admitted, clean_ns=clean_ns, rate_rps=rate, error_max=bound)
    low, high = ((1 + sign * Fraction(str(bound))) * Fraction(rate) for sign in (-1, 1))
    assert found.passed == (low <= Fraction(admitted * S, clean_ns) <= high)


@given(st.floats(1e-3, 600), st.floats(1e-3, 1))
def test_a_scaled_duration_is_rounded_once(seconds: float, scale: float) -> None:
    """The client makes intervals of these lengths; the analysis asks for exactly them."""
    clean, drain = (scaled_ns(value, scale) for value in (seconds, 240.0))
    segments = [Interval("clean", i, i * clean, (i + 1) * clean) for i in range(3)]
    found = timeline(scale, Interval("warmup", 0, 0, clean), *segments)
    plan = msgspec.structs.replace(
        PROTOCOL.file.timeline, warmup_s=seconds, clean_segment_s=seconds, clean_segments=3
    )
    gates = [gates_client.warmup_recorded(found, plan), *gates_client.clean_interval(found, plan)]
    assert {gate.outcome for gate in gates} == {"pass"}
    slow = timeline(scale, Interval("drain", 0, 0, drain))
    result = Result(
        schema=1,
        accepted=True,
        reasons=[],
        completed_rps=None,
        offered_rps=None,
        manifest_sha256="",
        pattern="P08",
        config="C00",
        load_point="saturation",
        role="primary",
        drain_quarantined=True,
        metrics={"drain_budget_s": drain / S},
    )
    gate = gates_client.drain_quarantine(slow, PROTOCOL.pattern("P08"), result)
    assert "marked_under_budget_s" not in gate.numbers, "it is the budget of this protocol"
    assert gate.outcome == "fail", "the client's mark counts"
    kept = gates_client.drain_quarantine(slow, PROTOCOL.pattern("P08"), None)
    assert kept.outcome == "pass", "just the budget"


def timeline(scale: float, *intervals: Interval) -> Timeline:
    return Timeline(
        schema=1,
        pattern="P08",
        config="C00",
        load_point="saturation",
        max_concurrency=256,
        rate_rps=None,
        clock="CLOCK_MONOTONIC",
        intervals=list(intervals),
        time_scale=scale,
    )


def test_the_rules_do_not_load_numpy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, opprof.rules.recovery, opprof.rules.stabilization, opprof.client.gates;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
