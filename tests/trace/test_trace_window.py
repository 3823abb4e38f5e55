"""Acceptance of a window, and where each kernel goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kineto_builder import (
    STEP_US,
    Trace,
    annotation,
    call,
    kernel,
    span,
    us,
)

from opprof.trace.model import Tally, WindowTrace

Read = Callable[..., WindowTrace]


def codes(window: WindowTrace) -> list[str]:
    return [reason.code for reason in window.reasons]


# ------------------------------------------------------------------------- acceptance


def test_a_whole_window_is_accepted(tmp_path: Path, read: Read) -> None:
    window = read(Trace.window().write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.profiler_steps == list(range(2, 10))
    assert window.annotations == 8
    assert [step.number for step in window.steps] == list(range(2, 10))
    assert all(step.kernel == Tally(1, 100_000) for step in window.steps)
    assert window.busy_ns == 800_000
    assert window.streams == 1
    assert not window.warnings


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        (range(2, 9), "profiler_step_missing", "ProfilerStep 9 missing"),
        (range(3, 10), "profiler_step_missing", "ProfilerStep 2 missing"),
        (range(2, 11), "profiler_step_unexpected", "ProfilerStep 10 besides"),
        (range(0), "profiler_step_missing", "2..9 missing"),
    ],
)
def test_steps_must_be_exactly_the_expected(
    numbers: range, code: str, said: str, tmp_path: Path, read: Read
) -> None:
    trace = Trace.window(numbers).add(kernel("k", us(1), "1.000", 77))
    window = read(trace.write(tmp_path / "t.gz"))
    assert code in codes(window)
    assert any(said in reason.text for reason in window.reasons)


def test_a_duplicate_step_is_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.events[8]["name"] = "ProfilerStep#5"  # was 4
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["profiler_step_missing", "profiler_step_duplicate"]


def test_overlapping_steps_are_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.events[0]["dur"] = type(trace.events[0]["dur"])("10001.000")
    assert codes(read(trace.write(tmp_path / "t.gz")))[0] == "profiler_step_overlap"


def test_nine_annotations_are_a_reason(tmp_path: Path, read: Read) -> None:
    extra = annotation("execute_context_0(0)_generation_4(4)", us(9500), "100.000")
    window = read(Trace.window().add(extra).write(tmp_path / "t.gz"))
    assert codes(window) == ["execute_annotation_count", "execute_annotation_place"]
    assert window.annotations == 9
    assert window.steps[0].execute is None


def test_an_annotation_outside_the_steps_is_a_reason(tmp_path: Path, read: Read) -> None:
    extra = annotation("execute_context_0(0)_generation_4(4)", us(-500), "100.000")
    window = read(Trace.window().add(extra).write(tmp_path / "t.gz"))
    assert codes(window) == ["execute_annotation_count"]


def test_gpu_annotations_are_counted_and_never_taken(tmp_path: Path, read: Read) -> None:
    """FIELD-CASES 7: they lie over kernels and repeat the CPU's names."""
    trace = Trace.window()
    for number in range(2, 10):
        at = (number - 2) * STEP_US
        name = "execute_context_0(0)_generation_4(4)"
        trace.add(span("gpu_user_annotation", name, us(at + 5000), "100.000"))
        trace.add(span("gpu_user_annotation", f"ProfilerStep#{number}", us(at + 5000), "100.000"))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.gpu_annotations == 16
    assert window.kernel.ns == 800_000


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_4(4)",
        "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk900sqsq4sqsk900)",
    ],
)
def test_both_annotation_grammars(name: str, tmp_path: Path, read: Read) -> None:
    trace = Trace.window().without("execute_context_0(0)_generation_4(4)")
    for number in range(2, 10):
        trace.add(annotation(name, us((number - 2) * STEP_US + 10), "9000.000"))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    execute = window.steps[3].execute
    assert execute is not None
    assert (execute.counts.decode_requests, execute.counts.decode_tokens) == (4, 4)
    assert (execute.counts.prefill_requests, execute.counts.prefill_tokens) == (0, 0)


def test_no_kernels_is_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().without("some_kernel")
    assert codes(read(trace.write(tmp_path / "t.gz"))) == ["no_kernels"]


def test_kernels_launched_outside_only_are_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().without("some_kernel").without("cudaLaunchKernel")
    trace.add(call("cudaLaunchKernel", us(-50), 1), kernel("k", us(100), "1.000", 1))
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["no_active_kernels"]
    assert window.outside == Tally(1, 1000)


# ------------------------------------------------------------------------- attribution


def test_a_kernel_belongs_to_the_step_of_its_launch(tmp_path: Path, read: Read) -> None:
    """It runs while the next step is launched, and still is the launching step's."""
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(9000), 50), kernel("late", us(15_000), "7.000", 50))
    window = read(trace.write(tmp_path / "t.gz"))
    assert [step.kernel.ns for step in window.steps[:2]] == [107_000, 100_000]


