"""H1a on the page: comparisons, their windows and active steps, both mapping tables, the null."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.decision import DecidedComparison, Decision
from opprof.artifacts.kernels import Window, WindowFamilies
from opprof.report.blocks import Block, Cell, Fold, Section, Table, Text
from opprof.report.decision.cells import (
    comparison_table,
    families_text,
    met_cell,
    pair_text,
)
from opprof.report.formats import milliseconds, number, percent, points
from opprof.report.inputs import ReportInput, RunView
from opprof.report.palette import family
from opprof.report.tables.cells import names, numbers, run_cell, text, value_cell
from opprof.words import plural

_DETAILS_MAX = 40
"""Comparisons with windows and steps of their own; all others stand in the tables."""


def h1a_part(decision: Decision, report: ReportInput) -> Section:
    """Return everything that H1a rests on, from comparisons down to active steps."""
    evidence = decision.h1a.evidence
    met = [item for item in decision.inversions if item.gap_criteria_met]
    met.sort(key=lambda item: (not item.accepted, -_least(item)))
    detailed = met[:_DETAILS_MAX]
    anchors = {id(item): f"#h1a-detail-{n}" for n, item in enumerate(detailed)}
    blocks: list[Block] = [
        comparison_table(
            "h1a-met",
            f"Comparisons that meet the gap rule under {evidence.mapping_version} (deciding)",
            met,
            anchors,
            "No evaluable comparison meets the gap rule.",
        )
    ]
    if evidence.notes:
        blocks.append(Text(tuple(evidence.notes), bullets=True, heading="Read with them"))
    for n, item in enumerate(detailed):
        blocks += _details(f"h1a-detail-{n}", item, report)
    if len(met) > len(detailed):
        left = plural(len(met) - len(detailed), "comparison")
        blocks.append(Text((f"{left} more without windows and steps of their own here.",)))
    blocks += [_tables(decision), *_disagreements(decision), _tops(decision), _bounds(decision)]
    blocks += _beside(decision)
    lead = (
        f"{evidence.registered} registered comparisons, {evidence.evaluable} evaluable, "
        f"{evidence.tested} tested together. Statistic: {evidence.statistic}, "
        f"{evidence.sides}-sided, {evidence.permutations:,} permutations, seed {evidence.seed}; "
        f"Holm at {evidence.alpha:g}."
    )
    return Section("h1a", f"H1a, composition: {decision.h1a.outcome}", lead, tuple(blocks))


def _least(item: DecidedComparison) -> float:
    return min((gap for gap in (*item.gaps_p, *item.gaps_q) if gap is not None), default=0.0)


# ------------------------------------------------------------------ windows and active steps


def _details(ident: str, item: DecidedComparison, report: ReportInput) -> list[Block]:
    """Return a comparison's windows, and their active steps behind a fold."""
    runs = [_run(report, item, pattern) for pattern in (item.pattern_p, item.pattern_q)]
    known = [run for run in runs if run is not None]
    caption = f"{pair_text(item)}: {families_text(item)}, window by window"
    rows = [row for run in known for row in _window_rows(run, item)]
    table = Table(
        ident,
        caption,
        (
            *names("run"),
            *numbers("window"),
            *numbers(family(item.family_a).label, family(item.family_b).label),
            *numbers("lead|pp|of the first family over the second", "kernel time|ms"),
            *numbers("classified"),
            *names("accepted", "trace", "raw numbers"),
        ),
        tuple(rows),
        empty="The runs themselves are not on this page: name their folders to see windows and "
        "steps.",
    )
    blocks: list[Block] = [table]
    steps = tuple(row for run in known for row in _step_rows(run, item))
    if steps:
        listed = Table(
            f"{ident}-steps",
            f"Active steps behind {pair_text(item)}, {families_text(item)}",
            (
                *names("run"),
                *numbers("window", "profiler step", "Layer-1 step"),
                *names("mode"),
                *numbers("kernel time|ms", f"{family(item.family_a).label}|ms"),
                *numbers(f"{family(item.family_b).label}|ms", "lead|pp"),
                *names("raw numbers"),
            ),
            steps,
        )
        blocks.append(Fold(listed.caption, (listed,), printed=False))
    return blocks


def _run(report: ReportInput, item: DecidedComparison, pattern: str) -> RunView | None:
    for run in report.runs:
        who = run.identity
        place = (who.pattern, who.config, who.load_point, who.role)
        if place == (pattern, item.config, item.load_point, item.role):
            return run
    return None


def _window_rows(run: RunView, item: DecidedComparison) -> list[tuple[Cell, ...]]:
    rows = []
    for index, window in enumerate(run.windows):
        shares = [_share(window, name) for name in (item.family_a, item.family_b)]
        gap = shares[0] - shares[1]
        rows.append(
            (
                run_cell(run),
                text(str(window.window)),
                *(Cell(percent(share, 2), sort=share * 100) for share in shares),
                Cell(points(gap, 2), sort=gap * 100),
                Cell(milliseconds(window.kernel_ns), sort=window.kernel_ns / 1e6),
                Cell(percent(window.classified_fraction), sort=window.classified_fraction * 100),
                met_cell(window.accepted, "; ".join(window.reasons)),
                text(f"{run.identity.name}/{window.trace}", mono=True),
                text(f"{run.identity.name}/analysis/kernels.json windows[{index}]", mono=True),
            )
        )
    return rows


def _share(window: WindowFamilies, name: str) -> float:
    found = window.families.get(name)
    return 0.0 if found is None else found.share


def _step_rows(run: RunView, item: DecidedComparison) -> list[tuple[Cell, ...]]:
    rows = []
    for index, window in enumerate(run.windows):
        rows += [_step_row(run, window, index, at, item) for at in range(len(window.steps))]
    return rows


