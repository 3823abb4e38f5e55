"""H1b on the page: contrasts with every waste metric, association, raggedness."""

from __future__ import annotations

from opprof.artifacts.decision import Association, Contrast, ContrastMetric, Decision, Estimate
from opprof.report.blocks import Block, Cell, Section, Table, Text
from opprof.report.decision.cells import estimate_cell, met_cell, p_cell
from opprof.report.formats import NULL, number
from opprof.report.tables.cells import names, numbers, text, value_cell
from opprof.words import plural


def h1b_part(decision: Decision) -> Section:
    """Return all frozen contrasts, evaluable or not, and what they rest on."""
    evidence = decision.h1b.evidence
    blocks: list[Block] = [_metrics(decision), _association(decision), _raggedness(decision)]
    if evidence.notes:
        blocks.insert(1, Text(tuple(evidence.notes), bullets=True, heading="Read with them"))
    contrasts, passing = len(evidence.contrasts), len(evidence.passing)
    lead = (
        f"{plural(contrasts, 'frozen contrast')}, irregular less rectangular control, "
        f"{plural(passing, 'qualifies', 'qualify')}. {evidence.resamples:,} moving-block resamples,"
        f" seed {evidence.seed}; Holm within each waste family at {evidence.alpha:g}. I_mix,"
        " efficiency loss and step-time residual are signed; R64 comes from the manifest and has no"
        " interval."
    )
    title = f"H1b, rectangular-benchmark miss: {decision.h1b.outcome}"
    return Section("h1b", title, lead, tuple(blocks))


def _name(item: Contrast) -> str:
    return f"{item.irregular} vs {item.control}"


def _contrast_cell(item: Contrast) -> Cell:
    return Cell(_name(item), sub="\n".join(item.marks), tone="strong")


def _metrics(decision: Decision) -> Table:
    rows = tuple(
        _metric_row(item, metric)
        for item in decision.h1b.evidence.contrasts
        for metric in item.metrics
    )
    return Table(
        "h1b-metrics",
        "Waste contrasts",
        (
            *names("contrast", "metric"),
            *numbers("irregular", "control", "difference"),
            *numbers("corrected interval||at the level of the metric's step in Holm's procedure"),
            *numbers("threshold", "p", "Holm p"),
            *names("above threshold", "zero excluded", "material", "where from"),
        ),
        rows,
    )


def _metric_row(item: Contrast, metric: ContrastMetric) -> tuple[Cell, ...]:
    reason = metric.reason or ""
    if not item.evaluable:
        reason = f"NOT EVALUABLE: {'; '.join(item.reasons)}"
    source = "waste.json of both runs" if metric.difference is not None else reason
    return (
        _contrast_cell(item),
        text(metric.metric, "signed" if metric.signed else ""),
        value_cell(metric.irregular, reason),
        value_cell(metric.control, reason),
        value_cell(metric.difference, reason),
        _interval_cell(metric),
        value_cell(metric.threshold),
        p_cell(metric.p_value),
        p_cell(metric.holm_p),
        met_cell(metric.exceeds_threshold, reason),
        met_cell(metric.excludes_zero, reason),
        met_cell(metric.passes, reason),
        text(source, tone="" if metric.difference is not None else "ne"),
    )


def _interval_cell(metric: ContrastMetric) -> Cell:
    if metric.deterministic:
        return Cell("exact", tone="muted", title="deterministic: from the manifests alone")
    if metric.corrected_level is None:
        return Cell(NULL, tone="muted")
    ends = f"{_end(metric.corrected_low)} … {_end(metric.corrected_high)}"
    circular = ""
    if metric.circular_low is not None or metric.circular_high is not None:
        circular = f"circular {_end(metric.circular_low)} … {_end(metric.circular_high)}"
    title = f"level {metric.corrected_level:.4g}"
    return Cell(ends, sub=circular, title=title, sort=metric.corrected_low)


def _end(value: float | None) -> str:
    return "open" if value is None else number(value, 3)


def _association(decision: Decision) -> Table:
    rows = tuple(_association_row(item) for item in decision.h1b.evidence.contrasts)
    return Table(
        "h1b-association",
        "Association with slower service",
        (
            *names("contrast"),
            *numbers("efficiency loss||1 - E_irregular / E_control, tokens per ms"),
            *names("5 % worse"),
            *numbers("residual irregular", "residual control", "difference of residuals"),
            *names("positive", "at the corrected level", "associated", "material waste"),
            *names("qualifies"),
        ),
        rows,
    )


def _association_row(item: Contrast) -> tuple[Cell, ...]:
    found = item.association or _nothing(item)
    reason = "; ".join(item.reasons)
    return (
        _contrast_cell(item),
        estimate_cell(found.efficiency_loss),
        met_cell(found.efficiency_loss_met, reason),
        value_cell(found.residual_irregular, reason),
        value_cell(found.residual_control, reason),
        estimate_cell(found.residual),
        met_cell(found.residual_met, reason),
        _corrected(found),
        met_cell(found.met, reason),
        text(", ".join(item.passing_metrics) or "none"),
        met_cell(item.passes, reason),
    )


def _corrected(found: Association) -> Cell:
    if found.residual_corrected_met is None:
        return Cell(NULL, tone="muted")
    ends = f"{_end(found.residual_corrected_low)} … {_end(found.residual_corrected_high)}"
    return Cell("yes" if found.residual_corrected_met else "no", sub=ends)


def _nothing(item: Contrast) -> Association:
    empty = Estimate(value=None, reason="; ".join(item.reasons))
    return Association(empty, None, None, None, empty, None, None)


def _raggedness(decision: Decision) -> Table:
    found = decision.h1b.evidence.raggedness
    cohorts = list(found[0].differences) if found else []
    rows = tuple(
        (
            Cell(f"{row.irregular} vs {row.control}", tone="strong"),
            *(value_cell(row.differences.get(name), "a manifest is missing") for name in cohorts),
        )
        for row in found
    )
    return Table(
        "h1b-raggedness",
        "Raggedness by cohort size, irregular less control: the primary one decides",
        (*names("contrast"), *numbers(*cohorts)),
        rows,
    )
