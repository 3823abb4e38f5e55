"""A decision as sentences and tables, from verdict to raw number, without markup.

The command line prints it, ``decision.md`` holds it, and a report can set it in its own form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opprof.artifacts.decision import (
    Contrast,
    ContrastMetric,
    DecidedComparison,
    Decision,
    Estimate,
    RunStatus,
)
from opprof.words import plural


@dataclass(frozen=True)
class PageTable:
    """A table of text cells; every row has one cell a column."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """One part of the page in reading order."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[PageTable, ...] = ()


def decision_page(decision: Decision) -> tuple[PageSection, ...]:
    """Return the page: verdicts first, then what each rests on, then runs and assumptions."""
    return (
        verdict_section(decision),
        h1a_section(decision),
        h1b_section(decision),
        beside_section(decision),
        runs_section(decision),
    )


def verdict_section(decision: Decision) -> PageSection:
    """The three outcomes with their reasons."""
    parts = (
        ("compound", decision.compound),
        ("H1a, composition", decision.h1a),
        ("H1b, rectangular-benchmark miss", decision.h1b),
    )
    rows = tuple((name, part.outcome, "; ".join(part.reasons)) for name, part in parts)
    flags = tuple(f"Red flag: {flag}" for flag in decision.sanity.red_flags)
    table = PageTable("Verdict", ("hypothesis", "outcome", "reasons"), rows)
    return PageSection("Verdict", (*flags, f"Kind of decision: {decision.label}."), (table,))


def h1a_section(decision: Decision) -> PageSection:
    """Accepted inversions, those that fail one criterion, the null, both mapping tables."""
    evidence = decision.h1a.evidence
    null = evidence.null
    sentences = [
        f"{evidence.registered} registered comparisons, {evidence.evaluable} evaluable,"
        f" {evidence.tested} tested together, {evidence.met_gaps} with the gap criteria met,"
        f" {len(evidence.accepted)} accepted under {evidence.mapping_version}.",
        f"Test: {evidence.statistic}, {evidence.sides}-sided, {evidence.permutations} permutations,"
        f" seed {evidence.seed}; Holm at {evidence.alpha:g}.",
    ]
    if null.common_top:
        sentences.append(f"{', '.join(null.common_top)} is top in every evaluable window.")
    if null.greatest_bound is not None:
        sentences.append(
            "Simultaneous upper bound of the deepest inversion that the data allow:"
            f" {number(null.greatest_bound, 3)}; of one family's difference between two patterns:"
            f" {number(null.share_difference_bound, 3)}."
        )
    for version, table in decision.alternatives.items():
        sentences.append(
            f"Under {version}: {table.met_gaps} with the gap criteria met,"
            f" {len(table.accepted)} accepted."
        )
    interesting = [i for i in decision.inversions if i.gap_criteria_met]
    tables = [comparison_table("Inversions that meet the gap criteria", interesting)]
    for version, found in decision.explored.items():
        turned = [item for item in found if turns_over(item)]
        title = f"Explored under {version}: the order turns over in every window"
        tables.append(comparison_table(title, turned))
    strengthening = [item.comparison for item in evidence.strengthening]
    if strengthening:
        tables.append(comparison_table("Strengthening evidence", strengthening))
    missing = tuple((p, "; ".join(found)) for p, found in evidence.not_evaluable.items())
    tables.append(PageTable("Patterns not evaluable", ("pattern", "reasons"), missing))
    return PageSection(
        "H1a: does the ranking of operator families turn over?",
        (*sentences, *evidence.notes),
        tuple(tables),
    )


def turns_over(item: DecidedComparison) -> bool:
    """Whether the lead changes sides in every window, however small it is."""
    gaps = [*item.gaps_p, *item.gaps_q]
    return bool(gaps) and all(gap is not None and gap > 0 for gap in gaps)


