"""``I_mix`` and step-time residuals of every cell: leave-one-pattern-out fits, group by group.

Source: protocol, "Mixed-batch interference"; protocol file, ``interference``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from opprof.artifacts.common import RunIdentity
from opprof.artifacts.decision import Estimate, InterferenceFit
from opprof.decision.series import CleanSeries
from opprof.protocol.model import InterferenceRule, ProtocolFile
from opprof.statistics.interference import (
    Fits,
    Prediction,
    StepTimes,
    fit_others,
    predict_steps,
    supported_mixed,
)
from opprof.statistics.splines import SplineRule

Requests = Literal["component", "step"]


@dataclass(frozen=True)
class CellFit:
    """One run's prediction with what it was fitted on."""

    run: RunIdentity
    fitted: tuple[str, ...]
    fits: Fits
    prediction: Prediction
    other_supported: int
    series: CleanSeries
    """With the columns of ``I_mix`` and ``step_residual`` where they exist."""
    i_mix_reason: str | None
    residual_reason: str | None


def fit_group(
    runs: Mapping[str, tuple[RunIdentity, CleanSeries]], file: ProtocolFile
) -> dict[str, CellFit]:
    """Fit and predict the runs of one config and load point, by run name.

    Each run is predicted from the clean steps of all other patterns.
    """
    found = {}
    for name, (run, series) in runs.items():
        others = {
            identity.pattern: other.steps
            for identity, other in runs.values()
            if identity.pattern != run.pattern
        }
        everyone = [other.steps for _, other in runs.values()]
        found[name] = _fit_cell(run, series, others, everyone, file)
    return found


def _fit_cell(
    run: RunIdentity,
    series: CleanSeries,
    others: Mapping[str, StepTimes],
    everyone: Sequence[StepTimes],
    file: ProtocolFile,
) -> CellFit:
    rule = file.interference
    fits = _fits(others, everyone, rule)
    prediction = predict_steps(series.steps, fits, requests=rule.requests)
    other: Requests = "step" if rule.requests == "component" else "component"
    fitted = [others[pattern] for pattern in sorted(others)]
    least = file.waste.interference_min_mixed_steps
    i_mix_reason = prediction.reason
    if i_mix_reason is None and prediction.mixed_supported < least:
        i_mix_reason = f"{prediction.mixed_supported} supported mixed steps, below {least}"
    supported = prediction.mixed_supported + prediction.pure_supported
    residual_reason = None
    if supported < least:
        residual_reason = f"{supported} supported steps, below {least}"
    return CellFit(
        run=run,
        fitted=tuple(sorted(others)),
        fits=fits,
        prediction=prediction,
        other_supported=supported_mixed(
            series.steps, fitted, requests=other, pure_steps_min=rule.pure_steps_min
        ),
        series=_with_columns(series, prediction, i_mix_reason is None, residual_reason is None),
        i_mix_reason=i_mix_reason,
        residual_reason=residual_reason,
    )


def _fits(
    others: Mapping[str, StepTimes],
    everyone: Sequence[StepTimes],
    rule: InterferenceRule,
) -> Fits:
    spline = SplineRule(
        degree=rule.degree,
        tokens_basis=rule.tokens_basis,
        requests_basis=rule.requests_basis,
        penalty=rule.penalty,
        huber_k=rule.huber_k,
        iterations_max=rule.iterations_max,
        tolerance=rule.tolerance,
    )
    fitted = [others[pattern] for pattern in sorted(others)]
    return fit_others(
        fitted, everyone, spline, requests=rule.requests, pure_steps_min=rule.pure_steps_min
    )


def _with_columns(
    series: CleanSeries, prediction: Prediction, i_mix: bool, residual: bool
) -> CleanSeries:
    """Add excess and predicted milliseconds by bin for the ratios that exist."""
    import numpy as np

    t_add, steps = prediction.t_add_ms, series.steps
    known = ~np.isnan(t_add)
    columns = {}
    for wanted, chosen, excess, add in (
        (i_mix, known & steps.mixed, "mixed_excess_ms", "mixed_add_ms"),
        (residual, known, "excess_ms", "add_ms"),
    ):
        if wanted:
            predicted = np.where(chosen, t_add, 0.0)
            columns[add] = series.binned(predicted)
            columns[excess] = series.binned(np.where(chosen, steps.duration_ms, 0.0) - predicted)
    return series.with_sums(columns)


def fit_record(fit: CellFit, estimates: Mapping[str, Estimate]) -> InterferenceFit:
    """Return the artefact's record of one cell's fit with its intervals."""
    surfaces = [s for s in (fit.fits.prefill, fit.fits.decode) if s is not None]
    missing = Estimate(value=None, reason="not resampled")
    return InterferenceFit(
        pattern=fit.run.pattern,
        config=fit.run.config,
        load_point=fit.run.load_point,
        fitted_patterns=list(fit.fitted),
        prefill_steps=fit.fits.prefill_steps,
        decode_steps=fit.fits.decode_steps,
        zero_token_steps=fit.fits.zero_token_steps,
        alpha_ms=fit.fits.alpha_ms,
        converged=all(s.converged for s in surfaces) if surfaces else None,
        mixed_supported=fit.prediction.mixed_supported,
        mixed_unsupported=fit.prediction.mixed_unsupported,
        pure_supported=fit.prediction.pure_supported,
        pure_unsupported=fit.prediction.pure_unsupported,
        i_mix=Estimate(value=None, reason=fit.i_mix_reason)
        if fit.i_mix_reason
        else estimates.get("I_mix", missing),
        step_residual=Estimate(value=None, reason=fit.residual_reason)
        if fit.residual_reason
        else estimates.get("step_residual", missing),
        other_reading_supported=fit.other_supported,
    )
