"""The inversion matrix, places, Kendall's tau-b, ratios and their geometric means."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.comparison import (
    Comparison,
    Inversion,
    PatternPair,
    TauPair,
    WindowRanking,
)
from opprof.report.blocks import Cell, Column, Flag, Table
from opprof.report.formats import NBSP, NULL, number, percent, points
from opprof.report.inputs import ReportInput, RunView, flags_of
from opprof.report.palette import family
from opprof.report.tables.cells import RUN, names, numbers, run_cell, text, value_cell
from opprof.report.text.ranking import Group, group_name, group_of, weakest_gap

Pair = tuple[str, str]


def matrix(
    ident: str, caption: str, report: ReportInput, rows: Sequence[Inversion], *, turned: bool
) -> Table:
    """Return family pairs by pattern pairs: those whose order turns somewhere, or the others.

    ``rows`` belong to one group (config, load point, role) and one mapping table.
    """
    patterns = list(dict.fromkeys((row.pattern_p, row.pattern_q) for row in rows))
    by_families: dict[Pair, dict[Pair, Inversion]] = {}
    for row in rows:
        families = tuple(sorted((row.family_a, row.family_b)))
        assert len(families) == 2
        by_families.setdefault(families, {})[(row.pattern_p, row.pattern_q)] = row
    chosen = {
        families: cells
        for families, cells in by_families.items()
        if any(turns(cell) for cell in cells.values()) is turned
    }
    order = sorted(chosen, key=lambda families: (-_strongest(chosen[families]), families))
    return Table(
        ident=ident,
        caption=caption,
        columns=(
            *names("families"),
            *(_pair_column(report, rows[0], pair) for pair in patterns),
        ),
        rows=tuple(
            (
                Cell(f"{family(one).label} vs {family(two).label}", tone="strong"),
                *(_inversion_cell(chosen[one, two].get(pair)) for pair in patterns),
            )
            for one, two in order
        ),
        empty="No pair of families changes its order."
        if turned
        else "Every pair changes its order.",
    )


def _pair_column(report: ReportInput, row: Inversion, pair: Pair) -> Column:
    return Column(
        f"{pair[0]} – {pair[1]}", numeric=False, flags=_marks(report, group_of(row), pair)
    )


def _marks(report: ReportInput, group: Group, patterns: Sequence[str]) -> tuple[Flag, ...]:
    """Return the marks of a group's runs of these patterns, each once."""
    flags: dict[str, Flag] = {}
    for run in report.runs:
        i = run.identity
        if (i.config, i.load_point, i.role) == group and i.pattern in patterns:
            flags.update({flag.label: flag for flag in flags_of(run)})
    return tuple(flags.values())


def turns(row: Inversion) -> bool:
    """Tell whether the mean order of the two families differs between the two patterns."""
    known = [gap for gap in row.gaps_q if gap is not None]
    return bool(row.gap_criteria_met) or (bool(known) and sum(known) > 0)


def _strongest(cells: dict[Pair, Inversion]) -> float:
    """Return the largest margin that holds in every window of a cell; met cells come first."""
    margins = [(1.0 if row.gap_criteria_met else 0.0) + weakest_gap(row) for row in cells.values()]
    return max(margins, default=0.0)


def _inversion_cell(row: Inversion | None) -> Cell:
    if row is None:
        return Cell("?", tone="ne", title="this comparison was not made")
    a, b = family(row.family_a).label, family(row.family_b).label
    sub = (
        f"{row.pattern_p}: {a} {_points(row.gaps_p)}\n{row.pattern_q}: "
        f"{b if turns(row) else a} {_points(row.gaps_q, flip=not turns(row))}"
    )
    if row.accepted:
        return Cell("● inversion accepted", sub=f"{sub}\nHolm p {number(row.holm_p)}", tone="met")
    if row.gap_criteria_met is None:
        return Cell("? not evaluable", sub=sub, tone="ne")
    if row.classifiable is False:
        return Cell("✗ not classifiable", sub=sub, tone="fail")
    if row.gap_criteria_met and row.accepted is None:
        return Cell("◐ gap criteria met", sub=f"{sub}\npermutation test open", tone="met")
    if row.gap_criteria_met:
        return Cell("○ permutation test disagrees", sub=f"{sub}\nHolm p {number(row.holm_p)}")
    if turns(row):
        return Cell("○ turns, margin not kept", sub=sub)
    return Cell("– same order", sub=sub, tone="muted")


def _points(gaps: Sequence[float | None], *, flip: bool = False) -> str:
    signed = [None if gap is None else (-gap if flip else gap) for gap in gaps]
    return f"{', '.join(points(gap) for gap in signed)}{NBSP}pp"


def places(ident: str, report: ReportInput, windows: Sequence[WindowRanking]) -> Table:
    """Return each family's place and share in every window; ties share a place."""
    listed = list(dict.fromkeys(n for w in windows for n, f in w.families.items() if f.ns))
    rows = [
        (
            _run(report, window.run),
            text(str(window.window)),
            text(str(window.rank)),
            text(", ".join(family(name).label for name in window.top)),
            *(_place(window, name) for name in listed),
        )
        for window in windows
    ]
    return Table(
        ident=ident,
        caption="Places of the families in every window",
        columns=(
            RUN,
            *numbers("window", "rank"),
            *names("first place"),
            *numbers(*(family(name).label for name in listed)),
        ),
        rows=tuple(rows),
        notes=(
            "Families within the protocol's tie margin share a place; the next one is skipped.",
        ),
        empty="No window to rank.",
    )


