"""Layer 1: one JSON line per engine step (contract, section 2; protocol, "Layer 1: always on").

Format history
    schema 1    header, step lines, footer; sidecar ``<stream>.footer.json`` (A-P3-5).

All times are integer nanoseconds of CLOCK_MONOTONIC unless the name says ``wall``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]
"""A non-negative integer."""

GraphMode = Literal["FULL", "PIECEWISE", "NONE"]
GRAPH_MODES: tuple[GraphMode, ...] = ("FULL", "PIECEWISE", "NONE")


class EngineConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's effective configuration, as its objects had it (never as the log printed it)."""

    model: str
    dtype: str
    tensor_parallel_size: Annotated[int, Meta(ge=1)]
    max_num_seqs: Annotated[int, Meta(ge=1)]
    max_num_batched_tokens: Annotated[int, Meta(ge=1)]
    chunked_prefill: bool
    prefix_caching: bool
    async_scheduling: bool
    cudagraph_mode: str
    cudagraph_capture_sizes: list[Annotated[int, Meta(ge=1)]]
    """Captured bucket sizes in tokens, any order; empty when nothing was captured."""
    attention_backend: str | None
    moe_backend: str | None


class Header(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="header"):
    """Line 1 of a stream."""

    schema: Literal[1]
    engine: str
    engine_version: str
    flush_interval_s: Annotated[float, Meta(gt=0)]
    config: EngineConfig
    untested: list[str] = []
    """What differs from the tested engine when an untested version was explicitly allowed."""
    simulated: bool = False
    """True when the embedded engine wrote the stream: no measurement, whatever it looks like."""


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA-graph dispatch of one executed step."""

    mode: str | None
    """FULL, PIECEWISE or NONE; anything else is kept, and invalidates the step (never the file)."""
    hit: bool
    unpadded_tokens: Count
    bucket_tokens: Count
    """Tokens of the captured bucket; 0 for NONE."""


class Step(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="step"):
    """One engine step: one ``schedule()``, one execution, one ``update_from_output()``."""

    step: Count
    """Unique and contiguous from 0."""
    submit_mono_ns: Count
    complete_mono_ns: Count
    model_executed: bool
    """False for an empty schedule: counted, and part of no efficiency."""
    scheduled_requests: Count
    prefill_requests: Count
    """Requests without an output token yet, as vLLM's own annotation splits them."""
    prefill_tokens: Count
    decode_requests: Count
    decode_tokens: Count
    prefill_chunks: list[Count]
    """Tokens of each prefill chunk; sums to ``prefill_tokens``."""
    context_len_hist: dict[str, Count] | None
    """Upper bound (a power of two, as text; "1" holds 0 and 1) to count; null where not known."""
    context_len_sum: Count
    context_len_max: Count
    waiting: Count
    running: Count
    deferred: Count
    preemptions: Count
    kv_usage: Annotated[float, Meta(ge=0, le=1)]
    """Fraction of KV blocks in use, 0..1."""
    prefix_queries: Count | None
    """Prompt tokens looked up in the prefix cache by this step; null where the engine hid them."""
    prefix_hits: Count | None
    graph: Graph | None
    """null when nothing ran."""
    resumed_requests: Count = 0
    """Preempted requests that this step resumed."""
    recomputed_tokens: Count = 0
    """Scheduled tokens that had been computed before a preemption."""
    profiled: bool = False
    """True when the step's span touches a profiler window (before the start call to after the stop
    call): such steps are slowed by profiling, or by the trace being saved."""


class Footer(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="footer"):
    """Last line of a cleanly closed stream; records are step lines."""

    encoded_records: Count
    written_records: Count
    dropped_records: Count
    last_step_index: Annotated[int, Meta(ge=-1)]
    """-1 when no step was written."""
    final: bool
    reason: str | None = None
    """Why the recording ended early; null at a clean close."""
    open_steps: Count = 0
    """Steps submitted and not completed when the stream was closed."""
    pauses: Count = 0
    """Times that recording was switched off at run time; steps meanwhile are not in the stream."""


Line = Header | Step | Footer


class Sidecar(Struct, frozen=True, forbid_unknown_fields=True):
    """``<stream>.footer.json``, atomically replaced at every flush (A-P3-5)."""

    schema: Literal[1]
    encoded_records: Count
    written_records: Count
    dropped_records: Count
    last_step_index: Annotated[int, Meta(ge=-1)]
    wall_time_ns: Count
    flush_interval_s: Annotated[float, Meta(gt=0)]
    final: bool
    mono_time_ns: Count | None = None
    """CLOCK_MONOTONIC at the same moment as ``wall_time_ns``: ties the two clocks."""
    reason: str | None = None
    open_steps: Count = 0
    pauses: Count = 0
    engine_gone: bool = False
    """True when the engine died without closing (a hard kill) and its writer, which outlived it,
    drained what it had published. No fault of the recording: ``reason`` stays null."""
