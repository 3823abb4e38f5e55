"""Absolute values beside every ratio to the baseline config; geometric means only.

Source: protocol, "End-to-end and composition metrics" (absolute values plus ratios to C00, never
ratios alone) and "Statistical summaries" (no arithmetic mean of normalized scores; all cells kept).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, fsum, isfinite, log

from opprof.artifacts.comparison import ComparisonRule, MetricRatio, RatioAggregate
from opprof.compare.values import RunShares
from opprof.errors import InputError
from opprof.mapping.families import FAMILIES

Metrics = Mapping[tuple[str, int | None], float | None]
"""(metric, rank or None for the whole run) to value."""


def geometric_mean(cells: Mapping[str, float | None]) -> float:
    """Return the geometric mean of all cells.

    Raises:
        InputError: there is no cell, or one is missing, zero, negative or not finite; it is named,
            since a mean over the rest would be one over other cells.
    """
    if not cells:
        raise InputError("no cells to average")
    logarithms = []
    for name in sorted(cells):
        value = cells[name]
        if value is None:
            raise InputError(f"cell {name} is missing")
        if not isfinite(value) or value <= 0:
            raise InputError(f"cell {name} is {value:g}; a geometric mean needs positive values")
        logarithms.append(log(value))
    return exp(fsum(logarithms) / len(logarithms))


def run_metrics(entry: RunShares, given: Mapping[str, float | None]) -> Metrics:
    """Return a run's given metrics, and its kernel milliseconds a step by family and rank.

    Kernel time a step is the sum over windows over the sum of their active steps (a ratio of sums).
    """
    found: dict[tuple[str, int | None], float | None] = {
        (name, None): value for name, value in given.items()
    }
    for rank in entry.ranks:
        windows = [window for window in entry.windows if window.rank == rank]
        steps = sum(window.steps for window in windows)
        if not steps:
            continue
        total = sum(window.kernel_ns for window in windows)
        found["kernel_ms_per_step", rank] = total / steps / 1e6
        for family in FAMILIES:
            ns = sum(window.ns(family) for window in windows)
            found[f"{family}_ms_per_step", rank] = ns / steps / 1e6
    return found


def metric_ratios(
    runs: Sequence[tuple[RunShares, Metrics]], rule: ComparisonRule
) -> list[MetricRatio]:
    """Return every run's metrics with their ratios to the same pattern's baseline config.

    The baseline has the same pattern, load point, role and kind of clock. A rank of a
    tensor-parallel run is set against the baseline's rank of that number, or against its only one.
    """
    baselines = {
        _cell(entry): values for entry, values in runs if entry.run.config == rule.baseline_config
    }
    rows = []
    for entry, values in sorted(runs, key=lambda item: _order(item[0])):
        baseline = baselines.get(_cell(entry))
        for (metric, rank), value in values.items():
            rows.append(_row(entry, metric, rank, value, baseline, rule.baseline_config))
    return rows


def ratio_aggregates(rows: Sequence[MetricRatio]) -> list[RatioAggregate]:
    """Return geometric means over patterns for each config but the baseline, all cells kept.

    Only where at least two patterns ran under the config at that load point.
    """
    cells: dict[tuple[str, str, str, str, int | None], dict[str, float | None]] = {}
    for row in rows:
        if row.config != row.baseline_config:
            key = (row.config, row.load_point, row.role, row.metric, row.rank)
            cells.setdefault(key, {})[row.pattern] = row.ratio
    result = []
    for (config, load_point, role, metric, rank), ratios in cells.items():
        if len(ratios) < 2:
            continue
        mean: float | None = None
        reason: str | None = None
        try:
            mean = geometric_mean(ratios)
        except InputError as error:
            reason = error.reason
        result.append(
            RatioAggregate(
                config=config,
                load_point=load_point,
                role=role,
                metric=metric,
                rank=rank,
                geometric_mean=mean,
                cells=dict(sorted(ratios.items())),
                reason=reason,
            )
        )
    return result


def _row(
    entry: RunShares,
    metric: str,
    rank: int | None,
    value: float | None,
    baseline: Metrics | None,
    baseline_config: str,
) -> MetricRatio:
    reference = None if baseline is None else _counterpart(baseline, metric, rank)
    ratio = reason = None
    if baseline is None:
        reason = f"{entry.run.pattern} has no run under {baseline_config} at {entry.run.load_point}"
    elif value is None or reference is None:
        reason = "the value is missing" if value is None else "the baseline's value is missing"
    elif reference == 0:
        reason = "the baseline's value is zero"
    else:
        ratio = value / reference
    return MetricRatio(
        pattern=entry.run.pattern,
        load_point=entry.run.load_point,
        role=entry.run.role,
        config=entry.run.config,
        metric=metric,
        rank=rank,
        value=value,
        baseline_config=baseline_config,
        baseline_value=reference,
        ratio=ratio,
        reason=reason,
    )


def _counterpart(baseline: Metrics, metric: str, rank: int | None) -> float | None:
    if (metric, rank) in baseline:
        return baseline[metric, rank]
    same = [value for (name, _), value in baseline.items() if name == metric]
    return same[0] if len(same) == 1 else None


def _cell(entry: RunShares) -> tuple[str, str, str, bool, float]:
    run = entry.run
    return (run.pattern, run.load_point, run.role, run.simulated, run.time_scale)


def _order(entry: RunShares) -> tuple[str, str, str, str]:
    run = entry.run
    return (run.load_point, run.role, run.pattern, run.config)
