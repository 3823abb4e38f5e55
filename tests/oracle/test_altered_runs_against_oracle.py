"""Runs that no collection gave: real ones with other intervals and altered traces, both ways."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agreement import differences, kernels_pairs, layer1_pairs, waste_pairs
from test_against_oracle import EXAMPLES, artefact, opprof

from oracle import analyse

pytestmark = pytest.mark.slow
RUN = "P03-C00-moderate"
TRACE = "traces/window1-rank0.pt.trace.json.gz"
EVENT_BORDER = "\n  },\n  {\n"
EVENTS_START = '"traceEvents": [\n  {\n'
EVENTS_END = "\n  }\n  ]"
Events = list[str]


def both(run: Path, out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the product's artefacts and the oracle's figures of a run."""
    opprof("analyze", run, "--out", out)
    product = {name: artefact(out / run.name, name) for name in ("layer1", "waste", "kernels")}
    return product, analyse(run)


@pytest.mark.parametrize("name", ["P01-C00-saturation", RUN, "P09-C00-TP2-moderate"])
def test_three_segments_and_recoveries(name: str, tmp_path: Path) -> None:
    """Inner borders, recovery intervals and a warm-up cut into a real stream."""
    run = tmp_path / "in" / name
    shutil.copytree(EXAMPLES / name, run)
    path = run / "client" / "timeline.json"
    timeline = json.loads(path.read_text(encoding="utf-8"))
    clean, first, second = timeline["intervals"]
    start, end = clean["start_mono_ns"], clean["end_mono_ns"]
    cuts = [start + (end - start) * part // 3 for part in range(4)]

    def interval(kind: str, index: int, a: int, b: int) -> dict[str, Any]:
        return {"kind": kind, "index": index, "start_mono_ns": a, "end_mono_ns": b}

    last = second["end_mono_ns"]
    timeline["intervals"] = [
        interval("warmup", 0, start - 5 * 10**9, start),
        *(interval("clean", part, cuts[part], cuts[part + 1]) for part in range(3)),
        first,
        interval("recovery", 0, first["end_mono_ns"], second["start_mono_ns"]),
        second,
        interval("recovery", 1, last, last + 4 * 10**9),
    ]
    path.write_text(json.dumps(timeline), encoding="utf-8")

    product, oracle = both(run, tmp_path / "out")

    for artefact_name, pairs in (
        ("layer1", layer1_pairs),
        ("waste", waste_pairs),
        ("kernels", kernels_pairs),
    ):
        assert differences(pairs(product[artefact_name], oracle)) == []
    # Each inner border has one step over it, which belongs to the union alone.
    parts = [oracle["composition"][f"clean_{part}"] for part in range(3)]
    union = oracle["composition"]["clean_union"]
    assert union["steps"] == sum(part["steps"] for part in parts) + 2
    assert [p["border_steps"] for p in (*parts, union)] == [2, 2, 2, 2]


def without_a_replay(events: Events) -> Events:
    """The fourth graph launch is gone, its kernels stay: lost records."""
    launches = [i for i, text in enumerate(events) if '"name": "cudaGraphLaunch"' in text]
    return [text for i, text in enumerate(events) if i != launches[3]]


def on_two_streams(events: Events) -> Events:
    """400 kernels move to a second stream and last longer: sums and unions part."""
    moved = {i for i, text in enumerate(events) if '"name": "fused_moe_kernel"' in text}
    moved = set(sorted(moved)[-400:])
    return [
        re.sub(r'"stream": \d+', '"stream": 99', text).replace('"dur": ', '"dur": 1')
        if i in moved
        else text
        for i, text in enumerate(events)
    ]


def last_first(events: Events) -> Events:
    """The order of events in the file means nothing."""
    return events[::-1]


def without_copies(events: Events) -> Events:
    return [text for text in events if '"cat": "gpu_memcpy"' not in text]


@pytest.mark.parametrize("alter", [without_a_replay, on_two_streams, last_first, without_copies])
def test_altered_traces(alter: Callable[[Events], Events], tmp_path: Path) -> None:
    run = tmp_path / "in" / RUN
    shutil.copytree(EXAMPLES / RUN, run)
    path = run / TRACE
    text = gzip.decompress(path.read_bytes()).decode()
    head, _, rest = text.partition(EVENTS_START)
    body, _, tail = rest.rpartition(EVENTS_END)
    altered = EVENT_BORDER.join(alter(body.split(EVENT_BORDER)))
    path.write_bytes(gzip.compress((head + EVENTS_START + altered + EVENTS_END + tail).encode()))

    product, oracle = both(run, tmp_path / "out")

    assert differences(kernels_pairs(product["kernels"], oracle)) == []
    window = next(w for w in oracle["windows"] if w["window"] == 1)
    assert (window["lost_events"] > 0) == (alter is without_a_replay)
