"""H1b: the frozen contrasts, every waste family, and their association with slower service.

Source: protocol, "Decision rule", "Waste accounting", A-P3-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from opprof.artifacts.decision import Association, Contrast, ContrastMetric, Estimate, Raggedness
from opprof.decision.design import Key, Matrix
from opprof.decision.metrics import SIGNED
from opprof.decision.resample import Resampled, estimate, finite
from opprof.decision.series import Missing
from opprof.decision.stepwise import layer_variations
from opprof.protocol.model import ProtocolFile
from opprof.statistics.bootstrap import mean_resamples, percentile_interval, two_sided_p
from opprof.statistics.draws import Stream
from opprof.statistics.multiplicity import holm, holm_levels

STEP_METRIC = "CV_moe"
"""From the active steps."""
EFFICIENCY = "E_token_per_ms"
RESIDUAL = "step_residual"

Kept = Mapping[str, Mapping[str, Resampled]]
"""Run name to metric to resamples."""


@dataclass(frozen=True)
class _Pair:
    """One contrast's runs."""

    irregular: Key
    control: Key
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        """As tables and reasons name it."""
        return f"{self.irregular[0]} vs {self.control[0]}"


@dataclass(frozen=True)
class _Difference:
    """One metric of one contrast before correction."""

    record: ContrastMetric
    item: Resampled | None
    """Resamples of the difference."""


def decide_contrasts(matrix: Matrix, kept: Kept) -> list[Contrast]:
    """Return all frozen contrasts, evaluable or not, Holm-corrected within each waste family."""
    pairs = [_pair(matrix, a, b) for a, b in matrix.file.h1b.contrasts]
    by_metric: dict[str, list[ContrastMetric]] = {}
    for metric, threshold in matrix.file.h1b.thresholds.items():
        found = [_difference(matrix, pair, metric, threshold, kept) for pair in pairs]
        by_metric[metric] = _correct(found, matrix.file)
    return [
        _contrast(matrix, pair, [by_metric[metric][index] for metric in by_metric], kept)
        for index, pair in enumerate(pairs)
    ]


def raggedness(matrix: Matrix) -> list[Raggedness]:
    """Return ``R_k`` of every contrast at every cohort size of the protocol."""
    rows = []
    for a, b in matrix.file.h1b.contrasts:
        differences = {}
        for cohort in matrix.file.waste.raggedness_cohorts:
            name = f"R{cohort}"
            first, second = (_waste(matrix, matrix.primary(pattern), name) for pattern in (a, b))
            missing = first is None or second is None
            differences[name] = None if missing else (first or 0.0) - (second or 0.0)
        rows.append(Raggedness(irregular=a, control=b, differences=differences))
    return rows


def _pair(matrix: Matrix, irregular: str, control: str) -> _Pair:
    partial = matrix.file.partial_matrix
    keys = matrix.primary(irregular), matrix.primary(control)
    reasons = [reason for key in keys for reason in matrix.run_reasons(key)]
    reasons += matrix.apart(*keys)
    if partial is not None and (irregular, control) in partial.not_evaluable_contrasts:
        reasons.insert(0, "fixed as NOT EVALUABLE (A-P3-7)")
    return _Pair(*keys, tuple(dict.fromkeys(reasons)))


def _waste(matrix: Matrix, key: Key, metric: str) -> float | None:
    return matrix.facts[key].waste.get(metric) if key in matrix.facts else None


def _difference(
    matrix: Matrix, pair: _Pair, metric: str, threshold: float, kept: Kept
) -> _Difference:
    """Compare one metric; whatever is missing is null with its reason."""
    file = matrix.file
    deterministic = metric == f"R{file.waste.raggedness_primary}"
    record = ContrastMetric(
        metric=metric,
        irregular=None,
        control=None,
        difference=None,
        threshold=threshold,
        exceeds_threshold=None,
        deterministic=deterministic,
        signed=metric in SIGNED,
    )
    if pair.reasons:
        return _Difference(msgspec.structs.replace(record, reason=pair.reasons[0]), None)
    sides = [
        _side(matrix, key, metric, kept, deterministic) for key in (pair.irregular, pair.control)
    ]
    values = [side.value if isinstance(side, Resampled) else None for side in sides]
    record = msgspec.structs.replace(record, irregular=values[0], control=values[1])
    first, second = sides
    if not isinstance(first, Resampled) or not isinstance(second, Resampled):
        return _Difference(_without(record, sides), None)
    difference = first.value - second.value
    record = msgspec.structs.replace(
        record, difference=difference, exceeds_threshold=difference > threshold
    )
    if deterministic:
        passes = difference > threshold
        record = msgspec.structs.replace(record, excludes_zero=difference != 0, passes=passes)
        return _Difference(record, None)
    item = Resampled(difference, first.moving - second.moving, first.circular - second.circular)
    return _Difference(record, item)


def _without(record: ContrastMetric, sides: Sequence[Resampled | str]) -> ContrastMetric:
    reasons = [side for side in sides if isinstance(side, str)]
    return msgspec.structs.replace(record, reason="; ".join(dict.fromkeys(reasons)))


def _side(
    matrix: Matrix, key: Key, metric: str, kept: Kept, deterministic: bool
) -> Resampled | str:
    """One run's value with its resamples, or the reason why there is none."""
    import numpy as np

    facts = matrix.facts[key]
    if deterministic:
        value = facts.waste.get(metric)
        if value is None:
            return f"{key[0]}: {facts.missing_waste.get(metric, 'not available')}"
        return Resampled(value, np.full(1, value), np.full(1, value))
    if metric == STEP_METRIC:
        return _step_side(matrix, key)
    if isinstance(facts.series, Missing):
        return f"{key[0]}: {facts.series.reason}"
    found = kept.get(facts.run.name, {}).get(metric)
    if found is None or math.isnan(found.value):
        return f"{key[0]}: {facts.missing_waste.get(metric, 'not available')}"
    return found


