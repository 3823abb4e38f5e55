"""Profiler windows as the engine notes them and as the API server answers them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from engine_fakes import header

from opprof.artifacts.engine import ProfilerEvent
from opprof.engines.recorder.handle import Recorder
from opprof.engines.vllm import frontend
from opprof.engines.vllm.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "traces").mkdir()
    recorder = Recorder(tmp_path / "engine-0.jsonl", header())
    report: Any = SimpleNamespace(profiler_dir=str(tmp_path / "traces"))
    return Session(recorder, report, ranks=2)


def call(session: Session, *, is_start: bool) -> None:
    session.before_profile(is_start=is_start)
    session.after_profile(is_start=is_start)


def events(tmp_path: Path) -> list[ProfilerEvent]:
    lines = (tmp_path / "engine-0.profiler.ndjson").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=ProfilerEvent) for line in lines]


def write_traces(tmp_path: Path, *names: str) -> None:
    for name in names:
        (tmp_path / "traces" / f"{name}.pt.trace.json.gz").write_bytes(b"x")


def test_windows_are_counted_and_their_traces_named(session: Session, tmp_path: Path) -> None:
    write_traces(tmp_path, "old")
    for window in range(2):
        call(session, is_start=True)
        write_traces(tmp_path, f"w{window}-rank0", f"w{window}-rank1")
        call(session, is_start=False)
    starts, stops = events(tmp_path)[::2], events(tmp_path)[1::2]
    assert [event.window for event in starts] == [event.window for event in stops] == [0, 1]
    assert stops[1].traces == ["w1-rank0.pt.trace.json.gz", "w1-rank1.pt.trace.json.gz"]
    assert {event.fault for event in starts + stops} == {None}
    assert stops[0].call_mono_ns[0] <= stops[0].call_mono_ns[1] <= starts[1].call_mono_ns[0]


def test_every_kind_of_fault_is_noted(session: Session, tmp_path: Path) -> None:
    call(session, is_start=False)
    call(session, is_start=True)
    call(session, is_start=True)
    call(session, is_start=False)
    call(session, is_start=True)
    write_traces(tmp_path, "only-rank0")
    call(session, is_start=False)
    noted = events(tmp_path)
    assert [event.window for event in noted] == [-1, 0, 0, 0, 1, 1]
    faults = [event.fault or "" for event in noted]
    assert faults[0] == "stopped without a start"
    assert faults[2] == "started again while a window is open (vLLM ignores it)"
    assert faults[3].startswith("no trace was written to")
    assert faults[5] == "1 traces were written by 2 ranks"


def test_the_api_server_raises_after_vllms_own_stop(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OPPROF_DIR", str(tmp_path))
    order: list[str] = []

    async def original(self: Any) -> str:
        call(session, is_start=False)
        order.append("vllm")
        return "done"

    stop = frontend.wrap_stop(original)
    with pytest.raises(RuntimeError, match="opprof: stopped without a start"):
        asyncio.run(stop(None))
    assert order == ["vllm"]
    call(session, is_start=True)
    write_traces(tmp_path, "rank0", "rank1")
    assert asyncio.run(stop(None)) == "done"


def test_old_foreign_or_absent_events_are_no_fault(session: Session, tmp_path: Path) -> None:
    assert frontend.latest_fault(tmp_path, 0) is None
    call(session, is_start=False)
    assert frontend.latest_fault(tmp_path, 0) == "stopped without a start"
    assert frontend.latest_fault(tmp_path, events(tmp_path)[-1].call_mono_ns[1] + 1) is None
    (tmp_path / "engine-0.profiler.ndjson").write_text("no JSON\n")
    assert frontend.latest_fault(tmp_path, 0) is None
