"""Composition: every number against a plain recomputation."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import columns, step
from opprof.artifacts.composition import Composition
from opprof.telemetry.composition import chunk_histogram, compose
from opprof.telemetry.membership import members
from opprof.telemetry.series import EMPTY, series
from opprof.telemetry.stream import find_stream, read_stream
from opprof.telemetry.timeline import intervals_of, read_timeline

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


def of(steps: list[dict[str, Any]], end: int = 1_000_000_000) -> Composition:
    found = columns(steps)
    return compose(
        found, members(found, 0, end), kind="clean", index=0, start_mono_ns=0, end_mono_ns=end
    )


def mixed_steps() -> list[dict[str, Any]]:
    none = {"mode": "NONE", "hit": False, "unpadded_tokens": 12, "bucket_tokens": 0}
    return [
        step(0, prefix_queries=10, prefix_hits=2),
        step(
            1,
            scheduled_requests=3,
            prefill_requests=2,
            prefill_tokens=11,
            decode_requests=1,
            decode_tokens=1,
            prefill_chunks=[1, 10],
            context_len_hist={"16": 2, "128": 1},
            context_len_sum=100,
            context_len_max=99,
            graph=none,
            complete_mono_ns=40_000_000,
            prefix_queries=30,
            prefix_hits=3,
        ),
        step(2, submit_mono_ns=15_000_000, complete_mono_ns=50_000_000, preemptions=1),
        step(
            3,
            submit_mono_ns=60_000_000,
            complete_mono_ns=60_000_100,
            model_executed=False,
            graph=None,
            preemptions=2,
            prefix_queries=5,
            prefix_hits=5,
            scheduled_requests=0,
            decode_requests=0,
            decode_tokens=0,
        ),
        step(4, submit_mono_ns=70_000_000, complete_mono_ns=80_000_000, graph=None),
        step(5, submit_mono_ns=90_000_000, complete_mono_ns=110_000_000),
    ]


def test_each_kind_of_step_is_counted_once() -> None:
    found = of(mixed_steps(), end=100_000_000)
    assert (found.steps, found.steps_no_model) == (3, 1)
    assert (found.steps_invalid_graph, found.steps_border) == (1, 1)
    assert found.seconds == 0.1
    assert (found.prefill_tokens, found.decode_tokens, found.scheduled_tokens) == (11, 9, 20)
    assert found.scheduled_requests == 11
    # Durations 10, 30 and 10 ms: step 2 counts from the completion of step 1.
    assert found.step_duration_sum_ms == 50.0
    assert found.e_token_per_ms == 20 / 50
    assert found.step_latency_ms.max == 35.0
    assert found.mode_steps == {"FULL": 2, "PIECEWISE": 0, "NONE": 1}
    assert found.mode_shares == {"FULL": 2 / 3, "PIECEWISE": 0.0, "NONE": 1 / 3}
    assert found.mode_time_shares == {"FULL": 0.4, "PIECEWISE": 0.0, "NONE": 0.6}
    assert found.step_duration_ms_by_mode["NONE"].mean == 30.0
    assert found.step_duration_ms_by_mode["PIECEWISE"] == EMPTY
    assert found.prefill_chunk_hist == {"1": 1, "16": 1}
    assert found.context_len_hist == {"16": 2, "128": 9}
    assert found.context_len_hist_missing == 0
    assert found.context_len_mean == 900 / 11
    assert found.context_len_max == 120


def test_durations_among_like_leave_out_steps_beside_another_mode() -> None:
    """An eager step between replayed ones was launched while the one before had not completed."""
    eager = {"mode": "NONE", "hit": False, "unpadded_tokens": 4, "bucket_tokens": 0}
    ms = 1_000_000
    ends = (10, 20, 110, 112, 122, 132, 142, 222, 302)  # step 2 waits for the launch of step 3
    modes = (None, None, None, eager, None, None, eager, eager, eager)
    steps = [
        step(
            index,
            submit_mono_ns=(0 if index < 2 else ends[index - 2]) * ms,
            complete_mono_ns=end * ms,
            **({} if mode is None else {"graph": mode}),
        )
        for index, (end, mode) in enumerate(zip(ends, modes, strict=True))
    ]
    found = of(steps, end=1000 * ms)
    assert found.step_duration_ms_by_mode["NONE"].n == 4
    assert found.step_duration_ms_by_mode["NONE"].min == 2.0
    like = found.step_duration_ms_among_like
    assert (like["NONE"].n, like["NONE"].p50) == (1, 80.0)
    assert (like["FULL"].n, like["FULL"].p50) == (1, 10.0)
    assert like["PIECEWISE"] == EMPTY
    # A step that the stream has lost is no neighbour.
    lost = of([each for each in steps if each["step"] != 7], end=1000 * ms)
    assert lost.step_duration_ms_among_like["NONE"] == EMPTY


def test_events_of_steps_without_a_model_count_and_those_of_faulty_steps_do_not() -> None:
    found = of(mixed_steps(), end=100_000_000)
    assert found.preemptions == 3
    assert (found.prefix_queries, found.prefix_hits) == (45, 10)
    assert found.prefix_hit_ratio == 10 / 45


def test_hidden_prefix_counters_are_null_and_never_a_partial_sum() -> None:
    found = of([step(0, prefix_queries=4, prefix_hits=1), step(1, prefix_queries=None)])
    assert found.prefix_queries is None
    assert found.prefix_hit_ratio is None
    assert of([step(0)]).prefix_hit_ratio is None


def test_context_histograms_may_be_missing() -> None:
    some = of([step(0), step(1, context_len_hist=None)])
    assert some.context_len_hist == {"128": 4}
    assert some.context_len_hist_missing == 1
    nothing = of([step(0, context_len_hist=None)])
    assert nothing.context_len_hist is None


def test_an_empty_interval_has_no_figures() -> None:
    found = of([])
    assert found.steps == 0
    assert found.tokens_per_step == EMPTY
    assert found.e_token_per_ms is None
    assert found.context_len_max is None
    assert found.mode_shares == {}


@given(
    st.one_of(
        st.lists(st.integers(0, 10**12), max_size=60),
        st.lists(st.integers(-9, 12), max_size=60),
        st.lists(st.integers(7000, 7010), min_size=1, max_size=60),
    )
)
def test_series_agree_with_the_standard_library(values: list[int]) -> None:
    found = series(np.array(values, np.int64), 1000)
    if not values:
        assert found == EMPTY
        return
    assert found.n == len(values)
    assert found.sum == sum(values) / 1000
    assert found.mean == pytest.approx(statistics.fmean(values) / 1000)
    assert (found.min, found.max) == (min(values) / 1000, max(values) / 1000)
    ordered = sorted(values)
    for quantile, got in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        position = quantile * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        expected = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
        assert got == pytest.approx(expected / 1000)
    if len(values) > 1:
        assert found.sd == pytest.approx(statistics.stdev(values) / 1000, abs=1e-6)
    else:
        assert found.sd is None


@given(st.lists(st.lists(st.integers(0, 9000), max_size=5), max_size=8))
def test_chunks_fall_into_the_smallest_power_of_two(lists: list[list[int]]) -> None:
    found = columns([step(i, prefill_chunks=chunks) for i, chunks in enumerate(lists)])
    rows = np.arange(0, len(lists), 2)
    expected: dict[str, int] = {}
    for value in (value for chunks in lists[::2] for value in chunks):
        bound = 1 << max(value - 1, 0).bit_length()
        expected[str(bound)] = expected.get(str(bound), 0) + 1
    assert chunk_histogram(found, rows) == expected


@pytest.mark.parametrize(
    ("run", "hit_ratio", "steps", "e_token"),
    [
        ("P01-C00-saturation", 0.0, 237, 282370 / 9745.849178),
        ("P08-C00-saturation", 0.8, 255, 129858 / 7980.798038),
        ("P09-C00-TP2-moderate", 0.9948, 1101, 6927 / 7993.598029),
    ],
)
def test_real_clean_segments(run: str, hit_ratio: float, steps: int, e_token: float) -> None:
    found = read_stream(find_stream(EXAMPLES / run)).columns
    segment = intervals_of(read_timeline(EXAMPLES / run / "client" / "timeline.json"), "clean")[0]
    start, end = segment.start_mono_ns, segment.end_mono_ns
    summary = compose(
        found,
        members(found, start, end),
        kind="clean",
        index=0,
        start_mono_ns=start,
        end_mono_ns=end,
    )
    assert summary.steps == steps
    assert summary.prefix_hit_ratio == pytest.approx(hit_ratio, abs=1e-4)
    assert summary.e_token_per_ms == pytest.approx(e_token, rel=1e-9)
