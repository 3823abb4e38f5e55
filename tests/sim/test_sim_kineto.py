"""Simulated windows are read, accepted, attributed and joined by the product's own trace reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from sim_helpers import Ends

from opprof.artifacts.engine import ProfilerEvent
from opprof.client.virtual import VirtualClock
from opprof.engines.sim.batch import SimRequest
from opprof.engines.sim.config import ProfilerConfig, SimConfig
from opprof.engines.sim.cost import load_cost
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.engine import SimEngine
from opprof.engines.sim.kineto import TraceWriter
from opprof.engines.sim.layer1 import StepRecorder
from opprof.engines.sim.profiler import EmptyStep, Profiler, WindowCapture
from opprof.mapping import load_table
from opprof.telemetry.stream import read_stream
from opprof.trace.join import join_window
from opprof.trace.model import TraceLimits, WindowTrace
from opprof.trace.window import read_window

S = 1_000_000_000
LIMITS = TraceLimits(early_ns=10_000_000, horizon_ns=60 * S, overrun_factor=1000.0)


def profile(
    folder: Path,
    *,
    ranks: int = 1,
    prompt: int = 300,
    requests: int = 40,
    windows: int = 1,
    annotations: bool = True,
    effects: Effects | None = None,
) -> list[list[Path]]:
    """Run an engine through windows; return the traces of each window."""
    clock, cost = VirtualClock(S), load_cost()
    config = SimConfig(
        model="m",
        tensor_parallel_size=ranks,
        step_annotations=annotations,
        profiler=ProfilerConfig(folder / "raw", 2, 8),
    )
    recorder = StepRecorder(
        folder / "engine-0.jsonl", config.header(), now_ns=clock.now_ns, wall_ns=clock.now_ns
    )
    writer = TraceWriter(
        folder / "raw",
        cost,
        ranks,
        seed=3,
        wall_ns=clock.now_ns,
        mono_ns=clock.now_ns,
        step_annotations=annotations,
    )
    profiler = Profiler(
        ProfilerConfig(folder / "raw", 2, 8), cost.profiler, ranks, writer.write, folder / "events"
    )
    engine = SimEngine(
        config, cost, clock, seed=3, recorder=recorder, profiler=profiler, effects=effects
    )
    answers: list[bool] = []
    found = []
    for index in range(requests):
        request = SimRequest(index, prompt + index, 400, (), Ends())
        clock.call_at((1 + index // 4) * S // 5 + S, lambda request=request: engine.add(request))
    for window in range(windows):
        clock.call_at((5 + 20 * window) * S, lambda: engine.control("start", answers.append))
        clock.call_at((11 + 20 * window) * S, lambda: engine.control("stop", answers.append))
    clock.run(until_ns=500 * S)
    engine.stop()
    assert answers == [True, True] * windows
    for rank in range(ranks):
        found.append(sorted((folder / "raw").glob(f"*rank{rank}.*")))
    return [list(pair) for pair in zip(*found, strict=True)]


def read(path: Path) -> WindowTrace:
    return read_window(path, expected_steps=range(2, 10), limits=LIMITS)


def shares(trace: WindowTrace) -> dict[str, float]:
    table, sums = load_table("v2"), {}
    for step in trace.families(table.classify):
        for family, tally in step.items():
            sums[family] = sums.get(family, 0) + tally.ns
    return {family: ns / sum(sums.values()) for family, ns in sums.items()}


@pytest.mark.parametrize("annotations", [True, False])
@pytest.mark.parametrize("prompt", [30, 3000])
def test_a_window_is_accepted_and_joins_its_steps(
    tmp_path: Path, annotations: bool, prompt: int
) -> None:
    (window,) = profile(tmp_path, prompt=prompt, annotations=annotations)
    trace = read(window[0])
    assert trace.reasons == []
    assert trace.profiler_steps == list(range(2, 10)) and trace.rank == 0
    assert trace.prologue.events > 0 and trace.unlaunched.events == trace.dropped.events == 0
    assert trace.lost_launches == 0
    event = msgspec.json.decode((tmp_path / "events").read_bytes().splitlines()[0])
    start_ns = event["call_mono_ns"][0]
    stream = read_stream(tmp_path / "engine-0.jsonl")
    records = _records(tmp_path / "engine-0.jsonl")
    assert stream.header.simulated
    join = join_window(
        trace, records, start_mono_ns=start_ns, end_mono_ns=start_ns + 30 * S, margin_min=1.05
    )
    assert join.valid, join.reasons
    assert join.method == ("annotation" if annotations else "order")
    first = next(i for i, r in enumerate(records) if r.submit_mono_ns >= start_ns)
    # The start call is step 0, the first submission after it step 1.
    assert join.steps == list(range(first + 1, first + 9))


def _records(path: Path) -> list[object]:
    from opprof.artifacts.layer1 import Line, Step

    found = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
    return [line for line in found if isinstance(line, Step)]


def test_all_kernels_are_classified_as_their_parts_are(tmp_path: Path) -> None:
    (window,) = profile(tmp_path, prompt=3000)
    found = shares(read(window[0]))
    assert found["other"] < 0.02 and found["moe_gemm"] > 0.3
    assert {"attention", "dense_gemm", "norm_elementwise", "moe_router", "sampler"} <= set(found)


def test_ranks_write_one_trace_each_and_wait_for_each_other(tmp_path: Path) -> None:
    (window,) = profile(tmp_path, ranks=2, prompt=3000)
    one, two = map(read, window)
    assert (one.rank, two.rank) == (0, 1) and one.accepted and two.accepted
    collective = [shares(trace)["collective"] for trace in (one, two)]
    assert collective[0] != collective[1] and min(collective) > 0


def test_where_launches_are_slow_one_rank_idles_and_the_other_waits(tmp_path: Path) -> None:
    (window,) = profile(tmp_path, ranks=2, prompt=3000, requests=400)
    table, cost = load_table("v2"), load_cost()
    one, two = (
        [sum(t.ns for n, t in step.items() if n == "collective") / 1e6 for step in steps]
        for steps in (read(path).families(table.classify) for path in window)
    )
    slow, fast = sorted((one, two), key=sum)
    a, b = cost.parts["collective"]
    # A profiled eager step is launched in some 300 ms; its kernels need 20 to 90.
    assert max(slow) < 1.2 * (a + b * 8192) and max(fast) > 100.0


def test_a_second_window_writes_a_second_trace(tmp_path: Path) -> None:
    windows = profile(tmp_path, windows=2, requests=900, prompt=50)
    assert len(windows) == 2 and all(read(window[0]).accepted for window in windows)
    lines = (tmp_path / "events").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=ProfilerEvent) for line in lines]
    assert [(e.event, e.window, e.fault) for e in events] == [
        ("start", 0, None),
        ("stop", 0, None),
        ("start", 1, None),
        ("stop", 1, None),
    ]
    assert all(len(e.traces) == 1 for e in events if e.event == "stop")


@pytest.mark.parametrize("gap_ns", [30, 900, 20_000, 45_000, 79_999])
def test_a_step_submitted_right_after_another_keeps_its_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap_ns: int
) -> None:
    """The engine ran out of work and a request came within microseconds: an empty step is short."""
    write = TraceWriter.write

    def shorten(writer: TraceWriter, window: WindowCapture) -> list[Path]:
        gone, after = window.steps[4:6]
        window.steps.remove(gone)
        empty = EmptyStep(gone.batch.step, after.submit_ns - gap_ns, gone.number)
        window.empty.append(empty)
        return write(writer, window)

    monkeypatch.setattr(TraceWriter, "write", shorten)
    (traces,) = profile(tmp_path)
    trace = read(traces[0])
    marks = [step.execute.opprof_step for step in trace.steps if step.execute]
    assert None not in marks and len(marks) == 8
    first = marks[0] or 0
    assert marks == list(range(first, first + 8))


def test_opaque_replays_leave_one_record_each(tmp_path: Path) -> None:
    (window,) = profile(tmp_path, prompt=30, effects=Effects(opaque=True))
    trace = read(window[0])
    opaque = sum(step.opaque.ns for step in trace.steps)
    assert trace.accepted and opaque > 0.9 * trace.kernel.ns


def test_every_trace_says_that_it_is_simulated(tmp_path: Path) -> None:
    (window,) = profile(tmp_path)
    document = json.loads(gzip.decompress(window[0].read_bytes()))
    assert "no measurement" in document["opprofSimulated"]
    assert document["deviceProperties"][0]["name"].startswith("simulated")
