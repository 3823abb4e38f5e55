"""Figures as plain data: valid plotly, honest bins, fixed colours, every window and rank."""

from __future__ import annotations

import msgspec
import numpy as np
import plotly.graph_objects as go
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from opprof.report.blocks import Figure, walk
from opprof.report.downsample import StepSeries, bin_steps
from opprof.report.figures import shares, steps
from opprof.report.figures.axes import log_axis
from opprof.report.page import build_page
from opprof.report.palette import FAMILIES, family, family_order

PAGE = build_page(samples.sample())
FIGURES = [b for s in PAGE.sections for b in walk(s.blocks) if isinstance(b, Figure)]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.ident)
def test_every_figure_is_valid_plotly_and_has_words_and_numbers(figure: Figure) -> None:
    go.Figure(data=figure.data, layout=figure.layout)  # refuses unknown keys and wrong values
    assert figure.alt and figure.title and figure.height > 0
    assert figure.table is not None and figure.table.rows


def test_shares_have_a_bar_for_every_window_and_rank() -> None:
    run = samples.sample().runs[3]
    bars = shares.window_bars(run, None)
    assert [bar.name for bar in bars] == [
        "window 0 · rank 0",
        "window 0 · rank 1",
        "window 1 · rank 0",
        "window 1 · rank 1",
    ]
    assert all("INVALID" in bar.group and "QUARANTINED" in bar.group for bar in bars)


def test_stack_of_every_bar_sums_to_the_whole() -> None:
    figure = next(figure for figure in FIGURES if figure.ident == "shares")
    sums = [
        sum(trace["x"][row] for trace in figure.data) for row in range(len(figure.data[0]["x"]))
    ]
    assert sums == pytest.approx([100.0] * len(sums), abs=1e-2)


def test_alternative_mapping_is_drawn_beside_the_deciding_one() -> None:
    by_ident = {figure.ident: figure for figure in FIGURES}
    assert "(v2)" in by_ident["shares"].title
    pinned, other = (
        next(t["x"][0] for t in by_ident[i].data if t["name"] == "MoE GEMM")
        for i in ("shares", "shares-v1")
    )
    assert other - pinned == pytest.approx(7.5, abs=0.01)


def test_modes_with_too_few_steps_are_not_drawn() -> None:
    bars = shares.mode_bars(samples.sample().runs[0])
    assert bars and all(bar.name.startswith("NONE") for bar in bars)


def test_rejected_window_is_named_so() -> None:
    window = samples.sample().runs[0].windows[0]
    rejected = msgspec.structs.replace(window, accepted=False, reasons=["nine annotations"])
    assert shares.window_name(rejected, 1) == "window 0 (rejected)"


def test_family_colours_are_fixed_and_distinct() -> None:
    colours = [swatch.colour for swatch in FAMILIES.values()]
    assert len(set(colours)) == len(colours)
    assert family("attention").colour == "#0072B2"
    assert family("my_family") == family("my_family")
    assert family_order({"zeta", "other", "attention", "alpha"}) == [
        "attention",
        "other",
        "alpha",
        "zeta",
    ]


def series(done: list[int], duration: list[int]) -> StepSeries:
    zeros = np.zeros(len(done), dtype=np.int64)
    return StepSeries(np.array(done), np.array(duration), zeros, zeros, zeros, zeros)


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**11)), min_size=1, max_size=200),
    st.integers(1, 50),
)
def test_bins_lose_no_step_and_keep_the_extremes(
    found: list[tuple[int, int]], bins_max: int
) -> None:
    done, durations = [d for d, _ in found], [v for _, v in found]
    bins = bin_steps(series(done, durations), bins_max)
    assert bins is not None
    assert sum(bins.count) == bins.steps == len(found)
    assert len(bins.start_ns) <= bins_max
    assert min(bins.duration_min_ns) == min(durations)
    assert max(bins.duration_max_ns) == max(durations)
    for k, start in enumerate(bins.start_ns):
        inside = [v for d, v in found if start <= d < start + bins.width_ns]
        assert bins.count[k] == len(inside)
        assert bins.duration_min_ns[k] == min(inside)
        assert bins.duration_max_ns[k] == max(inside)
        assert bins.duration_mean_ns[k] == pytest.approx(sum(inside) / len(inside))


def test_no_step_gives_no_bin() -> None:
    assert bin_steps(series([], []), 10) is None


def test_timeline_leaves_a_stall_blank_and_says_how_it_was_binned() -> None:
    run = samples.sample().runs[0]
    table = FIGURES[0].table
    assert table is not None
    figure = steps.timeline("t", run, table)
    assert figure is not None
    mean = next(trace for trace in figure.data if trace["name"] == "mean")
    assert None in mean["y"]
    assert "2,000 executed steps" in figure.notes[0] and "minimum and maximum" in figure.notes[0]
    assert len(figure.layout["shapes"]) == len(samples.intervals())
    labels = [mark["text"] for mark in figure.layout["annotations"]]
    assert labels == [f"{i.kind} {i.index}" for i in samples.intervals()]


def test_timeline_without_the_stream_is_not_drawn() -> None:
    run = msgspec.structs.replace(samples.sample().runs[0], steps=None)
    table = FIGURES[0].table
    assert table is not None
    assert steps.timeline("t", run, table) is None


def test_intervals_come_from_the_composition_where_there_is_no_timeline() -> None:
    run = samples.sample().runs[0]
    bare = msgspec.structs.replace(run, intervals=())
    assert [(i.kind, i.index, i.start_mono_ns) for i in steps.intervals_of(bare)] == [
        (i.kind, i.index, i.start_mono_ns) for i in run.intervals
    ]


def test_log_axis_ticks_read_as_numbers() -> None:
    axis = log_axis([30.0, None, 0.0, 700.0])
    assert axis["ticktext"] == ["50", "100", "200", "500"]
    assert log_axis([]) == {"type": "log"}