def comparison_table(title: str, items: Sequence[DecidedComparison]) -> PageTable:
    """Comparisons with gaps, p-values and criteria."""
    rows = tuple(
        (
            f"{item.pattern_p} / {item.pattern_q}{_group(item)}",
            f"{item.family_a} / {item.family_b}",
            "/".join(_points(gap) for gap in item.gaps_p),
            "/".join(_points(gap) for gap in item.gaps_q),
            yes(item.gap_criteria_met),
            number(item.permutation_p, 2),
            number(item.exact_p, 2),
            number(item.holm_p, 2),
            yes(item.classifiable),
            yes(item.accepted),
            "; ".join((*item.reasons[:1], *item.marks)),
        )
        for item in items
    )
    columns = (
        "patterns", "families", "lead in first", "reversed in second", "gap rule", "p", "exact p",
        "Holm p",
        "classifiable", "accepted", "reasons and marks",
    )  # fmt: skip
    return PageTable(title, columns, rows)


def h1b_section(decision: Decision) -> PageSection:
    """Every frozen contrast with every waste metric and its association."""
    evidence = decision.h1b.evidence
    passing = f"{len(evidence.passing) or 'none'}"
    verb = "qualify" if len(evidence.passing) > 1 else "qualifies"
    sentences = [
        f"{plural(len(evidence.contrasts), 'frozen contrast')}, of which {passing} {verb}."
        f" Corrected intervals: Holm within each waste family at {evidence.alpha:g},"
        f" {evidence.resamples} resamples, seed {evidence.seed}.",
        "I_mix, the efficiency loss and the step-time residual are signed.",
    ]
    metrics = tuple(row for item in evidence.contrasts for row in _metric_rows(item))
    association = tuple(_association_row(item) for item in evidence.contrasts)
    return PageSection(
        "H1b: does irregular traffic waste what a rectangular benchmark omits?",
        (*sentences, *evidence.notes),
        (
            PageTable(
                "Waste contrasts, irregular less control",
                ("contrast", "metric", "difference", "corrected interval", "threshold", "p",
                 "Holm p", "passes", "reason"),
                metrics,
            ),
            PageTable(
                "Association with slower service",
                ("contrast", "efficiency loss", "residual", "met", "marks"),
                association,
            ),
        ),
    )  # fmt: skip


def _metric_rows(item: Contrast) -> list[tuple[str, ...]]:
    if not item.evaluable:
        name = f"{item.irregular} vs {item.control}"
        return [(name, "all", *["n/a"] * 6, f"NOT EVALUABLE: {item.reasons[0]}")]
    return [_metric_row(item, metric) for metric in item.metrics]


def _metric_row(item: Contrast, metric: ContrastMetric) -> tuple[str, ...]:
    interval = f"{number(metric.corrected_low, 3)} … {number(metric.corrected_high, 3)}"
    if metric.deterministic:
        interval = "deterministic"
    return (
        f"{item.irregular} vs {item.control}",
        metric.metric,
        number(metric.difference, 3),
        interval,
        number(metric.threshold, 3),
        number(metric.p_value, 2),
        number(metric.holm_p, 2),
        yes(metric.passes),
        metric.reason or "",
    )


def _association_row(item: Contrast) -> tuple[str, ...]:
    found = item.association
    name = f"{item.irregular} vs {item.control}"
    if found is None:
        return (name, "n/a", "n/a", "NOT EVALUABLE", "; ".join(item.reasons))
    return (
        name,
        estimate_text(found.efficiency_loss),
        estimate_text(found.residual),
        yes(found.met),
        "; ".join(item.marks),
    )


