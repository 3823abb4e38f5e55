"""What the plugin recorded on an H200 (``examples/h200-plugin-runs``), held to its own promises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from opprof.artifacts.engine import EngineReport, ProfilerEvent
from opprof.artifacts.layer1 import Footer, Header, Line, Sidecar, Step
from opprof.trace.model import TraceLimits
from opprof.trace.window import read_window

RUNS = Path(__file__).parents[2] / "examples" / "h200-plugin-runs"
WINDOWS = {
    "P01-C00-saturation": (3, 1),
    "P03-C00-saturation": (2, 1),
    "P08-C00-saturation": (2, 1),
    "P01-C00-TP2-saturation": (2, 2),
}
"""Run to profiler windows and ranks."""
NAMES = tuple(WINDOWS)
ANY = TraceLimits(early_ns=1 << 62, horizon_ns=1 << 62, overrun_factor=float("inf"))


def read(run: Path) -> tuple[Header, list[Step], Footer]:
    data = (run / "opprof" / "engine-0.jsonl").read_bytes()
    header, *steps, footer = [
        msgspec.json.decode(line, type=Line, strict=True) for line in data.splitlines()
    ]
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)
    assert all(isinstance(step, Step) for step in steps)
    return header, steps, footer  # type: ignore[return-value]


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_is_balanced_and_full(name: str) -> None:
    header, steps, footer = read(RUNS / name)
    data = (RUNS / name / "opprof" / "engine-0.jsonl.footer.json").read_bytes()
    side = msgspec.json.decode(data, type=Sidecar)
    assert [step.step for step in steps] == list(range(len(steps)))
    assert footer.written_records == side.written_records == len(steps)
    assert (footer.dropped_records, side.final, header.untested) == (0, True, [])
    for step in steps:
        assert step.context_len_hist is not None
        assert sum(step.context_len_hist.values()) == step.scheduled_requests
        assert sum(step.prefill_chunks) == step.prefill_tokens
        assert step.prefix_queries is not None
        assert (step.graph is None) is (not step.model_executed)


@pytest.mark.parametrize("name", NAMES)
def test_graphs_are_as_vllm_dispatches_them(name: str) -> None:
    header, steps, _ = read(RUNS / name)
    sizes = header.config.cudagraph_capture_sizes
    modes: Counter[str | None] = Counter()
    for step in steps:
        graph = step.graph
        if graph is None:
            continue
        modes[graph.mode] += 1
        assert graph.unpadded_tokens == step.prefill_tokens + step.decode_tokens
        assert graph.hit is (graph.mode != "NONE")
        if graph.mode == "NONE":
            assert graph.bucket_tokens == 0
            assert graph.unpadded_tokens > max(sizes)
        else:
            # The smallest captured size that holds the tokens.
            wanted = min(size for size in sizes if size >= graph.unpadded_tokens)
            assert graph.bucket_tokens == wanted
        if graph.mode == "FULL":
            assert step.prefill_requests == 0, "full graphs are of uniform decode here"
    if name != "P03-C00-saturation":
        assert set(modes) == {"FULL", "PIECEWISE", "NONE"}


@pytest.mark.parametrize("name", NAMES)
def test_every_window_left_a_trace_that_joins(name: str) -> None:
    _, steps, _ = read(RUNS / name)
    lines = (RUNS / name / "opprof" / "engine-0.profiler.ndjson").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=ProfilerEvent) for line in lines]
    stops = [event for event in events if event.event == "stop"]
    traces = sorted((RUNS / name / "traces").glob("window*.gz"))
    windows, ranks = WINDOWS[name]
    assert len(stops) == windows
    assert {(event.fault, len(event.traces), event.expected_ranks) for event in stops} == {
        (None, ranks, ranks)
    }
    expected = [f"window{w}-rank{rank}" for w in range(windows) for rank in range(ranks)]
    assert [path.name.partition(".")[0] for path in traces] == expected
    joined: dict[str, list[int]] = {}
    for path in traces:
        window = read_window(path, expected_steps=range(2, 10), limits=ANY)
        assert window.opprof_annotations == 8
        for seen in window.steps:
            assert seen.execute is not None
            assert seen.execute.opprof_step is not None
            joined.setdefault(path.name[:7], []).append(seen.execute.opprof_step)
            step = steps[seen.execute.opprof_step]
            assert step.profiled
            assert msgspec.structs.astuple(seen.execute.counts) == (
                step.prefill_requests,
                step.prefill_tokens,
                step.decode_requests,
                step.decode_tokens,
            )

    for found in joined.values():
        assert found == list(range(found[0], found[0] + 8)) * ranks, "ranks see the same steps"


def test_the_effective_configuration_is_the_objects_own() -> None:
    data = (RUNS / NAMES[0] / "opprof" / "engine-config.json").read_bytes()
    report = msgspec.json.decode(data, type=EngineReport)
    config = report.config
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (1024, 8192)
    assert (config.attention_backend, config.moe_backend) == ("FLASH_ATTN", "TRITON")
    assert config.cudagraph_mode == "FULL_AND_PIECEWISE"
    assert (report.scheduler_class, report.batches_in_flight) == ("AsyncScheduler", 2)
    assert report.workers[0].attention_backends == {"FLASH_ATTN": 48}
    assert report.provenance.tested