def _step_side(matrix: Matrix, key: Key) -> Resampled | str:
    """``CV_moe``: resampled from its active steps, window by window."""
    facts = matrix.facts[key]
    value = facts.waste.get(STEP_METRIC)
    if value is None:
        return f"{key[0]}: {facts.missing_waste.get(STEP_METRIC, 'not available')}"
    reasons = matrix.breakdown_reasons(key)
    groups = layer_variations(facts.kernels)
    if reasons or not groups:
        return reasons[0] if reasons else f"{key[0]}: no active step has layer scopes"
    stream = Stream(matrix.seed, "steps", facts.run.name)
    drawn = mean_resamples(groups, matrix.file.statistics.bootstrap_resamples, stream)
    return Resampled(value, drawn, drawn)


def _correct(found: Sequence[_Difference], file: ProtocolFile) -> list[ContrastMetric]:
    """Holm over the listed contrasts of one waste family, with the interval of each step."""
    rule = file.statistics
    tested = [i for i, item in enumerate(found) if item.item is not None]
    p_values = [two_sided_p(_item(found[i]).moving) for i in tested]
    listed = len(found)
    corrected = holm(p_values, family_size=listed)
    levels = holm_levels(p_values, rule.alpha, family_size=listed)
    records = [item.record for item in found]
    for place, i in enumerate(tested):
        item = _item(found[i])
        plain = percentile_interval(item.moving, 1 - rule.alpha)
        wide = percentile_interval(item.moving, levels[place])
        circular = percentile_interval(item.circular, levels[place])
        excludes = (wide.low > 0 or wide.high < 0) and corrected[place] <= rule.alpha
        exceeds = bool(records[i].exceeds_threshold)
        records[i] = msgspec.structs.replace(
            records[i],
            low=finite(plain.low),
            high=finite(plain.high),
            corrected_low=finite(wide.low),
            corrected_high=finite(wide.high),
            corrected_level=levels[place],
            circular_low=None if records[i].metric == STEP_METRIC else finite(circular.low),
            circular_high=None if records[i].metric == STEP_METRIC else finite(circular.high),
            p_value=p_values[place],
            holm_p=corrected[place],
            excludes_zero=excludes,
            passes=excludes and exceeds,
            undefined_resamples=wide.undefined,
        )
    return records


def _item(found: _Difference) -> Resampled:
    assert found.item is not None
    return found.item


def _contrast(matrix: Matrix, pair: _Pair, metrics: list[ContrastMetric], kept: Kept) -> Contrast:
    association = None if pair.reasons else _association(matrix, pair, kept)
    passing = [item.metric for item in metrics if item.passes]
    passes: bool | None = None
    if not pair.reasons:
        met = association.met if association is not None else None
        # A waste that passes with an association nobody could measure decides nothing.
        passes = met if passing else False
    return Contrast(
        irregular=pair.irregular[0],
        control=pair.control[0],
        evaluable=not pair.reasons,
        reasons=list(pair.reasons),
        marks=matrix.marks(pair.irregular, pair.control),
        metrics=metrics,
        association=association,
        passing_metrics=passing,
        passes=passes,
    )


def _association(matrix: Matrix, pair: _Pair, kept: Kept) -> Association:
    """Compare useful-token efficiency and step-time residual of the two runs."""
    alpha = matrix.file.statistics.alpha
    level, strict = 1 - alpha, 1 - alpha / len(matrix.file.h1b.contrasts)
    keys = (pair.irregular, pair.control)
    runs = [(key[0], kept.get(matrix.facts[key].run.name, {})) for key in keys]
    loss = _combined(runs, EFFICIENCY, lambda a, b: 1 - a / b, level)
    residual = _combined(runs, RESIDUAL, lambda a, b: a - b, level)
    corrected = _combined(runs, RESIDUAL, lambda a, b: a - b, strict)
    loss_met = None if loss.value is None else loss.value >= matrix.file.h1b.efficiency_loss_min
    residual_met = None if residual.low is None else residual.low > 0
    known = [met for met in (loss_met, residual_met) if met is not None]
    met = True if any(known) else (False if len(known) == 2 else None)
    values = [run[RESIDUAL].value if RESIDUAL in run else None for _, run in runs]
    return Association(
        efficiency_loss=loss,
        efficiency_loss_met=loss_met,
        residual_irregular=values[0],
        residual_control=values[1],
        residual=residual,
        residual_met=residual_met,
        met=met,
        residual_corrected_low=corrected.low,
        residual_corrected_high=corrected.high,
        residual_corrected_met=None if corrected.low is None else corrected.low > 0,
    )


def _combined(
    runs: Sequence[tuple[str, Mapping[str, Resampled]]],
    metric: str,
    combine: Callable[[Any, Any], Any],
    level: float,
) -> Estimate:
    """Combine one metric of both patterns' runs, value and resamples alike."""
    first, second = (run.get(metric) for _, run in runs)
    if first is None or second is None or math.isnan(first.value + second.value):
        lacking = [
            pattern for pattern, run in runs if metric not in run or math.isnan(run[metric].value)
        ]
        return Estimate(value=None, reason=f"{metric} is not available for {' and '.join(lacking)}")
    item = Resampled(
        combine(first.value, second.value),
        combine(first.moving, second.moving),
        combine(first.circular, second.circular),
    )
    return estimate(item, level, f"no {metric}")
