"""``analysis/layer1.json``: stream accounting, composition and end-to-end metrics of one run.

Sources: protocol, "End-to-end and composition metrics", "Layer 1"; contract, section 2.
All ratios are ratios of sums. Times are milliseconds or seconds where the name says so.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, Series

SCHEMA = 1


class StreamAccounting(Struct, frozen=True, forbid_unknown_fields=True):
    """What the stream, its footer and its sidecar say of completeness (A-P3-5)."""

    stream: str
    step_lines: int
    first_step: int | None
    last_step: int | None
    footer_in_stream: bool
    encoded_records: int | None
    written_records: int | None
    dropped_records: int | None
    sidecar_final: bool | None
    checkpoint_wall_ns: int | None
    signal_wall_ns: int | None
    """When the engine was told to end, on the clock of ``checkpoint_wall_ns``; null when that was
    not recorded."""
    checkpoint_age_ms: float | None
    flush_interval_s: float | None
    valid: bool
    reasons: list[str]
    """Each cause of invalidity with its own stable code, e.g. ``gap: ...``."""
    tolerance_used_ms: float | None = None
    """How much of the timestamp tolerance the checkpoint's age needed (A-P3-5: reported apart)."""
    open_steps: int | None = None
    """Steps submitted and not completed at the close, by footer or sidecar."""


class Composition(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of one interval (or the clean union) and their work."""

    kind: str
    """``clean``, ``clean_union``, ``profile``, ``recovery``, ``warmup`` or ``drain``."""
    index: int
    start_mono_ns: int
    end_mono_ns: int
    seconds: float
    steps: int
    """Steps whose span lies inside and that count: model executed, graph mode valid."""
    steps_no_model: int
    steps_border: int
    """Steps whose span crosses a border of the interval; part of no summary of it."""
    steps_invalid_graph: int
    scheduled_tokens: int
    prefill_tokens: int
    decode_tokens: int
    scheduled_requests: int
    tokens_per_step: Series
    requests_per_step: Series
    prefill_tokens_per_step: Series
    decode_tokens_per_step: Series
    prefill_batch: Series
    """Prefill requests per step."""
    decode_batch: Series
    """Decode requests per step."""
    prefill_chunk_hist: dict[str, int]
    """Upper bound (power of two) of the chunk's tokens to count."""
    context_len_hist: dict[str, int] | None
    context_len_hist_missing: int
    """Steps whose histogram is null."""
    context_len_mean: float | None
    context_len_max: int | None
    waiting: Series
    running: Series
    deferred: Series
    preemptions: int
    kv_usage: Series
    prefix_queries: int | None
    prefix_hits: int | None
    prefix_hit_ratio: float | None
    """hits / queries; null without queries."""
    mode_steps: dict[str, int]
    mode_shares: dict[str, float]
    """FULL, PIECEWISE, NONE as shares of executed valid steps."""
    mode_time_shares: dict[str, float]
    step_duration_ms: Series
    step_duration_ms_by_mode: dict[str, Series]
    step_latency_ms: Series
    """complete - submit, kept beside the duration; enters no efficiency."""
    step_duration_sum_ms: float
    e_token_per_ms: float | None
    """(prefill + decode tokens) / sum of step durations in ms."""
    resumed_requests: int = 0
    recomputed_tokens: int = 0
    step_duration_ms_among_like: dict[str, Series] = {}
    """By graph mode, of the steps whose neighbours in the stream, before and after, ran in the same
    mode. With async scheduling the launch of a step holds back the completion of the one before,
    which then counts that time; only among its like does a step give and take alike. Empty in
    artefacts of before this field."""


class LatencySummary(Struct, frozen=True, forbid_unknown_fields=True):
    """TTFT, TPOT and end-to-end latency in milliseconds from one starting point."""

    ttft_ms: Series
    tpot_ms: Series
    latency_ms: Series


class EndToEnd(Struct, frozen=True, forbid_unknown_fields=True):
    """Client-side metrics of one clean segment or the union (stationary-window rule)."""

    kind: str
    index: int
    seconds: float
    completed: int
    """Requests whose completion lies inside, whenever they were admitted."""
    failed: int
    """Requests with a wrong status, a cut answer or a wrong output count that ended inside."""
    admitted: int
    scheduled: int
    completed_rps: float
    admitted_rps: float
    """Achieved offered rate: admissions inside, by admission time."""
    scheduled_rps: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    from_scheduled: LatencySummary
    from_admitted: LatencySummary
    client_lag_ms: Series
    """admitted - scheduled."""


class Layer1Summary(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact."""

    schema: int
    run: RunIdentity
    engine: str
    engine_version: str
    engine_config: dict[str, Any]
    accounting: StreamAccounting
    clean_union: Composition | None
    segments: list[Composition]
    profile: list[Composition]
    recovery: list[Composition]
    warmup: list[Composition]
    end_to_end: EndToEnd | None
    """Of the clean union."""
    end_to_end_segments: list[EndToEnd]
    gates: list[Gate]
    sanity: SanityBlock
    provenance: Provenance
