"""What the client reads beside the engine: the step stream, profiler events, traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opprof.artifacts.engine import ProfilerEvent
from opprof.client.ports import ControlReply
from opprof.client.profiler import (
    EngineProfiler,
    check_schedule,
    collect_traces,
    read_engine_profiler,
    read_events,
    stop_event,
)
from opprof.client.steps import StepWindow, read_stream, stream_path
from opprof.client.timeline import WindowRecord
from opprof.errors import EnvironmentFailure, SchemaError, StateConflict


def header(simulated: bool = False) -> dict[str, Any]:
    return {"type": "header", "schema": 1, "simulated": simulated}


def step(index: int, submit: int, *, executed: bool = True, waiting: int = 0) -> dict[str, Any]:
    return {
        "type": "step",
        "step": index,
        "submit_mono_ns": submit,
        "complete_mono_ns": submit + 5,
        "model_executed": executed,
        "prefill_tokens": 3,
        "decode_tokens": 1,
        "waiting": waiting,
        "graph": {"mode": "NONE"},
        "a_later_field": [1, 2],
    }


def write(path: Path, *lines: dict[str, Any], tail: str = "") -> Path:
    with path.open("a") as stream:
        stream.write("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


def sidecar(stream: Path, **changes: Any) -> None:
    values = {
        "schema": 1,
        "encoded_records": 2,
        "written_records": 2,
        "dropped_records": 0,
        "last_step_index": 1,
        "wall_time_ns": 1,
        "flush_interval_s": 1.0,
        "final": False,
        **changes,
    }
    stream.with_name(stream.name + ".footer.json").write_text(json.dumps(values))


def test_a_stream_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "engine-0.jsonl", header(True), step(0, 1), step(1, 9), tail='{"type":"st'
    )
    sidecar(path)
    stream = read_stream(path)
    assert [each.submit_mono_ns for each in stream.steps] == [1, 9]
    assert stream.simulated and stream.problems == []


@pytest.mark.parametrize(
    ("lines", "counters", "text"),
    [
        ([step(0, 1), step(2, 9)], {}, "step 2 is not the next one"),
        ([{"type": "what"}], {}, "line 2 is no Layer-1 line"),
        ([step(0, 1)], {"dropped_records": 1, "encoded_records": 3}, "1 records were dropped"),
        ([step(0, 1)], {"encoded_records": 7}, "do not balance"),
        ([step(0, 1)], {"schema": 9}, "does not fit its schema"),
    ],
)
def test_accounting_faults_are_named(
    lines: list[dict[str, Any]], counters: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "engine-0.jsonl", header(), *lines)
    sidecar(path, **counters)
    assert any(text in problem for problem in read_stream(path).problems)


def test_a_missing_sidecar_and_a_missing_stream(tmp_path: Path) -> None:
    path = write(tmp_path / "engine-0.jsonl", header(), step(0, 1))
    assert read_stream(path).problems == ["the stream has no sidecar"]
    with pytest.raises(EnvironmentFailure, match="no Layer-1 stream"):
        stream_path(tmp_path / "elsewhere")


def test_a_window_counts_executed_steps_submitted_after_the_start_call(tmp_path: Path) -> None:
    path = write(tmp_path / "engine-0.jsonl", header(), step(0, 10), tail='{"type":"step","st')
    watch = StepWindow(path, 3)
    watch.begin(100)
    assert watch.poll(0).steps == 0
    # The cut line is completed: it was submitted before the start call had returned.
    rest = json.dumps(step(1, 90)).removeprefix('{"type": "step", "st')
    with path.open("a") as stream:
        stream.write(rest + "\n")
    write(path, step(2, 100), step(3, 110, executed=False), step(4, 120))
    state = watch.poll(0)
    assert (state.complete, state.steps) == (False, 2)
    half = json.dumps(step(5, 130))
    with path.open("a") as stream:
        stream.write(half[:20])
    assert watch.poll(0).steps == 2
    with path.open("a") as stream:
        stream.write(half[20:] + "\n")
    state = watch.poll(0)
    assert (state.complete, state.steps) == (True, 3)
    watch.begin(125)
    assert watch.poll(0).steps == 0, "a second window starts from what is written then"


def event(**changes: Any) -> ProfilerEvent:
    values: dict[str, Any] = {
        "schema": 1,
        "event": "stop",
        "window": 0,
        "call_mono_ns": [11, 19],
        "traces": ["dp0_pp0_tp0_dcp0_ep0_rank0.17.pt.trace.json.gz"],
        "expected_ranks": 1,
        "fault": None,
        **changes,
    }
    return ProfilerEvent(**values)


def window(index: int = 0, before: int = 10, after: int = 20) -> WindowRecord:
    return WindowRecord(index, start=ControlReply(1, 2, 200), stop=ControlReply(before, after, 200))


def test_a_window_is_matched_by_its_call_and_not_by_the_servers_count() -> None:
    events = [event(window=5, call_mono_ns=[1, 2]), event(window=6), event(event="start")]
    assert stop_event(events, window()) is events[1]
    assert stop_event(events, window(before=30, after=40)) is None
    assert stop_event(events, WindowRecord(0)) is None


def test_traces_are_collected_by_window_and_rank(tmp_path: Path) -> None:
    source, target = tmp_path / "profiler", tmp_path / "run" / "traces"
    source.mkdir()
    names = ["x_tp0_rank0.17.pt.trace.json.gz", "1234-rank-1.18.pt.trace.json"]
    for name in names:
        (source / name).write_text(name)
    found = collect_traces([event(traces=names)], [window(1)], source, target)
    assert [(t.window, t.rank, t.name) for t in found] == [
        (1, 0, "window1-rank0.pt.trace.json.gz"),
        (1, 1, "window1-rank1.pt.trace.json"),
    ]
    assert [t.original_name for t in found] == names
    assert (target / found[0].name).read_text() == names[0]
    assert sorted(p.name for p in source.iterdir()) == sorted(names), "the originals stay"
    with pytest.raises(StateConflict, match="an earlier run"):
        collect_traces([event(traces=names)], [window(1)], source, target)


def test_traces_already_in_the_run_directory_are_renamed(tmp_path: Path) -> None:
    (tmp_path / "a-rank-0.1.pt.trace.json.gz").write_text("t")
    collect_traces([event(traces=["a-rank-0.1.pt.trace.json.gz"])], [window()], tmp_path, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["window0-rank0.pt.trace.json.gz"]


def test_a_trace_that_is_gone_is_an_environment_failure(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot collect"):
        collect_traces([event()], [window()], tmp_path, tmp_path / "traces")


def test_the_engines_own_words_on_its_profiler(tmp_path: Path) -> None:
    assert read_engine_profiler(tmp_path) is None and read_events(tmp_path) == []
    config = {
        "profiler_dir": "/t",
        "profiler_schedule": {"wait": 0, "warmup": 2, "active": 8},
        "x": 1,
    }
    (tmp_path / "engine-config.json").write_text(json.dumps(config))
    engine = read_engine_profiler(tmp_path)
    assert engine is not None and engine.profiler_dir == "/t"
    check_schedule(engine, 2, 8)
    check_schedule(EngineProfiler(), 2, 8)
    with pytest.raises(EnvironmentFailure, match="active 8, wait 0, warmup 2; the run needs"):
        check_schedule(engine, 2, 4)


def test_unreadable_engine_files_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "engine-config.json").write_text("[]")
    (tmp_path / "engine-0.profiler.ndjson").write_text('{"schema":1}\n')
    with pytest.raises(SchemaError, match=r"engine-config\.json"):
        read_engine_profiler(tmp_path)
    with pytest.raises(SchemaError, match=r"profiler\.ndjson:1"):
        read_events(tmp_path)
