"""Profiler representativeness, with the gate's own failure rate beside each verdict."""

from __future__ import annotations

from opprof.artifacts.kernels import NullRate, SmdFeature, WindowRepresentativeness
from opprof.report.blocks import Cell, Table
from opprof.report.formats import MINUS, NBSP, NULL, number, percent
from opprof.report.inputs import ReportInput, RunView
from opprof.report.tables.cells import (
    RUN,
    TONES,
    names,
    numbers,
    outcome_cell,
    run_cell,
    text,
    value_cell,
)


def _judged(report: ReportInput) -> list[tuple[RunView, WindowRepresentativeness, NullRate | None]]:
    return [
        (run, window, run.kernels.representativeness.null_rate)
        for run in report.runs
        if run.kernels is not None and run.kernels.representativeness is not None
        for window in run.kernels.representativeness.windows
    ]


def verdicts(ident: str, report: ReportInput) -> Table:
    """Return the gate's verdict per window beside how often it fails with nothing changed."""
    listed = list(dict.fromkeys(f.feature for _, w, _ in _judged(report) for f in w.features))
    rows = []
    for run, window, null in _judged(report):
        found = {feature.feature: feature for feature in window.features}
        steps = f"{window.profile_steps:,}{NBSP}vs{NBSP}{window.clean_steps:,}{NBSP}steps"
        rows.append(
            (
                run_cell(run),
                Cell(str(window.window), sub=steps, sort=float(window.window)),
                outcome_cell(window.outcome, window.reason),
                _rate(run, null, pair=False),
                _rate(run, null, pair=True),
                *(_smd(found.get(name), null) for name in listed),
            )
        )
    return Table(
        ident=ident,
        caption="Does each profile window resemble its clean segment?",
        columns=(
            RUN,
            *numbers("window"),
            *names("verdict"),
            *numbers("fails by itself, window", "fails by itself, load point"),
            *numbers(*(f"SMD {name.replace('_', ' ')}" for name in listed)),
        ),
        rows=tuple(rows),
        notes=(
            "“Fails by itself”: how often the same gate rejects windows of as many consecutive "
            "steps drawn at random from this run's own clean steps, where nothing was profiled; "
            "below each SMD, the same for that feature alone. Near 100 %, a failure says little "
            "about the profiler.",
        ),
        empty="No run has a representativeness analysis.",
    )


def _rate(run: RunView, null: NullRate | None, *, pair: bool) -> Cell:
    if null is None:
        judged = None if run.kernels is None else run.kernels.representativeness
        reason = None if judged is None else judged.null_rate_reason
        return Cell(NULL, tone="muted", title=reason or "not computed")
    rate = null.load_point_failure_rate if pair else null.any_feature_failure_rate
    title = f"seed {null.seed}, windows of {null.steps_per_window} consecutive clean steps"
    sub = f"{null.draws:,}{NBSP}draws"
    return Cell(percent(rate), sub=sub, sort=rate, bar=rate, colour="#8A8F98", title=title)


def _smd(feature: SmdFeature | None, null: NullRate | None) -> Cell:
    if feature is None:
        return Cell("–", tone="muted", title="not a feature of this window")
    rate = None if null is None else null.by_feature.get(feature.feature)
    sub = "" if rate is None else f"itself{NBSP}{percent(rate, 0)}"
    title = f"profile {number(feature.mean_profile)}, clean {number(feature.mean_clean)}"
    return Cell(
        signed(feature), tone=TONES.get(feature.outcome, ""), sub=sub, title=title, sort=feature.smd
    )


def signed(feature: SmdFeature) -> str:
    """Return an SMD with its sign; a constant feature is judged by exact equality."""
    if feature.constant:
        return "equal" if feature.outcome == "pass" else "unequal"
    return NULL if feature.smd is None else f"{feature.smd:+.2f}".replace("-", MINUS)


def features(ident: str, report: ReportInput) -> Table:
    """Return means and deviations behind every standardised mean difference."""
    rows = []
    for run, window, null in _judged(report):
        for feature in window.features:
            rate = None if null is None else null.by_feature.get(feature.feature)
            rows.append(
                (
                    run_cell(run),
                    text(str(window.window)),
                    text(feature.feature.replace("_", " ")),
                    value_cell(feature.mean_profile),
                    value_cell(feature.mean_clean),
                    value_cell(feature.sd_profile),
                    value_cell(feature.sd_clean),
                    value_cell(feature.pooled_sd),
                    Cell(signed(feature), sort=feature.smd),
                    outcome_cell(feature.outcome),
                    Cell(NULL, tone="muted") if rate is None else Cell(percent(rate), sort=rate),
                )
            )
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
        notes=("A constant feature has no SMD: it is judged by exact equality.",),
        empty="No run has a representativeness analysis.",
    )
