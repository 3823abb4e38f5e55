"""Engine steps over time with the run's intervals behind them, and step durations by graph mode."""

from __future__ import annotations

from typing import Any

from opprof.artifacts.common import Series
from opprof.artifacts.composition import Composition
from opprof.artifacts.run import Interval
from opprof.report.blocks import Figure, Table
from opprof.report.downsample import Bins, StepSeries, bin_steps
from opprof.report.figures.axes import log_axis
from opprof.report.formats import number, plot_text
from opprof.report.inputs import ReportInput, RunView, flags_of, plot_label
from opprof.report.palette import INTERVALS, MODES, mode_order

BINS_MAX = 480
_STEPS_PER_BIN = 4
"""On average, so that a steady engine does not look torn."""
_GAP_BINS = 3
_NARROW = 0.09
"""Intervals below this part of the axis would not hold a level label."""


def intervals_of(run: RunView) -> tuple[Interval, ...]:
    """Return the timeline's intervals, or those that the composition names."""
    if run.intervals or run.layer1 is None:
        return run.intervals
    layer1 = run.layer1
    parts = [*layer1.warmup, *layer1.segments, *layer1.profile, *layer1.recovery]
    return tuple(_interval(part) for part in sorted(parts, key=lambda part: part.start_mono_ns))


def _interval(part: Composition) -> Interval:
    return Interval(part.kind, part.index, part.start_mono_ns, part.end_mono_ns)  # type: ignore[arg-type]


def timeline(ident: str, run: RunView, table: Table) -> Figure | None:
    """Draw one run's steps in bins: duration, tokens and queues over one time axis."""
    columns: StepSeries | None = run.steps
    bins = None if columns is None else bin_steps(columns, BINS_MAX, _STEPS_PER_BIN)
    if bins is None:
        return None
    intervals = intervals_of(run)
    origin = min([bins.start_ns[0], *(i.start_mono_ns for i in intervals)])
    shapes, marks = _shading(intervals, origin)
    ends = [bins.start_ns[-1] + bins.width_ns, *(i.end_mono_ns for i in intervals)]
    whole_s = _seconds(max(ends), origin)
    durations = [value / 1e6 for value in (*bins.duration_min_ns, *bins.duration_max_ns)]
    return Figure(
        ident=ident,
        title=f"Steps of {run.label} over time",
        alt=(
            "Three panels over one time axis: step duration (minimum, mean and maximum per bin, "
            "logarithmic), "
            "prefill and decode tokens per step, running and waiting requests. Shaded bands are "
            "the timeline's intervals."
        ),
        data=[*_durations(bins, origin), *_tokens(bins, origin), *_queues(bins, origin)],
        layout=_layout(shapes, marks, whole_s, [*durations]),
        height=560,
        notes=(_honesty(bins),),
        flags=flags_of(run),
        table=table,
    )


def _honesty(bins: Bins) -> str:
    return (
        f"{bins.steps:,} executed steps in {len(bins.start_ns):,} bins of "
        f"{number(bins.width_ns / 1e6)} ms by completion time; a band spans each bin's minimum and "
        f"maximum, a line is its mean, and {_GAP_BINS} bins or more without a completed step are "
        "left blank."
    )


