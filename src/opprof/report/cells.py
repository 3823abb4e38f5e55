"""The cells: both load points of a pattern under a config, each ending with its sanity block.

Source: protocol, "Unit of analysis and load points" and "Data sanity block contract" (every
per-cell analysis ends with a machine-readable and rendered block).
"""

from __future__ import annotations

from opprof.artifacts.comparison import CellSummary, Comparison
from opprof.report.blocks import Block, Cell, Flag, Fold, Gates, Section, Table, Text
from opprof.report.inputs import ReportInput, flags_of
from opprof.report.tables.cells import names, numbers, outcome_cell, text, value_cell
from opprof.report.tables.runs import sanity

_LEAD = (
    "A cell is one pattern under one config: a saturation and a moderate run, each on a fresh "
    "server. Every cell ends with the sanity block over its own numbers."
)


def cells_section(report: ReportInput) -> Section:
    """Return every cell of the comparison; a sentence where there is none."""
    comparison = report.comparison
    found = [] if comparison is None else comparison.cells
    ident, title = f"cells{report.tag}", report.titled("Cells")
    if not found:
        reason = "The runs were not put together to cells."
        return Section(ident, title, _LEAD, (Text((reason,), tone="ne"),))
    blocks: list[Block] = []
    flags = red_flags(comparison)
    if flags:
        blocks.append(Text(flags, tone="fail", bullets=True, heading="Red flags"))
    blocks.append(_overview(report, found))
    blocks += [_cell(number, cell, report) for number, cell in enumerate(found)]
    return Section(ident, title, _LEAD, tuple(blocks))


def red_flags(comparison: Comparison | None) -> tuple[str, ...]:
    """Return every red flag of a cell with the cell's name."""
    found = [] if comparison is None else comparison.cells
    return tuple(f"{name_of(cell)}: {flag}" for cell in found for flag in cell.sanity.red_flags)


def name_of(cell: CellSummary) -> str:
    """Return ``P03 · C00``, with the role where it is not primary."""
    parts = [cell.pattern, cell.config, *([] if cell.role == "primary" else [cell.role])]
    return " · ".join(parts)


def _marks(cell: CellSummary, report: ReportInput) -> tuple[Flag, ...]:
    """Return the marks of the cell's runs, each once."""
    runs = [report.run_named(name) for name in cell.runs.values()]
    return tuple(dict.fromkeys(flag for run in runs if run is not None for flag in flags_of(run)))


def _overview(report: ReportInput, found: list[CellSummary]) -> Table:
    rows = []
    for number, cell in enumerate(found):
        gates = {gate.name: gate for gate in cell.gates}
        count = len(cell.sanity.red_flags)
        rows.append(
            (
                Cell(
                    name_of(cell),
                    flags=_marks(cell, report),
                    tone="strong",
                    href=f"#cell-{number}-sanity{report.tag}",
                ),
                text(", ".join(cell.runs)),
                *(
                    outcome_cell(gates[name].outcome, gates[name].reason)
                    for name in ("cell_load_points", "cell_windows")
                ),
                value_cell(sum(cell.windows.values())),
                Cell(str(count), tone="fail" if count else "muted", sort=float(count)),
                text("; ".join(cell.marks) or "none"),
            )
        )
    return Table(
        ident=f"cells-table{report.tag}",
        caption="Cells of this report",
        columns=(
            *names("cell", "load points", "both there", "windows as planned"),
            *numbers("windows", "red flags"),
            *names("marks"),
        ),
        rows=tuple(rows),
    )


def _cell(number: int, cell: CellSummary, report: ReportInput) -> Fold:
    name, flags = name_of(cell), _marks(cell, report)
    points = list(cell.runs)
    metrics = sorted({metric for values in cell.metrics.values() for metric in values})
    rows = tuple(
        (
            Cell(metric, mono=True),
            *(value_cell(cell.metrics.get(point, {}).get(metric)) for point in points),
        )
        for metric in metrics
    )
    figures = Table(
        ident=f"cell-{number}-figures{report.tag}",
        caption=f"Figures of {name}, load points side by side",
        columns=(*names("figure"), *numbers(*points)),
        rows=rows,
        empty="The runs have no figures of their own here.",
        flags=flags,
    )
    gates = Gates(f"cell-{number}-gates{report.tag}", Cell(name, flags=flags), tuple(cell.gates))
    block = sanity(
        f"cell-{number}-sanity{report.tag}",
        f"Sanity block of cell {name}",
        [("cell", cell.sanity)],
        flags,
    )
    return Fold(f"Cell {name}", (gates, figures, block))
