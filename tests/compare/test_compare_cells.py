"""The per-cell analysis: load points side by side, four logical windows, its own sanity block."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from compare_builders import PROVENANCE, RULE, Families, cells, entry

from opprof.artifacts.comparison import CellSummary, Comparison
from opprof.compare import RunInput, compare_runs

MOE: Families = {"moe_gemm": 600, "attention": 400}
OTHERS: tuple[Families, ...] = (
    {"moe_gemm": 601, "attention": 399},
    {"moe_gemm": 602, "attention": 398},
    {"moe_gemm": 603, "attention": 397},
)


def compared(*runs: RunInput, bound: bool = True) -> Comparison:
    return compare_runs(runs, RULE if bound else None, PROVENANCE)


def gate(cell: CellSummary, name: str) -> Any:
    return next(item for item in cell.gates if item.name == name)


def test_a_cell_holds_both_load_points_and_four_windows() -> None:
    comparison = compared(
        entry(
            "P01", cells(MOE, OTHERS[0]), load_point="saturation", metrics={"completed_rps": 4.0}
        ),
        entry("P01", cells(OTHERS[1], OTHERS[2]), metrics={"completed_rps": 2.4}),
    )
    (cell,) = comparison.cells
    assert (cell.pattern, cell.config, cell.windows) == (
        "P01",
        "C00",
        {"saturation": 2, "moderate": 2},
    )
    assert list(cell.runs.values()) == ["P01-C00-saturation", "P01-C00-moderate"]
    assert cell.metrics["moderate"]["completed_rps"] == 2.4
    assert [item.outcome for item in cell.gates] == ["pass", "pass"]
    assert gate(cell, "cell_windows").numbers["windows"] == 4
    families = {family.name: family for family in cell.sanity.families}
    assert (families["kernel_ns"].n, families["kernel_ns"].distinct) == (4, 1)
    assert (families["completed_rps"].min, families["completed_rps"].max) == (2.4, 4.0)
    assert cell.sanity.red_flags == []


@pytest.mark.parametrize(
    ("windows", "bound", "load_points", "outcome"),
    [
        ((MOE,), True, 2, "fail"),
        ((MOE, OTHERS[0], OTHERS[1]), True, 2, "fail"),
        ((MOE, OTHERS[0]), True, 1, "not_evaluable"),
        ((MOE, OTHERS[0]), False, 2, "not_evaluable"),
    ],
)
def test_other_than_four_windows_fail_and_what_cannot_be_told_does_not(
    windows: tuple[Families, ...], bound: bool, load_points: int, outcome: str
) -> None:
    runs = [entry("P01", cells(*windows))]
    if load_points == 2:
        runs.append(entry("P01", cells(OTHERS[1], OTHERS[2]), load_point="saturation"))
    (cell,) = compared(*runs, bound=bound).cells
    assert gate(cell, "cell_windows").outcome == outcome
    if load_points == 1:
        assert gate(cell, "cell_load_points").outcome == "not_evaluable"


def test_two_ranks_of_one_window_are_one_logical_window() -> None:
    ranks = {(window, rank): OTHERS[window] for window in (0, 1) for rank in (0, 1)}
    (cell,) = compared(entry("P10", ranks, config="C00-TP2")).cells
    assert cell.windows == {"moderate": 2}


def test_a_confirmation_is_a_cell_of_its_own_and_needs_no_windows() -> None:
    comparison = compared(
        entry("P01", cells(MOE, OTHERS[0])), entry("P01", cells(), role="confirmation")
    )
    cell = next(cell for cell in comparison.cells if cell.role == "confirmation")
    assert {item.outcome for item in cell.gates} == {"not_evaluable"}


@pytest.mark.parametrize("other", [{"config": "C10"}, {"load_point": "saturation"}])
def test_the_same_figures_under_two_configs_or_load_points_are_a_red_flag(
    other: dict[str, str],
) -> None:
    comparison = compared(
        entry("P01", cells(MOE, OTHERS[0])), entry("P01", cells(MOE, OTHERS[0]), **other)
    )
    assert len(comparison.sanity.red_flags) == 1
    assert "identical family times" in comparison.sanity.red_flags[0]


def test_every_table_ends_with_a_block() -> None:
    comparison = compared(entry("P01", cells(MOE, OTHERS[0]), v1=cells(MOE, OTHERS[1])))
    for table in comparison.alternatives.values():
        assert table.sanity is not None
        assert table.sanity.families
    data = msgspec.json.encode(comparison)
    assert msgspec.json.decode(data, type=Comparison) == comparison
