"""A-P3-6 stabilization, and recovery after a profiler window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layer1_samples import columns, step
from opprof.artifacts.run import Interval
from opprof.protocol.load import load_protocol
from opprof.protocol.model import Gates
from opprof.rules.recovery import Limits, Recovery
from opprof.rules.stabilization import Stabilization
from opprof.telemetry.recovery import recovery_check
from opprof.telemetry.requests import read_requests
from opprof.telemetry.stabilization import stabilization
from request_samples import record, write_requests

S = 1_000_000_000


@pytest.fixture(scope="module")
def gates() -> Gates:
    protocol = load_protocol("phase3")
    assert protocol is not None
    return protocol.file.gates


def warmup(tokens: list[int], per_bin: int = 20, **changes: Any) -> list[dict[str, Any]]:
    """``per_bin`` steps in each of the bins [45,50), [50,55), [55,60) with the given tokens."""
    times = [45 * S + 5 * S * bin_ + i * S // 5 for bin_ in range(3) for i in range(per_bin)]
    work = [count for count in tokens for _ in range(per_bin)]
    return [
        step(i, submit_mono_ns=t, complete_mono_ns=t + 1, decode_tokens=n, **changes)
        for i, (t, n) in enumerate(zip(times, work, strict=True))
    ]


def judge(steps: list[dict[str, Any]], gates: Gates, valid: bool = True) -> Stabilization:
    return stabilization(
        columns(steps), start_mono_ns=0, end_mono_ns=60 * S, accounting_valid=valid, gates=gates
    )


def test_the_fitted_drift_decides(gates: Gates) -> None:
    found = judge(warmup([100, 97, 104]), gates)
    rates = [100 * 20 / 5, 97 * 20 / 5, 104 * 20 / 5]
    assert found.bin_steps == (20, 20, 20)
    assert found.bin_tokens_per_s == pytest.approx(rates)
    # Ordinary least squares through (47.5, 52.5, 57.5).
    assert found.slope_tokens_per_s2 == pytest.approx((rates[2] - rates[0]) / 10)
    mean = sum(rates) / 3
    assert found.normalized_drift == pytest.approx((rates[2] - rates[0]) / 10 * 15 / mean)
    assert found.passed
    falling = judge(warmup([108, 100, 100]), gates)
    assert falling.normalized_drift == pytest.approx(0.08 * 1.5 / (308 / 300))
    assert not falling.passed
    assert "is over 0.1" in falling.reason


@pytest.mark.parametrize(
    ("steps", "valid", "reason"),
    [
        (warmup([100, 100, 100], per_bin=15), True, "15 executed steps"),
        (warmup([100, 0, 100]), True, "no token"),
        (warmup([100, 100, 100]), False, "accounting"),
        (warmup([100, 100, 100], model_executed=False, graph=None), True, "0 executed steps"),
        ([], True, "0 executed steps"),
    ],
)
def test_each_condition_can_fail(
    gates: Gates, steps: list[dict[str, Any]], valid: bool, reason: str
) -> None:
    found = judge(steps, gates, valid)
    assert not found.passed
    assert reason in found.reason


def recover(
    tmp_path: Path,
    gates: Gates,
    completions_s: list[float],
    waiting_after: int = 0,
    waiting_clean: int = 0,
    clean_s: int = 20,
) -> Recovery:
    times = [(round(t * S), waiting_clean if t < clean_s else waiting_after) for t in range(80)]
    steps = [step(i, submit_mono_ns=t, waiting=depth) for i, (t, depth) in enumerate(times)]
    records = [record(i, completed_mono_ns=100 + round(t * S)) for i, t in enumerate(completions_s)]
    return recovery_check(
        columns(steps),
        read_requests(write_requests(tmp_path, records)),
        recovery=Interval("recovery", 0, 50 * S, 80 * S),
        clean=Interval("clean", 2, 0, clean_s * S),
        limits=Limits.of(gates, 1.0),
    )


def test_recovery_compares_the_last_ten_seconds_with_the_clean_medians(
    tmp_path: Path, gates: Gates
) -> None:
    steady = [i / 10 for i in range(800)]
    found = recover(tmp_path, gates, steady, waiting_after=1)
    assert found.passed is True
    assert found.rate_rps == pytest.approx(10.0)
    assert found.clean_rate_rps == pytest.approx(10.0)
    assert found.clean_waiting == 0.0
    slow = [t for t in steady if t < 70 or round(t * 10) % 5]
    low = recover(tmp_path, gates, slow)
    assert low.rate_rps == pytest.approx(8.0)
    assert low.passed is False
    assert "completion rate" in low.reason


@pytest.mark.parametrize(
    ("clean", "after", "passed"),
    [(0, 1, True), (0, 2, False), (20, 22, True), (20, 18, True), (20, 23, False)],
)
def test_waiting_depth_is_judged_against_its_median(
    tmp_path: Path, gates: Gates, clean: int, after: int, passed: bool
) -> None:
    steady = [i / 10 for i in range(800)]
    found = recover(tmp_path, gates, steady, waiting_after=after, waiting_clean=clean)
    assert found.passed is passed


def test_a_segment_shorter_than_the_window_or_without_completions_is_not_judged(
    tmp_path: Path, gates: Gates
) -> None:
    assert recover(tmp_path, gates, [1.0], clean_s=9).passed is None
    silent = recover(tmp_path, gates, [75.0])
    assert silent.passed is None
    assert "no completions" in silent.reason
