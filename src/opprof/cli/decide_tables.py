"""A decision as compact tables: the verdict, and whatever of its page is not empty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from opprof.artifacts.decision import Decision
from opprof.cli.console import console
from opprof.cli.tables import new_table, protocol_line
from opprof.decision.page import PageTable, decision_page
from opprof.protocol import Protocol

_SHOWN_ROWS = 24
"""Rows of one table on a terminal; the files hold all."""


def print_decision(decision: Decision, protocol: Protocol, written: Sequence[Path]) -> None:
    """Print the page section by section."""
    out = console()
    out.print(protocol_line(protocol))
    if decision.simulated:
        out.print(Text("SIMULATED, not a measurement", style="bold red"))
    for section in decision_page(decision):
        out.print(Text(section.title, style="bold"))
        for sentence in section.sentences:
            out.print(f"- {sentence}", markup=False)
        for table in section.tables:
            if table.rows:
                out.print(_table(table))
                left = len(table.rows) - _SHOWN_ROWS
                if left > 0:
                    out.print(f"{left} more rows in decision.json", markup=False)
    for path in written:
        out.print(f"wrote {path}", markup=False)


def _table(table: PageTable) -> object:
    shown = new_table(table.title, list(table.columns), [])
    for row in table.rows[:_SHOWN_ROWS]:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
