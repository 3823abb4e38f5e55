"""From raw records to step lines: split, histogram, pairing, profiler windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.engines.recorder.assemble import (
    MAX_OPEN_STEPS,
    Assembler,
    build_step,
    context_histogram,
    split,
)
from opprof.engines.recorder.handle import Recorder
from opprof.engines.recorder.records import (
    CHECK,
    CHECK_BODY,
    COMPLETE,
    PROFILE,
    PROFILE_BODY,
    SUBMIT,
    Completed,
    Submitted,
)
from opprof.engines.recorder.ring import Ring
from opprof.errors import IntegrityError


def submitted(step: int = 0, **changes: object) -> Submitted:
    base = Submitted(
        step=step,
        submit_mono_ns=1000 * step,
        kv_usage=0.5,
        prefix_queries=7,
        prefix_hits=None,
        total_tokens=12,
        waiting=1,
        running=3,
        deferred=0,
        preemptions=0,
        resumed_requests=0,
        recomputed_tokens=0,
        computed=[0, 64, 100],
        scheduled=[8, 3, 1],
        context=[True, True, False],
    )
    return base._replace(**changes)


def test_a_mixed_step() -> None:
    step = build_step(submitted(), Completed(0, 900, "PIECEWISE", 12, 16))
    assert (step.prefill_requests, step.prefill_tokens) == (2, 11)
    assert (step.decode_requests, step.decode_tokens) == (1, 1)
    assert step.prefill_chunks == [8, 3]
    assert step.context_len_hist == {"8": 1, "128": 2}
    assert (step.context_len_sum, step.context_len_max) == (176, 101)
    assert step.graph is not None
    assert (step.graph.mode, step.graph.hit, step.graph.bucket_tokens) == ("PIECEWISE", True, 16)
    assert (step.prefix_queries, step.prefix_hits) == (7, None)


def test_eager_has_no_bucket_and_empty_has_no_graph() -> None:
    eager = build_step(submitted(), Completed(0, 900, "NONE", 12, 12)).graph
    assert eager is not None
    assert (eager.hit, eager.unpadded_tokens, eager.bucket_tokens) == (False, 12, 0)
    empty = submitted(total_tokens=0, computed=[], scheduled=[], context=[])
    step = build_step(empty, Completed(0, 900, None, 0, 0))
    assert (step.model_executed, step.graph, step.scheduled_requests) == (False, None, 0)
    assert (step.context_len_hist, step.context_len_max) == ({}, 0)


def test_tokens_must_sum_to_the_schedule() -> None:
    with pytest.raises(IntegrityError, match="sum to 12 tokens, the schedule says 13"):
        build_step(submitted(total_tokens=13), Completed(0, 900, None, 0, 0))


@given(st.lists(st.integers(0, 1 << 20)))
def test_histogram_bounds(lengths: list[int]) -> None:
    histogram = context_histogram(lengths)
    assert sum(histogram.values()) == len(lengths)
    for bound in map(int, histogram):
        lower = -1 if bound == 1 else bound // 2
        assert histogram[str(bound)] == sum(lower < length <= bound for length in lengths)


def record(recorder: Recorder, *, step_ns: int) -> int:
    return recorder.submit(step_ns, 2, [4, 9], [1, 1], None, [], [], 0.0, 0, 0, 0, 2, 0, 0, 0, 0)


def raw(recorder: Recorder) -> list[tuple[int, bytes]]:
    ring: Ring = recorder._ring
    return list(ring.drain(everything=True))


@pytest.fixture
def recorder(tmp_path) -> Recorder:  # type: ignore[no-untyped-def]
    from engine_fakes import header

    return Recorder(tmp_path / "engine-0.jsonl", header())


def feed(assembler: Assembler, recorder: Recorder) -> list[int]:
    return [step.step for kind, payload in raw(recorder) for step in assembler.feed(kind, payload)]


def test_steps_leave_in_submission_order(recorder: Recorder) -> None:
    assembler = Assembler()
    first, second = record(recorder, step_ns=10), record(recorder, step_ns=20)
    recorder.complete(second, 40, "FULL", 2, 2)
    assert feed(assembler, recorder) == []
    third = record(recorder, step_ns=45)
    recorder.complete(first, 50, "FULL", 2, 2)
    recorder.complete(third, 60, "FULL", 2, 2)
    assert feed(assembler, recorder) == [0, 1, 2]
    assert assembler.open_steps == 0


def test_a_completion_without_submission_is_a_fault(recorder: Recorder) -> None:
    recorder.complete(5, 40, None, 0, 0)
    with pytest.raises(IntegrityError, match="step 5 completed but was never submitted"):
        feed(Assembler(), recorder)


def test_open_steps_are_bounded(recorder: Recorder) -> None:
    assembler = Assembler()
    with pytest.raises(IntegrityError, match="completions are missing"):
        for number in range(MAX_OPEN_STEPS + 1):
            record(recorder, step_ns=number)
            feed(assembler, recorder)


def test_the_engines_own_split_is_compared(recorder: Recorder) -> None:
    assembler = Assembler()
    step = record(recorder, step_ns=10)
    recorder.check(step, (0, 0), (2, 2))
    assert feed(assembler, recorder) == []
    step = record(recorder, step_ns=20)
    recorder.check(step, (1, 1), (1, 1))
    with pytest.raises(IntegrityError, match=r"splits it as \[1, 1, 1, 1\]"):
        feed(assembler, recorder)


def test_steps_that_touch_a_profiler_window_are_marked(recorder: Recorder) -> None:
    assembler = Assembler()
    marks: list[bool] = []
    plan = [("step", 10, 20), ("begin", 30, 0), ("step", 25, 35), ("step", 40, 50)]
    plan += [("end", 60, 0), ("step", 55, 65), ("step", 60, 70), ("begin", 80, 0), ("step", 85, 90)]
    for what, first, last in plan:
        if what == "step":
            recorder.complete(record(recorder, step_ns=first), last, None, 0, 0)
        else:
            recorder.profile(started=what == "begin", at_ns=first)
        for kind, payload in raw(recorder):
            marks += [step.profiled for step in assembler.feed(kind, payload)]
    assert marks == [False, True, True, True, False, True]


def test_record_kinds_are_distinct() -> None:
    assert len({SUBMIT, COMPLETE, CHECK, PROFILE}) == 4
    assert CHECK_BODY.size == 24
    assert PROFILE_BODY.size == 16


def test_split_counts_requests_and_tokens() -> None:
    assert split(submitted()) == (2, 11, 1, 1)
