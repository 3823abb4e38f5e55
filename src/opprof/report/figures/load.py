"""Throughput and latency of the clean union."""

from __future__ import annotations

from typing import Any

from opprof.artifacts.composition import EndToEnd, LatencySummary
from opprof.report.blocks import Figure, Table
from opprof.report.figures.axes import log_axis
from opprof.report.inputs import ReportInput, plot_label
from opprof.report.palette import Swatch, hatch

_STARTS = (("scheduled", "#D55E00", "diamond"), ("admitted", "#0072B2", "circle"))
_QUANTITIES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("latency", "latency_ms"))


def measured(report: ReportInput) -> list[tuple[str, EndToEnd]]:
    """Return label and end-to-end metrics of every run that has them."""
    return [
        (plot_label(run), run.layer1.end_to_end)
        for run in report.runs
        if run.layer1 is not None and run.layer1.end_to_end is not None
    ]


def throughput(ident: str, report: ReportInput, table: Table) -> Figure | None:
    """Draw useful input and output tokens per second of every run, stacked."""
    rows = measured(report)
    if not rows:
        return None
    labels = [label for label, _ in rows]

    def bars(name: str, swatch: Swatch, values: list[float]) -> dict[str, Any]:
        return {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": labels,
            "x": [round(value, 3) for value in values],
            "marker": {"color": swatch.colour, "pattern": hatch(swatch)},
            "hovertemplate": "%{x:,.0f} tokens/s",
        }

    return Figure(
        ident=ident,
        title="Useful tokens per second of the clean union",
        alt="Stacked bars of input and output tokens per second, one per run.",
        data=[
            bars("input", Swatch("input", "#56B4E9"), [e.input_tokens_per_s for _, e in rows]),
            bars(
                "output", Swatch("output", "#D55E00", "/"), [e.output_tokens_per_s for _, e in rows]
            ),
        ],
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "margin": {"l": 10, "r": 12, "t": 8, "b": 44},
            "xaxis": {"title": {"text": "tokens/s"}, "fixedrange": True},
            "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        },
        height=110 + 42 * len(rows),
        table=table,
    )


def latency(ident: str, report: ReportInput, table: Table) -> Figure | None:
    """Draw p50, p95 and p99 of TTFT, TPOT and latency from both starting points."""
    rows = [(label, e) for label, e in measured(report) if e.completed]
    if not rows:
        return None
    data: list[dict[str, Any]] = []
    for start, colour, symbol in _STARTS:
        for panel, (_, field) in enumerate(_QUANTITIES, start=1):
            data.append(_latency_trace(rows, start, field, panel, colour, symbol))
    layout: dict[str, Any] = {
        "margin": {"l": 10, "r": 12, "t": 26, "b": 44},
        "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.06, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
        "annotations": [],
    }
    for panel, (title, _) in enumerate(_QUANTITIES, start=1):
        left, right = (panel - 1) / 3 + 0.02 * (panel > 1), panel / 3 - 0.02 * (panel < 3)
        axis = "xaxis" if panel == 1 else f"xaxis{panel}"
        layout[axis] = {
            "domain": [round(left, 4), round(right, 4)],
            "title": {"text": f"{title}, ms"},
            "fixedrange": True,
            **log_axis(_drawn(data, panel)),
        }
    return Figure(
        ident=ident,
        title="TTFT, TPOT and end-to-end latency of requests completed in the clean union",
        alt="Three panels with the median, 95th and 99th percentile of every run, once from the "
        "scheduled and once from the admitted time.",
        data=data,
        layout=layout,
        height=150 + 52 * len(rows),
        notes=(
            "Each line runs from p50 over p95 to p99. TPOT does not depend on the starting point. "
            "Where the two differ, requests waited in the client before they were sent.",
        ),
        table=table,
    )


def _drawn(data: list[dict[str, Any]], panel: int) -> list[float | None]:
    axis = "x" if panel == 1 else f"x{panel}"
    return [value for trace in data if trace["xaxis"] == axis for value in trace["x"]]


def _latency_trace(
    rows: list[tuple[str, EndToEnd]], start: str, field: str, panel: int, colour: str, symbol: str
) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[str] = []
    froms: list[str] = []
    names: list[str] = []
    for label, metrics in rows:
        summary: LatencySummary = getattr(metrics, f"from_{start}")
        series = getattr(summary, field)
        xs += [series.p50, series.p95, series.p99, None]
        ys += [label] * 4
        froms += [start] * 4
        names += ["p50", "p95", "p99", ""]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"from the {start} time",
        "legendgroup": start,
        "showlegend": panel == 1,
        "x": xs,
        "y": [ys, froms],
        "xaxis": "x" if panel == 1 else f"x{panel}",
        "yaxis": "y",
        "text": names,
        "hovertemplate": "%{text} %{x:,.2f} ms<extra>from the " + start + " time</extra>",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 8},
    }
