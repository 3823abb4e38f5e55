"""What a decision uses of each run as plain numbers, and how they scatter over repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from opprof.analysis.load import LoadedRun
from opprof.artifacts.decision import Decision
from opprof.artifacts.rehearsal import Spread

Measures = Mapping[str, Mapping[str, float]]
"""Run to name (unit last, as in the decision) to value; what has no value is left out."""


def measures(found: Sequence[LoadedRun], decision: Decision | None) -> dict[str, dict[str, float]]:
    """Return every run's throughput, latencies, waste, mode shares and family shares."""
    intervals = [] if decision is None else decision.intervals
    by_run = {item.run: item.metrics for item in intervals}
    result = {}
    for item in found:
        name = item.analysis.kernels.run.name
        values: dict[str, float | None] = {
            metric: estimate.value for metric, estimate in by_run.get(name, {}).items()
        }
        union = item.analysis.layer1.clean_union
        if union is not None:
            values |= {f"mode_share.{mode}": share for mode, share in union.mode_shares.items()}
        values |= _shares(item)
        values["CV_moe"] = item.analysis.waste.cv_moe
        result[name] = {
            metric: value
            for metric, value in values.items()
            if value is not None and not math.isnan(value)
        }
    return result


def _shares(item: LoadedRun) -> dict[str, float]:
    """Share of each family in the kernel time of all accepted windows and ranks."""
    windows = [window for window in item.analysis.kernels.windows if window.accepted]
    total = sum(window.kernel_ns for window in windows)
    names = sorted({name for window in windows for name in window.families})
    return {
        f"share.{name}": sum(w.families[name].ns for w in windows if name in w.families) / total
        for name in names
    }


def spreads(repeats: Sequence[Measures]) -> dict[str, dict[str, Spread]]:
    """Return mean and standard deviation of every value over the repeats that have it."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in repeats:
        for run, values in each.items():
            for name, value in values.items():
                found.setdefault(run, {}).setdefault(name, []).append(value)
    return {
        run: {name: _spread(values) for name, values in metrics.items()}
        for run, metrics in found.items()
    }


def _spread(values: Sequence[float]) -> Spread:
    count = len(values)
    mean = math.fsum(values) / count
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(count, mean, math.sqrt(squares / (count - 1)) if count > 1 else None)