def beside_section(decision: Decision) -> PageSection:
    """Interference fits, scheduler factorial and confirmations."""
    fits = tuple(
        (
            f"{item.pattern}-{item.config}-{item.load_point}",
            estimate_text(item.i_mix),
            estimate_text(item.step_residual),
            f"{item.mixed_supported} of {item.mixed_supported + item.mixed_unsupported}",
            str(item.other_reading_supported),
            number(item.alpha_ms, 3),
        )
        for item in decision.interference
    )
    effects = tuple(
        (
            f"{item.pattern} {item.load_point}",
            item.metric,
            item.scale,
            estimate_text(item.main_mns),
            estimate_text(item.main_mbt),
            estimate_text(item.interaction),
        )
        for item in decision.factorial
        if item.reason is None
    )
    missing = {
        f"{item.pattern} {item.load_point}": item.reason
        for item in decision.factorial
        if item.reason is not None
    }
    deltas = tuple(
        (
            item.pattern,
            item.metric,
            number(item.first, 4),
            number(item.repeat, 4),
            number(item.absolute, 3),
            number(item.relative, 3),
            item.reason or "",
        )
        for item in decision.confirmations
    )
    warmup = tuple((run, gate.outcome, gate.reason) for run, gate in decision.warmup_branch.items())
    return PageSection(
        "Beside the verdict",
        ("None of this decides anything.",),
        (
            PageTable(
                "Interference and step-time residual",
                ("run", "I_mix", "step residual", "mixed steps supported", "other reading",
                 "alpha, ms"),
                fits,
            ),
            PageTable(
                "Scheduler factorial on the sentinels",
                ("cell", "metric", "scale", "MNS", "MBT", "interaction"),
                effects,
                tuple(f"{cell}: {reason}" for cell, reason in missing.items()),
            ),
            PageTable(
                "Confirmation runs",
                ("pattern", "metric", "first", "repeat", "absolute", "relative", "reason"),
                deltas,
            ),
            PageTable("Warm-up by stabilisation (A-P3-6)", ("run", "outcome", "evidence"), warmup),
        ),
    )  # fmt: skip


def runs_section(decision: Decision) -> PageSection:
    """Which runs there are, what they may be used for, and what is missing."""
    runs = tuple(_run_row(item) for item in decision.runs)
    cells = tuple(item for item in decision.cells.items() if item[1] != "evaluable")
    return PageSection(
        "Runs and assumptions",
        (*decision.notes, *decision.disagreements),
        (
            PageTable("Runs", ("run", "valid", "breakdown", "reasons", "marks"), runs),
            PageTable("Registered runs that are not evaluable", ("run", "reason"), cells),
        ),
    )


def _run_row(item: RunStatus) -> tuple[str, ...]:
    reasons = item.invalid_reasons or item.breakdown_reasons
    return (
        item.run.name,
        yes(item.valid),
        yes(item.breakdown_valid),
        "; ".join(reasons),
        "; ".join(item.marks),
    )


def markdown(sections: Sequence[PageSection]) -> str:
    """Return the page as Markdown with pipe tables; empty tables say so."""
    lines: list[str] = []
    for section in sections:
        lines += [f"## {section.title}", ""]
        lines += [*(f"- {sentence}" for sentence in section.sentences), ""]
        for table in section.tables:
            lines += [f"### {table.title}", ""]
            lines += [_pipe(table.columns), _pipe(["---"] * len(table.columns))]
            lines += [_pipe(row) for row in table.rows] or ["", "None."]
            lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def estimate_text(item: Estimate) -> str:
    """A value with its interval, or why there is none."""
    if item.value is None:
        return f"n/a ({item.reason})"
    if item.low is None or item.high is None:
        return number(item.value, 3)
    return f"{number(item.value, 3)} [{number(item.low, 3)}, {number(item.high, 3)}]"


def number(value: float | None, digits: int) -> str:
    """A number with so many significant digits."""
    return "n/a" if value is None else f"{value:.{digits}g}"


def yes(value: bool | None) -> str:
    """A verdict in one word; what was not judged is no "no"."""
    return "n/a" if value is None else ("yes" if value else "no")


def _points(gap: float | None) -> str:
    return "n/a" if gap is None else f"{100 * gap:.1f}"


def _group(item: DecidedComparison) -> str:
    return f" ({item.config} {item.load_point})"
