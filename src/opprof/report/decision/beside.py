"""What stands beside the verdict: runs, cells, intervals, factorial, confirmations, ranks, P10."""

from __future__ import annotations

from opprof.artifacts.decision import Decision, FactorialEffect, RunStatus
from opprof.report.blocks import Block, Cell, Fold, Section, Table
from opprof.report.decision.cells import estimate_cell, met_cell
from opprof.report.formats import number, percent
from opprof.report.palette import family
from opprof.report.tables.cells import names, numbers, outcome_cell, text, value_cell


def beside_part(decision: Decision) -> Section:
    """Return what decides nothing and belongs to the record."""
    intervals = _intervals(decision)
    blocks: list[Block] = [
        _confirmations(decision),
        _factorial(decision),
        _interference(decision),
        _parallelism(decision),
        _ranks(decision),
        _warmup(decision),
        Fold(intervals.caption, (intervals,), printed=False),
    ]
    lead = "None of this decides anything; every absolute value stands beside its ratio."
    return Section("decision-beside", "Beside the verdict", lead, tuple(blocks))


def runs_part(decision: Decision) -> Section:
    """Return every run with its standing and marks, and every registered run that is missing."""
    cells = tuple(
        (text(run), text(state, tone="" if state == "evaluable" else "ne"))
        for run, state in sorted(decision.cells.items(), key=lambda item: item[1] == "evaluable")
    )
    blocks: list[Block] = [
        _runs(decision.runs),
        Table(
            "decision-cells",
            "Registered runs: what is evaluable and what is not",
            names("run", "state"),
            cells,
        ),
    ]
    lead = "Runs that the decision was given, and those that the protocol registers."
    return Section("decision-runs", "Runs of the decision", lead, tuple(blocks))


def _runs(statuses: list[RunStatus]) -> Table:
    rows = tuple(
        (
            Cell(item.run.name, tone="strong"),
            met_cell(item.valid, "; ".join(item.invalid_reasons)),
            met_cell(item.breakdown_valid, "; ".join(item.breakdown_reasons)),
            text("; ".join(item.invalid_reasons or item.breakdown_reasons[:3])),
            text("; ".join(item.marks), tone="warn" if item.marks else ""),
            text(", ".join(item.not_evaluable_gates)),
        )
        for item in statuses
    )
    return Table(
        "decision-run-states",
        "Runs and what they may be used for",
        names("run", "valid", "breakdown", "reasons", "marks", "gates not evaluable"),
        rows,
    )


def _confirmations(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(item.pattern, sub=f"{item.config} {item.load_point}", tone="strong"),
            text(item.metric),
            value_cell(item.first),
            value_cell(item.repeat),
            value_cell(item.absolute),
            Cell(number(item.relative), sort=item.relative),
            text(item.reason or ""),
        )
        for item in decision.confirmations
    )
    return Table(
        "decision-confirmations",
        "Confirmation runs against the first: nothing removed, nothing averaged",
        (
            *names("pattern", "metric"),
            *numbers("first", "repeat", "absolute delta", "relative delta"),
            *names("reason"),
        ),
        rows,
        empty="The protocol registers no confirmation run.",
    )


def _factorial(decision: Decision) -> Table:
    configs = list(dict.fromkeys(c for item in decision.factorial for c in item.cells))
    rows = tuple(_factorial_row(item, configs) for item in decision.factorial)
    return Table(
        "decision-factorial",
        "Scheduler factorial on the sentinels: main effects and interaction",
        (
            *names("cell", "metric", "scale"),
            *numbers(*configs),
            *numbers("MNS", "MBT", "interaction"),
            *names("reason"),
        ),
        rows,
        notes=("log_ratio: the exponential of an effect is a ratio. Values stand over ratios.",),
        empty="The protocol registers no sentinel.",
    )


def _factorial_row(item: FactorialEffect, configs: list[str]) -> tuple[Cell, ...]:
    def value(config: str) -> Cell:
        ratio = item.ratios.get(config)
        return value_cell(item.cells.get(config), sub="" if ratio is None else f"×{ratio:.3f}")

    return (
        Cell(item.pattern, sub=item.load_point, tone="strong"),
        text(item.metric),
        text(item.scale),
        *(value(config) for config in configs),
        estimate_cell(item.main_mns, 3),
        estimate_cell(item.main_mbt, 3),
        estimate_cell(item.interaction, 3),
        text(item.reason or "", tone="ne" if item.reason else ""),
    )


def _interference(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(f"{item.pattern}-{item.config}-{item.load_point}", tone="strong"),
            estimate_cell(item.i_mix),
            estimate_cell(item.step_residual),
            value_cell(item.alpha_ms, "no zero-token step"),
            value_cell(item.zero_token_steps),
            value_cell(item.mixed_supported),
            value_cell(item.mixed_unsupported),
            value_cell(item.pure_supported),
            value_cell(item.pure_unsupported),
            value_cell(item.other_reading_supported),
            text(", ".join(item.fitted_patterns)),
        )
        for item in decision.interference
    )
    return Table(
        "decision-interference",
        "Interference and step-time residual, each run predicted from all other patterns",
        (
            *names("run"),
            *numbers("I_mix", "step residual", "alpha|ms", "zero-token steps"),
            *numbers("mixed supported", "excluded", "pure supported", "excluded ", "other reading"),
            *names("fitted on"),
        ),
        rows,
        empty="No run has the clean steps that a fit needs.",
    )


def _parallelism(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(f"{item.pattern}-{item.config}-{item.load_point}", tone="strong"),
            text(item.metric),
            value_cell(item.value),
            value_cell(item.baseline_value, f"{item.baseline_config} is missing"),
            value_cell(item.ratio),
        )
        for item in decision.parallelism
    )
    return Table(
        "decision-parallelism",
        "Tensor parallelism beside its baseline: descriptive, no scaling claim",
        (*names("run", "metric"), *numbers("value", "baseline", "ratio")),
        rows,
        empty="No tensor-parallel run was given.",
    )


def _ranks(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(row.run, tone="strong"),
            text(str(row.window)),
            text(family(row.family).label),
            Cell(percent(row.mean_share), sort=row.mean_share * 100),
            Cell(percent(row.min_share), sort=row.min_share * 100),
            Cell(percent(row.max_share), sort=row.max_share * 100),
        )
        for row in decision.rank_spreads
    )
    return Table(
        "decision-ranks",
        "Families over the ranks of one window: mean and range, never summed",
        (*names("run"), *numbers("window"), *names("family"), *numbers("mean", "least", "most")),
        rows,
        empty="No run with several ranks.",
    )


def _warmup(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(run, tone="strong"),
            outcome_cell(gate.outcome, gate.reason),
            text(gate.reason),
            Cell("", sub="\n".join(f"{name}: {value}" for name, value in gate.numbers.items())),
        )
        for run, gate in decision.warmup_branch.items()
    )
    return Table(
        "decision-warmup",
        "Warm-up by completions or stabilisation (A-P3-6): the evidence in full",
        names("run", "outcome", "reason", "numbers"),
        rows,
        empty="No given run belongs to a pattern that may pass by stabilisation.",
    )


def _intervals(decision: Decision) -> Table:
    rows = tuple(
        (
            Cell(item.run, tone="strong"),
            text(metric, "signed" if metric in item.signed else ""),
            estimate_cell(value),
            text("; ".join(item.marks)),
        )
        for item in decision.intervals
        for metric, value in item.metrics.items()
    )
    return Table(
        "decision-intervals",
        "Every metric of every run with its moving-block interval",
        (*names("run", "metric"), *numbers("value"), *names("marks")),
        rows,
    )
