"""Waste ratios of the clean steps and of the active steps' MoE layers.

Every ratio is a ratio of sums, with its numerator and denominator in ``WasteCounts``. A figure that
cannot be computed is null with the reason beside it, never zero.

Source: protocol, "Waste accounting"; contract, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from opprof.artifacts.waste import WasteByMode, WasteCounts
from opprof.telemetry.columns import MODE_NAMES, StepColumns
from opprof.telemetry.series import NS_PER_MS

if TYPE_CHECKING:
    from opprof.telemetry.columns import Int64

I_MIX_REASON = (
    "needs every pattern of the same configuration and load point: computed by `opprof decide`"
)
NO_MANIFEST_REASON = "manifest.sha256 is absent or carries no raggedness"
NO_CAPTURE_REASON = "the stream's header lists no capture sizes"
NO_EXECUTED_REASON = "no clean step executed the model with valid graph information"
NO_HIT_REASON = "no graph-hit step with a bucket"


@dataclass(frozen=True, slots=True)
class WasteRatios:
    """The ratios that come from step records; null with a reason in ``not_available``."""

    counts: WasteCounts
    padding_fraction: float | None
    padded_tokens_per_useful_token: float | None
    padded_tokens_per_scheduled_token: float | None
    graph_miss_rate: float | None
    eligible_miss_rate: float | None
    overflow_rate: float | None
    bucket_slack: float | None
    e_token_per_ms: float | None
    padded_tokens_hist: dict[str, int]
    not_available: dict[str, str]


def step_waste(columns: StepColumns, rows: Int64, capture_sizes: Sequence[int]) -> WasteRatios:
    """Compute the ratios over ``rows`` (row numbers of clean steps, int64[n]).

    Steps without a model or with invalid graph information are left out; the latter are counted.

    ::

        padding_fraction   = sum(b - u) / sum(b)               graph hits with b > 0
        graph_miss_rate    = misses / executed
        eligible_miss_rate = misses with b*(u) / executed      b*(u) = min{b in B: b >= u}
        overflow_rate      = misses without b*(u) / executed
        bucket_slack       = sum(b*(u) - u) / sum(b*(u))       every executed step with b*(u)
        e_token_per_ms     = sum(prefill + decode tokens) / sum(step duration in ms)
    """
    counts = waste_counts(columns, rows, capture_sizes)
    missing: dict[str, str] = {}
    executed, slack_bucket = counts.executed_steps, counts.slack_bucket_tokens
    no_steps = NO_EXECUTED_REASON if not executed else None
    no_hits = no_steps or (NO_HIT_REASON if not counts.bucket_tokens else None)
    no_sizes = no_steps or (NO_CAPTURE_REASON if not counts.capture_sizes else None)
    no_slack = no_sizes or ("no executed step fits a captured bucket" if not slack_bucket else None)
    no_time = no_steps or ("the steps have no duration" if counts.step_duration_ns <= 0 else None)
    no_tokens = no_steps or ("no tokens were scheduled" if not counts.scheduled_tokens else None)
    no_useful = no_hits or ("graph hits carry no token" if not counts.unpadded_tokens else None)

    def ratio(name: str, top: int, bottom: int, reason: str | None) -> float | None:
        if reason is not None:
            missing[name] = reason
            return None
        return top / bottom

    padded = counts.padded_tokens
    return WasteRatios(
        counts=counts,
        padding_fraction=ratio("padding_fraction", padded, counts.bucket_tokens, no_hits),
        padded_tokens_per_useful_token=ratio(
            "padded_tokens_per_useful_token", padded, counts.unpadded_tokens, no_useful
        ),
        padded_tokens_per_scheduled_token=ratio(
            "padded_tokens_per_scheduled_token", padded, counts.scheduled_tokens, no_tokens
        ),
        graph_miss_rate=ratio("graph_miss_rate", counts.miss_steps, executed, no_steps),
        eligible_miss_rate=ratio(
            "eligible_miss_rate", counts.eligible_miss_steps, executed, no_sizes
        ),
        overflow_rate=ratio("overflow_rate", counts.overflow_steps, executed, no_sizes),
        bucket_slack=ratio("bucket_slack", counts.slack_tokens, slack_bucket, no_slack),
        e_token_per_ms=ratio(
            "E_token_per_ms",
            counts.scheduled_tokens * NS_PER_MS,
            counts.step_duration_ns,
            no_time,
        ),
        padded_tokens_hist=padded_histogram(columns, rows),
        not_available=missing,
    )


def waste_counts(columns: StepColumns, rows: Int64, capture_sizes: Sequence[int]) -> WasteCounts:
    """Numerators and denominators of :func:`step_waste`."""
    import numpy as np

    used = rows[columns.counted[rows]]
    unpadded = columns.unpadded_tokens[used]
    hit = columns.hit[used]
    hits = _hit_rows(columns, rows)
    bucket_tokens = int(columns.bucket_tokens[hits].sum())
    unpadded_tokens = int(columns.unpadded_tokens[hits].sum())
    sizes = np.unique(np.asarray(capture_sizes, dtype=np.int64))
    smallest = np.searchsorted(sizes, unpadded)
    exists = smallest < len(sizes)
    best = sizes[smallest[exists]]
    return WasteCounts(
        executed_steps=len(used),
        hit_steps=len(hits),
        miss_steps=int((~hit).sum()),
        eligible_miss_steps=int((~hit & exists).sum()) if len(sizes) else 0,
        overflow_steps=int((~hit & ~exists).sum()) if len(sizes) else 0,
        bucket_tokens=bucket_tokens,
        unpadded_tokens=unpadded_tokens,
        padded_tokens=bucket_tokens - unpadded_tokens,
        slack_tokens=int((best - unpadded[exists]).sum()),
        slack_bucket_tokens=int(best.sum()),
        scheduled_tokens=int(columns.scheduled_tokens[used].sum()),
        step_duration_ns=int(columns.duration_ns[used].sum()),
        invalid_graph_steps=int((~columns.graph_valid[rows]).sum()),
        capture_sizes=len(sizes),
        largest_capture_size=int(sizes[-1]) if len(sizes) else None,
    )


def padded_histogram(columns: StepColumns, rows: Int64) -> dict[str, int]:
    """Count graph-hit steps by ``bucket - unpadded`` tokens, smallest first."""
    import numpy as np

    hits = _hit_rows(columns, rows)
    values, counts = np.unique(
        columns.bucket_tokens[hits] - columns.unpadded_tokens[hits], return_counts=True
    )
    return {str(value): n for value, n in zip(values.tolist(), counts.tolist(), strict=True)}


def _hit_rows(columns: StepColumns, rows: Int64) -> Int64:
    """Graph-hit steps with a positive bucket among the steps that count."""
    used = rows[columns.counted[rows]]
    hits: Int64 = used[columns.hit[used] & (columns.bucket_tokens[used] > 0)]
    return hits


def waste_by_mode(
    columns: StepColumns,
    rows: Int64,
    capture_sizes: Sequence[int],
    moe: MoeVariation,
) -> dict[str, WasteByMode]:
    """The same ratios over the steps of each graph mode; all three modes are listed."""
    found = {}
    for code, name in enumerate(MODE_NAMES):
        of_mode = rows[(columns.mode[rows] == code) & columns.counted[rows]]
        ratios = step_waste(columns, of_mode, capture_sizes)
        missing = dict(ratios.not_available, I_mix=I_MIX_REASON)
        missing.pop("padded_tokens_per_scheduled_token", None)
        if not ratios.counts.executed_steps:
            missing = dict.fromkeys(missing, f"no clean step ran in mode {name}")
        cv = moe.by_mode.get(name)
        if cv is None:
            missing["CV_moe"] = moe.mode_reasons.get(name) or (
                f"no active step of an accepted window ran in mode {name}"
                if moe.judged
                else moe.reason or NO_EXECUTED_REASON
            )
        found[name] = WasteByMode(
            steps=ratios.counts.executed_steps,
            padding_fraction=ratios.padding_fraction,
            padded_tokens_per_useful_token=ratios.padded_tokens_per_useful_token,
            graph_miss_rate=ratios.graph_miss_rate,
            eligible_miss_rate=ratios.eligible_miss_rate,
            overflow_rate=ratios.overflow_rate,
            bucket_slack=ratios.bucket_slack,
            e_token_per_ms=ratios.e_token_per_ms,
            cv_moe=cv,
            i_mix=None,
            padded_tokens_hist=ratios.padded_tokens_hist,
            not_available=missing,
        )
    return found


def raggedness(
    from_manifest: Mapping[str, float | None] | None, cohorts: Sequence[int]
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return ``R_k`` by name (``R32`` …) and the reason of each that is null.

    ``from_manifest`` is ``ManifestSummary.raggedness``, keyed by cohort size with or without ``R``.
    """
    values: dict[str, float | None] = {}
    missing: dict[str, str] = {}
    for cohort in cohorts:
        name = f"R{cohort}"
        values[name] = None
        if from_manifest is None:
            missing[name] = NO_MANIFEST_REASON
            continue
        value = from_manifest.get(name, from_manifest.get(str(cohort)))
        if value is None:
            missing[name] = f"the manifest has no complete cohort of {cohort} requests"
        values[name] = value
    return values, missing


