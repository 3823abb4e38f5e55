"""Moving-block resamples of one run's metrics, and the intervals made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from opprof.artifacts.decision import Estimate
from opprof.decision.metrics import RATIOS, Ratio
from opprof.decision.series import CleanSeries
from opprof.statistics.bootstrap import block_starts, percentile_interval, ratio, resampled_sums
from opprof.statistics.draws import Stream
from opprof.statistics.quantiles import percentile_ends

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opprof.protocol.model import Statistics

    Float64 = NDArray[np.float64]
    Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Resampled:
    """One metric of one run: its value and its resamples under both variants."""

    value: float
    """NaN where the denominator is 0."""
    moving: Float64
    circular: Float64


def resample_run(
    name: str, series: CleanSeries, rule: Statistics, seed: int, keep: Collection[str]
) -> tuple[dict[str, Estimate], dict[str, Resampled]]:
    """Return every metric's interval, and the resamples of the metrics to ``keep``.

    The streams are keyed by the run's name: two runs are resampled independently, and the same run
    in the same way whatever else is decided.
    """
    level = 1 - rule.alpha
    moving_starts = _starts(name, series, rule, seed, circular=False)
    moving = _ratios(series, moving_starts, circular=False)
    circular = _ratios(series, _starts(name, series, rule, seed, circular=True), circular=True)
    estimates, kept = {}, {}
    for metric, parts in _present(series).items():
        top, bottom = series.sums[parts.numerator].sum(), series.sums[parts.denominator].sum()
        value = float(top / bottom) if bottom else math.nan
        item = Resampled(value, moving[metric], circular[metric])
        found = estimate(item, level, f"no {parts.denominator} in the clean union")
        estimates[metric] = msgspec.structs.replace(
            found, bin_correlation=_bin_correlation(series, parts, value)
        )
        if metric in keep:
            kept[metric] = item
    return estimates | _percentiles(series, rule, moving_starts), kept


def _bin_correlation(series: CleanSeries, parts: Ratio, value: float) -> float | None:
    """Lag-one correlation of what each bin adds to the ratio (its linearised residual)."""
    if math.isnan(value):
        return None
    rest = series.sums[parts.numerator] - value * series.sums[parts.denominator]
    spread = float((rest * rest).sum())
    return float((rest[1:] * rest[:-1]).sum()) / spread if spread > 0 else None


@dataclass(frozen=True)
class ResampleTask:
    """One run's resampling, as it travels to a worker process."""

    name: str
    series: CleanSeries
    rule: Statistics
    seed: int
    keep: frozenset[str]

    def run(self) -> tuple[dict[str, Estimate], dict[str, Resampled]]:
        """Resample the run."""
        return resample_run(self.name, self.series, self.rule, self.seed, self.keep)


def resample_many(
    tasks: Sequence[ResampleTask], jobs: int, advance: Callable[[], None]
) -> dict[str, tuple[dict[str, Estimate], dict[str, Resampled]]]:
    """Resample several runs, in worker processes when there are several of both.

    Raises:
        EnvironmentFailure: a worker process was killed from outside.
    """
    from opprof.workers import run_many

    found = run_many(ResampleTask.run, tasks, jobs=jobs, done=lambda _: advance())
    return {task.name: result for task, result in zip(tasks, found, strict=True)}


def _starts(
    name: str, series: CleanSeries, rule: Statistics, seed: int, *, circular: bool
) -> Int32:
    stream = Stream(seed, "bootstrap", "circular" if circular else "moving", name)
    return block_starts(series.plan(circular=circular), rule.bootstrap_resamples, stream)


def _present(series: CleanSeries) -> Mapping[str, Ratio]:
    return {
        metric: parts
        for metric, parts in RATIOS.items()
        if parts.numerator in series.sums and parts.denominator in series.sums
    }


def _ratios(series: CleanSeries, starts: Int32, *, circular: bool) -> dict[str, Float64]:
    """Every metric of every resample."""
    import numpy as np

    present = _present(series)
    columns = sorted(
        {c for parts in present.values() for c in (parts.numerator, parts.denominator)}
    )
    place = {column: index for index, column in enumerate(columns)}
    values = np.column_stack([series.sums[column] for column in columns])
    sums = np.asfortranarray(resampled_sums(values, series.plan(circular=circular), starts))
    return {
        metric: ratio(sums[:, place[parts.numerator]], sums[:, place[parts.denominator]])
        for metric, parts in present.items()
    }


def estimate(item: Resampled, level: float, empty_reason: str) -> Estimate:
    """Return a value with its interval under both variants."""
    if math.isnan(item.value):
        return Estimate(value=None, reason=empty_reason)
    moving = percentile_interval(item.moving, level)
    circular = percentile_interval(item.circular, level)
    return Estimate(
        value=item.value,
        low=finite(moving.low),
        high=finite(moving.high),
        level=level,
        circular_low=finite(circular.low),
        circular_high=finite(circular.high),
        undefined_resamples=moving.undefined,
        reason=None if math.isfinite(moving.high - moving.low) else "too many empty resamples",
    )


def finite(value: float) -> float | None:
    """Return the value, None where it is infinite or undefined."""
    return value if math.isfinite(value) else None


def _percentiles(series: CleanSeries, rule: Statistics, starts: Int32) -> dict[str, Estimate]:
    """Percentiles of latencies; the circular variant is not computed for them."""
    import numpy as np

    plan = series.plan(circular=False)
    if plan.rest_bins:
        return {}
    names = list(series.latencies)
    ends = percentile_ends(
        [series.latencies[name] for name in names], rule.percentiles, plan, starts, 1 - rule.alpha
    )
    found = {}
    for row, name in enumerate(names):
        values = series.latencies[name].values
        for column, percent in enumerate(rule.percentiles):
            metric = f"{name.removesuffix('_ms')}_p{percent}_ms"
            if not len(values):
                found[metric] = Estimate(value=None, reason="no completed request")
                continue
            low, high = (float(end) for end in ends[row, column])
            value = float(np.percentile(values, percent))
            found[metric] = Estimate(value=value, low=low, high=high, level=1 - rule.alpha)
    return found
