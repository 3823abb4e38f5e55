"""Runs that the plugin recorded on H200s, through the whole analysis and through both joins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opprof.analysis.inputs import RunInputs, read_inputs
from opprof.analysis.run import analyze_run
from opprof.analysis.windows import ReadWindow, read_windows
from opprof.artifacts.layer1 import Line, Step
from opprof.protocol import Protocol, load_protocol
from opprof.telemetry.stream import read_sidecar, read_stream
from opprof.trace.join import Join, join_window, ranks_agree

RUNS = Path(__file__).resolve().parents[2] / "examples" / "h200-plugin-runs"
RANKS = {
    "P01-C00-saturation": 1,
    "P03-C00-saturation": 1,
    "P08-C00-saturation": 1,
    "P01-C00-TP2-saturation": 2,
}
FIRST_STEPS = {
    "P01-C00-saturation": [853, 1000, 1128],
    "P03-C00-saturation": [262, 336],
    "P08-C00-saturation": [1289, 1613],
    "P01-C00-TP2-saturation": [788, 788, 1022, 1022],
}
"""First active step of each trace, by window and rank; by annotation."""
MODES = {
    "P01-C00-saturation": [{"FULL"}] * 3,
    "P03-C00-saturation": [{"NONE"}] * 2,
    "P08-C00-saturation": [{"FULL"}] * 2,
    "P01-C00-TP2-saturation": [{"NONE", "FULL"}, {"NONE", "FULL"}, {"FULL"}, {"FULL"}],
}
LURED = ("P01-C00-saturation", 2, 1127)
"""The window whose wrong neighbour, from step 1127 on, is the more even one."""


def protocol() -> Protocol:
    found = load_protocol("phase3")
    assert found is not None
    return found


def steps_of(inputs: RunInputs) -> list[Step]:
    lines = inputs.stream.read_bytes().splitlines()
    decoded = (msgspec.json.decode(line, type=Line) for line in lines)
    return [line for line in decoded if isinstance(line, Step)]


def windows_of(inputs: RunInputs, name: str) -> list[ReadWindow]:
    columns = read_stream(inputs.stream).columns
    return read_windows(inputs, columns, RANKS[name], protocol())


def join_by_order(inputs: RunInputs, window: ReadWindow, *, tied: bool) -> Join:
    """Join a window as if the plugin had written no annotation."""
    assert window.trace is not None
    steps = []
    for step in window.trace.steps:
        assert step.execute is not None
        execute = msgspec.structs.replace(step.execute, opprof_step=None)
        steps.append(msgspec.structs.replace(step, execute=execute))
    profiles = [interval for interval in inputs.timeline.intervals if interval.kind == "profile"]
    side = read_sidecar(inputs.stream).sidecar
    assert side is not None
    assert side.mono_time_ns is not None
    return join_window(
        msgspec.structs.replace(window.trace, opprof_annotations=0, steps=steps),
        steps_of(inputs),
        start_mono_ns=profiles[window.window].start_mono_ns,
        end_mono_ns=profiles[window.window].end_mono_ns,
        margin_min=protocol().file.layer2.join_margin_min,
        clock_offset_ns=side.wall_time_ns - side.mono_time_ns if tied else None,
    )


@pytest.mark.parametrize("name", RANKS)
def test_the_join_without_annotations_equals_the_join_by_annotation(name: str) -> None:
    inputs = read_inputs(RUNS / name)
    found = windows_of(inputs, name)
    assert [window.rows[0] for window in found if window.rows] == FIRST_STEPS[name]
    joins: dict[int, list[Join]] = {}
    for window in found:
        assert window.reasons == ()
        assert window.join is not None
        assert window.join.method == "annotation"
        ordered = join_by_order(inputs, window, tied=True)
        assert ordered.method == "order", ordered.reasons
        assert ordered.steps == window.join.steps
        joins.setdefault(window.window, []).extend((window.join, ordered))
    assert all(ranks_agree(ranks) is None for ranks in joins.values())


def test_submissions_decide_where_the_wrong_neighbours_completions_are_more_even() -> None:
    """Pure decode under the profiler: by completions the step before looked right (57 µs)."""
    name, number, wrong = LURED
    inputs = read_inputs(RUNS / name)
    window = windows_of(inputs, name)[number]
    assert window.join is not None
    untied = join_by_order(inputs, window, tied=False)
    tied = join_by_order(inputs, window, tied=True)
    truth = list(range(wrong + 1, wrong + 9))
    assert untied.steps == tied.steps == window.join.steps == truth
    assert untied.margin is not None
    assert tied.margin is not None
    assert tied.margin > 10 * untied.margin


@pytest.mark.parametrize("name", RANKS)
def test_the_join_by_order_alone_is_right_or_refused(name: str) -> None:
    inputs = read_inputs(RUNS / name)
    for window in windows_of(inputs, name):
        assert window.join is not None
        untied = join_by_order(inputs, window, tied=False)
        assert untied.steps in (None, window.join.steps)
        assert (untied.steps is None) == bool(untied.reasons)


@pytest.mark.parametrize("name", ["P01-C00-saturation", "P01-C00-TP2-saturation"])
def test_the_analysis_accepts_every_window(name: str) -> None:
    result = analyze_run(RUNS / name, protocol())
    assert result.kernels is not None
    windows = result.kernels.windows
    assert [window.steps[0].layer1_step for window in windows] == FIRST_STEPS[name]
    assert [{step.mode for step in window.steps} for window in windows] == MODES[name]
    for window in windows:
        assert window.accepted, window.reasons
        assert window.join_method == "annotation"
        assert window.profiler_steps == list(range(2, 10))
        assert window.classified_fraction > 0.99
        assert window.kernel_ns == sum(step.kernel_ns for step in window.steps) > 0
    assert result.layer1.accounting.valid
    # What the client counted is what the analysis counts.
    assert result.layer1.end_to_end is not None
    client = read_inputs(RUNS / name).result
    assert client is not None
    assert result.layer1.end_to_end.completed_rps == client.completed_rps


def test_a_configuration_that_was_not_declared_is_found() -> None:
    """The TP2 client ran without ``--config C00-TP2``: the engine's own report disagrees."""
    gates = analyze_run(RUNS / "P01-C00-TP2-saturation", protocol()).layer1.gates
    [gate] = [gate for gate in gates if gate.name == "engine_config_effective"]
    assert gate.outcome == "fail"
    assert "tensor_parallel_size 2, declared 1" in gate.reason


@pytest.mark.parametrize("name", RANKS)
def test_context_histograms_are_real(name: str) -> None:
    for step in steps_of(read_inputs(RUNS / name)):
        histogram = {int(bound): count for bound, count in (step.context_len_hist or {}).items()}
        assert sum(histogram.values()) == step.scheduled_requests
        if histogram:
            # Each count lies in (bound/2, bound]; the sum and the maximum must fit between.
            low = sum(
                count * (bound // 2 + 1 if bound > 1 else 0) for bound, count in histogram.items()
            )
            high = sum(count * bound for bound, count in histogram.items())
            assert low <= step.context_len_sum <= high
            assert max(histogram) // 2 < step.context_len_max <= max(histogram)
