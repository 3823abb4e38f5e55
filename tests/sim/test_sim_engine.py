"""The engine's loop: what its Layer-1 stream shows, death, planted faults, determinism."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from sim_helpers import Bench

from opprof.artifacts.layer1 import Footer, Header, Line, Step
from opprof.engines.sim.effects import Effects, Neighbour
from opprof.telemetry.accounting import account
from opprof.telemetry.stream import read_sidecar, read_stream


def lines(path: Path) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]


def steps(path: Path) -> list[Step]:
    return [line for line in lines(path) if isinstance(line, Step)]


def load(bench: Bench, count: int = 40) -> None:
    ends = [bench.add(100 + 37 * i, 20 + i) for i in range(count)]
    bench.run()
    bench.engine.stop()
    assert all(end.end_ns is not None and end.first_ns is not None for end in ends)


def test_the_stream_is_sound_labelled_and_overlaps_as_async_scheduling_does(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    load(one)
    found = lines(one.path)
    header, footer = found[0], found[-1]
    assert isinstance(header, Header) and header.simulated and header.engine == "opprof-sim"
    assert isinstance(footer, Footer) and footer.dropped_records == 0
    made = steps(one.path)
    assert [step.step for step in made] == list(range(len(made)))
    ran = [step for step in made if step.model_executed]
    overlapping = sum(b.submit_mono_ns < a.complete_mono_ns for a, b in pairwise(made))
    assert overlapping >= len(ran) - 2
    # A request finished, so one empty schedule flushes it.
    assert not made[-1].model_executed and made[-1].graph is None
    assert sum(s.prefill_tokens for s in made) == sum(100 + 37 * i for i in range(40))
    assert sum(s.decode_tokens for s in made) == sum(20 + i - 1 for i in range(40))


def test_without_async_scheduling_steps_do_not_overlap(bench: Callable[..., Bench]) -> None:
    one = bench(async_scheduling=False)
    load(one)
    made = steps(one.path)
    assert all(b.submit_mono_ns >= a.complete_mono_ns for a, b in pairwise(made))


def test_modes_follow_the_batch(bench: Callable[..., Bench]) -> None:
    one = bench()
    load(one)
    for step in steps(one.path):
        if step.graph is None:
            continue
        tokens = step.prefill_tokens + step.decode_tokens
        uniform = tokens == step.scheduled_requests
        assert step.graph.mode == ("FULL" if uniform else "PIECEWISE" if tokens <= 512 else "NONE")
        assert step.graph.unpadded_tokens == tokens


def test_equal_seeds_give_equal_bytes_and_others_do_not(
    tmp_path: Path, bench: Callable[..., Bench]
) -> None:
    texts = []
    for seed in (1, 1, 2):
        one = bench(seed=seed)
        load(one)
        texts.append(one.path.read_bytes())
        one.path.unlink()
    assert texts[0] == texts[1] != texts[2]


def test_the_product_reads_the_stream(bench: Callable[..., Bench]) -> None:
    one = bench()
    load(one)
    stream = read_stream(one.path)
    assert stream.header.simulated
    verdict = account(stream, read_sidecar(one.path), rule=None, signal_wall_ns=None)
    assert verdict.reasons == []


def test_out_of_memory_ends_everything(bench: Callable[..., Bench]) -> None:
    one = bench(effects=Effects(oom_step=5))
    ends = [one.add(500, 64) for _ in range(10)]
    one.run()
    assert one.engine.dead and all(end.failed_ns is not None for end in ends)
    found = lines(one.path)
    assert not isinstance(found[-1], Footer)
    sidecar = msgspec.json.decode((one.path.parent / f"{one.path.name}.footer.json").read_bytes())
    assert "OutOfMemory" in sidecar["reason"] and sidecar["final"] is False


def test_dropped_records_are_counted_and_missing(bench: Callable[..., Bench]) -> None:
    one = bench(effects=Effects(dropped_steps=frozenset({3, 4})))
    load(one)
    footer = lines(one.path)[-1]
    assert isinstance(footer, Footer) and footer.dropped_records == 2
    assert {3, 4}.isdisjoint(step.step for step in steps(one.path))


@pytest.mark.parametrize(
    "effects", [Effects(slowdown=1.2), Effects(neighbour=Neighbour(1.2)), Effects(interference=0.3)]
)
def test_planted_slowness_slows(effects: Effects, bench: Callable[..., Bench]) -> None:
    ends = []
    for chosen in (None, effects):
        one = bench(effects=chosen)
        load(one)
        ends.append(steps(one.path)[-1].complete_mono_ns)
        one.path.unlink()
    assert ends[1] > ends[0] * 1.02


def test_planted_slowness_slows_steps_that_wait_for_their_launches(
    bench: Callable[..., Bench],
) -> None:
    took = []
    for factor in (1.0, 1.5):
        one = bench(effects=Effects(slowdown=factor))
        one.add(600, 1)
        one.run()
        # Too many tokens for a graph: an eager launch takes several times as long as the kernels.
        first = steps(one.path)[0]
        took.append(first.complete_mono_ns - first.submit_mono_ns)
        one.path.unlink()
    assert took[1] / took[0] == pytest.approx(1.5, rel=0.05)
