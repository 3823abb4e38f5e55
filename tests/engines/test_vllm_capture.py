"""The hooks on fake scheduler objects: pairing, counters, preemption, faults that stay inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import (
    Cached,
    NewRequest,
    Output,
    Request,
    Result,
    Scheduler,
    Stat,
    decode_output,
    header,
)

from opprof.artifacts.layer1 import Step
from opprof.engines.recorder.assemble import Assembler
from opprof.engines.recorder.handle import Recorder
from opprof.engines.recorder.ring import FLAG, FLAG_ON
from opprof.engines.vllm import layer1
from opprof.engines.vllm.capture import Capture, choose_depths, depths_deferred


class Hooked(Scheduler):
    """A fake scheduler with the plugin's wraps."""

    schedule = layer1.wrap_schedule(Scheduler.schedule)
    update_from_output = layer1.wrap_update(Scheduler.update_from_output)
    _preempt_request = layer1.wrap_preempt(Scheduler._preempt_request)


def attach(scheduler: Scheduler, tmp_path: Path, split: Any = None) -> Recorder:
    """Attach a recorder whose writer process was never started; the ring keeps everything."""
    recorder = Recorder(tmp_path / "engine-0.jsonl", header())
    recorder._ended = False
    recorder._words[FLAG] = FLAG_ON
    scheduler._opprof = Capture(recorder, scheduler, split)
    return recorder


def written(recorder: Recorder) -> list[Step]:
    assembler = Assembler()
    return [
        step
        for kind, payload in recorder._ring.drain(everything=True)
        for step in assembler.feed(kind, payload)
    ]


def test_one_decode_step(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(3)])
    recorder = attach(scheduler, tmp_path)
    scheduler.running = [1, 2, 3]
    scheduler.waiting = [4]
    scheduler.skipped_waiting = [5, 6]
    output = scheduler.schedule()
    assert scheduler.update_from_output(output, Result(Stat(3, 4, "FULL"))) == {0: "outputs"}
    (step,) = written(recorder)
    assert (step.decode_requests, step.decode_tokens, step.prefill_requests) == (3, 3, 0)
    assert (step.running, step.waiting, step.deferred) == (3, 1, 2)
    assert (step.prefix_queries, step.prefix_hits) == (10, 4)
    assert step.context_len_sum == 303
    assert step.kv_usage == 0.25
    assert step.graph is not None
    assert (step.graph.mode, step.graph.unpadded_tokens, step.graph.bucket_tokens) == ("FULL", 3, 4)
    assert step.submit_mono_ns < step.complete_mono_ns


def test_hidden_prefix_counters_are_null(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1)])
    scheduler.kv_cache_manager.prefix_cache_stats = None
    recorder = attach(scheduler, tmp_path)
    scheduler.update_from_output(scheduler.schedule(), Result())
    (step,) = written(recorder)
    assert (step.prefix_queries, step.prefix_hits, step.graph) == (None, None, None)


def test_a_mixed_step_and_a_last_chunk_of_one_token(tmp_path: Path) -> None:
    cached = Cached(["a", "b"], [50, 30], [4, 0])
    mixed = Output([NewRequest("c", 16)], cached, {"a": 1, "b": 7, "c": 9})
    # As many tokens as requests, yet one of them is still prefill.
    sly = Output([], Cached(["a", "b"], [51, 37], [5, 0]), {"a": 1, "b": 1})
    scheduler = Hooked([mixed, sly])
    recorder = attach(scheduler, tmp_path)
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), Result())
    first, second = written(recorder)
    assert (first.prefill_chunks, first.decode_tokens) == ([7, 9], 1)
    assert (first.context_len_sum, first.context_len_max) == (51 + 37 + 25, 51)
    assert (second.prefill_chunks, second.decode_tokens) == ([1], 1)


def test_empty_schedules_are_steps(tmp_path: Path) -> None:
    scheduler = Hooked([Output([], Cached(), {}), decode_output(1)])
    recorder = attach(scheduler, tmp_path)
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), Result())
    assert [(step.step, step.model_executed) for step in written(recorder)] == [
        (0, False),
        (1, True),
    ]


def test_async_steps_pair_by_their_own_output(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1), decode_output(2), decode_output(3)])
    recorder = attach(scheduler, tmp_path)
    first = scheduler.schedule()
    second = scheduler.schedule()
    scheduler.update_from_output(first, Result(Stat(1, 1, "FULL")))
    third = scheduler.schedule()
    scheduler.update_from_output(second, Result(Stat(2, 2, "FULL")))
    scheduler.update_from_output(third, Result(Stat(3, 4, "PIECEWISE")))
    steps = written(recorder)
    assert [(s.step, s.scheduled_requests, s.graph and s.graph.unpadded_tokens) for s in steps] == [
        (0, 1, 1),
        (1, 2, 2),
        (2, 3, 3),
    ]
    assert steps[1].submit_mono_ns < steps[0].complete_mono_ns < steps[2].submit_mono_ns


