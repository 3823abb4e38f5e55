"""Tables stay whole: parts on a narrow terminal, long lines in a pipe, an ellipsis nowhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from opprof.cli.tables import new_table, print_table

NAMES = [f"family_{index}" for index in range(10)]
RUN = "P01-C00-TP2-saturation"


def shares() -> Table:
    table = new_table("Shares", ["run", "w"], NAMES)
    for window in range(2):
        table.add_row(RUN, str(window), *(f"{window}{index}.5 (1)" for index in range(10)))
    return table


def printed(width: int, *, terminal: bool) -> list[str]:
    file = io.StringIO()
    print_table(Console(file=file, width=width, force_terminal=terminal, no_color=True), shares())
    plain = file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[3m", "")
    return [line.rstrip() for line in plain.splitlines()]


@pytest.mark.parametrize("width", [36, 60, 80, 120])
def test_a_narrow_terminal_cuts_between_columns(width: int) -> None:
    lines = printed(width, terminal=True)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    heads = [line.split() for line in lines if line.startswith("run ")]
    assert len(heads) > 1
    assert [name for head in heads for name in head[2:]] == NAMES
    assert all(head[:2] == ["run", "w"] for head in heads)
    assert sum(line.startswith(RUN) for line in lines) == 2 * len(heads)
    assert lines.count("continued") == len(heads) - 1


def test_a_wide_terminal_and_a_pipe_get_one_table() -> None:
    wide, pipe = printed(200, terminal=True), printed(80, terminal=False)
    assert wide == pipe
    assert len(pipe) == 4
    assert max(map(len, pipe)) > 80
