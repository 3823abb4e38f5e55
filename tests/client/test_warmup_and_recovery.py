"""The warm-up gate with A-P3-6, and the recovery gate, on made step streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.client.recovery import recovery_gate
from opprof.client.steps import StepLine, StepStream
from opprof.client.warmup import STABILIZED_RULE, stabilization, warmup_gate
from opprof.protocol import load_protocol

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
    assert test.passed and test.bin_steps == [20, 20, 20]
    assert test.rates == [400, 420, 400] and test.mean == pytest.approx(1220 / 3)
    assert test.slope == 0 and test.drift == 0


@given(st.tuples(*[st.integers(1, 500).map(lambda n: n * 20) for _ in range(3)]))
def test_the_drift_is_the_protocols_least_squares_fit(rates: tuple[int, int, int]) -> None:
    test = stabilization(stream_of(rates), T0, T0 + 60 * S, steps_min=16, drift_max=0.1)
    slope, _ = np.polyfit([47.5, 52.5, 57.5], rates, 1)
    mean = sum(rates) / 3
    assert test.slope == pytest.approx(slope, abs=1e-6)
    assert test.drift == pytest.approx(abs(slope) * 15 / mean, abs=1e-6)
    assert test.passed == (test.drift <= 0.1)


def test_the_borders_of_the_quartile_are_half_open() -> None:
    inside = [step(k, T0 + 45 * S + k * S * 15 // 48, 10) for k in range(48)]
    outside = [step(48, T0 + 60 * S, 10**9)]
    early = step(0, T0 + 45 * S - 1, 10**9)
    test = stabilization(
        StepStream(steps=[early, *inside, *outside]), T0, T0 + 60 * S, steps_min=16, drift_max=0.1
    )
    assert test.bin_steps == [16, 16, 16] and max(test.rates) == 32


def broken(stream: StepStream) -> StepStream:
    stream.problems.append("line 7: step 9 is not the next one")
    return stream


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (stream_of((400, 400, 400), per_bin=15), "15 executed steps, 16 are needed"),
        (stream_of((400, 400, 0)), "no scheduled tokens"),
        (broken(stream_of((400, 400, 400))), "accounting failed"),
        (StepStream(), "0 executed steps"),
    ],
)
def test_nothing_is_imputed(stream: StepStream, text: str) -> None:
    test = stabilization(stream, T0, T0 + 60 * S, steps_min=16, drift_max=0.1)
    assert not test.passed and text in test.reason and test.drift is None


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


def judge(times: list[int], stream: StepStream | None) -> tuple[str, object]:
    gate = recovery_gate(
        0, RECOVERY, CLEAN, completions_ns=times, stream=stream, gates=GATES, rolling_ns=10 * S
    )
    return gate.outcome, gate.numbers["returned_after_s"]


def test_an_undisturbed_service_has_returned_at_the_first_look() -> None:
    assert judge(completions(lambda _: 5), waiting_stream(0, lambda _: 0)) == ("pass", 10.0)


def test_a_service_that_needs_twenty_seconds_returns_in_time() -> None:
    times = completions(lambda second: 5 if second >= 15 else 1)
    outcome, after = judge(times, waiting_stream(0, lambda _: 0))
    # At 24 s the last ten hold nine good seconds: 46 of 50.
    assert outcome == "pass" and after == 24.0


@pytest.mark.parametrize("rate", [0, 4, 6, 50])
def test_a_rate_outside_the_tolerance_fails(rate: int) -> None:
    assert judge(completions(lambda _: rate), waiting_stream(0, lambda _: 0)) == ("fail", None)


def test_a_queue_that_stays_fails_although_the_rate_is_back() -> None:
    assert judge(completions(lambda _: 5), waiting_stream(20, lambda _: 30))[0] == "fail"
    assert judge(completions(lambda _: 5), waiting_stream(20, lambda _: 21))[0] == "pass"


def test_a_median_of_zero_waiting_allows_what_the_protocol_pins() -> None:
    assert GATES.recovery_zero_median_waiting_max == 1
    assert judge(completions(lambda _: 5), waiting_stream(0, lambda _: 1))[0] == "pass"
    assert judge(completions(lambda _: 5), waiting_stream(0, lambda _: 2))[0] == "fail"


def test_rate_and_queue_must_be_back_at_the_same_time() -> None:
    times = completions(lambda second: 5 if second < 15 else 1)
    stream = waiting_stream(20, lambda second: 40 if second < 19 else 20)
    assert judge(times, stream)[0] == "fail"


def test_without_a_step_stream_the_depth_cannot_be_judged() -> None:
    assert judge(completions(lambda _: 5), None)[0] == "not_evaluable"
    assert judge(completions(lambda _: 1), None)[0] == "fail"


def test_no_completion_in_the_clean_segment_fails() -> None:
    assert judge([], waiting_stream(0, lambda _: 0))[0] == "fail"
