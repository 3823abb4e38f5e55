"""The SMD gate, its constants, and its failure rate under no change."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layer1_samples import columns, step
from opprof.analysis.representativeness import judge_window, null_rate
from opprof.protocol.load import load_protocol
from opprof.protocol.model import RepresentativenessRule
from opprof.telemetry.membership import members
from opprof.telemetry.stream import find_stream, read_stream
from opprof.telemetry.timeline import intervals_of, read_timeline

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


@pytest.fixture(scope="module")
def rule() -> RepresentativenessRule:
    protocol = load_protocol("phase3")
    assert protocol is not None
    return protocol.file.representativeness


def decode(index: int, batch: int) -> dict[str, Any]:
    return step(index, decode_requests=batch, decode_tokens=batch, scheduled_requests=batch)


def test_smd_by_hand(rule: RepresentativenessRule) -> None:
    batches = [4, 6, 4, 6, 5, 7, 5, 7]
    found = columns([decode(i, batch) for i, batch in enumerate(batches)])
    judged = judge_window(found, np.arange(4, 8), np.arange(4), rule, window=1, clean_segment=2)
    tokens = judged.features[0]
    pooled = math.sqrt((statistics.variance([5, 7, 5, 7]) + statistics.variance([4, 6, 4, 6])) / 2)
    assert tokens.feature == "scheduled_tokens"
    assert tokens.smd == pytest.approx(1 / pooled)
    assert tokens.pooled_sd == pytest.approx(pooled)
    assert (tokens.outcome, tokens.constant) == ("fail", False)
    assert judged.outcome == "fail"
    assert "scheduled_tokens +0.87" in judged.reason
    assert (judged.window, judged.clean_segment) == (1, 2)
    constant = {f.feature: f for f in judged.features if f.constant}
    assert set(constant) == {"prefill_fraction", "share_FULL", "share_PIECEWISE", "share_NONE"}
    assert {f.outcome for f in constant.values()} == {"pass"}


def test_a_constant_feature_is_judged_by_exact_equality(rule: RepresentativenessRule) -> None:
    found = columns([decode(i, 4 if i < 4 else 5) for i in range(8)])
    judged = judge_window(found, np.arange(4, 8), np.arange(4), rule, window=0, clean_segment=0)
    tokens = judged.features[0]
    assert (tokens.smd, tokens.constant, tokens.outcome) == (None, True, "fail")
    assert "scheduled_tokens differs from a constant" in judged.reason
    same = judge_window(found, np.arange(2), np.arange(2, 4), rule, window=0, clean_segment=0)
    assert same.outcome == "pass"


def test_steps_without_tokens_or_with_a_faulty_graph_are_left_out(
    rule: RepresentativenessRule,
) -> None:
    steps = [decode(i, 4) for i in range(6)]
    steps[1] = step(1, model_executed=False, graph=None, decode_tokens=0)
    steps[2] = step(2, graph=None)
    judged = judge_window(
        columns(steps), np.arange(4), np.arange(4, 6), rule, window=0, clean_segment=0
    )
    assert (judged.profile_steps, judged.clean_steps) == (2, 2)
    assert judged.outcome == "pass"


@pytest.mark.parametrize(
    ("window", "clean", "reason"),
    [
        ([0, 1], None, "no clean segment"),
        ([0], [1, 2], "1 joined steps"),
        ([0, 1], [2], "1 steps"),
    ],
)
def test_too_little_to_judge_is_neither_pass_nor_fail(
    rule: RepresentativenessRule, window: list[int], clean: list[int] | None, reason: str
) -> None:
    found = columns([decode(i, 4) for i in range(3)])
    judged = judge_window(
        found,
        np.array(window),
        None if clean is None else np.array(clean),
        rule,
        window=0,
        clean_segment=None,
    )
    assert judged.outcome == "not_evaluable"
    assert reason in judged.reason
    assert judged.features == []


def test_the_null_rate_is_the_gate_asked_about_every_draw(rule: RepresentativenessRule) -> None:
    rng = np.random.default_rng(3)
    found = columns([decode(i, int(n)) for i, n in enumerate(rng.integers(1, 9, 60))])
    rows = np.arange(60)
    rate, reason = null_rate(found, rows, rule, steps_per_window=8, windows=2, seed=11)
    assert reason is None
    assert rate is not None
    starts = np.random.default_rng(11).integers(0, 53, size=(rule.null_draws, 2))
    verdict = {
        start: judge_window(
            found, rows[start : start + 8], rows, rule, window=0, clean_segment=0
        ).outcome
        == "fail"
        for start in range(53)
    }
    asked = [[verdict[start] for start in pair] for pair in starts.tolist()]
    assert rate.any_feature_failure_rate == statistics.fmean(v for pair in asked for v in pair)
    assert rate.load_point_failure_rate == statistics.fmean(any(pair) for pair in asked)
    again, _ = null_rate(found, rows, rule, steps_per_window=8, windows=2, seed=11)
    assert again == rate


def test_the_null_rate_of_constant_steps_is_zero_and_of_too_few_is_absent(
    rule: RepresentativenessRule,
) -> None:
    found = columns([decode(i, 4) for i in range(20)])
    rate, _ = null_rate(found, np.arange(20), rule, steps_per_window=8, windows=2, seed=1)
    assert rate is not None
    assert rate.load_point_failure_rate == 0.0
    none, reason = null_rate(found, np.arange(7), rule, steps_per_window=8, windows=2, seed=1)
    assert none is None
    assert reason == "the clean segment has 7 usable steps, fewer than one window"


@pytest.mark.parametrize("run", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_on_real_runs_nearly_every_pair_of_clean_windows_fails(
    run: str, rule: RepresentativenessRule
) -> None:
    stream = read_stream(find_stream(EXAMPLES / run))
    segment = intervals_of(read_timeline(EXAMPLES / run / "client" / "timeline.json"), "clean")[0]
    rows = members(stream.columns, segment.start_mono_ns, segment.end_mono_ns).rows
    rate, _ = null_rate(stream.columns, rows, rule, steps_per_window=8, windows=2, seed=20260714)
    assert rate is not None
    assert 0.94 <= rate.load_point_failure_rate <= 1.0
