"""Small Layer-1 streams and request records for tests, and the Hypothesis strategies over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from opprof.artifacts.layer1 import Graph, Step
from opprof.telemetry.build import ColumnBuilder
from opprof.telemetry.columns import StepColumns

CAPTURE_SIZES = [1, 2, 4, 8, 16]


def header(**changes: Any) -> dict[str, Any]:
    """A header line as a plain object; ``config`` changes go in as ``config={...}``."""
    config = {
        "model": "m",
        "dtype": "bfloat16",
        "tensor_parallel_size": 1,
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "chunked_prefill": True,
        "prefix_caching": True,
        "async_scheduling": True,
        "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": CAPTURE_SIZES,
        "attention_backend": "FLASH_ATTN",
        "moe_backend": "TRITON",
    }
    found: dict[str, Any] = {
        "type": "header",
        "schema": 1,
        "engine": "vllm",
        "engine_version": "0.24.0",
        "flush_interval_s": 1.0,
        "config": config | changes.pop("config", {}),
    }
    return found | changes


def step(index: int, **changes: Any) -> dict[str, Any]:
    """A pure decode step of four requests in a FULL graph, 10 ms long, one after the other."""
    found: dict[str, Any] = {
        "type": "step",
        "step": index,
        "submit_mono_ns": index * 10_000_000,
        "complete_mono_ns": (index + 1) * 10_000_000,
        "model_executed": True,
        "scheduled_requests": 4,
        "prefill_requests": 0,
        "prefill_tokens": 0,
        "decode_requests": 4,
        "decode_tokens": 4,
        "prefill_chunks": [],
        "context_len_hist": {"128": 4},
        "context_len_sum": 400,
        "context_len_max": 120,
        "waiting": 0,
        "running": 4,
        "deferred": 0,
        "preemptions": 0,
        "kv_usage": 0.25,
        "prefix_queries": 0,
        "prefix_hits": 0,
        "graph": {"mode": "FULL", "hit": True, "unpadded_tokens": 4, "bucket_tokens": 4},
    }
    return found | changes


def footer(records: int, **changes: Any) -> dict[str, Any]:
    """A balanced footer of ``records`` step lines."""
    found: dict[str, Any] = {
        "type": "footer",
        "encoded_records": records,
        "written_records": records,
        "dropped_records": 0,
        "last_step_index": records - 1,
        "final": True,
    }
    return found | changes


def sidecar(records: int, **changes: Any) -> dict[str, Any]:
    """The sidecar that agrees with :func:`footer`."""
    found = footer(records) | {
        "schema": 1,
        "wall_time_ns": 1_000_000_000_000,
        "flush_interval_s": 1.0,
    }
    del found["type"]
    return found | changes


def text(lines: Sequence[dict[str, Any]]) -> bytes:
    """The lines as JSONL bytes."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def write_stream(
    folder: Path,
    lines: Sequence[dict[str, Any]] | bytes,
    beside: dict[str, Any] | bytes | None,
) -> Path:
    """Write ``engine-0.jsonl`` and, unless null, its sidecar; return the stream's path."""
    path = folder / "engine-0.jsonl"
    path.write_bytes(lines if isinstance(lines, bytes) else text(lines))
    if beside is not None:
        data = beside if isinstance(beside, bytes) else json.dumps(beside).encode()
        (folder / "engine-0.jsonl.footer.json").write_bytes(data)
    return path


def columns(steps: Sequence[dict[str, Any]]) -> StepColumns:
    """Columns of plain step objects, without a file."""
    builder = ColumnBuilder(Path("engine-0.jsonl"))
    structs = []
    for plain in steps:
        fields = {name: value for name, value in plain.items() if name != "type"}
        if fields["graph"] is not None:
            fields["graph"] = Graph(**fields["graph"])
        structs.append(Step(**fields))
    builder.add(structs)
    return builder.finish()


def timed(spans: Sequence[tuple[int, int]]) -> StepColumns:
    """Columns of steps with the given submit and complete times in nanoseconds."""
    return columns(
        [
            step(index, submit_mono_ns=submit, complete_mono_ns=complete)
            for index, (submit, complete) in enumerate(spans)
        ]
    )


@st.composite
def async_spans(draw: st.DrawFn, max_steps: int = 30) -> list[tuple[int, int]]:
    """Submit and complete times as an asynchronous engine makes them.

    Steps complete in order; a step is submitted before its own completion and not before the
    previous submission, so several may be in flight.
    """
    count = draw(st.integers(0, max_steps))
    gaps = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    lead = draw(st.lists(st.integers(0, 120), min_size=count, max_size=count))
    spans: list[tuple[int, int]] = []
    complete = submit = 0
    for gap, early in zip(gaps, lead, strict=True):
        complete += gap
        submit = min(complete, max(submit, complete - early))
        spans.append((submit, complete))
    return spans
