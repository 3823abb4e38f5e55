"""Waste ratios with the reason wherever there is none (protocol, "Waste accounting")."""

from __future__ import annotations

from opprof.artifacts.waste import Waste, WasteByMode
from opprof.report.blocks import Cell, Table
from opprof.report.formats import NBSP, NULL, number, percent
from opprof.report.inputs import ReportInput, RunView
from opprof.report.palette import mode_order
from opprof.report.tables.cells import RUN, names, numbers, run_cell, text, value_cell

_FRACTIONS = (
    ("padding_fraction", "padding fraction||(bucket − unpadded) / bucket over graph hits"),
    ("graph_miss_rate", "graph miss||executed steps without a graph hit"),
    ("eligible_miss_rate", "eligible miss||misses for which a bucket exists"),
    ("overflow_rate", "overflow||misses larger than every bucket"),
    ("bucket_slack", "bucket slack||what the next bucket would pad, over all eligible steps"),
)
_RAGGED = (("r32", "R32"), ("r64", "R64"), ("r128", "R128"))
_PLAIN = (
    ("padded_tokens_per_useful_token", "padded per useful token"),
    ("i_mix", "I_mix"),
    ("cv_moe", "CV_moe"),
    ("e_token_per_ms", "E_token|tokens/ms"),
)
_ARTEFACT_NAMES = {
    "r32": "R32",
    "r64": "R64",
    "r128": "R128",
    "i_mix": "I_mix",
    "cv_moe": "CV_moe",
    "e_token_per_ms": "E_token_per_ms",
}


class _Reasons:
    """Numbers each distinct reason once, for the notes below the table."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        return f"note{NBSP}{self.seen.setdefault(reason, len(self.seen) + 1)}"

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"note {index}: {reason}" for reason, index in self.seen.items())


def waste(ident: str, report: ReportInput) -> Table:
    """Return the waste ratios of every run and graph mode; null cells point at their reason."""
    reasons = _Reasons()
    rows = []
    for run in report.runs:
        rows.extend(_rows(run, reasons))
    return Table(
        ident=ident,
        caption="Waste of the clean steps, as ratios of sums",
        columns=(
            RUN,
            *names("graph mode"),
            *numbers("steps", *(label for _, label in (*_FRACTIONS, *_RAGGED, *_PLAIN))),
        ),
        rows=tuple(rows),
        notes=(*reasons.notes, "Graph modes without a clean step are left out."),
        empty="No run has a waste analysis.",
    )


def _rows(run: RunView, reasons: _Reasons) -> list[tuple[Cell, ...]]:
    artefact = run.waste
    if artefact is None:
        reason = "the run has no waste.json"
        cells = [_null(reason, reasons)] * (1 + len((*_FRACTIONS, *_RAGGED, *_PLAIN)))
        return [(run_cell(run), text("all modes"), *cells)]
    steps = None if artefact.counts is None else artefact.counts.executed_steps
    rows = [(run_cell(run), text("all modes"), value_cell(steps), *_cells(artefact, reasons))]
    for mode in mode_order(set(artefact.by_mode)):
        part = artefact.by_mode[mode]
        if part.steps == 0:
            continue
        rows.append((run_cell(run), text(mode), value_cell(part.steps), *_cells(part, reasons)))
    return rows


def _cells(values: Waste | WasteByMode, reasons: _Reasons) -> list[Cell]:
    cells = []
    for field, _ in _FRACTIONS:
        value = getattr(values, field)
        cells.append(_cell(values, field, value, percent(value), reasons))
    for field, _ in (*_RAGGED, *_PLAIN):
        if field in ("r32", "r64", "r128") and isinstance(values, WasteByMode):
            cells.append(Cell("–", tone="muted", title="a property of the manifest, not of a mode"))
            continue
        value = getattr(values, field)
        cells.append(_cell(values, field, value, number(value), reasons))
    return cells


def _cell(
    values: Waste | WasteByMode, field: str, value: float | None, shown: str, reasons: _Reasons
) -> Cell:
    if value is not None:
        return Cell(shown, sort=value)
    name = _ARTEFACT_NAMES.get(field, field)
    return _null(values.not_available.get(name, "no reason given by the analysis"), reasons)


def _null(reason: str, reasons: _Reasons) -> Cell:
    return Cell(NULL, sub=reasons.mark(reason), title=reason, tone="muted")


def padding_distribution(ident: str, report: ReportInput) -> Table:
    """Return the distribution of ``b - u`` over graph-hit steps, as counts."""
    rows = []
    for run in report.runs:
        histogram = {} if run.waste is None else run.waste.padded_tokens_hist
        total = sum(histogram.values())
        for tokens in sorted(histogram, key=_tokens):
            count = histogram[tokens]
            share = Cell(percent(count / total), bar=count / total, sort=count / total)
            padded = Cell(tokens, sort=float(_tokens(tokens)[0]))
            rows.append((run_cell(run), padded, value_cell(count), share))
    return Table(
        ident=ident,
        caption="Padded tokens per graph-hit step (b − u)",
        columns=(RUN, *numbers("padded tokens", "steps", "share of graph-hit steps")),
        rows=tuple(rows),
        empty="No graph-hit step in any clean segment.",
    )


def _tokens(key: str) -> tuple[int, str]:
    return (int(key), "") if key.isdigit() else (0, key)
