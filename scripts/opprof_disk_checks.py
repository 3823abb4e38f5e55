"""What must hold on disk after a recorded run, checked with the standard library alone.

A fault of the product's own readers must not hide one of its writers: nothing of ``opprof`` is
imported here.
"""

from __future__ import annotations

import gzip
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

EXECUTE = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")
FLUSH_NS = 1_000_000_000
TOLERANCE_NS = 100_000_000


def steps_of(opprof_dir: Path, index: int = 0) -> list[dict[str, Any]]:
    """Return the step lines of a stream; every line must decode."""
    data = (opprof_dir / f"engine-{index}.jsonl").read_bytes()
    assert data.endswith(b"\n"), "the stream ends in a partial line"
    return [line for line in map(json.loads, data.splitlines()) if line["type"] == "step"]


def executed(opprof_dir: Path, index: int = 0) -> list[dict[str, Any]]:
    """Return the executed steps that stand in the stream by now."""
    data = (opprof_dir / f"engine-{index}.jsonl").read_bytes()
    lines = map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())
    return [line for line in lines if line["type"] == "step" and line["model_executed"]]


def sidecar(opprof_dir: Path) -> dict[str, Any]:
    """Return the latest checkpoint; empty where there is none yet."""
    with suppress(FileNotFoundError):
        found: dict[str, Any] = json.loads((opprof_dir / "engine-0.jsonl.footer.json").read_text())
        return found
    return {}


def check_accounting(opprof_dir: Path, *, final: bool, signal_wall_ns: int | None = None) -> int:
    """Assert A-P3-5 on what is on disk; return the number of steps."""
    stream = opprof_dir / "engine-0.jsonl"
    side = sidecar(opprof_dir)
    data = stream.read_bytes()
    assert data.endswith(b"\n"), "the stream ends in a partial line"
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[0]["type"] == "header"
    steps = [line for line in lines if line["type"] == "step"]
    footers = [line for line in lines if line["type"] == "footer"]
    assert side["written_records"] == len(steps), (side, len(steps))
    assert side["encoded_records"] == side["written_records"] + side["dropped_records"]
    assert side["dropped_records"] == 0, side
    assert side["last_step_index"] == (steps[-1]["step"] if steps else -1)
    assert [step["step"] for step in steps] == list(range(len(steps))), "steps are not contiguous"
    assert side["final"] is final, side
    assert len(footers) == int(final), footers
    if final:
        assert lines[-1]["type"] == "footer"
        for name in ("encoded_records", "written_records", "dropped_records", "last_step_index"):
            assert footers[0][name] == side[name]
        assert side["open_steps"] == 0, side
    if signal_wall_ns is not None:
        age_ns = signal_wall_ns - side["wall_time_ns"]
        assert age_ns <= FLUSH_NS + TOLERANCE_NS, f"checkpoint is {age_ns / 1e9:.3f} s old"
    return len(steps)


def is_balanced(opprof_dir: Path) -> bool:
    """Whether stream and checkpoint agree; while it is written they differ for a moment."""
    try:
        check_accounting(opprof_dir, final=False)
    except AssertionError:
        return False
    return True


def check_steps(steps: list[dict[str, Any]]) -> None:
    """Assert what holds of every step line."""
    for step in steps:
        assert step["submit_mono_ns"] < step["complete_mono_ns"]
        assert sum(step["prefill_chunks"]) == step["prefill_tokens"]
        assert len(step["prefill_chunks"]) == step["prefill_requests"]
        assert sum(step["context_len_hist"].values()) == step["scheduled_requests"]
        tokens = step["prefill_tokens"] + step["decode_tokens"]
        assert step["model_executed"] is (tokens > 0)
        assert (step["graph"] is None) is (tokens == 0), step
        if step["graph"] is not None:
            assert step["graph"]["unpadded_tokens"] == tokens


def annotations(path: Path) -> list[dict[str, Any]]:
    """Return the CPU-side annotations of a trace, by time."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    events = json.loads(text)["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return sorted(found, key=lambda event: float(event["ts"]))


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether one event lies within another on the clock."""
    start, end = float(outer["ts"]), float(outer["ts"]) + float(outer["dur"])
    return start <= float(inner["ts"]) and float(inner["ts"]) + float(inner["dur"]) <= end + 0.002


def join_trace(path: Path, steps: list[dict[str, Any]]) -> list[int]:
    """Assert that all eight active steps join to Layer 1; return their step indices."""
    events = annotations(path)
    profiler = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [event["name"] for event in profiler] == [f"ProfilerStep#{n}" for n in range(2, 10)]
    executes = [event for event in events if EXECUTE.match(event["name"])]
    marks = [event for event in events if event["name"].startswith("opprof_step_")]
    assert len(executes) == len(marks) == 8, (len(executes), len(marks))
    joined = []
    for span, execute, mark in zip(profiler, executes, marks, strict=True):
        assert inside(execute, span), (execute, span)
        assert inside(mark, execute), (mark, execute)
        index = int(mark["name"].rpartition("_")[2])
        step = steps[index]
        match = EXECUTE.match(execute["name"])
        assert match is not None
        seen = tuple(map(int, match.groups()))
        assert seen == (
            step["prefill_requests"],
            step["prefill_tokens"],
            step["decode_requests"],
            step["decode_tokens"],
        ), (seen, step)
        assert step["profiled"], step
        joined.append(index)
    assert joined == list(range(joined[0], joined[0] + 8)), joined
    return joined


def profiler_events(opprof_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of the profiler's event file."""
    text = (opprof_dir / "engine-0.profiler.ndjson").read_text()
    return [json.loads(line) for line in text.splitlines()]


def check_windows(opprof_dir: Path, trace_dir: Path, count: int, ranks: int) -> None:
    """Assert that each of ``count`` windows left ``ranks`` traces that join fully."""
    steps = steps_of(opprof_dir)
    stops = [event for event in profiler_events(opprof_dir) if event["event"] == "stop"]
    good = [event for event in stops if event["fault"] is None]
    assert len(good) == count, stops
    seen: list[int] = []
    for event in good:
        assert len(event["traces"]) == event["expected_ranks"] == ranks, event
        joins = [join_trace(trace_dir / name, steps) for name in event["traces"]]
        assert all(join == joins[0] for join in joins), "ranks join to different steps"
        assert not seen or joins[0][0] > seen[-1]
        seen = joins[0]
    assert not steps[0]["profiled"]
