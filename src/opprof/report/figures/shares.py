"""Stacked operator-family shares: one bar per run, window and rank, and one per graph mode.

A share is summed kernel duration over all kernel duration of the active steps: a composition, not
a fraction of wall time (protocol, "Operator shares and bottleneck ranking").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from opprof.artifacts.kernels import FamilyTime, WindowFamilies
from opprof.report.blocks import Figure, Table
from opprof.report.formats import percent, plot_text
from opprof.report.inputs import RunView, plot_label
from opprof.report.palette import family, family_order, hatch, mode_order

_BAR_PX = 30
_LABEL_FROM = 0.045
"""Narrower segments would not hold their own label; the table has every number."""


class Bar(Struct, frozen=True):
    """One stacked bar: group (outer axis label), name (inner label), shares by family."""

    group: str
    name: str
    families: Mapping[str, FamilyTime]
    kernel_ns: int


def window_name(window: WindowFamilies, ranks: int) -> str:
    """Return ``window 0`` or ``window 0 · rank 1``, marked where the window was rejected."""
    name = f"window {window.window}"
    if ranks > 1:
        name += f" · rank {window.rank}"
    return name if window.accepted else f"{name} (rejected)"


def window_bars(run: RunView, version: str | None) -> list[Bar]:
    """Return a bar per window and rank under the deciding table, or under ``version``."""
    windows: Sequence[WindowFamilies]
    windows = run.windows if version is None else run.windows_under(version)
    ranks = len({window.rank for window in windows})
    return [
        Bar(plot_label(run), window_name(w, ranks), w.families, w.kernel_ns)
        for w in windows
        if w.kernel_ns > 0
    ]


def mode_bars(run: RunView) -> list[Bar]:
    """Return a bar per reported mode, window and rank (at least eight active steps a mode)."""
    bars = []
    ranks = len({window.rank for window in run.windows})
    for mode in mode_order({mode for w in run.windows for mode in w.by_mode}):
        for window in run.windows:
            part = window.by_mode.get(mode)
            if part is None or not part.reported or part.kernel_ns <= 0:
                continue
            # plotly orders inner labels by their first use anywhere: they must not hold counts.
            name = f"{mode} · {window_name(window, ranks)}"
            bars.append(Bar(plot_label(run), name, part.families, part.kernel_ns))
    return bars


def stacked(
    ident: str, title: str, bars: list[Bar], table: Table, notes: tuple[str, ...]
) -> Figure:
    """Draw ``bars`` as horizontal stacks in the fixed order and colours of the families."""
    names = family_order({name for bar in bars for name, time in bar.families.items() if time.ns})
    groups = [bar.group for bar in bars]
    labels = [plot_text(bar.name) for bar in bars]
    return Figure(
        ident=ident,
        title=title,
        alt=f"Stacked bars, one per window: the share of each operator family. {title}.",
        data=[_trace(name, bars, groups, labels) for name in names],
        layout=_layout(),
        height=110 + _BAR_PX * len(bars) + 10 * len(set(groups)),
        notes=notes,
        table=table,
    )


def _trace(name: str, bars: list[Bar], groups: list[str], labels: list[str]) -> dict[str, Any]:
    swatch = family(name)
    zero = FamilyTime(ns=0, share=0.0, events=0)
    times = [bar.families.get(name, zero) for bar in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plot_text(swatch.label),
        "y": [groups, labels],
        "x": [round(time.share * 100, 4) for time in times],
        "text": [percent(time.share) if time.share >= _LABEL_FROM else "" for time in times],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "insidetextfont": {"color": "#111418" if swatch.dark_text else "#ffffff", "size": 12},
        "customdata": [[time.ns / 1e6, time.events] for time in times],
        "hovertemplate": "%{x:.2f} % · %{customdata[0]:,.3f} ms · %{customdata[1]:,} kernels",
        "marker": {
            "color": swatch.colour,
            "line": {"width": 0},
            "pattern": hatch(swatch),
        },
    }


def _layout() -> dict[str, Any]:
    return {
        "barmode": "stack",
        "bargap": 0.22,
        "margin": {"l": 10, "r": 12, "t": 8, "b": 40},
        "xaxis": {
            "range": [0, 100],
            "ticksuffix": " %",
            "title": {"text": "share of summed kernel time"},
            "fixedrange": True,
        },
        "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
        "legend": {
            "orientation": "h",
            "y": 1.0,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
        "hovermode": "closest",
    }
