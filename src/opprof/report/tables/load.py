"""Throughput, latency, composition and step durations."""

from __future__ import annotations

from opprof.artifacts.common import Series
from opprof.artifacts.composition import Composition, EndToEnd
from opprof.report.blocks import Cell, Table
from opprof.report.formats import NBSP, NULL, number, percent
from opprof.report.inputs import ReportInput, RunView, flags_of
from opprof.report.palette import MODES, mode_order
from opprof.report.tables.cells import (
    RUN,
    against,
    names,
    numbers,
    reference_for,
    run_cell,
    share_cell,
    text,
    value_cell,
)

_THROUGHPUT = (
    ("completed|req/s", "completed_rps"),
    ("offered|req/s|admissions inside, by admission time", "admitted_rps"),
    ("scheduled|req/s", "scheduled_rps"),
    ("input|tokens/s", "input_tokens_per_s"),
    ("output|tokens/s", "output_tokens_per_s"),
    ("total useful|tokens/s", "total_tokens_per_s"),
)
_QUANTITIES = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("latency", "latency_ms"))
_STATISTICS = ("mean", "p50", "p95", "p99")


def _union(run: RunView) -> EndToEnd | None:
    return None if run.layer1 is None else run.layer1.end_to_end


def throughput(ident: str, report: ReportInput) -> Table:
    """Return rates of the clean union, absolute and as ratios to C00."""
    rows = []
    for run in report.runs:
        metrics = _union(run)
        base = reference_for(run, report.runs)
        other = None if base is None else _union(base)
        same = base is run
        cells = []
        for _, field in _THROUGHPUT:
            value = None if metrics is None else getattr(metrics, field)
            cells.append(against(value, None if other is None else getattr(other, field), same))
        cells.append(against(_e_token(run), None if base is None else _e_token(base), same))
        counts: tuple[float | None, ...] = (None, None, None)
        if metrics is not None:
            counts = (metrics.completed, metrics.failed, metrics.seconds)
        rows.append((run_cell(run), *cells, *(value_cell(count) for count in counts)))
    return Table(
        ident=ident,
        caption="Throughput of the clean union: absolute values, with the ratio to C00 below",
        columns=(
            RUN,
            *numbers(*(label for label, _ in _THROUGHPUT)),
            *numbers("E_token|tokens/ms|useful tokens over summed step duration"),
            *numbers("completed", "failed", "clean|s"),
        ),
        rows=tuple(rows),
        notes=(
            "The ratio compares with the C00 run of the same pattern, load point and role; where "
            "this report holds none, the cell says so.",
        ),
    )


def _e_token(run: RunView) -> float | None:
    union = None if run.layer1 is None else run.layer1.clean_union
    return None if union is None else union.e_token_per_ms


def segments(ident: str, report: ReportInput) -> Table | None:
    """Return the rates of every clean segment; null where no run has more than one."""
    rows = []
    for run in report.runs:
        parts = [] if run.layer1 is None else run.layer1.end_to_end_segments
        if len(parts) < 2:
            continue
        for part in parts:
            cells = [value_cell(getattr(part, field)) for _, field in _THROUGHPUT]
            counts = [value_cell(part.completed), value_cell(part.failed)]
            rows.append((run_cell(run), text(str(part.index)), *cells, *counts))
    if not rows:
        return None
    return Table(
        ident=ident,
        caption="Throughput by clean segment",
        columns=(
            RUN,
            *numbers("segment", *(label for label, _ in _THROUGHPUT), "completed", "failed"),
        ),
        rows=tuple(rows),
    )


def latency(ident: str, report: ReportInput) -> Table:
    """Return TTFT, TPOT and latency from the scheduled and from the admitted time."""
    rows = []
    for run in report.runs:
        metrics = _union(run)
        if metrics is None:
            continue
        lag = _series_cells(metrics.client_lag_ms, ("p50", "max"))
        for start, summary in (
            ("scheduled", metrics.from_scheduled),
            ("admitted", metrics.from_admitted),
        ):
            cells = [
                cell
                for _, field in _QUANTITIES
                for cell in _series_cells(getattr(summary, field), _STATISTICS)
            ]
            rows.append((run_cell(run), text(start), value_cell(metrics.completed), *cells, *lag))
    return Table(
        ident=ident,
        caption="Latency of requests completed in the clean union, in milliseconds",
        columns=(
            RUN,
            *names("from"),
            *numbers("requests"),
            *numbers(*(f"{name} {stat}" for name, _ in _QUANTITIES for stat in _STATISTICS)),
            *numbers("client lag p50", "client lag max"),
        ),
        rows=tuple(rows),
        empty="No run has request records.",
    )


def _series_cells(series: Series, statistics: tuple[str, ...]) -> list[Cell]:
    reason = "no observation" if series.n == 0 else ""
    return [value_cell(getattr(series, name), reason) for name in statistics]


def _parts(run: RunView) -> list[Composition]:
    layer1 = run.layer1
    if layer1 is None:
        return []
    union = [] if layer1.clean_union is None else [layer1.clean_union]
    return [*layer1.warmup, *layer1.segments, *union, *layer1.profile, *layer1.recovery]


