"""Profiler representativeness, with the gate's own failure rate beside each verdict."""

from __future__ import annotations

from opprof.artifacts.kernels import NullRate, SmdFeature, WindowRepresentativeness
from opprof.report.blocks import Cell, Table
from opprof.report.formats import NULL, percent
from opprof.report.inputs import ReportInput
from opprof.report.tables.cells import RUN, names, numbers, outcome_cell, run_cell, text, value_cell


def verdicts(ident: str, report: ReportInput) -> Table:
    """Return the gate's verdict per window beside how often it fails with nothing changed."""
    rows = []
    for run in report.runs:
        judged = None if run.kernels is None else run.kernels.representativeness
        if judged is None:
            continue
        null, reason = judged.null_rate, judged.null_rate_reason or ""
        for window in judged.windows:
            rows.append(
                (
                    run_cell(run),
                    text(str(window.window)),
                    value_cell(window.clean_segment, "no adjacent clean segment"),
                    value_cell(window.profile_steps),
                    value_cell(window.clean_steps),
                    outcome_cell(window.outcome, window.reason),
                    text(window.reason),
                    _rate(null, reason, pair=False),
                    _rate(null, reason, pair=True),
                )
            )
    return Table(
        ident=ident,
        caption="Does each profile window resemble its clean segment?",
        columns=(
            RUN,
            *numbers("window", "clean segment", "profile steps", "clean steps"),
            *names("verdict", "reason"),
            *numbers("fails by itself, one window", "fails by itself, load point"),
        ),
        rows=tuple(rows),
        notes=(
            "“Fails by itself”: how often the same gate rejects windows of as many consecutive "
            "steps drawn at random from this run's own clean steps, where nothing was profiled. "
            "Near 100 %, a failure says little about the profiler.",
        ),
        empty="No run has a representativeness analysis.",
    )


def _rate(null: NullRate | None, reason: str, *, pair: bool) -> Cell:
    if null is None:
        return Cell(NULL, tone="muted", title=reason)
    rate = null.load_point_failure_rate if pair else null.any_feature_failure_rate
    sub = f"{null.draws:,} draws, seed {null.seed}"
    return Cell(percent(rate), sub=sub, sort=rate, bar=rate, colour="#8A8F98")


def features(ident: str, report: ReportInput) -> Table:
    """Return the standardised mean difference of every feature and window."""
    rows = []
    for run in report.runs:
        judged = None if run.kernels is None else run.kernels.representativeness
        if judged is None:
            continue
        for window in judged.windows:
            for feature in window.features:
                rows.append((run_cell(run), *_feature(window, feature, judged.null_rate)))
    return Table(
        ident=ident,
        caption="Standardised mean differences (SMD) behind the verdicts",
        columns=(
            RUN,
            *numbers("window"),
            *names("feature"),
            *numbers(
                "mean, profile", "mean, clean", "sd, profile", "sd, clean", "pooled sd", "SMD"
            ),
            *names("outcome"),
            *numbers("fails by itself"),
        ),
        rows=tuple(rows),
        empty="No run has a representativeness analysis.",
    )


def _feature(
    window: WindowRepresentativeness, feature: SmdFeature, null: NullRate | None
) -> list[Cell]:
    smd = value_cell(feature.smd, "constant: judged by exact equality")
    if feature.constant:
        smd = Cell("constant", tone="muted", title="judged by exact equality")
    elif feature.smd is not None:
        smd = Cell(f"{feature.smd:+.3f}".replace("-", "−"), sort=feature.smd)
    rate = None if null is None else null.by_feature.get(feature.feature)
    return [
        text(str(window.window)),
        text(feature.feature.replace("_", " ")),
        value_cell(feature.mean_profile),
        value_cell(feature.mean_clean),
        value_cell(feature.sd_profile),
        value_cell(feature.sd_clean),
        value_cell(feature.pooled_sd),
        smd,
        outcome_cell(feature.outcome),
        Cell(NULL, tone="muted") if rate is None else Cell(percent(rate), sort=rate),
    ]