def _place(window: WindowRanking, name: str) -> Cell:
    found = window.families.get(name)
    if found is None:
        return Cell("–", tone="muted")
    if found.place is None:
        return Cell("–", sub=percent(found.share), tone="muted", title="not ranked")
    return Cell(f"{found.place}.", sub=percent(found.share), sort=float(found.place))


def _run(report: ReportInput, name: str) -> Cell:
    run: RunView | None = report.run_named(name)
    return Cell(name) if run is None else run_cell(run)


def tau(ident: str, report: ReportInput, group: Group, rows: Sequence[TauPair], rank: int) -> Table:
    """Return Kendall's tau-b between every two windows of a group on one rank, as a matrix."""
    mine = [
        row for row in rows if (row.config, row.load_point, row.role) == group and row.rank == rank
    ]
    keys = sorted(
        {(row.pattern_p, row.window_p) for row in mine}
        | {(row.pattern_q, row.window_q) for row in mine}
    )
    values: dict[tuple[tuple[str, int], tuple[str, int]], TauPair] = {}
    for row in mine:
        p, q = (row.pattern_p, row.window_p), (row.pattern_q, row.window_q)
        values[p, q] = values[q, p] = row
    return Table(
        ident=ident,
        caption=f"Kendall's tau-b between windows, {group_name(group)}, rank {rank}",
        columns=(*names("window of"), *numbers(*(f"{p} window {w}" for p, w in keys))),
        rows=tuple(
            (
                _tau_head(report, group, here),
                *(Cell("·", tone="muted") if a == here else _tau_cell(values.get((here, a)))
                  for a in keys),
            )
            for here in keys
        ),
        notes=(
            "1: equal rankings, −1: reversed. Windows of one pattern among themselves give the "
            "scale for what a difference between patterns means. Descriptive only.",
        ),
        empty="No two windows to compare.",
    )  # fmt: skip


def _tau_head(report: ReportInput, group: Group, key: tuple[str, int]) -> Cell:
    flags = _marks(report, group, (key[0],))
    return Cell(f"{key[0]} window {key[1]}", flags=flags, tone="strong")


def _tau_cell(row: TauPair | None) -> Cell:
    if row is None or row.tau_b is None:
        return Cell(NULL, tone="muted", title="every family of one side shares one place")
    colour = "#0072B2" if row.tau_b >= 0 else "#D55E00"
    shown = f"{row.tau_b:.2f}".replace("-", "−")
    return Cell(shown, bar=min(abs(row.tau_b), 1.0), colour=colour, sort=row.tau_b)


def pairs(ident: str, report: ReportInput, rows: Sequence[PatternPair]) -> Table:
    """Return which pairs of patterns can be judged, and what stands in the way."""
    return Table(
        ident=ident,
        caption="Pairs of patterns and what may be concluded from them",
        columns=names("pair", "group", "comparison", "evaluable", "reasons", "marks"),
        rows=tuple(
            (
                Cell(
                    f"{row.pattern_p} – {row.pattern_q}",
                    tone="strong",
                    flags=_marks(report, group_of(row), (row.pattern_p, row.pattern_q)),
                ),
                text(group_name(group_of(row))),
                text("primary" if row.primary else "supporting"),
                Cell("✓ yes", tone="pass") if row.evaluable else Cell("? not evaluable", tone="ne"),
                Cell("", sub="\n".join(row.reasons)),
                Cell("", sub="\n".join(row.marks)),
            )
            for row in rows
        ),
        notes=("Marks: failed gates that leave the figures visible and the reader warned.",),
        empty="No two runs share a config, load point and role over two patterns.",
    )


def ratios(ident: str, report: ReportInput, comparison: Comparison) -> Table:
    """Return absolute values beside their ratio to the baseline config."""
    return Table(
        ident=ident,
        caption="Absolute values and ratios to the baseline config",
        columns=(
            *names("pattern", "load point", "role", "config", "metric"),
            *numbers("rank", "value", "baseline value", "ratio"),
            *names("reason"),
        ),
        rows=tuple(
            (
                Cell(
                    row.pattern,
                    flags=_marks(report, (row.config, row.load_point, row.role), (row.pattern,)),
                ),
                text(row.load_point),
                text(row.role),
                text(row.config),
                text(row.metric),
                text("–" if row.rank is None else str(row.rank)),
                value_cell(row.value, "not measured"),
                value_cell(row.baseline_value, row.reason or ""),
                value_cell(row.ratio, row.reason or ""),
                text(row.reason or ""),
            )
            for row in comparison.ratios
        ),
        empty="No run of another config than the baseline's.",
    )


def aggregates(ident: str, report: ReportInput, comparison: Comparison) -> Table:
    """Return geometric means of ratios over patterns, with every cell they are made of."""
    return Table(
        ident=ident,
        caption="Geometric means of the ratios over patterns",
        columns=(
            *names("config", "load point", "role", "metric"),
            *numbers("rank", "geometric mean"),
            *names("made of", "reason"),
        ),
        rows=tuple(
            (
                Cell(
                    row.config,
                    flags=_marks(report, (row.config, row.load_point, row.role), tuple(row.cells)),
                ),
                text(row.load_point),
                text(row.role),
                text(row.metric),
                text("–" if row.rank is None else str(row.rank)),
                value_cell(row.geometric_mean, row.reason or ""),
                text(", ".join(f"{pattern} {number(v)}" for pattern, v in row.cells.items())),
                text(row.reason or ""),
            )
            for row in comparison.aggregates
        ),
        empty="No ratio to aggregate.",
    )
