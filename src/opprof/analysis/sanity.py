"""The data sanity block: numeric families with their counts and bounds, and red flags.

A red flag says that data contradict themselves; it is reported first and stops what would build on
them. Source: protocol, "Data sanity block contract".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opprof.analysis.waste import WasteRatios
from opprof.artifacts.common import SanityFamily
from opprof.artifacts.composition import Composition, EndToEnd, StreamAccounting
from opprof.rules.sanity import family
from opprof.telemetry.columns import NULL_COUNT, StepColumns
from opprof.telemetry.requests import ABSENT, RequestColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opprof.telemetry.columns import Bool, Int64

_STEP_FAMILIES = {
    "step_duration_ns": ("duration_ns", "ns"),
    "step_latency_ns": ("latency_ns", "ns"),
    "scheduled_requests": ("scheduled_requests", "requests"),
    "prefill_tokens": ("prefill_tokens", "tokens"),
    "decode_tokens": ("decode_tokens", "tokens"),
    "prefill_requests": ("prefill_requests", "requests"),
    "decode_requests": ("decode_requests", "requests"),
    "context_len_sum": ("context_len_sum", "tokens"),
    "context_len_max": ("context_len_max", "tokens"),
    "waiting": ("waiting", "requests"),
    "running": ("running", "requests"),
    "deferred": ("deferred", "requests"),
    "preemptions": ("preemptions", "requests"),
    "kv_usage": ("kv_usage", "ratio"),
    "unpadded_tokens": ("unpadded_tokens", "tokens"),
    "bucket_tokens": ("bucket_tokens", "tokens"),
}
"""Family to column and unit."""


def column_family(
    name: str,
    values: NDArray[Any],
    *,
    unit: str = "",
    missing: Bool | None = None,
    expected_constant: bool = False,
) -> SanityFamily:
    """Summarise a column as :func:`opprof.rules.sanity.family` does a list.

    ``values`` are numbers [n] in ``unit``; where the mask ``missing`` (bool[n]) is set, none is.
    """
    import numpy as np

    known = values if missing is None else values[~missing]
    finite = known[np.isfinite(known)]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (None, None)
    return SanityFamily(
        name=name,
        n=len(values),
        finite=len(finite),
        missing=len(values) - len(known),
        min=low,
        max=high,
        distinct=len(np.unique(finite)),
        unit=unit,
        expected_constant=expected_constant,
    )


def step_families(columns: StepColumns, rows: Int64, *, prefix: str = "") -> list[SanityFamily]:
    """The families of step records among ``rows`` (int64[n]), prefix counters included."""
    found = [
        column_family(prefix + name, getattr(columns, column)[rows], unit=unit)
        for name, (column, unit) in _STEP_FAMILIES.items()
    ]
    for name in ("prefix_queries", "prefix_hits"):
        values = getattr(columns, name)[rows]
        missing = values == NULL_COUNT
        found.append(column_family(prefix + name, values, unit="tokens", missing=missing))
    return found


def step_flags(columns: StepColumns, capture_sizes: Sequence[int]) -> list[str]:
    """Contradictions inside step records of the whole stream."""
    import numpy as np

    chunk_sums = np.zeros(len(columns) + 1, np.int64)
    totals = np.concatenate(([0], np.cumsum(columns.chunks.values)))
    chunk_sums = totals[columns.chunks.offsets]
    hits_known = (columns.prefix_hits != NULL_COUNT) & (columns.prefix_queries != NULL_COUNT)
    graphed = columns.hit & (columns.bucket_tokens > 0)
    largest = max(capture_sizes, default=0)
    checks: dict[str, tuple[Bool, str]] = {
        "negative_duration": (
            columns.duration_ns < 0,
            "complete before an earlier step completed or before their submission",
        ),
        "complete_before_submit": (columns.latency_ns < 0, "complete before they were submitted"),
        "bucket_below_unpadded": (
            graphed & (columns.bucket_tokens < columns.unpadded_tokens),
            "have a bucket below their unpadded tokens",
        ),
        "bucket_over_capture": (
            graphed & (columns.bucket_tokens > largest) if largest else np.zeros_like(graphed),
            "hit a bucket over the largest captured size",
        ),
        "chunk_sum": (
            np.diff(chunk_sums) != columns.prefill_tokens,
            "have prefill chunks that do not sum to their prefill tokens",
        ),
        "request_sum": (
            columns.prefill_requests + columns.decode_requests != columns.scheduled_requests,
            "have prefill and decode requests that do not sum to their scheduled requests",
        ),
        "hits_over_queries": (
            hits_known & (columns.prefix_hits > columns.prefix_queries),
            "hit more prefix tokens than they queried",
        ),
    }
    flags = []
    for code, (mask, text) in checks.items():
        if mask.any():
            first = int(columns.step[int(np.argmax(mask))])
            flags.append(f"{code}: {int(mask.sum())} steps {text}; the first is step {first}")
    return flags


def accounting_flags(accounting: StreamAccounting) -> list[str]:
    """Missing footers, drops and discontinuous steps are red flags under their own codes."""
    return [f"layer1_{reason}" for reason in accounting.reasons]


def request_families(requests: RequestColumns, *, prefix: str = "") -> list[SanityFamily]:
    """The families of request records: times between events, token counts, status."""
    import numpy as np

    def between(name: str, later: Int64, earlier: Int64) -> SanityFamily:
        unknown = (later == ABSENT) | (earlier == ABSENT)
        span = later - earlier
        return column_family(prefix + name, span, unit="ns", missing=np.asarray(unknown))

    counts = [
        column_family(
            prefix + name,
            getattr(requests, name),
            unit=unit,
            missing=np.asarray(getattr(requests, name) == ABSENT),
            expected_constant=constant,
        )
        for name, unit, constant in (
            ("prompt_tokens", "tokens", False),
            ("requested_output_tokens", "tokens", True),
            ("output_tokens", "tokens", True),
            ("http_status", "status", True),
        )
    ]
    return [
        between("client_lag_ns", requests.admitted_mono_ns, requests.scheduled_mono_ns),
        between("ttft_ns", requests.first_token_mono_ns, requests.admitted_mono_ns),
        between("latency_ns", requests.completed_mono_ns, requests.admitted_mono_ns),
        *counts,
    ]


def request_flags(requests: RequestColumns) -> list[str]:
    """Contradictions inside request records."""
    flags = [f"requests_{reason}" for reason in requests.reasons()]
    disorder = requests.disorder()
    if disorder:
        flags.append(f"request_disorder: {disorder} requests have times that go backwards")
    return flags


def composition_families(found: Composition) -> list[SanityFamily]:
    """Ratios and totals of one composition, named by its kind and index."""
    name = f"{found.kind}{found.index}."
    return [
        family(name + "mode_shares", list(found.mode_shares.values()), unit="ratio"),
        family(name + "mode_time_shares", list(found.mode_time_shares.values()), unit="ratio"),
        family(name + "prefix_hit_ratio", [found.prefix_hit_ratio], unit="ratio"),
        family(name + "e_token_per_ms", [found.e_token_per_ms], unit="tokens/ms"),
        family(
            name + "step_counts",
            [found.steps, found.steps_no_model, found.steps_border, found.steps_invalid_graph],
            unit="steps",
        ),
    ]


def end_to_end_families(found: EndToEnd) -> list[SanityFamily]:
    """Rates and counts of one end-to-end summary, named by its kind and index."""
    name = f"{found.kind}{found.index}."
    return [
        family(
            name + "rates_rps",
            [found.completed_rps, found.admitted_rps, found.scheduled_rps],
            unit="requests/s",
        ),
        family(
            name + "tokens_per_s",
            [found.input_tokens_per_s, found.output_tokens_per_s, found.total_tokens_per_s],
            unit="tokens/s",
        ),
        family(name + "request_counts", [found.completed, found.failed], unit="requests"),
    ]


def waste_families(found: WasteRatios, *, prefix: str = "") -> list[SanityFamily]:
    """Waste ratios (each within [0, 1]), the unbounded quotients and the counts behind them."""
    counts = found.counts
    bounded = {
        "padding_fraction": found.padding_fraction,
        "graph_miss_rate": found.graph_miss_rate,
        "eligible_miss_rate": found.eligible_miss_rate,
        "overflow_rate": found.overflow_rate,
        "bucket_slack": found.bucket_slack,
    }
    padded = [found.padded_tokens_per_useful_token, found.padded_tokens_per_scheduled_token]
    return [
        *(family(prefix + name, [value], unit="ratio") for name, value in bounded.items()),
        family(prefix + "padded_tokens_per_token", padded, unit="tokens/token"),
        family(prefix + "E_token_per_ms", [found.e_token_per_ms], unit="tokens/ms"),
        family(
            prefix + "step_counts",
            [
                counts.executed_steps,
                counts.hit_steps,
                counts.miss_steps,
                counts.eligible_miss_steps,
                counts.overflow_steps,
                counts.invalid_graph_steps,
            ],
            unit="steps",
        ),
        family(
            prefix + "token_counts",
            [counts.bucket_tokens, counts.unpadded_tokens, counts.padded_tokens],
            unit="tokens",
        ),
        family(prefix + "step_duration_ns", [counts.step_duration_ns], unit="ns"),
    ]
