"""What the steps of one interval were made of: work, batches, queues, cache, modes, durations.

Source: protocol, "Layer 1: always on" and "End-to-end and composition metrics". Ratios are ratios
of sums. Only steps that executed the model with valid graph information count; those without a
model and those with faulty graph information are counted apart and enter nothing else, except that
preemptions and prefix-cache counters include the steps without a model: they count events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opprof.artifacts.common import Series
from opprof.artifacts.composition import Composition
from opprof.telemetry.columns import MODE_NAMES, NULL_COUNT, StepColumns
from opprof.telemetry.membership import Members
from opprof.telemetry.series import NS_PER_MS, NS_PER_S, series

if TYPE_CHECKING:
    from opprof.telemetry.columns import Bool, Int64

_PER_STEP = {
    "requests_per_step": "scheduled_requests",
    "prefill_tokens_per_step": "prefill_tokens",
    "decode_tokens_per_step": "decode_tokens",
    "prefill_batch": "prefill_requests",
    "decode_batch": "decode_requests",
    "waiting": "waiting",
    "running": "running",
    "deferred": "deferred",
    "kv_usage": "kv_usage",
}
"""Series of the composition to the column it summarises."""


def compose(
    columns: StepColumns,
    found: Members,
    *,
    kind: str,
    index: int,
    start_mono_ns: int,
    end_mono_ns: int,
    seconds: float | None = None,
) -> Composition:
    """Summarise the steps of one interval.

    ``seconds`` is given for a union with gaps, where it is less than ``end - start``.
    """
    rows = found.rows
    counted = rows[columns.counted[rows]]
    events = rows[columns.counted[rows] | ~columns.model_executed[rows]]
    tokens = columns.scheduled_tokens[counted]
    duration = columns.duration_ns[counted]
    duration_ns = int(duration.sum())
    fields: dict[str, Any] = {
        name: series(getattr(columns, column)[counted]) for name, column in _PER_STEP.items()
    }
    return Composition(
        kind=kind,
        index=index,
        start_mono_ns=start_mono_ns,
        end_mono_ns=end_mono_ns,
        seconds=(end_mono_ns - start_mono_ns) / NS_PER_S if seconds is None else seconds,
        steps=len(counted),
        steps_no_model=int((~columns.model_executed[rows] & columns.graph_valid[rows]).sum()),
        steps_border=len(found.border_rows),
        steps_invalid_graph=int((~columns.graph_valid[rows]).sum()),
        scheduled_tokens=int(tokens.sum()),
        prefill_tokens=_total(columns.prefill_tokens, counted),
        decode_tokens=_total(columns.decode_tokens, counted),
        scheduled_requests=_total(columns.scheduled_requests, counted),
        tokens_per_step=series(tokens),
        prefill_chunk_hist=chunk_histogram(columns, counted),
        preemptions=_total(columns.preemptions, events),
        step_duration_ms=series(duration, NS_PER_MS),
        step_latency_ms=series(columns.latency_ns[counted], NS_PER_MS),
        step_duration_sum_ms=duration_ns / NS_PER_MS,
        e_token_per_ms=int(tokens.sum()) * NS_PER_MS / duration_ns if duration_ns > 0 else None,
        resumed_requests=_total(columns.resumed_requests, counted),
        recomputed_tokens=_total(columns.recomputed_tokens, counted),
        **_context(columns, counted),
        **_prefix(columns, events),
        **_modes(columns, counted),
        **fields,
    )


def _total(values: Int64, rows: Int64) -> int:
    return int(values[rows].sum())


def _modes(columns: StepColumns, rows: Int64) -> dict[str, Any]:
    """Steps, shares of steps, shares of time and durations by graph mode; zero modes included."""
    modes = columns.mode[rows]
    durations = columns.duration_ns[rows]
    among_like = _among_like(columns, rows)
    like: dict[str, Series] = {}
    total_ns = int(durations.sum())
    steps: dict[str, int] = {}
    time_shares: dict[str, float] = {}
    by_mode: dict[str, Series] = {}
    for code, name in enumerate(MODE_NAMES):
        of_mode = durations[modes == code]
        steps[name] = len(of_mode)
        if total_ns > 0:
            time_shares[name] = int(of_mode.sum()) / total_ns
        by_mode[name] = series(of_mode, NS_PER_MS)
        like[name] = series(durations[(modes == code) & among_like], NS_PER_MS)
    return {
        "mode_steps": steps,
        "mode_shares": {name: n / len(rows) for name, n in steps.items()} if len(rows) else {},
        "mode_time_shares": time_shares,
        "step_duration_ms_by_mode": by_mode,
        "step_duration_ms_among_like": like,
    }


def _among_like(columns: StepColumns, rows: Int64) -> Bool:
    """Tell for each row whether the steps just before and after it ran in its graph mode."""
    import numpy as np

    pairs = (columns.mode[1:] == columns.mode[:-1]) & (np.diff(columns.step) == 1)
    edged = np.concatenate(([False], pairs, [False]))
    return (edged[:-1] & edged[1:])[rows]


def _prefix(columns: StepColumns, rows: Int64) -> dict[str, Any]:
    """Prefix-cache counters; null as soon as one step hid them, since a sum would be too small."""
    queries, hits = columns.prefix_queries[rows], columns.prefix_hits[rows]
    known = not bool((queries == NULL_COUNT).any() or (hits == NULL_COUNT).any())
    query_tokens = int(queries.sum()) if known else None
    hit_tokens = int(hits.sum()) if known else None
    ratio = hit_tokens / query_tokens if query_tokens and hit_tokens is not None else None
    return {
        "prefix_queries": query_tokens,
        "prefix_hits": hit_tokens,
        "prefix_hit_ratio": ratio,
    }


def _context(columns: StepColumns, rows: Int64) -> dict[str, Any]:
    requests = _total(columns.scheduled_requests, rows)
    missing = int(columns.context_missing[rows].sum())
    return {
        "context_len_hist": None if missing and missing == len(rows) else _contexts(columns, rows),
        "context_len_hist_missing": missing,
        "context_len_mean": _total(columns.context_len_sum, rows) / requests if requests else None,
        "context_len_max": int(columns.context_len_max[rows].max()) if len(rows) else None,
    }


def _contexts(columns: StepColumns, rows: Int64) -> dict[str, int]:
    import numpy as np

    where = _flat_positions(columns.context_count.offsets, rows)
    bounds = columns.context_bound_log2.values[where]
    counts = columns.context_count.values[where]
    present = np.flatnonzero(np.bincount(bounds)) if len(bounds) else bounds
    # Integer sums; the weights of bincount would be floats.
    return {str(1 << power): int(counts[bounds == power].sum()) for power in present.tolist()}


def chunk_histogram(columns: StepColumns, rows: Int64) -> dict[str, int]:
    """Count prefill chunks by the smallest power of two that holds them; "1" holds 0 and 1."""
    import numpy as np

    values = columns.chunks.values[_flat_positions(columns.chunks.offsets, rows)]
    powers = np.array([1 << power for power in range(48)], np.int64)
    counts = np.bincount(np.searchsorted(powers, values), minlength=len(powers))
    return {str(1 << power): int(n) for power, n in enumerate(counts.tolist()) if n}


def _flat_positions(offsets: Int64, rows: Int64) -> Int64:
    """Positions in a ragged column's flat values of everything that the rows hold."""
    import numpy as np

    lengths = offsets[rows + 1] - offsets[rows]
    ends = np.cumsum(lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    positions: Int64 = np.repeat(offsets[rows], lengths) + within
    return positions