def test_a_launch_on_a_border_belongs_to_the_step_that_begins(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(STEP_US), 50), kernel("a", us(16_000), "1.000", 50))
    trace.add(call("cudaLaunchKernel", us(9990), 51), kernel("b", us(17_000), "1.000", 51))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.steps[1].kernel == Tally(2, 101_000)
    assert window.outside == Tally(1, 1000)
    assert [warning.code for warning in window.warnings] == ["kernel_outside"]


def test_the_prologue_is_kept_apart(tmp_path: Path, read: Read) -> None:
    """Without launch, before every launched kernel of the stream, though inside step 2 by time."""
    trace = Trace.window().add(kernel("old", us(400), "30.000", 3), kernel("old", us(-9), "1", 2))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.prologue == Tally(2, 31_000)
    assert window.kernel.ns == 800_000
    assert window.all_kernels == Tally(10, 831_000)


def test_a_later_kernel_without_launch_is_lost_data(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(kernel("lost", us(25_500), "30.000", 5000))
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["kernel_without_launch"]
    assert window.unlaunched == Tally(1, 30_000)
    assert window.prologue == Tally()


def test_a_lost_launch_in_mid_window_is_lost_data(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    del trace.events[4 * 4 + 2]
    assert codes(read(trace.write(tmp_path / "t.gz"))) == ["kernel_without_launch"]


def test_prologue_is_judged_stream_by_stream(tmp_path: Path, read: Read) -> None:
    """Stream 9's own first launched kernel is early; stream 20 has none: ids decide there."""
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(110), 1500))
    trace.add(kernel("side", us(200), "1.000", 1500, stream=9))
    trace.add(kernel("lost", us(400), "2.000", 3, stream=9))
    trace.add(kernel("old", us(60_000), "4.000", 4, stream=20))
    trace.add(kernel("lost", us(60_100), "8.000", 4000, stream=20))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.prologue == Tally(1, 4_000)
    assert window.unlaunched == Tally(2, 10_000)
    assert window.streams == 2


def test_prologue_on_a_stream_of_its_own(tmp_path: Path, read: Read) -> None:
    """Before the first launched kernel of any stream it is prologue, whatever its id says."""
    trace = Trace.window()
    trace.add(kernel("old", us(4999.999), "2.000", 4000, stream=20))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert (window.prologue, window.unlaunched) == (Tally(1, 2_000), Tally())
    trace.add(kernel("lost", us(5000), "4.000", 4001, stream=20))
    window = read(trace.write(tmp_path / "u.gz"))
    assert codes(window) == ["kernel_without_launch"]
    assert (window.prologue, window.unlaunched) == (Tally(1, 2_000), Tally(1, 4_000))


def test_a_kernel_without_correlation_is_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(kernel("bare", us(-100), "1.000", None))
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["kernel_without_correlation"]
    assert window.prologue == Tally()


