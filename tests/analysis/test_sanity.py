"""Families count what is there; red flags say what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layer1_samples import CAPTURE_SIZES, columns, step
from opprof.analysis.end_to_end import end_to_end
from opprof.analysis.sanity import (
    accounting_flags,
    composition_families,
    end_to_end_families,
    request_families,
    request_flags,
    step_families,
    step_flags,
    waste_families,
)
from opprof.analysis.waste import step_waste
from opprof.artifacts.composition import StreamAccounting
from opprof.rules.sanity import block
from opprof.telemetry.composition import compose
from opprof.telemetry.membership import members
from opprof.telemetry.requests import read_requests
from opprof.telemetry.stream import find_stream, read_stream
from request_samples import record, write_requests

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"complete_mono_ns": 3_000_000}, "negative_duration"),
        ({"submit_mono_ns": 90_000_000}, "negative_duration"),
        (
            {
                "graph": {
                    "mode": "FULL",
                    "hit": True,
                    "unpadded_tokens": 9,
                    "bucket_tokens": 8,
                }
            },
            "bucket_below_unpadded",
        ),
        (
            {
                "graph": {
                    "mode": "FULL",
                    "hit": True,
                    "unpadded_tokens": 4,
                    "bucket_tokens": 32,
                }
            },
            "bucket_over_capture",
        ),
        ({"prefill_chunks": [3]}, "chunk_sum"),
        ({"prefill_requests": 1}, "request_sum"),
        ({"prefix_queries": 3, "prefix_hits": 4}, "hits_over_queries"),
    ],
)
def test_contradictions_inside_a_step_are_red_flags(change: dict[str, Any], code: str) -> None:
    sound = [step(0), step(1), step(2, prefix_queries=None)]
    assert step_flags(columns(sound), CAPTURE_SIZES) == []
    flags = step_flags(columns([step(0), step(1, **change)]), CAPTURE_SIZES)
    assert code in [flag.split(":")[0] for flag in flags]
    assert all(flag.endswith("the first is step 1") for flag in flags)


def test_requests_and_accounting_raise_theirs(tmp_path: Path) -> None:
    requests = read_requests(write_requests(tmp_path, [record(0), record(0, completed_mono_ns=1)]))
    codes = [flag.split(":")[0] for flag in request_flags(requests)]
    assert codes == ["requests_duplicate_request", "request_disorder"]
    latency = {found.name: found for found in request_families(requests)}["latency_ns"]
    assert (latency.min, latency.max) == (-9, 20)
    assert block([latency], ["later"]).red_flags == [
        "negative: latency_ns goes down to -9 ns",
        "later",
    ]
    accounting = StreamAccounting(
        *("engine-0.jsonl", 1, 0, 0, True, 1, 1, 0, True, 1, None, None, 1.0),
        valid=False,
        reasons=["gap: 1 missing"],
    )
    assert accounting_flags(accounting) == ["layer1_gap: 1 missing"]


@pytest.mark.parametrize("run", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_real_runs_raise_no_red_flag(run: str) -> None:
    stream = read_stream(find_stream(EXAMPLES / run))
    found = stream.columns
    sizes = stream.header.config.cudagraph_capture_sizes
    rows = np.arange(len(found))
    last = int(found.complete_mono_ns[-1])
    requests = read_requests(EXAMPLES / run / "client" / "requests.jsonl")
    composition = compose(
        found, members(found, 0, last), kind="clean", index=0, start_mono_ns=0, end_mono_ns=last
    )
    families = [
        *step_families(found, rows),
        *request_families(requests),
        *composition_families(composition),
        *end_to_end_families(end_to_end(requests, [(0, last)], kind="clean", index=0)),
        *waste_families(step_waste(found, rows, sizes)),
    ]
    assert len({found.name for found in families}) == len(families) - 1  # both have step counts
    flags = [*step_flags(found, sizes), *request_flags(requests)]
    assert block(families, flags).red_flags == []