@dataclass(frozen=True, slots=True)
class MoeStep:
    """MoE GEMM kernel time of one active step on one rank."""

    rank: int
    mode: str | None
    layer_ns: tuple[int, ...]
    """Nanoseconds of each layer scope that carried MoE GEMM time."""
    unscoped_ns: int
    """MoE GEMM nanoseconds below no layer scope."""


@dataclass(frozen=True, slots=True)
class MoeVariation:
    """``CV_moe`` of a load point: mean over ranks of the mean over active steps."""

    cv: float | None
    reason: str | None
    """Why ``cv`` is null."""
    by_rank: dict[str, list[float]]
    """Rank to the coefficient of each of its active steps with layers, in the order given."""
    by_mode: dict[str, float]
    scope_share: float | None
    """Smallest share, over ranks, of MoE GEMM time below a layer scope; null without such time."""
    mode_reasons: dict[str, str] = field(default_factory=dict)
    """Why a mode that active steps ran in has no value in ``by_mode``: its own reason."""
    judged: bool = False
    """The rule was applied to active steps; False where there was no step or no protocol."""


def layer_variation(layer_ns: Sequence[int], *, ddof: int) -> float | None:
    """``CV_moe = sd(duration_l) / mean(duration_l)`` over the layers of one active step.

    ``ddof`` is the standard deviation's (0: the layers are the whole population). Null for fewer
    than two layers or without any time. Source: protocol, "MoE/ragged proxy".
    """
    count = len(layer_ns)
    total = sum(layer_ns)
    if count < 2 or total <= 0:
        return None
    # count * sum(x^2) - sum(x)^2 is an exact integer, so equal layers give exactly zero.
    spread = count * sum(ns * ns for ns in layer_ns) - total * total
    return math.sqrt(spread / (count * (count - ddof))) * count / total


