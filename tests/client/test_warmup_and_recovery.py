"""The warm-up gate with A-P3-6, and the recovery gate, on made step streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.common import Gate
from opprof.client.recovery import recovery_gate
from opprof.client.steps import StepLine, StepStream
from opprof.client.warmup import STABILIZED_RULE, stabilization, warmup_gate
from opprof.protocol import load_protocol
from opprof.rules.recovery import Limits

S = 1_000_000_000
T0 = 1000 * S
PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None
GATES = PROTOCOL.file.gates


def step(index: int, submit_ns: int, tokens: int, *, waiting: int = 0) -> StepLine:
    return StepLine(index, submit_ns, submit_ns + 1, True, tokens, 0, waiting)


def stream_of(rates: tuple[int, int, int], *, per_bin: int = 20) -> StepStream:
    """Steps whose three bins hold ``rates`` tokens a second each, after 45 quiet seconds."""
    steps = []
    for position, rate in enumerate(rates):
        for k in range(per_bin):
            at = T0 + 45 * S + position * 5 * S + k * 5 * S // per_bin
            tokens = rate * 5 // per_bin
            steps.append(step(len(steps), at, tokens))
    return StepStream(steps=steps)


def test_a_steady_stream_is_stable_and_every_number_is_there() -> None:
    test = stabilization(stream_of((400, 420, 400)), T0, T0 + 60 * S, steps_min=16, drift_max=0.1)
    assert test.passed and test.bin_steps == (20, 20, 20)
    assert test.bin_tokens_per_s == (400, 420, 400) and test.mean_tokens_per_s == pytest.approx(
        1220 / 3
    )
    assert test.slope_tokens_per_s2 == 0 and test.normalized_drift == 0


@given(st.tuples(*[st.integers(1, 500).map(lambda n: n * 20) for _ in range(3)]))
def test_the_drift_is_the_protocols_least_squares_fit(rates: tuple[int, int, int]) -> None:
    test = stabilization(stream_of(rates), T0, T0 + 60 * S, steps_min=16, drift_max=0.1)
    slope, _ = np.polyfit([47.5, 52.5, 57.5], rates, 1)
    mean = sum(rates) / 3
    assert test.slope_tokens_per_s2 == pytest.approx(slope, abs=1e-6)
    assert test.normalized_drift == pytest.approx(abs(slope) * 15 / mean, abs=1e-6)
    assert test.passed == (test.normalized_drift <= 0.1)


def test_the_borders_of_the_quartile_are_half_open() -> None:
    inside = [step(k, T0 + 45 * S + k * S * 15 // 48, 10) for k in range(48)]
    outside = [step(48, T0 + 60 * S, 10**9)]
    early = step(0, T0 + 45 * S - 1, 10**9)
    test = stabilization(
        StepStream(steps=[early, *inside, *outside]), T0, T0 + 60 * S, steps_min=16, drift_max=0.1
    )
    assert test.bin_steps == (16, 16, 16) and max(test.bin_tokens_per_s) == 32


def broken(stream: StepStream) -> StepStream:
    stream.problems.append("line 7: step 9 is not the next one")
    return stream


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (stream_of((400, 400, 400), per_bin=15), "15 executed steps, fewer than 16"),
        (stream_of((400, 400, 0)), "scheduled no token"),
        (broken(stream_of((400, 400, 400))), "accounting invariant failed: line 7"),
        (StepStream(), "0 executed steps"),
    ],
)
def test_nothing_is_imputed(stream: StepStream, text: str) -> None:
    test = stabilization(stream, T0, T0 + 60 * S, steps_min=16, drift_max=0.1)
    assert not test.passed and text in test.reason and test.normalized_drift is None


@pytest.mark.parametrize(
    ("completions", "rule", "stream", "outcome"),
    [
        (32, "completions", None, "pass"),
        (31, "completions", stream_of((400, 400, 400)), "fail"),
        (32, STABILIZED_RULE, None, "pass"),
        (16, STABILIZED_RULE, stream_of((400, 400, 400)), "pass"),
        (15, STABILIZED_RULE, stream_of((400, 400, 400)), "fail"),
        (31, STABILIZED_RULE, stream_of((400, 400, 600)), "fail"),
        (31, STABILIZED_RULE, None, "fail"),
    ],
)
def test_the_warm_up_gate(
    completions: int, rule: str, stream: StepStream | None, outcome: str
) -> None:
    gate = warmup_gate(completions, T0, T0 + 60 * S, rule=rule, gates=GATES, stream=stream)
    assert gate.outcome == outcome
    assert gate.numbers["completions"] == completions
    if rule == STABILIZED_RULE and stream is not None:
        for name in (
            "bin_steps",
            "bin_tokens_per_s",
            "mean_tokens_per_s",
            "slope_tokens_per_s2",
            "normalized_drift",
            "stabilized",
        ):
            assert name in gate.numbers


# ---------------------------------------------------------------------------- recovery

CLEAN = (T0, T0 + 80 * S)
RECOVERY = (T0 + 100 * S, T0 + 130 * S)


def completions(rate_after: Callable[[float], float]) -> list[int]:
    """Five a second in the clean segment; ``rate_after(seconds)`` a second in the recovery."""
    times = [CLEAN[0] + k * S // 5 for k in range(400)]
    for second in range(30):
        count = round(rate_after(second))
        times += [RECOVERY[0] + second * S + k * S // max(1, count) for k in range(count)]
    return sorted(times)


def waiting_stream(clean: int, after: Callable[[float], int]) -> StepStream:
    steps = []
    for k in range(800):
        steps.append(step(len(steps), CLEAN[0] + k * S // 10, 1, waiting=clean))
    for k in range(300):
        steps.append(step(len(steps), RECOVERY[0] + k * S // 10, 1, waiting=after(k / 10)))
    return StepStream(steps=steps)


def judge(times: list[int], stream: StepStream | None, rolling_ns: int = 10 * S) -> Gate:
    limits = dataclasses.replace(Limits.of(GATES, 1.0), rolling_ns=rolling_ns)
    return recovery_gate(0, RECOVERY, CLEAN, completions_ns=times, stream=stream, limits=limits)


QUIET = waiting_stream(0, lambda _: 0)


@pytest.mark.parametrize(
    ("rate_after", "outcome"),
    [
        (lambda _: 5, "pass"),
        (lambda second: 5 if second >= 20 else 1, "pass"),  # back just in time
        (lambda second: 5 if second >= 22 else 1, "fail"),  # the last ten hold two slow seconds
        (lambda second: 5 if second < 20 else 1, "fail"),  # was back, and went again
        (lambda _: 0, "fail"),
        (lambda _: 4, "fail"),
        (lambda _: 6, "fail"),
    ],
)
def test_the_rate_of_the_recoverys_last_ten_seconds(
    rate_after: Callable[[float], float], outcome: str
) -> None:
    assert judge(completions(rate_after), QUIET).outcome == outcome


@pytest.mark.parametrize(
    ("clean", "after", "outcome"),
    [
        (20, 22, "pass"),
        (20, 18, "pass"),
        (20, 23, "fail"),
        (20, 0, "fail"),
        (0, 1, "pass"),
        (0, 2, "fail"),
    ],
)
def test_the_waiting_depth_of_the_same_seconds(clean: int, after: int, outcome: str) -> None:
    assert GATES.recovery_zero_median_waiting_max == 1
    stream = waiting_stream(clean, lambda _: after)
    assert judge(completions(lambda _: 5), stream).outcome == outcome


def test_without_a_step_stream_the_depth_cannot_be_judged() -> None:
    assert judge(completions(lambda _: 5), None).outcome == "not_evaluable"
    assert judge(completions(lambda _: 1), None).outcome == "fail"


def test_an_interval_shorter_than_the_rolling_length_cannot_be_judged() -> None:
    gate = judge(completions(lambda _: 5), QUIET, rolling_ns=31 * S)
    assert gate.outcome == "not_evaluable" and "shorter" in gate.reason


def test_no_completion_in_the_clean_segment_cannot_be_judged() -> None:
    assert judge([], QUIET).outcome == "not_evaluable"
