"""Spans, durations and who belongs where."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import async_spans, timed
from opprof.analysis import gates_layer1
from opprof.artifacts.run import Interval
from opprof.telemetry.membership import leaked_rows, members, overlapping_rows, union_members

BORDERS = st.lists(st.integers(0, 800), min_size=2, max_size=6, unique=True).map(sorted)


def clean(index: int, start: int, end: int) -> Interval:
    return Interval("clean", index, start, end)


def test_overlapping_steps_share_no_time() -> None:
    # FIELD-CASES 11: each step is submitted before the previous one completes.
    found = timed([(0, 10), (3, 25), (12, 30), (50, 55)])
    assert found.begin_mono_ns.tolist() == [0, 10, 25, 50]
    assert found.duration_ns.tolist() == [10, 15, 5, 5]
    assert found.latency_ns.tolist() == [10, 22, 18, 5]


def test_a_step_that_completes_before_an_earlier_one_is_negative_and_visible() -> None:
    found = timed([(0, 100), (10, 40), (20, 120)])
    # The running maximum of completions stays at 100.
    assert found.begin_mono_ns.tolist() == [0, 100, 100]
    assert found.duration_ns.tolist() == [100, -60, 20]


@pytest.mark.parametrize(
    ("start", "end", "inside", "border"),
    [
        (0, 30, [0, 1, 2], []),
        (0, 29, [0, 1], [2]),
        (1, 30, [1, 2], [0]),
        (10, 20, [1], []),
        (12, 18, [], [1]),
        (30, 40, [], []),
        (15, 15, [], []),
    ],
)
def test_inside_means_the_whole_span(
    start: int, end: int, inside: list[int], border: list[int]
) -> None:
    found = members(timed([(0, 10), (10, 20), (20, 30)]), start, end)
    assert found.rows.tolist() == inside
    assert found.border_rows.tolist() == border


def test_a_span_of_zero_length_belongs_to_the_interval_of_its_moment() -> None:
    columns = timed([(10, 10)])
    assert members(columns, 0, 10).rows.tolist() == []
    assert members(columns, 0, 10).border_rows.tolist() == []
    assert members(columns, 10, 20).rows.tolist() == [0]


def test_the_union_is_judged_on_its_outer_borders() -> None:
    columns = timed([(0, 10), (10, 25), (25, 40), (40, 55)])
    segments = [clean(0, 0, 20), clean(1, 20, 50)]
    assert members(columns, 0, 20).rows.tolist() == [0]
    assert members(columns, 20, 50).rows.tolist() == [2]
    union = union_members(columns, segments)
    assert union.rows.tolist() == [0, 1, 2]
    assert union.border_rows.tolist() == [3]


def test_a_gap_between_segments_is_a_border_of_the_union() -> None:
    columns = timed([(0, 10), (10, 25), (25, 40)])
    union = union_members(columns, [clean(0, 0, 20), clean(1, 21, 50)])
    assert union.rows.tolist() == [0, 2]
    assert union.border_rows.tolist() == [1]


def test_a_leak_is_found_by_overlap_with_the_calls_included() -> None:
    columns = timed([(0, 10), (10, 20), (20, 30)])
    union = union_members(columns, [clean(0, 0, 30)])
    profile = Interval("profile", 0, 40, 50, start_call_mono_ns=(19, 21))
    recovery = Interval("recovery", 0, 30, 40)
    leaked = leaked_rows(columns, union, [profile, recovery])
    assert leaked["profile0"].tolist() == [1, 2]
    assert leaked["recovery0"].tolist() == []
    assert leaked["recorded"].tolist() == []


def test_a_step_that_says_of_itself_that_it_was_profiled_is_a_leak() -> None:
    # Somebody else's window: the client's timeline knows nothing of it.
    columns = timed([(0, 10), (10, 20), (20, 30), (30, 40)])
    columns = replace(columns, profiled=np.array([False, True, False, True]))
    leaked = leaked_rows(columns, union_members(columns, [clean(0, 0, 30)]), [])
    assert leaked["recorded"].tolist() == [1]
    assert gates_layer1.profile_leak({k: len(v) for k, v in leaked.items()}, 3).outcome == "fail"


@given(spans=async_spans())
def test_durations_add_up_to_the_busy_time(spans: list[tuple[int, int]]) -> None:
    columns = timed(spans)
    assert (columns.duration_ns >= 0).all()
    busy = 0
    until = 0
    for submit, complete in spans:
        busy += complete - max(submit, until)
        until = max(until, complete)
    assert int(columns.duration_ns.sum()) == busy
    # Spans follow one another without overlap.
    assert (columns.begin_mono_ns[1:] >= columns.complete_mono_ns[:-1]).all()
    assert (columns.duration_ns <= columns.latency_ns).all()


@given(spans=async_spans(), borders=BORDERS)
def test_contiguous_intervals_partition_the_steps(
    spans: list[tuple[int, int]], borders: list[int]
) -> None:
    columns = timed(spans)
    segments = [clean(index, start, end) for index, (start, end) in enumerate(pairwise(borders))]
    union = union_members(columns, segments)
    parts = [members(columns, s.start_mono_ns, s.end_mono_ns) for s in segments]
    inner = [row for part in parts for row in part.rows.tolist()]
    assert len(inner) == len(set(inner))
    assert set(inner) <= set(union.rows.tolist())
    # What the union has beyond its segments crosses an inner border.
    for row in set(union.rows.tolist()) - set(inner):
        begin, end = columns.begin_mono_ns[row], columns.complete_mono_ns[row]
        assert any(begin < border < end for border in borders[1:-1])
    touched = overlapping_rows(columns, borders[0], borders[-1])
    assert np.array_equal(np.union1d(union.rows, union.border_rows), touched)
    assert not np.intersect1d(union.rows, union.border_rows).size


@given(spans=async_spans(), borders=BORDERS)
def test_no_step_of_the_union_overlaps_what_follows_it(
    spans: list[tuple[int, int]], borders: list[int]
) -> None:
    columns = timed(spans)
    segments = [clean(0, borders[0], borders[-1])]
    after = [
        Interval("profile", 0, borders[-1], borders[-1] + 40),
        Interval("recovery", 0, borders[-1] + 40, borders[-1] + 90),
    ]
    leaked = leaked_rows(columns, union_members(columns, segments), after)
    assert [rows.tolist() for rows in leaked.values()] == [[], [], []]
