"""Timelines that cannot mean one thing only are refused, by position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opprof.artifacts.run import Interval
from opprof.errors import InputError, SchemaError
from opprof.telemetry.timeline import (
    adjacent_clean_segment,
    check_intervals,
    intervals_of,
    read_timeline,
    union_pieces,
)

TIMELINE: dict[str, Any] = {
    "schema": 1,
    "pattern": "P01",
    "config": "C00",
    "load_point": "saturation",
    "max_concurrency": 256,
    "rate_rps": None,
    "clock": "CLOCK_MONOTONIC",
    "intervals": [
        {"kind": "warmup", "index": 0, "start_mono_ns": 0, "end_mono_ns": 10},
        {"kind": "clean", "index": 0, "start_mono_ns": 10, "end_mono_ns": 20},
        {"kind": "clean", "index": 1, "start_mono_ns": 20, "end_mono_ns": 30},
        {"kind": "profile", "index": 0, "start_mono_ns": 30, "end_mono_ns": 40},
        {"kind": "recovery", "index": 0, "start_mono_ns": 40, "end_mono_ns": 40},
    ],
}


def interval(kind: Any, index: int, start: int, end: int, **more: Any) -> Interval:
    return Interval(kind, index, start, end, **more)


def test_a_sound_timeline_reads(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(TIMELINE))
    timeline = read_timeline(path)
    assert [segment.index for segment in intervals_of(timeline, "clean")] == [0, 1]
    assert union_pieces(intervals_of(timeline, "clean")) == [(10, 30)]
    window = intervals_of(timeline, "profile")[0]
    segment = adjacent_clean_segment(timeline, window)
    assert segment is not None
    assert segment.index == 1
    assert adjacent_clean_segment(timeline, timeline.intervals[0]) is None


@pytest.mark.parametrize(
    ("intervals", "reason"),
    [
        ([interval("clean", 0, 20, 10)], "interval 0 (clean 0) ends 10 ns before it starts"),
        (
            [interval("clean", 0, 0, 10), interval("profile", 0, 9, 12)],
            "interval 1 (profile 0) starts 1 ns before interval 0 (clean 0) ends",
        ),
        (
            [interval("profile", 0, 5, 12), interval("warmup", 0, 0, 100)],
            "interval 0 (profile 0) starts 95 ns before interval 1 (warmup 0) ends",
        ),
        (
            [interval("clean", 0, 0, 10), interval("clean", 0, 10, 20)],
            "interval 1 (clean 0) is number 1 of its kind",
        ),
        (
            [interval("clean", 1, 0, 10), interval("clean", 0, 10, 20)],
            "interval 0 (clean 1) is number 0 of its kind",
        ),
        (
            [interval("profile", 0, 0, 9, start_call_mono_ns=(3, 2))],
            "profile call times are not in order",
        ),
        (
            [interval("profile", 0, 0, 9, start_call_mono_ns=(3, 5), stop_call_mono_ns=(4, 6))],
            "profile call times are not in order",
        ),
    ],
)
def test_an_ambiguous_timeline_is_refused(intervals: list[Interval], reason: str) -> None:
    with pytest.raises(SchemaError, match="timeline") as caught:
        check_intervals(intervals, Path("timeline.json"))
    assert reason in caught.value.reason


def test_intervals_of_zero_length_and_that_touch_are_legal() -> None:
    check_intervals(
        [
            interval("clean", 0, 0, 10),
            interval("clean", 1, 10, 10),
            interval("clean", 2, 10, 12),
            interval("drain", 0, 12, 12),
        ],
        None,
    )


def test_segments_with_a_gap_are_several_pieces() -> None:
    segments = [interval("clean", 1, 11, 20), interval("clean", 0, 0, 10)]
    assert union_pieces(segments) == [(0, 10), (11, 20)]


@pytest.mark.parametrize(
    "change", [{"surprise": 1}, {"load_point": "idle"}, {"max_concurrency": 0}, {"intervals": 3}]
)
def test_a_timeline_that_does_not_fit_its_schema_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(TIMELINE | change))
    with pytest.raises(SchemaError, match="does not fit the schema"):
        read_timeline(path)


def test_a_missing_timeline_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"timeline\.json: file not found"):
        read_timeline(tmp_path / "timeline.json")


@pytest.mark.parametrize("value", [10**400, 1 << 62])
@pytest.mark.parametrize("field", ["max_concurrency", "end_mono_ns"])
def test_an_integer_that_no_clock_shows_is_refused(field: str, value: int, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(TIMELINE))
    (changed if field in changed else changed["intervals"][4])[field] = value
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(changed))
    with pytest.raises(SchemaError, match=rf"beyond 62 bits - at `\$.*{field}`"):
        read_timeline(path)
