"""Cells and small tables that several parts of the decision need."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.decision import DecidedComparison, Estimate
from opprof.report.blocks import Cell, Column, Table, Tone
from opprof.report.formats import MINUS, NULL, number, points
from opprof.report.palette import family
from opprof.report.tables.cells import text

OUTCOME_TONES: dict[str, Tone] = {
    "CONFIRMED": "met",
    "REFUTED / NULL SUPPORTED": "strong",
    "PARTIAL": "warn",
    "INCONCLUSIVE": "ne",
    "INVALID": "fail",
}


def verdict_cell(outcome: str, href: str = "") -> Cell:
    """Return a hypothesis' outcome; nothing but a confirmation looks like one."""
    return Cell(outcome, tone=OUTCOME_TONES.get(outcome, ""), href=href)


def met_cell(met: bool | None, reason: str = "") -> Cell:
    """Return whether a criterion holds; what was not judged is neither."""
    if met is None:
        return Cell("? not evaluable", tone="ne", title=reason)
    return Cell("● met", tone="met") if met else Cell("○ not met", title=reason)


def p_cell(value: float | None, sub: str = "") -> Cell:
    """Return a p-value."""
    if value is None:
        return Cell(NULL, tone="muted", sub=sub)
    shown = f"{value:.1e}" if 0 < value < 1e-3 else f"{value:.3g}"
    return Cell(shown.replace("e-", f"e{MINUS}"), sort=value, sub=sub)


def gaps_cell(gaps: Sequence[float | None]) -> Cell:
    """Return the leads of both windows in percentage points; sorted by the least."""
    if not gaps:
        return Cell(NULL, tone="muted")
    known = [gap for gap in gaps if gap is not None]
    least = min(known) * 100 if len(known) == len(gaps) else None
    return Cell(" / ".join(points(gap) for gap in gaps), sort=least)


def estimate_cell(item: Estimate, digits: int = 4) -> Cell:
    """Return a value with its interval below it, or why there is none."""
    if item.value is None:
        return Cell(NULL, tone="muted", title=item.reason or "", sub=item.reason or "")
    sub = item.reason or ""
    if item.low is not None and item.high is not None:
        sub = f"{number(item.low, digits)} … {number(item.high, digits)}"
    if item.circular_low is not None and item.circular_high is not None:
        circular = f"{number(item.circular_low, digits)} … {number(item.circular_high, digits)}"
        return Cell(
            number(item.value, digits), sub=sub, sort=item.value, title=f"circular: {circular}"
        )
    return Cell(number(item.value, digits), sub=sub, sort=item.value)


def pair_text(item: DecidedComparison) -> str:
    """Name a comparison's patterns."""
    return f"{item.pattern_p} / {item.pattern_q}"


def families_text(item: DecidedComparison) -> str:
    """Name a comparison's families, the leader in the first pattern first."""
    return f"{family(item.family_a).label} / {family(item.family_b).label}"


COMPARISON_COLUMNS = (
    Column("patterns", numeric=False),
    Column("families", numeric=False),
    Column("lead in first", "pp", "of the first family, in both windows of the first pattern"),
    Column("reversed in second", "pp", "of the second family, in both windows of the second"),
    Column("gap rule", numeric=False),
    Column("p", "", "permutation test, two-sided, (k + 1) / (n + 1)"),
    Column("exact p", "", "over every joint labelling"),
    Column("Holm p"),
    Column("other choices", "", "one-sided; pooled sums; neighbouring steps exchanged in pairs; "
           "windows as the only replicates", numeric=False),
    Column("classifiable", numeric=False),
    Column("accepted", numeric=False),
    Column("reasons and marks", numeric=False),
)  # fmt: skip


def comparison_table(
    ident: str,
    caption: str,
    items: Sequence[DecidedComparison],
    anchors: dict[int, str] | None = None,
    empty: str = "No comparison.",
) -> Table:
    """Return comparisons with every number of the four criteria.

    ``anchors``: ``id`` of a comparison to the anchor of its details.
    """
    rows = tuple(_row(item, (anchors or {}).get(id(item), "")) for item in items)
    return Table(ident, caption, COMPARISON_COLUMNS, rows, empty=empty)


def _row(item: DecidedComparison, href: str) -> tuple[Cell, ...]:
    reasons = "; ".join((*item.reasons[:2], *item.marks))
    place = "" if item.role == "primary" else f" {item.role}"
    return (
        Cell(pair_text(item), sub=f"{item.config} {item.load_point}{place}", href=href),
        text(families_text(item)),
        gaps_cell(item.gaps_p),
        gaps_cell(item.gaps_q),
        met_cell(item.gap_criteria_met),
        p_cell(item.permutation_p, _monte_carlo(item)),
        p_cell(item.exact_p),
        p_cell(item.holm_p),
        _other_choices(item),
        met_cell(item.classifiable),
        _accepted(item),
        text(reasons, tone="" if item.evaluable else "ne"),
    )


def _monte_carlo(item: DecidedComparison) -> str:
    if item.permutation_interval is None:
        return ""
    low, high = item.permutation_interval
    return f"{low:.1e} … {high:.1e}".replace("e-", f"e{MINUS}")


def _other_choices(item: DecidedComparison) -> Cell:
    known = (
        ("one-sided", item.one_sided_p),
        ("pooled", item.pooled_p),
        ("step pairs", item.blocked_p),
        ("windows", item.windows_p),
    )
    lines = [f"{name} {p_cell(value).text}" for name, value in known if value is not None]
    return Cell("", sub="\n".join(lines))


def _accepted(item: DecidedComparison) -> Cell:
    if item.accepted is None:
        return Cell("? not judged", tone="ne", title="; ".join(item.reasons))
    return Cell("● accepted", tone="met") if item.accepted else Cell("– no", tone="muted")