def composition(ident: str, run: RunView) -> Table:
    """Return one run's steps by interval: how much work, of what kind, in which mode."""
    modes = mode_order({mode for part in _parts(run) for mode in part.mode_shares})
    rows = []
    for part in _parts(run):
        name = part.kind.replace("_", " ")
        union = part.kind == "clean_union"
        rows.append(
            (
                text(name if union else f"{name} {part.index}", tone="strong" if union else ""),
                value_cell(part.seconds),
                Cell(f"{part.steps:,}", sub=_left_out(part), sort=float(part.steps)),
                _mean(part.tokens_per_step),
                _mean(part.prefill_tokens_per_step),
                _mean(part.decode_tokens_per_step),
                _mean(part.requests_per_step),
                _mean(part.decode_batch),
                _mean(part.running),
                _mean(part.waiting),
                value_cell(part.preemptions),
                _kv(part.kv_usage),
                _prefix(part),
                *(share_cell(part.mode_shares.get(m, 0.0), _colour(m)) for m in modes),
                _mean(part.step_duration_ms),
                value_cell(part.e_token_per_ms, "no step duration"),
            )
        )
    return Table(
        ident=ident,
        caption=f"Composition of {run.label} by interval (means per step)",
        columns=(
            *names("interval"),
            *numbers("seconds", "steps", "tokens", "prefill tokens", "decode tokens", "requests"),
            *numbers("decode batch", "running", "waiting", "preemptions", "KV usage"),
            *numbers("prefix hits", *(MODES[m].label if m in MODES else m for m in modes)),
            *numbers("step|ms", "E_token|tokens/ms"),
        ),
        rows=tuple(rows),
        notes=("Small print below a mean: standard deviation, and the largest value.",),
        empty="No Layer-1 analysis of this run.",
        flags=flags_of(run),
    )


def _colour(mode: str) -> str:
    return MODES[mode].colour if mode in MODES else ""


def _left_out(part: Composition) -> str:
    left = [
        f"{count:,}{NBSP}{name}"
        for count, name in (
            (part.steps_border, f"on{NBSP}a{NBSP}border"),
            (part.steps_no_model, f"without{NBSP}model"),
            (part.steps_invalid_graph, f"invalid{NBSP}graph{NBSP}mode"),
        )
        if count
    ]
    return "\n".join(["left out:", *left]) if left else ""


def _mean(series: Series) -> Cell:
    if series.mean is None:
        return Cell(NULL, tone="muted", title="no step in this interval")
    spread = "" if series.sd is None else f"±{number(series.sd, 3)}\n"
    return Cell(number(series.mean), sub=f"{spread}≤{number(series.max, 4)}", sort=series.mean)


def _kv(series: Series) -> Cell:
    if series.mean is None:
        return Cell(NULL, tone="muted", title="no step in this interval")
    return Cell(percent(series.mean), sub=f"≤{percent(series.max)}", sort=series.mean)


def _prefix(part: Composition) -> Cell:
    if part.prefix_hit_ratio is None:
        return Cell(NULL, tone="muted", title="no prefix query in this interval")
    sub = f"{number(part.prefix_hits)} of {number(part.prefix_queries)}"
    return Cell(percent(part.prefix_hit_ratio), sub=sub, sort=part.prefix_hit_ratio)


def step_durations(ident: str, report: ReportInput) -> Table:
    """Return clean step durations by run and graph mode, and over all modes."""
    rows = []
    for run in report.runs:
        union = None if run.layer1 is None else run.layer1.clean_union
        if union is None:
            continue
        by_mode = union.step_duration_ms_by_mode
        listed = [("all modes", union.step_duration_ms)]
        listed += [(mode, by_mode[mode]) for mode in mode_order(set(by_mode))]
        for mode, series in listed:
            share = 1.0 if mode == "all modes" else union.mode_time_shares.get(mode)
            cells = _series_cells(series, ("mean", "min", "p50", "p95", "p99", "max"))
            rows.append(
                (
                    run_cell(run),
                    text(mode),
                    value_cell(series.n),
                    share_cell(share, _colour(mode)),
                    *cells,
                )
            )
    return Table(
        ident=ident,
        caption="Step duration of the clean steps, in milliseconds",
        columns=(
            RUN,
            *names("graph mode"),
            *numbers("steps", "share of step time", "mean", "min", "p50", "p95", "p99", "max"),
        ),
        rows=tuple(rows),
        notes=(
            "Duration is completion minus the later of submission and every earlier completion, "
            "so that steps submitted ahead are not counted twice. An eager step that is launched "
            "while another one is in flight holds that one back: the step before it counts the "
            "time of the launch, and its own duration can be a few milliseconds.",
        ),
        empty="No run has clean steps.",
    )


def intervals(ident: str, run: RunView) -> Table:
    """Return what the step timeline shows, by interval."""
    rows = []
    for part in _parts(run):
        if part.kind == "clean_union":
            continue
        d = part.step_duration_ms
        rows.append(
            (
                text(f"{part.kind} {part.index}"),
                value_cell(part.seconds),
                value_cell(part.steps),
                *_series_cells(d, ("min", "mean", "max")),
                *_series_cells(part.prefill_tokens_per_step, ("mean",)),
                *_series_cells(part.decode_tokens_per_step, ("mean",)),
                *_series_cells(part.running, ("mean",)),
                *_series_cells(part.waiting, ("mean",)),
            )
        )
    return Table(
        ident=ident,
        caption=f"Steps of {run.label} by interval",
        columns=(
            *names("interval"),
            *numbers("seconds", "steps", "step min|ms", "step mean|ms", "step max|ms"),
            *numbers("prefill tokens", "decode tokens", "running", "waiting"),
        ),
        rows=tuple(rows),
        empty="No Layer-1 analysis of this run.",
        flags=flags_of(run),
    )
