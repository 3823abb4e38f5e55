"""Series against the artefacts, fits, factorial, confirmations, page, files."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from decision_builders import SMALL, decided, facts, msgspec_replace, of, protocol
from msgspec.structs import replace

from opprof.analysis.inputs import read_inputs
from opprof.analysis.layer1 import read_layer1
from opprof.analysis.load import run_metrics
from opprof.analysis.run import analyze_run
from opprof.analysis.waste import step_waste
from opprof.artifacts.decision import Decision
from opprof.artifacts.kernels import WindowFamilies
from opprof.decision.facts import RunFacts
from opprof.decision.h1b import _combined
from opprof.decision.metrics import RATIOS
from opprof.decision.page import decision_page, markdown
from opprof.decision.planted import Truth, inverted
from opprof.decision.resample import Resampled
from opprof.decision.series import CleanSeries, Missing, read_series
from opprof.decision.write import write_decision
from opprof.errors import StateConflict

RUNS = Path(__file__).parents[2] / "examples" / "h200-runs"


@pytest.mark.parametrize("name", ["P01-C00-saturation", "P03-C00-moderate"])
def test_sums_over_bins_are_the_artefacts_own_figures(name: str) -> None:
    bound = protocol(blocks_min=1)
    root = RUNS / name
    side = read_layer1(read_inputs(root), bound)
    sizes = side.stream.header.config.cudagraph_capture_sizes
    series = read_series(root, sizes, bound.file.statistics)
    assert isinstance(series, CleanSeries)
    waste = step_waste(side.columns, side.clean_rows, sizes)
    for metric in ("padding_fraction", "graph_miss_rate", "eligible_miss_rate", "overflow_rate",
                   "bucket_slack", "padded_tokens_per_useful_token"):  # fmt: skip
        parts = RATIOS[metric]
        found = series.sums[parts.numerator].sum() / series.sums[parts.denominator].sum()
        assert found == getattr(waste, metric), metric
    tokens, milliseconds = series.sums["scheduled_tokens"].sum(), series.sums["step_ms"].sum()
    assert tokens / milliseconds == pytest.approx(waste.e_token_per_ms)
    assert side.end_to_end is not None
    completed = series.sums["completed"].sum() / series.sums["seconds"].sum()
    assert completed == pytest.approx(side.end_to_end.completed_rps)
    latency = series.sums["latency_ms_sum"].sum() / series.sums["latency_ms_count"].sum()
    assert latency == pytest.approx(side.end_to_end.from_scheduled.latency_ms.mean)
    ttft = series.latencies["ttft_ms"]
    assert ttft.values.mean() == pytest.approx(side.end_to_end.from_scheduled.ttft_ms.mean)
    assert len(series.steps.duration_ms) == len(series.step_bins)


def test_a_short_run_or_a_bare_analysis_has_no_series() -> None:
    rule = protocol().file.statistics
    short = read_series(RUNS / "P01-C00-saturation", [], rule)
    assert isinstance(short, Missing)
    assert "at least 10 needed" in short.reason
    bare = read_series(RUNS, [], rule)
    assert isinstance(bare, Missing)
    assert "run directory" in bare.reason


def test_interference_is_found_where_it_was_planted_and_left_out_is_the_reported_pattern() -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, {"P09": Truth(mixed_extra=0.3, drift=0.01)}))
    by_pattern = {item.pattern: item for item in decision.interference}
    planted, other = by_pattern["P09"], by_pattern["P01"]
    assert planted.fitted_patterns == [p for p in by_pattern if p != "P09"]
    assert planted.alpha_ms == pytest.approx(0.5)
    assert planted.i_mix.value == pytest.approx(0.3, abs=0.03)
    assert planted.i_mix.low is not None
    assert planted.i_mix.high is not None
    assert planted.i_mix.low < planted.i_mix.value < planted.i_mix.high
    assert other.i_mix.value == pytest.approx(0.0, abs=0.03)
    assert planted.mixed_supported > 0
    # N of the whole step is beyond every pure-decode step's line D = N.
    assert planted.other_reading_supported == 0
    interval = next(i for i in decision.intervals if i.run == "P09-C00-moderate")
    assert interval.metrics["I_mix"] == planted.i_mix
    assert interval.signed == ["I_mix", "step_residual"]
    assert (interval.bins, interval.blocks) == (SMALL.bins, SMALL.bins // 5)


def test_without_zero_token_steps_i_mix_is_not_available_anywhere() -> None:
    from dataclasses import replace

    bound = protocol()
    runs = []
    for entry in facts(bound, {}):
        series = entry.series
        assert isinstance(series, CleanSeries)
        steps = series.steps
        keep = ~steps.empty
        kept = type(steps)(*(getattr(steps, f)[keep] for f in steps.__dataclass_fields__))
        series = replace(series, steps=kept, step_bins=series.step_bins[keep])
        runs.append(replace(entry, series=series))
    decision = decided(bound, runs)
    fit = decision.interference[0]
    assert fit.alpha_ms is None
    assert fit.i_mix.value is None
    assert fit.i_mix.reason is not None
    assert "alpha" in fit.i_mix.reason
    assert fit.step_residual.value is not None
    metric = next(m for m in decision.h1b.evidence.contrasts[0].metrics if m.metric == "I_mix")
    assert metric.difference is None
    assert metric.reason == f"P05: {fit.i_mix.reason}; P01: {fit.i_mix.reason}"
    # Nothing is assumed in its place: the null cannot be supported.
    assert decision.h1b.evidence.all_below is None
    assert decision.h1b.outcome == "INCONCLUSIVE"


def test_scheduler_factorial_and_confirmations() -> None:
    bound = protocol()
    configs = ("C00", "C10", "C01", "C11")
    keys = [("P01", config, "moderate", "primary") for config in configs]
    runs = facts(bound, {}, keys=[*keys, ("P01", "C00", "moderate", "confirmation")])
    slow = facts(bound, {"P01": Truth(slowdown=0.3)}, keys=[("P01", "C11", "moderate", "primary")])
    # The repeat has no CV_moe.
    again = next(i for i, entry in enumerate(runs) if entry.run.role == "confirmation")
    reasons = {"CV_moe": "layer scopes cover 63%"}
    waste = {**runs[again].waste, "CV_moe": None}
    runs[again] = msgspec_replace(runs[again], waste=waste, missing_waste=reasons)
    decision = decided(bound, [r for r in runs if r.run.config != "C11"] + slow)
    rows = [r for r in decision.factorial if (r.pattern, r.load_point) == ("P01", "moderate")]
    token = next(r for r in rows if r.metric == "E_token_per_ms")
    assert token.scale == "log_ratio"
    # Slower only where both limits are low: all of it is interaction.
    assert token.interaction.value == pytest.approx(-0.262, abs=0.03)
    assert token.main_mns.value == pytest.approx(token.interaction.value / 2, abs=0.03)
    assert token.interaction.high is not None
    assert token.interaction.high < 0
    assert token.ratios["C00"] == 1.0
    assert token.cells["C11"] is not None
    missing = next(r for r in decision.factorial if r.pattern == "P03")
    assert missing.main_mns.value is None
    assert missing.reason == "P03-C00-moderate is missing"
    delta = next(
        d for d in decision.confirmations if (d.pattern, d.metric) == ("P01", "E_token_per_ms")
    )
    assert delta.first is not None
    assert delta.repeat is not None
    assert delta.absolute == delta.repeat - delta.first
    assert delta.relative == pytest.approx(delta.repeat / delta.first - 1)
    cv = next(d for d in decision.confirmations if (d.pattern, d.metric) == ("P01", "CV_moe"))
    assert cv.repeat is None and cv.first is not None
    assert cv.reason == "P01-C00-moderate-confirmation: layer scopes cover 63%"
    absent = next(d for d in decision.confirmations if d.pattern == "P10")
    assert absent.reason == "P10-C00-moderate is missing"
    assert next(d.pattern for d in decision.confirmations if d.first is None) == "P10"


def test_a_metric_is_compared_once_and_a_contrast_names_the_side_that_lacks_it() -> None:
    named = run_metrics(analyze_run(RUNS / "P01-C00-saturation", None))
    assert "E_token_per_ms" in named
    assert not {name.lower() for name in named if name not in RATIOS} & {n.lower() for n in RATIOS}
    nothing = Resampled(math.nan, np.zeros(1), np.zeros(1))
    value = Resampled(1.0, np.ones(1), np.ones(1))
    for sides, lacking in (
        (({}, {"x": value}), "P05"),
        (({"x": value}, {"x": nothing}), "P01"),
        (({"x": nothing}, {}), "P05 and P01"),
    ):
        runs = list(zip(("P05", "P01"), sides, strict=True))
        found = _combined(runs, "x", lambda a, b: a - b, 0.95)
        assert found.reason == f"x is not available for {lacking}"


def test_saturation_strengthens_and_never_decides() -> None:
    bound = protocol()
    keys = [(p, "C00", load, "primary") for p in ("P01", "P03") for load in ("saturation",)]
    quiet = Truth(share_noise=0.01)
    moderate = [(p, "C00", "moderate", "primary") for p in ("P01", "P03")]
    loud = {"P03": inverted(quiet, "attention", "moe_gemm"), "P01": quiet}
    runs = facts(bound, loud, keys=keys) + facts(bound, {"P01": quiet, "P03": quiet}, keys=moderate)
    decision = decided(bound, runs)
    assert decision.h1a.outcome == "INCONCLUSIVE"
    found = decision.h1a.evidence.strengthening
    assert {item.comparison.load_point for item in found} == {"saturation"}
    assert all(item.comparison.accepted is None for item in found)
    assert not any(item.primary_accepted for item in found)
    both = decided(bound, facts(bound, loud, keys=[*keys, *moderate]))
    assert any(item.primary_accepted for item in both.h1a.evidence.strengthening)


def test_both_mapping_tables_are_decided_and_their_disagreement_is_said() -> None:
    # Under v1 the dense time counts as MoE: with dense and attention swapped, only v2 turns over.
    shares = {"attention": 0.34, "moe_gemm": 0.20, "dense_gemm": 0.12, "sampler": 0.34}
    quiet = Truth(shares=shares, share_noise=0.01)
    bound = protocol()
    decision = decided(
        bound, facts(bound, {"P03": inverted(quiet, "attention", "dense_gemm")}, default=quiet)
    )
    assert decision.h1a.evidence.mapping_version == "v2"
    assert {(i.family_a, i.family_b) for i in decision.h1a.evidence.accepted} >= {
        ("attention", "dense_gemm")
    }
    other = decision.alternatives["v1"]
    assert other.tested == decision.h1a.evidence.tested
    assert not any({i.family_a, i.family_b} == {"attention", "dense_gemm"} for i in other.accepted)
    assert any("accepted under v2 only" in sentence for sentence in decision.disagreements)


def test_the_page_leads_from_verdict_to_number_and_is_written_whole(tmp_path: Path) -> None:
    bound = protocol()
    quiet = Truth(share_noise=0.01)
    decision = decided(bound, facts(bound, {"P03": inverted(quiet, "attention", "moe_gemm")}))
    sections = decision_page(decision)
    assert sections[0].title == "Verdict"
    for section in sections:
        for table in section.tables:
            assert all(len(row) == len(table.columns) for row in table.rows), table.title
    text = markdown(sections)
    assert "| H1a, composition | CONFIRMED |" in text
    assert "attention" in text
    paths = write_decision(decision, tmp_path)
    assert [path.name for path in paths] == ["decision.md", "decision.json"]
    assert msgspec.json.decode(paths[1].read_bytes(), type=Decision) == decision
    raw = msgspec.json.decode(paths[1].read_bytes())
    for part in ("H1a", "H1b", "compound"):
        assert set(raw[part]) == {"outcome", "reasons", "evidence"}
    wanted = {
        "pattern_p",
        "pattern_q",
        "family_a",
        "family_b",
        "gaps_p",
        "gaps_q",
        "gap_criteria_met",
        "permutation_p",
        "holm_p",
        "classifiable",
        "accepted",
    }
    assert wanted <= set(raw["inversions"][0])
    write_decision(decision, tmp_path)
    fewer = decided(bound, facts(bound, {})[:3])
    with pytest.raises(StateConflict, match="other runs"):
        write_decision(fewer, tmp_path)
    paths[1].write_text("{}")
    with pytest.raises(StateConflict, match="can be read"):
        write_decision(decision, tmp_path)


def test_a_drawn_p_near_its_bar_carries_its_monte_carlo_interval() -> None:
    bound = protocol()
    quiet = Truth(share_noise=0.01)
    decision = decided(bound, facts(bound, {"P03": inverted(quiet, "attention", "moe_gemm")}))
    for item in decision.inversions:
        assert item.holm_p is not None
        near = 0.005 <= item.holm_p <= 0.5
        assert (item.permutation_interval is not None) == near
        if item.permutation_interval is not None:
            assert item.reached is not None
            assert (
                item.permutation_interval[0] <= item.reached / 6000 <= item.permutation_interval[1]
            )
            assert item.exact_p is not None


def test_marks_of_one_run_reach_every_comparison_it_takes_part_in() -> None:
    bound = protocol()
    runs = facts(bound, {})
    decision = decided(bound, runs)
    mark = f"{runs[of(runs, 'P01')].run.pattern}: simulated, no measurement"
    assert all(mark in i.marks for i in decision.inversions if i.pattern_p == "P01")


def _with_empty_steps(entry: RunFacts, *, also: bool) -> RunFacts:
    """The run with its second window's steps empty; ``also``: one more empty step among them."""

    def emptied(window: WindowFamilies) -> list[dict[str, int]]:
        steps = list(window.step_family_ns)
        return [*steps[:2], {}, *steps[2:]] if also else [{} for _ in steps]

    windows = list(entry.kernels.windows)
    window = windows[1]
    windows[1] = replace(window, step_family_ns=emptied(window))
    others = dict(entry.kernels.alternatives)
    for version, table in others.items():
        second = replace(table.windows[1], step_family_ns=emptied(table.windows[1]))
        others[version] = replace(table, windows=[table.windows[0], second])
    return msgspec_replace(
        entry, kernels=replace(entry.kernels, windows=windows, alternatives=others)
    )


