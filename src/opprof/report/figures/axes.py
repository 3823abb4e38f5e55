"""Axes that more than one figure needs."""

from __future__ import annotations

import math
from typing import Any

from opprof.report.formats import number

_DECADES_ONLY_FROM = 40
"""Ratio of the ends from which ticks at 2 and 5 would crowd a narrow panel."""


def log_axis(values: list[float | None]) -> dict[str, Any]:
    """Return a logarithmic axis over the positive ``values`` with ticks at 1, 2 and 5.

    plotly's own logarithmic ticks abbreviate (``2``, ``5``) where a range spans less than a decade.
    """
    positive = [value for value in values if value is not None and value > 0]
    if not positive:
        return {"type": "log"}
    low, high = min(positive) / 1.3, max(positive) * 1.3
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high / low < _DECADES_ONLY_FROM else (1,)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log",
        "range": [round(math.log10(low), 4), round(math.log10(high), 4)],
        "tickvals": shown,
        "ticktext": [number(tick) for tick in shown],
    }
