"""Metrics as ratios of sums: which column of a clean series goes over which."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """``numerator / denominator`` over the bins' sums; both are column names."""

    numerator: str
    denominator: str


RATIOS: dict[str, Ratio] = {
    "padding_fraction": Ratio("padded_tokens", "bucket_tokens"),
    "padded_tokens_per_useful_token": Ratio("padded_tokens", "unpadded_tokens"),
    "graph_miss_rate": Ratio("miss_steps", "executed_steps"),
    "eligible_miss_rate": Ratio("eligible_miss_steps", "sized_steps"),
    "overflow_rate": Ratio("overflow_steps", "sized_steps"),
    "bucket_slack": Ratio("slack_tokens", "slack_bucket_tokens"),
    "I_mix": Ratio("mixed_excess_ms", "mixed_add_ms"),
    "step_residual": Ratio("excess_ms", "add_ms"),
    "E_token_per_ms": Ratio("scheduled_tokens", "step_ms"),
    "step_duration_mean_ms": Ratio("step_ms", "executed_steps"),
    "completed_rps": Ratio("completed", "seconds"),
    "offered_rps": Ratio("admitted", "seconds"),
    "input_tokens_per_s": Ratio("input_tokens", "seconds"),
    "output_tokens_per_s": Ratio("output_tokens", "seconds"),
    "ttft_mean_ms": Ratio("ttft_ms_sum", "ttft_ms_count"),
    "tpot_mean_ms": Ratio("tpot_ms_sum", "tpot_ms_count"),
    "latency_mean_ms": Ratio("latency_ms_sum", "latency_ms_count"),
}
"""Metric, unit last in the name, to its ratio."""

SIGNED = ("I_mix", "step_residual")
"""Metrics that may be negative; every other one lies at or above zero."""

BOOTSTRAPPED_WASTE = ("padding_fraction", "graph_miss_rate", "overflow_rate", "I_mix")
"""Waste metrics whose contrasts come from the moving-block bootstrap."""

POSITIVE = ("E_token_per_ms", "step_duration_mean_ms", "completed_rps", "output_tokens_per_s")
"""Metrics whose factorial effects are ratios."""

FACTORIAL = (*POSITIVE, "padding_fraction", "graph_miss_rate", "overflow_rate")
"""Metrics of the scheduler factorial."""