def test_a_step_that_ran_nothing_takes_no_window_away() -> None:
    """Bursty traffic leaves the scheduler steps with nothing to run, inside windows too."""
    bound = protocol()
    quiet = Truth(share_noise=0.01)
    runs = facts(bound, {"P03": inverted(quiet, "attention", "moe_gemm")})
    before = decided(bound, runs)
    place = of(runs, "P03")
    runs[place] = _with_empty_steps(runs[place], also=True)
    after = decided(bound, runs)
    assert after.h1a.outcome == before.h1a.outcome == "CONFIRMED"
    assert after.h1a.evidence.evaluable == after.h1a.evidence.registered
    assert after.h1a.evidence.null == before.h1a.evidence.null
    for one, other in zip(after.inversions, before.inversions, strict=True):
        assert replace(one, marks=[]) == replace(other, marks=[])


def test_a_window_without_any_step_time_is_said_wherever_patterns_are_counted() -> None:
    bound = protocol()
    runs = facts(bound, {})
    place = of(runs, "P03")
    runs[place] = _with_empty_steps(runs[place], also=False)
    decision = decided(bound, runs)
    evidence, reason = (
        decision.h1a.evidence,
        "P03: window 1 has no step times under mapping table v2",
    )
    assert evidence.not_evaluable == {"P03": [reason]}
    assert "P03" not in evidence.patterns and not evidence.null.evaluable
    assert any(each.startswith("not evaluable: P03") for each in decision.h1a.reasons)
    assert reason in markdown(decision_page(decision))
    assert all(
        item.evaluable == ("P03" not in (item.pattern_p, item.pattern_q))
        for item in decision.inversions
    )
