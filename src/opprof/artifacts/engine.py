"""What an engine says of itself beside its Layer-1 stream: configuration, provenance, windows.

The files lie beside the stream. The contract's name is ``engine-config.json``; a data-parallel
engine with an index above 0 writes ``engine-<i>-config.json``.

Format history
    schema 1    engine-config.json; engine-<i>.profiler.ndjson.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Sha256
from opprof.artifacts.layer1 import Count, EngineConfig


class WorkerReport(Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker process really runs, read from its objects."""

    rank: Count
    device: str
    model_runner: str
    attention_backends: dict[str, Count]
    """Backend name to number of layers."""
    moe_backends: dict[str, Count]
    """Back end of the expert GEMMs to number of layers; empty for a dense model."""
    compile_cache_key: str | None
    """Folder name under which compiled artefacts are cached; null when nothing was compiled."""


class EngineProvenance(Struct, frozen=True, forbid_unknown_fields=True):
    """Which code recorded which engine."""

    opprof_version: str
    plugin_sha256: Sha256
    """Over the sources of ``opprof.engines`` and ``opprof.artifacts.layer1``, by sorted name."""
    engine_version: str
    tested: bool
    """False when an untested engine was explicitly allowed."""
    differences: list[str]
    hooked: dict[str, Sha256]
    """Hooked or relied-on definition of the engine to SHA-256 of its source text."""
    python: str
    torch: str | None


class EngineReport(Struct, frozen=True, forbid_unknown_fields=True):
    """``engine-config.json``: the effective configuration, from the engine's objects."""

    schema: Literal[1]
    engine: str
    engine_index: Count
    config: EngineConfig
    scheduler_class: str
    step_function: str
    batches_in_flight: Annotated[int, Meta(ge=1)]
    """Steps that may be in flight at once; 1 without asynchronous scheduling or pipelining."""
    max_model_len: Count
    long_prefill_token_threshold: Count
    kv_cache_blocks: Count
    kv_block_tokens: Count
    kv_cache_dtype: str
    pipeline_parallel_size: Annotated[int, Meta(ge=1)]
    data_parallel_size: Annotated[int, Meta(ge=1)]
    moe_backend_requested: str | None
    v2_model_runner: bool
    prefix_counters: bool
    """False when the engine hides its prefix counters (``--disable-log-stats``)."""
    shutdown_timeout_s: Count
    profiler_dir: str | None
    profiler_schedule: dict[str, Count]
    """``wait``, ``warmup`` and ``active`` iterations; empty without a torch profiler."""
    workers: list[WorkerReport]
    workers_error: str | None
    """Why the workers could not be asked; null when they were."""
    provenance: EngineProvenance
    simulated: bool = False
    """True for the embedded engine."""


class ProfilerEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of ``engine-<i>.profiler.ndjson``, written when a start or stop call returns."""

    schema: Literal[1]
    event: Literal["start", "stop"]
    window: Annotated[int, Meta(ge=-1)]
    """Counted from 0 by starts; -1 for a stop without a start."""
    call_mono_ns: list[Count]
    """CLOCK_MONOTONIC before and after the engine's own call."""
    traces: list[str]
    """Stop: names of the trace files that are new since the start."""
    expected_ranks: Count | None
    """Stop: ranks that should each have written one; null when the folder cannot be looked at."""
    fault: str | None
    """What went wrong, in words; null when nothing did."""
