"""Client and analysis see a run through different types and must give the same verdict on it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import columns, step
from opprof.artifacts.run import Interval
from opprof.client.recovery import recovery_gate
from opprof.client.steps import StepLine, StepStream
from opprof.client.warmup import stabilization as client_stabilization
from opprof.protocol import load_protocol
from opprof.rules.stabilization import bin_edges
from opprof.telemetry.recovery import recovery_check
from opprof.telemetry.requests import RequestColumns
from opprof.telemetry.stabilization import stabilization as analysis_stabilization

S = 1_000_000_000
_protocol = load_protocol("phase3")
assert _protocol is not None
GATES = _protocol.file.gates


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
    gate = recovery_gate(
        0,
        (end_ns - 30 * S, end_ns),
        (0, 80 * S),
        completions_ns=sorted(completed),
        stream=stream,
        gates=GATES,
        rolling_ns=10 * S,
    )
    check = recovery_check(
        cols,
        requests(completed),
        recovery=Interval("recovery", 0, end_ns - 30 * S, end_ns),
        clean=Interval("clean", 2, 0, 80 * S),
        gates=GATES,
        time_scale=1.0,
    )
    assert gate.outcome == {True: "pass", False: "fail", None: "not_evaluable"}[check.passed]
    assert gate.numbers["rate_rps"] == check.rate_rps
    assert gate.numbers["waiting_median"] == check.waiting
    assert gate.reason == check.reason


def test_the_rules_do_not_load_numpy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, opprof.rules.recovery, opprof.rules.stabilization, opprof.client.gates;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