def _step_row(
    run: RunView, window: Window, index: int, at: int, item: DecidedComparison
) -> tuple[Cell, ...]:
    step = window.steps[at]
    times = [step.families.get(name, 0) for name in (item.family_a, item.family_b)]
    gap = (times[0] - times[1]) / step.kernel_ns if step.kernel_ns else None
    return (
        run_cell(run),
        text(str(window.window)),
        text(str(step.profiler_step)),
        value_cell(step.layer1_step),
        text(step.mode or "unknown"),
        Cell(milliseconds(step.kernel_ns), sort=step.kernel_ns / 1e6),
        *(Cell(milliseconds(ns), sort=ns / 1e6) for ns in times),
        Cell(points(gap, 2), sort=None if gap is None else gap * 100),
        text(f"kernels.json windows[{index}].steps[{at}]", mono=True),
    )


# -------------------------------------------------------------------------------- both tables


def _tables(decision: Decision) -> Table:
    evidence = decision.h1a.evidence
    rows = [
        (
            Cell(evidence.mapping_version, sub="decides", tone="strong"),
            value_cell(evidence.tested),
            value_cell(evidence.met_gaps),
            value_cell(len(evidence.accepted)),
            text(", ".join(evidence.null.common_top) or "none"),
            _bound_cell(evidence.null.greatest_bound),
        )
    ]
    for version, table in decision.alternatives.items():
        rows.append(
            (
                Cell(version, sub="beside", tone="strong"),
                value_cell(table.tested),
                value_cell(table.met_gaps),
                value_cell(len(table.accepted)),
                text(", ".join(table.null.common_top) or "none"),
                _bound_cell(table.null.greatest_bound),
            )
        )
    return Table(
        "h1a-tables",
        "The same under every mapping table",
        (
            *names("mapping"),
            *numbers("tested", "gap rule met", "accepted"),
            *names("top everywhere"),
            *numbers("greatest bound|pp"),
        ),
        tuple(rows),
    )


def _bound_cell(bound: float | None) -> Cell:
    return Cell(points(bound), sort=None if bound is None else bound * 100)


def _disagreements(decision: Decision) -> list[Block]:
    if not decision.disagreements:
        return [Text(("No mapping table would decide otherwise.",))]
    heading = "Where the mapping tables disagree"
    return [Text(tuple(decision.disagreements), bullets=True, heading=heading)]


def _tops(decision: Decision) -> Table:
    tops = decision.h1a.evidence.null.tops
    width = max((len(windows) for windows in tops.values()), default=0)
    rows = tuple(
        (
            Cell(pattern, tone="strong"),
            *(
                text(", ".join(family(name).label for name in windows[at]))
                if at < len(windows)
                else text("")
                for at in range(width)
            ),
        )
        for pattern, windows in tops.items()
    )
    columns = names("pattern", *(f"window {at}" for at in range(width)))
    return Table("h1a-tops", "Top family of every primary window", columns, rows)


def _bounds(decision: Decision) -> Table:
    null = decision.h1a.evidence.null
    rows = tuple(
        (
            text(f"{item.pattern_p} / {item.pattern_q}"),
            text(f"{family(item.family_a).label} / {family(item.family_b).label}"),
            Cell(points(item.bound), sort=item.bound * 100),
        )
        for item in null.bounds
    )
    other = (
        "n/a"
        if null.share_difference_bound is None
        else f"{points(null.share_difference_bound)} pp"
    )
    return Table(
        "h1a-bounds",
        f"How deep an inversion can be: simultaneous {1 - null.alpha:.0%} upper bounds",
        (*names("patterns", "families with the greatest bound"), *numbers("bound|pp")),
        rows,
        notes=(
            f"Bonferroni over {null.bounded} leads, Student's t on linearised ratios. The other "
            f"reading, one family's share difference between two patterns: at most {other}.",
        ),
        empty="Fewer than two patterns are evaluable.",
    )


def _beside(decision: Decision) -> list[Block]:
    evidence = decision.h1a.evidence
    strengthening = [item.comparison for item in evidence.strengthening]
    blocks: list[Block] = [
        comparison_table(
            "h1a-strengthening",
            "Other load points and configurations: strengthening evidence, never required",
            strengthening,
            empty="Nothing outside the primary comparison meets the gap rule.",
        )
    ]
    for n, (version, found) in enumerate(decision.explored.items()):
        caption = f"Explored under {version}: every comparison outside the primary load point"
        blocks.append(
            Fold(caption, (comparison_table(f"h1a-explored-{n}", caption, found),), printed=False)
        )
    caption = f"All {len(decision.inversions)} registered comparisons under"
    listed = [(evidence.mapping_version, decision.inversions)]
    listed += [(v, table.comparisons) for v, table in decision.alternatives.items()]
    for n, (version, items) in enumerate(listed):
        table = comparison_table(f"h1a-all-{n}", f"{caption} {version}", items)
        blocks.append(Fold(table.caption, (table,), printed=False))
    blocks.append(Fold("Kendall's tau-b of the primary windows", (_tau(decision),), printed=False))
    return blocks


def _tau(decision: Decision) -> Table:
    tables: Sequence[tuple[str, str, float | None]] = [
        (
            f"{row.pattern_p} window {row.window_p} – {row.pattern_q} window {row.window_q}",
            f"rank {row.rank}",
            row.tau_b,
        )
        for row in decision.tau
    ]
    rows = tuple(
        (text(name), text(rank), Cell(number(tau), sort=tau)) for name, rank, tau in tables
    )
    return Table(
        "tau-decision",
        "Kendall's tau-b between windows, ties within one point (descriptive)",
        (*names("windows", "rank"), *numbers("tau-b")),
        rows,
    )
