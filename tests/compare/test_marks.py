"""Failed gates mark a comparison; red flags stop it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opprof.analysis.load import LoadedRun, compare_found, load_runs
from opprof.artifacts.comparison import Comparison
from opprof.protocol import load_protocol

RUNS = Path(__file__).parents[2] / "examples" / "h200-runs"


@pytest.fixture(scope="module")
def found() -> list[LoadedRun]:
    names = ("P01-C00-saturation", "P08-C00-saturation")
    return load_runs([RUNS / name for name in names], load_protocol("phase3"), jobs=1)


def with_flags(loaded: LoadedRun, flags: list[str]) -> LoadedRun:
    import msgspec

    sanity = msgspec.structs.replace(loaded.analysis.sanity, red_flags=flags)
    return replace(loaded, analysis=replace(loaded.analysis, sanity=sanity))


def compared(found: list[LoadedRun]) -> Comparison:
    return compare_found(found, load_protocol("phase3"))


def test_failed_run_gates_are_marks_and_hide_nothing(found: list[LoadedRun]) -> None:
    comparison = compared(found)
    marks = {run.run.pattern: run.marks for run in comparison.runs}
    assert any("run invalid by" in mark and "clean_duration" in mark for mark in marks["P01"])
    assert comparison.pattern_pairs[0].evaluable
    assert all(item.gap_criteria_met is not None for item in comparison.inversions)


def test_a_red_flag_stops_the_pair_and_is_named(found: list[LoadedRun]) -> None:
    comparison = compared([found[0], with_flags(found[1], ["layer1: negative: something"])])
    pair = comparison.pattern_pairs[0]
    assert not pair.evaluable
    assert pair.reasons == ["P08 has a red flag: layer1: negative: something"]
    assert all(item.gap_criteria_met is None for item in comparison.inversions)
    assert len(comparison.inversions) == 36
