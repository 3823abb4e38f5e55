"""``analysis/waste.json`` (contract, section 5; protocol, "Waste accounting").

Ratios of sums from clean steps only; ``CV_moe`` from the active steps.
"""

from __future__ import annotations

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock

SCHEMA = 1


class WasteByMode(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={
        "e_token_per_ms": "E_token_per_ms",
        "cv_moe": "CV_moe",
        "i_mix": "I_mix",
    },
):
    """Waste ratios over the clean steps of one graph mode; null with a reason."""

    steps: int
    padding_fraction: float | None
    padded_tokens_per_useful_token: float | None
    graph_miss_rate: float | None
    eligible_miss_rate: float | None
    overflow_rate: float | None
    bucket_slack: float | None
    e_token_per_ms: float | None
    cv_moe: float | None
    i_mix: float | None
    padded_tokens_hist: dict[str, int]
    """Distribution of bucket - unpadded (tokens, as text) over graph-hit steps."""
    not_available: dict[str, str]


class WasteCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """Numerators and denominators, so that every ratio can be recomputed and pooled."""

    executed_steps: int
    hit_steps: int
    miss_steps: int
    eligible_miss_steps: int
    overflow_steps: int
    bucket_tokens: int
    """Sum of b over graph-hit steps with b > 0."""
    unpadded_tokens: int
    """Sum of u over the same steps."""
    padded_tokens: int
    slack_tokens: int
    """Sum of b*(u) - u over executed steps with a bucket."""
    slack_bucket_tokens: int
    scheduled_tokens: int
    step_duration_ns: int
    invalid_graph_steps: int
    capture_sizes: int
    largest_capture_size: int | None


class Waste(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={
        "r32": "R32",
        "r64": "R64",
        "r128": "R128",
        "i_mix": "I_mix",
        "cv_moe": "CV_moe",
        "e_token_per_ms": "E_token_per_ms",
    },
):
    """The artefact."""

    schema: int
    run: RunIdentity
    padding_fraction: float | None
    padded_tokens_per_useful_token: float | None
    """Padded tokens of graph-hit steps over the useful (unpadded) tokens of the same steps."""
    graph_miss_rate: float | None
    eligible_miss_rate: float | None
    overflow_rate: float | None
    bucket_slack: float | None
    r32: float | None
    r64: float | None
    r128: float | None
    i_mix: float | None
    cv_moe: float | None
    e_token_per_ms: float | None
    padded_tokens_hist: dict[str, int]
    padded_tokens_per_scheduled_token: float | None
    """Padded tokens over all scheduled tokens of the clean union, graph misses included."""
    by_mode: dict[str, WasteByMode]
    not_available: dict[str, str]
    counts: WasteCounts | None
    cv_moe_by_rank: dict[str, list[float]]
    """Rank to the per-step coefficients of its active steps (in step order)."""
    gates: list[Gate]
    sanity: SanityBlock
    provenance: Provenance