def _with_gaps(bins: Bins, origin: int, values: list[Any]) -> tuple[list[float], list[Any]]:
    """Return times in seconds and values, with a null between bins that do not adjoin."""
    times: list[float] = []
    out: list[Any] = []
    previous: int | None = None
    for start, value in zip(bins.start_ns, values, strict=True):
        if previous is not None and start - previous > _GAP_BINS * bins.width_ns:
            times.append(_seconds(previous + bins.width_ns, origin))
            out.append(None)
        times.append(_seconds(start + bins.width_ns // 2, origin))
        out.append(value)
        previous = start
    return times, out


def _seconds(mono_ns: int, origin: int) -> float:
    return round((mono_ns - origin) / 1e9, 4)


def _line(
    bins: Bins, origin: int, values: list[Any], name: str, axis: str, **style: Any
) -> dict[str, Any]:
    times, gapped = _with_gaps(bins, origin, values)
    rounded = [None if value is None else round(value, 4) for value in gapped]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "marker": {"size": 2.5},
        "name": name,
        "x": times,
        "y": rounded,
        "yaxis": axis,
        "connectgaps": False,
        **style,
    }


def _durations(bins: Bins, origin: int) -> list[dict[str, Any]]:
    span = {
        "type": "bar",
        "name": "step duration, min to max",
        "x": [_seconds(start + bins.width_ns // 2, origin) for start in bins.start_ns],
        "base": [round(value / 1e6, 4) for value in bins.duration_min_ns],
        "y": [
            round((high - low) / 1e6, 4)
            for low, high in zip(bins.duration_min_ns, bins.duration_max_ns, strict=True)
        ],
        "width": bins.width_ns / 1e9,
        "customdata": [
            [low / 1e6, high / 1e6, count]
            for low, high, count in zip(
                bins.duration_min_ns, bins.duration_max_ns, bins.count, strict=True
            )
        ],
        "hovertemplate": "%{customdata[0]:.2f}–%{customdata[1]:.2f} ms, %{customdata[2]:,} steps",
        "marker": {"color": "#56B4E9", "line": {"width": 0}},
        "opacity": 0.6,
    }
    bold = {"line": {"width": 1.6, "color": "#0072B2"}, "hovertemplate": "%{y:.2f} ms"}
    mean = [value / 1e6 for value in bins.duration_mean_ns]
    return [span, _line(bins, origin, mean, "mean", "y", **bold)]


def _tokens(bins: Bins, origin: int) -> list[dict[str, Any]]:
    hover = {"hovertemplate": "%{y:,.0f}"}
    orange = {"line": {"width": 1.6, "color": "#D55E00"}, **hover}
    green = {"line": {"width": 1.6, "color": "#009E73", "dash": "dash"}, **hover}
    return [
        _line(bins, origin, bins.prefill_mean, "prefill tokens", "y2", **orange),
        _line(bins, origin, bins.decode_mean, "decode tokens", "y2", **green),
    ]


def _queues(bins: Bins, origin: int) -> list[dict[str, Any]]:
    hover = {"hovertemplate": "%{y:,.1f}"}
    sky = {"line": {"width": 1.6, "color": "#CC79A7"}, **hover}
    gold = {"line": {"width": 1.6, "color": "#E69F00", "dash": "dot"}, **hover}
    return [
        _line(bins, origin, bins.running_mean, "running", "y3", **sky),
        _line(bins, origin, bins.waiting_mean, "waiting", "y3", **gold),
    ]


def _shading(
    intervals: tuple[Interval, ...], origin: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    shapes, marks = [], []
    whole = max((i.end_mono_ns for i in intervals), default=origin) - origin
    narrow = any(i.end_mono_ns - i.start_mono_ns < whole * _NARROW for i in intervals)
    for interval in intervals:
        swatch = INTERVALS[interval.kind]
        start, end = (
            _seconds(interval.start_mono_ns, origin),
            _seconds(interval.end_mono_ns, origin),
        )
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": start,
                "x1": end,
                "y0": 0,
                "y1": 1,
                "fillcolor": swatch.colour,
                "opacity": 0.13,
                "layer": "below",
                "line": {"width": 0},
            }
        )
        marks.append(
            {
                "x": round((start + end) / 2, 4),
                "y": 1.0,
                "xref": "x",
                "yref": "paper",
                "yanchor": "bottom",
                "text": f"{interval.kind} {interval.index}",
                "textangle": -40 if narrow else 0,
                "xanchor": "left" if narrow else "center",
                "showarrow": False,
                "font": {"size": 11},
            }
        )
    return shapes, marks


def _layout(
    shapes: list[dict[str, Any]],
    marks: list[dict[str, Any]],
    whole_s: float,
    durations: list[float | None],
) -> dict[str, Any]:
    slanted = any(mark["textangle"] for mark in marks)
    return {
        "barmode": "overlay",
        "margin": {"l": 64, "r": 12, "t": 70 if slanted else 26, "b": 70},
        "xaxis": {"ticksuffix": " s", "anchor": "y3", "range": [0, whole_s]},
        "yaxis": {"domain": [0.70, 1.0], **log_axis(durations), "title": {"text": "ms, log"}},
        "yaxis2": {"domain": [0.36, 0.64], "title": {"text": "tokens"}, "rangemode": "tozero"},
        "yaxis3": {"domain": [0.0, 0.30], "title": {"text": "requests"}, "rangemode": "tozero"},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        "shapes": shapes,
        "annotations": marks,
    }


def durations_by_mode(ident: str, report: ReportInput, table: Table) -> Figure | None:
    """Draw p50 to p99 of clean step duration for every run and mode on a logarithmic axis."""
    rows = [
        (plot_label(run), mode, union.step_duration_ms_by_mode[mode])
        for run in report.runs
        if run.layer1 is not None and (union := run.layer1.clean_union) is not None
        for mode in mode_order(set(union.step_duration_ms_by_mode))
        if union.step_duration_ms_by_mode[mode].n
    ]
    if not rows:
        return None
    modes = mode_order({mode for _, mode, _ in rows})
    # The first trace draws nothing: it fixes the order of runs and modes on the axis.
    order = {
        "type": "scatter",
        "x": [None] * len(rows),
        "y": [[label for label, _, _ in rows], [plot_text(mode) for _, mode, _ in rows]],
        "showlegend": False,
        "hoverinfo": "skip",
    }
    data = [order, *(trace for mode in modes for trace in _mode_traces(mode, rows))]
    return Figure(
        ident=ident,
        title="Step duration of the clean steps, by graph mode",
        alt="For every run and graph mode, a line from the shortest to the longest clean step and "
        "marks at the median, 95th and 99th percentile.",
        data=data,
        layout={
            "margin": {"l": 10, "r": 12, "t": 8, "b": 44},
            "xaxis": {
                "title": {"text": "ms, logarithmic"},
                "fixedrange": True,
                **log_axis([v for _, _, s in rows for v in (s.min, s.max)]),
            },
            "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
            "hovermode": "closest",
        },
        height=100 + 26 * len(rows) + 12 * len({label for label, _, _ in rows}),
        notes=("Line: minimum to maximum. Marks: ● median, ◆ p95, ▲ p99.",),
        table=table,
    )


def _mode_traces(mode: str, rows: list[tuple[str, str, Series]]) -> list[dict[str, Any]]:
    swatch = MODES.get(mode)
    colour = "#8A8F98" if swatch is None else swatch.colour
    mine = [(label, series) for label, name, series in rows if name == mode]
    groups: list[str] = []
    labels: list[str] = []
    lines: list[float | None] = []
    for label, series in mine:
        groups += [label] * 3
        labels += [plot_text(mode)] * 3
        lines += [series.min, series.max, None]
    span = {
        "type": "scatter",
        "mode": "lines",
        "x": lines,
        "y": [groups, labels],
        "line": {"color": colour, "width": 2},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": mode,
    }
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(mode if swatch is None else swatch.label),
        "legendgroup": mode,
        "x": [value for _, s in mine for value in (s.p50, s.p95, s.p99)],
        "y": [groups, labels],
        "customdata": [[name, s.n] for _, s in mine for name in ("median", "p95", "p99")],
        "hovertemplate": "%{customdata[0]} %{x:.2f} ms of %{customdata[1]:,} steps<extra></extra>",
        "marker": {
            "color": colour,
            "size": 10,
            "symbol": ["circle", "diamond", "triangle-up"] * len(mine),
        },
    }
    return [span, marks]
