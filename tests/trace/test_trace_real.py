"""Real windows against the oracle, which computes the same from the text alone with ``json``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opprof.artifacts.layer1 import Line, Step
from opprof.artifacts.run import Timeline
from opprof.trace.join import join_window, ranks_agree
from opprof.trace.model import WindowTrace

Read = Callable[..., WindowTrace]

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "h200-runs"
SHARED = REPOSITORY.parent / "shared" / "h200-runs"
EXPECTED = REPOSITORY / "tests" / "oracle" / "expected"
RUNS = sorted(path.stem for path in EXPECTED.glob("P*.json"))
MARGIN_MIN = 2.0


def expected_windows(run: str) -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads((EXPECTED / f"{run}.json").read_bytes())
    windows: list[dict[str, Any]] = document["windows"]
    return windows


def traces(folder: Path) -> list[tuple[int, int, Path]]:
    found = []
    for path in sorted((folder / "traces").iterdir()):
        match = re.match(r"window([0-9]+)-rank([0-9]+)\.", path.name)
        assert match is not None
        found.append((int(match[1]), int(match[2]), path))
    return found


def layer1_steps(folder: Path) -> list[Step]:
    decoder = msgspec.json.Decoder(Line)
    lines = (folder / "opprof" / "engine-0.jsonl").read_bytes().splitlines()
    return [line for line in map(decoder.decode, lines) if isinstance(line, Step)]


def compare(window: WindowTrace, want: dict[str, Any]) -> None:
    times = want["times"]
    assert window.profiler_steps == want["profiler_steps"]
    assert window.annotations == want["execute_annotations"]
    assert window.all_kernels.events == want["all_kernel_events"]
    assert window.all_kernels.ns == want["all_kernel_ns"]
    assert (window.prologue.events, window.prologue.ns) == (
        want["prologue_events"],
        want["prologue_ns"],
    )
    assert (window.outside.events, window.outside.ns) == (
        want["outside_events"],
        want["outside_ns"],
    )
    assert window.unlaunched.events == want["lost_events"]
    for step, wanted in zip(window.steps, want["steps"], strict=True):
        assert step.number == wanted["profiler_step"]
        assert (step.kernel.events, step.kernel.ns) == (
            wanted["kernel_events"],
            wanted["kernel_ns"],
        )
    assert window.busy_ns == times["busy_ns"]
    assert window.kernel_busy_ns == times["busy_kernels_ns"]
    steps = window.steps
    assert sum(s.launch.ns for s in steps) == times["launch_named_ns"]
    assert sum(s.launch.events for s in steps) == times["launch_calls"]
    assert sum(s.runtime.ns for s in steps) == times["runtime_ns"] + times["driver_ns"]
    assert sum(s.memcpy.ns for s in steps) == times["memcpy_ns"]
    assert sum(s.memcpy.events for s in steps) == times["memcpy_events"]
    assert sum(s.memset.ns for s in steps) == times["memset_ns"]
    assert sum(s.memset.events for s in steps) == times["memset_events"]
    assert window.accepted, window.reasons


@pytest.mark.parametrize("run", RUNS)
def test_the_oracle_agrees_on_every_real_window(run: str, read: Read) -> None:
    folder = EXAMPLES / run
    timeline = msgspec.json.decode(
        (folder / "client" / "timeline.json").read_bytes(), type=Timeline
    )
    profiles = {i.index: i for i in timeline.intervals if i.kind == "profile"}
    steps = layer1_steps(folder)
    want = {(w["window"], w["rank"]): w for w in expected_windows(run)}
    joins: dict[int, list[Any]] = {}
    for number, rank, path in traces(folder):
        window = read(path)
        compare(window, want[number, rank])
        result = join_window(
            window,
            steps,
            start_mono_ns=profiles[number].start_mono_ns,
            end_mono_ns=profiles[number].end_mono_ns,
            margin_min=MARGIN_MIN,
        )
        assert result.steps == [step["layer1_step"] for step in want[number, rank]["steps"]]
        joins.setdefault(number, []).append(result)
    assert all(ranks_agree(ranks) is None for ranks in joins.values())


def test_layers_of_a_real_window(read: Read) -> None:
    """48 MoE layers in each eager step; the router's and the experts' kernels lie below them."""
    window = read(EXAMPLES / "P03-C00-saturation" / "traces" / "window0-rank0.pt.trace.json.gz")
    for step in window.steps:
        assert {layer for _, _, layer in step.layers} == set(range(48))
        scopes = {window.scopes[scope] for _, scope, _ in step.layers}
        assert all("vllm::moe_forward" in chain for chain in scopes)
        gemm = sum(ns for (n, _, _), ns in step.layers.items() if "fused_moe" in window.names[n])
        total = sum(t.ns for (n, _), t in step.kernels.items() if "fused_moe" in window.names[n])
        assert gemm == total > 0


@pytest.mark.shared
@pytest.mark.parametrize("run", RUNS)
def test_the_whole_traces_give_the_same(run: str, read: Read) -> None:
    if not (SHARED / run).is_dir():
        pytest.skip("needs ../shared/h200-runs")
    want = {(w["window"], w["rank"]): w for w in expected_windows(run)}
    for number, rank, path in traces(SHARED / run):
        window = read(path)
        compare(window, want[number, rank])
        trimmed = read(EXAMPLES / run / "traces" / path.name)
        for step, small in zip(window.steps, trimmed.steps, strict=True):
            whole = {(window.names[n], window.scopes[s]): t for (n, s), t in step.kernels.items()}
            cut = {(trimmed.names[n], trimmed.scopes[s]): t for (n, s), t in small.kernels.items()}
            assert whole == cut
            assert sorted(step.layers.values()) == sorted(small.layers.values())
