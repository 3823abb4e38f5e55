"""Designs with another number of configurations than the 2x2 factorial."""

from __future__ import annotations

import pytest

from opprof.decision.side import _missing_cell


@pytest.mark.parametrize("configs", [1, 2, 3, 5])
def test_other_designs_show_their_cells_without_effects(configs: int) -> None:
    cells: dict[str, float | None] = {f"C{n}": 1.0 for n in range(configs)}
    assert _missing_cell(cells, "log_ratio") == f"{configs} configurations, a 2x2 factorial has 4"


def test_a_factorial_lacks_nothing() -> None:
    assert _missing_cell({"C00": 1.0, "C10": 2.0, "C01": 3.0, "C11": 4.0}, "log_ratio") is None