def test_one_id_in_two_steps_is_a_reason(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(call("cudaLaunchKernel", us(55_000), 1002))
    assert "correlation_ambiguous" in codes(read(trace.write(tmp_path / "t.gz")))


def test_one_graph_launch_holds_thousands_of_kernels(tmp_path: Path, read: Read) -> None:
    """FIELD-CASES 10; and replayed kernels have no op scope."""
    trace = Trace.window()
    trace.add(span("cpu_op", "aten::mm", us(20_150), "500.000"))
    trace.add(call("cudaGraphLaunch", us(20_200), 70))
    trace.add(*(kernel(f"node{i % 3}", us(21_000 + i), "0.500", 70) for i in range(3000)))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    step = window.steps[2]
    assert step.kernel == Tally(3001, 1_600_000)
    assert {window.scopes[scope] for _, scope in step.kernels} == {()}
    assert step.opaque == Tally()


def test_a_graph_launch_without_activity_is_opaque(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(call("cudaGraphLaunch", us(20_200), 70))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.steps[2].opaque == Tally(1, 0)
    assert window.steps[2].opaque_untimed == 1
    assert codes(window) == ["opaque_replay_untimed"]


def test_a_graph_level_record_gives_an_opaque_replay_its_time(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(call("cudaGraphLaunch", us(20_200), 70))
    trace.add(kernel("CUDA graph", us(21_000), "300.000", 70))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.steps[2].opaque == Tally(1, 300_000)
    assert window.kernel == Tally(9, 1_100_000)
    assert sum(t.ns for s in window.families(lambda n, s: "x") for t in s.values()) == 800_000


def test_a_launch_without_its_kernel_is_said(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(call("cudaLaunchKernel", us(300), 50))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.lost_launches == 1
    assert [warning.code for warning in window.warnings] == ["launch_without_kernel"]


# ------------------------------------------------------------------------- impossible records


@pytest.mark.parametrize("offset_us", [-100_000_000_000, -2000, 100_000_000_000])
def test_absurd_kernel_times_are_dropped_and_counted(
    offset_us: int, tmp_path: Path, read: Read
) -> None:
    """FIELD-CASES 3: about 1e14 ns off, or far before its own launch."""
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(300), 50), kernel("k", us(300 + offset_us), "5.000", 50))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.dropped == Tally(1, 5000)
    assert window.kernel.ns == 800_000
    assert window.busy_ns == 800_000
    assert window.accepted
    assert [warning.code for warning in window.warnings] == ["kernel_time_impossible"]


def test_an_absurd_kernel_without_launch_is_no_prologue(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(kernel("old", us(-100_000_000_000), "5.000", 3))
    window = read(trace.write(tmp_path / "t.gz"))
    assert (window.dropped, window.prologue) == (Tally(1, 5000), Tally())


def test_an_overrunning_duration_invalidates(tmp_path: Path, read: Read) -> None:
    """FIELD-CASES 8."""
    trace = Trace.window()
    trace.events[7]["dur"] = type(trace.events[7]["dur"])("9999999.000")
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["kernel_overrun"]
    assert window.overruns == 1
    assert "some_kernel" in window.reasons[0].text


@pytest.mark.parametrize("duration", ["75000000.000", "100000000000.000"])
@pytest.mark.parametrize("place", [3, 31])
def test_an_overrun_past_the_horizon_is_never_dropped(
    place: int, duration: str, tmp_path: Path, read: Read
) -> None:
    """FIELD-CASES 8: nothing follows the last kernel of a stream, and its time still counts."""
    trace = Trace.window()
    trace.events[place]["dur"] = type(trace.events[place]["dur"])(duration)
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["kernel_overrun"]
    assert (window.overruns, window.dropped) == (1, Tally())


def test_an_overrunning_prologue_invalidates(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(kernel("old", us(0), "9999999.000", 3))
    window = read(trace.write(tmp_path / "t.gz"))
    assert codes(window) == ["kernel_overrun"]


def test_overlap_of_dependent_launches_and_of_graph_branches_is_legal(
    tmp_path: Path, read: Read
) -> None:
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(300), 50), kernel("pdl", us(5097.7), "5.000", 50))
    trace.add(call("cudaGraphLaunch", us(20_200), 70))
    trace.add(kernel("long branch", us(21_000), "2000.000", 70))
    trace.add(*(kernel("short branch", us(21_001 + i), "0.700", 70) for i in range(100)))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.overruns == 0


def test_zero_length_kernels_are_legal(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(300), 50), kernel("empty", us(5050), "0.000", 50))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.accepted
    assert window.kernel == Tally(9, 800_000)


# ------------------------------------------------------------------------- beside the shares


def test_times_beside_the_shares(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(
        call("cudaMemcpyAsync", us(400), 60, "11.000"),
        kernel("Memcpy DtoD", us(5200), "3.000", 60, cat="gpu_memcpy"),
        call("cudaMemsetAsync", us(450), 61, "13.000"),
        kernel("Memset", us(5300), "2.000", 61, stream=9, cat="gpu_memset"),
        kernel("Memcpy HtoD", us(-100), "4.000", 2, cat="gpu_memcpy"),
        call("cudaEventQuery", us(500), 62, "1.000"),
        call("cudaLaunchHostFunc", us(510), 63, "1.000"),
    )
    window = read(trace.write(tmp_path / "t.gz"))
    step = window.steps[0]
    assert step.launch == Tally(1, 5_000)
    assert step.runtime == Tally(5, 31_000)
    assert step.memcpy == Tally(1, 3_000)
    assert step.memset == Tally(1, 2_000)
    assert window.copies_outside == Tally(1, 4_000)
    assert window.kernel.ns == 800_000


def test_busy_time_is_a_union_over_streams(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(call("cudaLaunchKernel", us(300), 50))
    trace.add(kernel("side", us(5050), "100.000", 50, stream=9))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.kernel.ns == 900_000
    assert (window.busy_ns, window.kernel_busy_ns) == (850_000, 850_000)
    assert window.streams == 2


def test_busy_time_holds_copies_and_memsets_too(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(call("cudaMemcpyAsync", us(300), 60), call("cudaMemsetAsync", us(310), 61))
    trace.add(kernel("Memcpy", us(5090), "30.000", 60, stream=9, cat="gpu_memcpy"))
    trace.add(kernel("Memset", us(5110), "15.000", 61, cat="gpu_memset"))
    trace.add(kernel("Memcpy", us(9000), "40.000", 3, cat="gpu_memcpy"))  # of no active step
    window = read(trace.write(tmp_path / "t.gz"))
    assert (window.busy_ns, window.kernel_busy_ns) == (825_000, 800_000)


def test_absurd_copy_times_are_dropped_and_said(tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(call("cudaMemcpyAsync", us(300), 60))
    trace.add(kernel("Memcpy", us(-100_000_000_000), "30.000", 60, cat="gpu_memcpy"))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.busy_ns == 800_000
    assert window.steps[0].memcpy == Tally()
    assert [warning.code for warning in window.warnings] == ["copy_time_impossible"]


def test_families_are_asked_once_for_each_pair(tmp_path: Path, read: Read) -> None:
    window = read(Trace.window().write(tmp_path / "t.gz"))
    asked: list[tuple[str, tuple[str, ...]]] = []

    def classify(name: str, scopes: tuple[str, ...]) -> str:
        asked.append((name, scopes))
        return "other"

    assert window.families(classify) == [{"other": Tally(1, 100_000)}] * 8
    assert asked == [("some_kernel", ())]