def moe_variation(steps: Sequence[MoeStep], *, scope_share_min: float, ddof: int) -> MoeVariation:
    """``CV_moe`` over the load point's active steps, rank by rank; never over summed ranks.

    It exists only where layer scopes cover at least ``scope_share_min`` of the MoE GEMM time of the
    active steps on every rank (protocol: 80 %). Each graph mode is judged by the coverage of its
    own steps: replays have no scopes, so that a run's coverage says nothing about one mode.
    """
    if not steps:
        return MoeVariation(None, "no active step of an accepted window", {}, {}, None)
    found = _variation(steps, "", scope_share_min, ddof)
    by_mode: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for mode in sorted({step.mode for step in steps if step.mode is not None}):
        own = [step for step in steps if step.mode == mode]
        value = _variation(own, f" of mode {mode}", scope_share_min, ddof)
        if value.cv is not None:
            by_mode[mode] = value.cv
        elif value.reason is not None:
            reasons[mode] = value.reason
    return replace(found, by_mode=by_mode, mode_reasons=reasons, judged=True)


def _variation(
    steps: Sequence[MoeStep], which: str, scope_share_min: float, ddof: int
) -> MoeVariation:
    """Apply the rule to some steps; ``which`` names them in the reason."""
    shares: list[float] = []
    for rank in sorted({step.rank for step in steps}):
        scoped = sum(sum(step.layer_ns) for step in steps if step.rank == rank)
        total = scoped + sum(step.unscoped_ns for step in steps if step.rank == rank)
        if total > 0:
            shares.append(scoped / total)
    if not shares:
        return MoeVariation(None, f"the active steps{which} have no MoE GEMM time", {}, {}, None)
    share = min(shares)
    if share < scope_share_min:
        cover = f"layer scopes cover {share:.1%} of the MoE GEMM time of the active steps{which}"
        return MoeVariation(None, f"{cover}, below {scope_share_min:.0%}", {}, {}, share)
    by_rank: dict[str, list[float]] = {}
    for step in steps:
        value = layer_variation(step.layer_ns, ddof=ddof)
        if value is not None:
            by_rank.setdefault(str(step.rank), []).append(value)
    if not by_rank:
        return MoeVariation(None, f"no active step{which} has two MoE layers", {}, {}, share)
    return MoeVariation(_mean_of_means(list(by_rank.values())), None, by_rank, {}, share)


def _mean_of_means(groups: Sequence[Sequence[float]]) -> float:
    return math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)
