"""Cells that more than one table needs; a run's cell always carries the run's marks."""

from __future__ import annotations

from opprof.report.blocks import Cell, Column, Tone
from opprof.report.formats import NBSP, NULL, number, percent, ratio
from opprof.report.inputs import RunView, flags_of

RUN = Column("run", numeric=False)
TONES: dict[str, Tone] = {"pass": "pass", "fail": "fail", "not_evaluable": "ne"}
OUTCOMES = {"pass": "✓ pass", "fail": "✗ fail", "not_evaluable": "? not evaluable"}


def run_cell(run: RunView) -> Cell:
    """Return the run's name with every mark it must carry; what tells it apart stands below it."""
    return Cell(run.plain_label, sub=run.note or _folder(run), flags=flags_of(run), tone="strong")


def _folder(run: RunView) -> str:
    name, label = run.identity.name, run.plain_label
    return "" if name.replace("-", "") == label.replace(" · ", "").replace("-", "") else name


def outcome_cell(outcome: str, reason: str = "") -> Cell:
    """Return a gate's outcome; not evaluable never looks like pass or fail."""
    return Cell(OUTCOMES.get(outcome, outcome), tone=TONES.get(outcome, ""), title=reason)


def value_cell(value: float | int | None, reason: str = "", sub: str = "") -> Cell:
    """Return a number, or ``n/a`` with its reason."""
    if value is None:
        return Cell(NULL, title=reason or "not available", tone="muted", sub=sub)
    return Cell(number(value), sub=sub, sort=float(value))


def share_cell(value: float | None, colour: str = "", title: str = "") -> Cell:
    """Return a share of 1 as percent with a bar behind it."""
    if value is None:
        return Cell(NULL, tone="muted", title=title)
    return Cell(
        percent(value), bar=min(max(value, 0.0), 1.0), colour=colour, sort=value, title=title
    )


def against(value: float | None, reference: float | None, is_reference: bool) -> Cell:
    """Return an absolute value with its ratio to C00 below it, never the ratio alone."""
    if is_reference:
        return value_cell(value, sub="reference")
    return value_cell(value, sub=ratio(value, reference) or f"no{NBSP}C00{NBSP}run")


def reference_for(run: RunView, runs: tuple[RunView, ...]) -> RunView | None:
    """Return the C00 run of the same pattern, load point and role; null where there is none."""
    mine = run.identity
    for other in runs:
        theirs = other.identity
        if (
            theirs.config == "C00"
            and theirs.pattern == mine.pattern
            and theirs.load_point == mine.load_point
            and theirs.role == mine.role
        ):
            return other
    return None


def text(value: str, title: str = "", tone: Tone = "", mono: bool = False) -> Cell:
    """Return a plain cell."""
    return Cell(value, title=title, tone=tone, mono=mono)


def names(*labels: str) -> tuple[Column, ...]:
    """Return text columns."""
    return tuple(Column(label, numeric=False) for label in labels)


def numbers(*labels: str) -> tuple[Column, ...]:
    """Return numeric columns; ``label|unit|title`` splits into its parts."""
    columns = []
    for label in labels:
        parts = [*label.split("|"), "", ""]
        columns.append(Column(parts[0], parts[1], parts[2]))
    return tuple(columns)
