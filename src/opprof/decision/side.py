"""What stands beside the verdict: scheduler factorial, confirmations, tensor parallelism, cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opprof.artifacts.common import Gate
from opprof.artifacts.decision import ConfirmationDelta, Estimate, FactorialEffect, Parallelism
from opprof.decision.design import Key, Matrix, run_name
from opprof.decision.h1b import Kept
from opprof.decision.metrics import FACTORIAL, POSITIVE
from opprof.decision.resample import Resampled, estimate
from opprof.statistics.effects import factorial, run_delta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]

_LOADS = ("moderate", "saturation")
_FACTORIAL_CELLS = 4
"""Baseline, first factor, second factor, both; another design shows its cells without effects."""


def factorial_effects(matrix: Matrix, kept: Kept) -> list[FactorialEffect]:
    """Return main effects and interaction of every metric on every sentinel and load point."""
    rule = matrix.file.cells
    configs = (rule.baseline_config, *rule.sentinel_configs)
    rows = []
    for pattern in rule.sentinel_patterns:
        for load in _LOADS:
            keys: list[Key] = [(pattern, config, load, "primary") for config in configs]
            reasons = [reason for key in keys for reason in matrix.run_reasons(key)]
            runs = [kept.get(run_name(key), {}) for key in keys]
            for metric in FACTORIAL:
                cells = {c: _value(run, metric) for c, run in zip(configs, runs, strict=True)}
                row = _effects(pattern, load, metric, cells, reasons, runs, matrix)
                rows.append(row)
    return rows


def _value(run: Mapping[str, Resampled], metric: str) -> float | None:
    item = run.get(metric)
    return None if item is None or math.isnan(item.value) else item.value


def _effects(
    pattern: str,
    load: str,
    metric: str,
    cells: dict[str, float | None],
    reasons: Sequence[str],
    runs: Sequence[Mapping[str, Resampled]],
    matrix: Matrix,
) -> FactorialEffect:
    scale = "log_ratio" if metric in POSITIVE else "difference"
    reason = reasons[0] if reasons else _missing_cell(cells, scale)
    empty = Estimate(value=None, reason=reason)
    found = [empty, empty, empty]
    if reason is None:
        found = _estimates([run[metric] for run in runs], scale, 1 - matrix.file.statistics.alpha)
    baseline = next(iter(cells.values()))
    return FactorialEffect(
        pattern=pattern,
        load_point=load,
        metric=metric,
        scale=scale,
        cells=cells,
        ratios={
            config: value / baseline if value is not None and baseline else None
            for config, value in cells.items()
        },
        main_mns=found[0],
        main_mbt=found[1],
        interaction=found[2],
        reason=reason,
    )


def _missing_cell(cells: Mapping[str, float | None], scale: str) -> str | None:
    if len(cells) != _FACTORIAL_CELLS:
        return f"{len(cells)} configurations, a 2x2 factorial has {_FACTORIAL_CELLS}"
    for config, value in cells.items():
        if value is None:
            return f"{config} has no value"
        if scale == "log_ratio" and value <= 0:
            return f"{config} is not positive"
    return None


def _estimates(items: Sequence[Resampled], scale: str, level: float) -> list[Estimate]:
    """Effects of the values and of every resample; the four cells are resampled independently."""
    import numpy as np

    def scaled(values: Any) -> Any:
        return np.log(values) if scale == "log_ratio" else np.asarray(values)

    values = factorial(*(scaled([item.value]) for item in items))
    moving = factorial(*(scaled(item.moving) for item in items))
    circular = factorial(*(scaled(item.circular) for item in items))
    return [
        estimate(Resampled(float(value[0]), first, second), level, "no effect")
        for value, first, second in (
            (values.first, moving.first, circular.first),
            (values.second, moving.second, circular.second),
            (values.interaction, moving.interaction, circular.interaction),
        )
    ]


def confirmation_deltas(matrix: Matrix) -> list[ConfirmationDelta]:
    """Return every run-level delta of the confirmations; nothing removed, nothing resampled."""
    again = matrix.file.confirmations
    rows = []
    for pattern in again.patterns:
        first: Key = (pattern, again.config, again.load_point, "primary")
        repeat: Key = (pattern, again.config, again.load_point, "confirmation")
        absent = [
            f"{run_name(key)} is missing" for key in (first, repeat) if key not in matrix.facts
        ]
        marks = [
            r for key in (first, repeat) if key in matrix.facts for r in matrix.run_reasons(key)
        ]
        if absent:
            rows.append(_delta(pattern, matrix, "E_token_per_ms", None, None, absent[0]))
            continue
        values = [
            {**matrix.facts[key].metrics, **matrix.facts[key].waste} for key in (first, repeat)
        ]
        for metric in sorted({*values[0], *values[1]}):
            pair = values[0].get(metric), values[1].get(metric)
            reason = marks[0] if marks else _lacking(matrix, metric, (first, repeat), pair)
            rows.append(_delta(pattern, matrix, metric, pair[0], pair[1], reason))
    return rows


def _lacking(
    matrix: Matrix, metric: str, keys: tuple[Key, Key], pair: tuple[float | None, float | None]
) -> str | None:
    """Name each run that has no value, with its own reason; None where both have one."""
    reasons = [
        f"{run_name(key)}: {matrix.facts[key].missing_waste.get(metric, 'has no value')}"
        for key, value in zip(keys, pair, strict=True)
        if value is None
    ]
    return "; ".join(reasons) or None


def _delta(
    pattern: str,
    matrix: Matrix,
    metric: str,
    first: float | None,
    repeat: float | None,
    reason: str | None,
) -> ConfirmationDelta:
    again = matrix.file.confirmations
    known = first is not None and repeat is not None
    delta = run_delta(first or 0.0, repeat or 0.0) if known else None
    return ConfirmationDelta(
        pattern=pattern,
        config=again.config,
        load_point=again.load_point,
        metric=metric,
        first=first,
        repeat=repeat,
        absolute=None if delta is None else delta.absolute,
        relative=None if delta is None else delta.relative,
        reason=reason,
    )


def parallelism(matrix: Matrix) -> list[Parallelism]:
    """Return tensor-parallel cells beside their baseline: descriptive only."""
    ranks = {row.id: row.tensor_parallel_size for row in matrix.file.configs}
    baseline = matrix.file.cells.baseline_config
    rows = []
    for key, facts in matrix.facts.items():
        if ranks.get(key[1], 1) < 2 or key[3] != "primary":
            continue
        reference: Key = (key[0], baseline, key[2], "primary")
        values = matrix.facts[reference].metrics if reference in matrix.facts else {}
        for metric, value in sorted(facts.metrics.items()):
            known = values.get(metric)
            rows.append(
                Parallelism(
                    pattern=key[0],
                    config=key[1],
                    load_point=key[2],
                    metric=metric,
                    value=value,
                    baseline_config=baseline,
                    baseline_value=known,
                    ratio=value / known if value is not None and known else None,
                )
            )
    return rows


def registered_cells(matrix: Matrix) -> dict[str, str]:
    """Return every registered run with ``evaluable`` or why it is NOT EVALUABLE."""
    found = {}
    for key in matrix.registered_keys():
        reasons = matrix.run_reasons(key)
        found[run_name(key)] = f"NOT EVALUABLE: {reasons[0]}" if reasons else "evaluable"
    return found


def warmup_branch(matrix: Matrix) -> dict[str, Gate]:
    """Return the warm-up gate of every run whose pattern may pass by stabilisation (A-P3-6)."""
    patterns = {p.id for p in matrix.file.patterns if p.warmup_rule == "completions_or_stabilized"}
    return {
        facts.run.name: item.gate
        for key, facts in matrix.facts.items()
        if key[0] in patterns
        for item in facts.gates
        if item.gate.name == "warmup_completions"
    }