def test_preemption_and_recomputation(tmp_path: Path) -> None:
    cached = Cached(["v"], [0], [5], {"v"})
    resumed = Output([], cached, {"v": 60})
    rest = Output([], Cached(["v"], [60], [5]), {"v": 45})
    scheduler = Hooked([decode_output(2), resumed, rest])
    recorder = attach(scheduler, tmp_path)
    victim = Request("v", 100)
    scheduler.requests = {"v": victim}
    scheduler._preempt_request(victim, 0.0)
    assert victim.num_computed_tokens == 0
    scheduler.update_from_output(scheduler.schedule(), Result())
    victim.num_computed_tokens = 60
    scheduler.update_from_output(scheduler.schedule(), Result())
    victim.num_computed_tokens = 105
    scheduler.update_from_output(scheduler.schedule(), Result())
    steps = written(recorder)
    assert [step.preemptions for step in steps] == [1, 0, 0]
    assert [step.resumed_requests for step in steps] == [0, 1, 0]
    assert [step.recomputed_tokens for step in steps] == [0, 60, 40]
    # vLLM's own annotation counts the recomputation as generation.
    assert (steps[1].decode_tokens, steps[1].prefill_tokens) == (60, 0)


def test_marks_of_finished_requests_are_forgotten(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1)])
    attach(scheduler, tmp_path)
    scheduler._preempt_request(Request("gone", 9), 0.0)
    scheduler.schedule()
    assert scheduler._opprof._marks == {}


def test_a_fault_never_reaches_the_engine(tmp_path: Path) -> None:
    broken = decode_output(2)
    broken.scheduled_cached_reqs.num_computed_tokens = [1]
    scheduler = Hooked([decode_output(1), broken, decode_output(1)])
    recorder = attach(scheduler, tmp_path)
    outputs = [scheduler.schedule() for _ in range(3)]
    assert recorder.failure == "RuntimeError: scheduled requests are neither new nor cached"
    for output in outputs:
        assert scheduler.update_from_output(output, Result()) == {0: "outputs"}
    assert len(scheduler.updates) == 3


def test_a_fault_before_schedule_still_schedules(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1)])
    recorder = attach(scheduler, tmp_path)
    scheduler.kv_cache_manager.prefix_cache_stats = object()  # type: ignore[assignment]
    assert recorder.is_on
    with pytest.raises(AttributeError):
        # The fake's own schedule() reads the counters too; the hook's fault came first.
        scheduler.schedule()
    assert recorder.failure is not None
    assert recorder.failure.startswith("AttributeError")


def test_a_fault_in_the_result_ends_only_the_recording(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1)])
    recorder = attach(scheduler, tmp_path)
    output = scheduler.schedule()
    assert scheduler.update_from_output(output, object()) == {0: "outputs"}  # type: ignore[arg-type]
    assert recorder.failure is not None


def test_nothing_is_recorded_while_off(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(1), decode_output(1), decode_output(1)])
    recorder = attach(scheduler, tmp_path)
    before = scheduler.schedule()
    recorder._words[FLAG] = 0
    off = scheduler.schedule()
    scheduler.update_from_output(before, Result())
    scheduler.update_from_output(off, Result())
    recorder._words[FLAG] = FLAG_ON
    scheduler.update_from_output(scheduler.schedule(), Result())
    assert [step.step for step in written(recorder)] == [0, 1]
    assert not hasattr(off, "opprof_step")


@dataclass
class Split:
    """Like vLLM's ``IterationDetails``."""

    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int


def test_a_differing_split_of_the_engine_is_found_by_the_writer(tmp_path: Path) -> None:
    scheduler = Hooked([decode_output(2)])
    recorder = attach(scheduler, tmp_path, lambda output: Split(1, 1, 1, 1))
    scheduler.schedule()
    with pytest.raises(Exception, match="the engine splits it as"):
        written(recorder)


def test_an_unknown_order_of_requests_is_found(tmp_path: Path) -> None:
    cached = Cached(["a", "b"], [50, 30], [4, 0])
    scheduler = Hooked([Output([], cached, {"b": 7, "a": 1})])
    recorder = attach(scheduler, tmp_path)
    scheduler.schedule()
    assert recorder.failure is not None
    assert "known order" in recorder.failure


def test_queue_layouts() -> None:
    class New:
        """The layout of 0.32."""

        def __init__(self) -> None:
            self.waiting = [1, 2, 3]
            self.kv_holding_waiting = [4]
            self.deferred_waiting = {3}

    assert choose_depths(New()) is depths_deferred
    assert depths_deferred(New()) == (3, 1)
    with pytest.raises(RuntimeError, match="unknown layout"):
        choose_depths(object())
