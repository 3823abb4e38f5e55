"""Waste ratios are ratios of sums, and null where they cannot be computed."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import CAPTURE_SIZES, columns, step
from opprof.analysis.waste import (
    I_MIX_REASON,
    NO_CAPTURE_REASON,
    NO_EXECUTED_REASON,
    NO_HIT_REASON,
    NO_MANIFEST_REASON,
    MoeStep,
    MoeVariation,
    layer_variation,
    moe_variation,
    raggedness,
    step_waste,
    waste_by_mode,
)
from opprof.telemetry.stream import find_stream, read_stream

NO_MOE = MoeVariation(None, "no active step", {}, {}, None)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


def graph(mode: str, unpadded: int, bucket: int) -> dict[str, Any]:
    return {
        "mode": mode,
        "hit": mode != "NONE",
        "unpadded_tokens": unpadded,
        "bucket_tokens": bucket,
    }


def stepped(graphs: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [
        step(i, graph=found, decode_tokens=found["unpadded_tokens"] if found else 0)
        for i, found in enumerate(graphs)
    ]


GRAPHS = [
    graph("FULL", 3, 4),
    graph("FULL", 8, 8),
    graph("PIECEWISE", 9, 16),
    graph("NONE", 5, 0),  # eligible: the bucket of 8 would hold it
    graph("NONE", 40, 0),  # overflow
]


def test_ratios_of_sums() -> None:
    found = columns(stepped(GRAPHS))
    waste = step_waste(found, np.arange(5), CAPTURE_SIZES)
    assert waste.padding_fraction == 8 / 28
    assert waste.padded_tokens_per_useful_token == 8 / 20
    assert waste.padded_tokens_per_scheduled_token == 8 / 65
    assert waste.graph_miss_rate == 2 / 5
    assert waste.eligible_miss_rate == 1 / 5
    assert waste.overflow_rate == 1 / 5
    assert waste.bucket_slack == (1 + 0 + 7 + 3) / (4 + 8 + 16 + 8)
    assert waste.e_token_per_ms == 65 / 50
    assert waste.padded_tokens_hist == {"0": 1, "1": 1, "7": 1}
    assert waste.not_available == {}
    counts = waste.counts
    assert (counts.executed_steps, counts.hit_steps, counts.miss_steps) == (5, 3, 2)
    assert (counts.capture_sizes, counts.largest_capture_size) == (5, 16)


def test_steps_that_do_not_count_change_nothing() -> None:
    extra = [
        step(5, graph=None),
        step(6, graph=graph("FULL", 9, 8)),
        step(7, graph={"mode": "FULL", "hit": False, "unpadded_tokens": 3, "bucket_tokens": 4}),
        step(8, graph=graph("weird", 1, 1)),
        step(9, model_executed=False, graph=None),
    ]
    found = columns(stepped(GRAPHS) + extra)
    waste = step_waste(found, np.arange(10), CAPTURE_SIZES)
    alone = step_waste(found, np.arange(5), CAPTURE_SIZES)
    assert waste.counts.invalid_graph_steps == 4
    assert waste.padding_fraction == alone.padding_fraction
    assert waste.e_token_per_ms == alone.e_token_per_ms
    assert waste.graph_miss_rate == alone.graph_miss_rate


def test_absent_inputs_give_null_with_a_reason() -> None:
    found = columns(stepped([graph("NONE", 40, 0)]))
    without_sizes = step_waste(found, np.arange(1), [])
    assert without_sizes.graph_miss_rate == 1.0
    assert without_sizes.bucket_slack is None
    assert without_sizes.not_available == {
        "padding_fraction": NO_HIT_REASON,
        "padded_tokens_per_useful_token": NO_HIT_REASON,
        "eligible_miss_rate": NO_CAPTURE_REASON,
        "overflow_rate": NO_CAPTURE_REASON,
        "bucket_slack": NO_CAPTURE_REASON,
    }
    overflowing = step_waste(found, np.arange(1), CAPTURE_SIZES)
    assert overflowing.overflow_rate == 1.0
    assert overflowing.not_available["bucket_slack"] == "no executed step fits a captured bucket"
    empty = step_waste(found, np.arange(0), CAPTURE_SIZES)
    assert set(empty.not_available.values()) == {NO_EXECUTED_REASON}
    assert len(empty.not_available) == 8


def test_by_mode_restricts_the_sums() -> None:
    found = columns(stepped(GRAPHS))
    moe = MoeVariation(0.2, None, {"0": [0.2]}, {"FULL": 0.2}, 1.0)
    by_mode = waste_by_mode(found, np.arange(5), CAPTURE_SIZES, moe)
    assert list(by_mode) == ["FULL", "PIECEWISE", "NONE"]
    assert by_mode["FULL"].padding_fraction == 1 / 12
    assert by_mode["FULL"].graph_miss_rate == 0.0
    assert by_mode["FULL"].cv_moe == 0.2
    assert by_mode["FULL"].not_available == {"I_mix": I_MIX_REASON}
    assert by_mode["PIECEWISE"].padded_tokens_hist == {"7": 1}
    assert "CV_moe" in by_mode["PIECEWISE"].not_available
    assert by_mode["NONE"].graph_miss_rate == 1.0
    assert by_mode["NONE"].padding_fraction is None
    unused = waste_by_mode(found, np.arange(2), CAPTURE_SIZES, NO_MOE)["NONE"]
    assert unused.steps == 0
    assert unused.not_available["graph_miss_rate"] == "no clean step ran in mode NONE"
    assert unused.not_available["CV_moe"] == "no active step"


def test_cv_moe_is_judged_mode_by_mode() -> None:
    """A run's coverage is no mode's: replays have no layer scopes, eager steps have all."""
    steps = [
        MoeStep(0, "FULL", (), 900),
        MoeStep(0, "NONE", (10, 30), 0),
        MoeStep(0, "PIECEWISE", (7,), 0),
    ]
    moe = moe_variation(steps, scope_share_min=0.8, ddof=0)
    assert moe.cv is None
    assert moe.reason is not None
    assert "cover 5.0% of" in moe.reason
    found = columns(stepped(GRAPHS))
    by_mode = waste_by_mode(found, np.arange(5), CAPTURE_SIZES, moe)
    assert by_mode["NONE"].cv_moe == 0.5
    assert "CV_moe" not in by_mode["NONE"].not_available
    assert by_mode["FULL"].not_available["CV_moe"] == (
        "layer scopes cover 0.0% of the MoE GEMM time of the active steps of mode FULL, below 80%"
    )
    assert "PIECEWISE has two MoE layers" in by_mode["PIECEWISE"].not_available["CV_moe"]
    only = moe_variation(steps[1:2], scope_share_min=0.8, ddof=0)
    assert only.cv == 0.5
    absent = waste_by_mode(found, np.arange(5), CAPTURE_SIZES, only)["FULL"].not_available
    assert absent["CV_moe"] == "no active step of an accepted window ran in mode FULL"


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    unpadded = draw(st.integers(1, 30))
    mode = draw(st.sampled_from(["FULL", "PIECEWISE", "NONE"]))
    fitting = [size for size in CAPTURE_SIZES if size >= unpadded]
    if mode == "NONE" or not fitting:
        return graph("NONE", unpadded, 0)
    return graph(mode, unpadded, draw(st.sampled_from(fitting)))


@given(found=st.lists(graphs(), min_size=1, max_size=25))
def test_the_ratios_keep_their_bounds_and_add_up(found: list[dict[str, Any]]) -> None:
    steps = columns(stepped(list(found)))
    waste = step_waste(steps, np.arange(len(found)), CAPTURE_SIZES)
    counts = waste.counts
    assert counts.hit_steps + counts.miss_steps == counts.executed_steps == len(found)
    assert counts.eligible_miss_steps + counts.overflow_steps == counts.miss_steps
    assert counts.padded_tokens == sum(
        int(key) * count for key, count in waste.padded_tokens_hist.items()
    )
    for value in (waste.padding_fraction, waste.bucket_slack, waste.graph_miss_rate):
        assert value is None or 0 <= value < 1 or value == waste.graph_miss_rate == 1
    slack = [
        (min(size for size in CAPTURE_SIZES if size >= g["unpadded_tokens"]), g["unpadded_tokens"])
        for g in found
        if g["unpadded_tokens"] <= max(CAPTURE_SIZES)
    ]
    if slack:
        expected = sum(b - u for b, u in slack) / sum(b for b, _ in slack)
        assert waste.bucket_slack == pytest.approx(expected)


@given(ns=st.lists(st.integers(0, 10**9), max_size=60), ddof=st.sampled_from([0, 1]))
def test_layer_variation_agrees_with_the_standard_library(ns: list[int], ddof: int) -> None:
    found = layer_variation(ns, ddof=ddof)
    if len(ns) < 2 or not sum(ns):
        assert found is None
        return
    deviation = statistics.stdev(ns) if ddof else statistics.pstdev(ns)
    assert found == pytest.approx(deviation / statistics.fmean(ns), rel=1e-9, abs=1e-12)
    if len(set(ns)) == 1:
        assert found == 0.0


def moe(rank: int, layers: tuple[int, ...], unscoped: int = 0, mode: str = "FULL") -> MoeStep:
    return MoeStep(rank, mode, layers, unscoped)


def test_cv_moe_is_a_mean_over_ranks_of_means_over_steps() -> None:
    steps = [moe(0, (1, 3)), moe(0, (2, 2)), moe(0, (5,)), moe(1, (1, 3), mode="NONE")]
    found = moe_variation(steps, scope_share_min=0.8, ddof=0)
    assert found.by_rank == {"0": [0.5, 0.0], "1": [0.5]}
    assert found.cv == (0.25 + 0.5) / 2
    assert found.by_mode == {"FULL": 0.25, "NONE": 0.5}
    assert found.scope_share == 1.0
    assert found.reason is None


def test_cv_moe_needs_layer_scopes_on_every_rank() -> None:
    enough = [moe(0, (40, 40), 20), moe(1, (50, 50))]
    assert moe_variation(enough, scope_share_min=0.8, ddof=0).cv == 0.0
    short = moe_variation([*enough, moe(0, (1, 1), 2)], scope_share_min=0.8, ddof=0)
    assert short.cv is None
    assert short.reason is not None
    assert "below 80%" in short.reason
    assert moe_variation([], scope_share_min=0.8, ddof=0).reason is not None
    assert moe_variation([moe(0, ())], scope_share_min=0.8, ddof=0).cv is None
    assert moe_variation([moe(0, (7,))], scope_share_min=0.8, ddof=0).cv is None


def test_raggedness_comes_from_the_manifest_or_has_a_reason() -> None:
    values, missing = raggedness({"R32": 0.25, "64": 0.5, "R128": None}, [32, 64, 128])
    assert values == {"R32": 0.25, "R64": 0.5, "R128": None}
    assert missing == {"R128": "the manifest has no complete cohort of 128 requests"}
    values, missing = raggedness(None, [64])
    assert values == {"R64": None}
    assert missing == {"R64": NO_MANIFEST_REASON}


def test_the_whole_real_stream() -> None:
    stream = read_stream(find_stream(EXAMPLES / "P09-C00-TP2-moderate"))
    rows = np.arange(len(stream.columns))
    waste = step_waste(stream.columns, rows, stream.header.config.cudagraph_capture_sizes)
    # The engine pads each hit to the smallest captured bucket, and nothing misses.
    assert waste.bucket_slack == waste.padding_fraction
    assert waste.graph_miss_rate == 0.0
