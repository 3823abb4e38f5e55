"""Absolute schedules: exact, grouped, never drifting."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.client.schedule import Schedule, burst_size
from opprof.errors import InputError
from opprof.rules.durations import NS_PER_S, seconds_to_ns

rates = st.floats(min_value=1e-3, max_value=1e5, allow_nan=False)


@given(rate=rates, burst=st.integers(1, 64), k=st.integers(0, 10**6), t0=st.integers(0, 2**53))
def test_every_request_is_due_at_t0_plus_its_group_over_the_rate(
    rate: float, burst: int, k: int, t0: int
) -> None:
    schedule = Schedule(t0, rate, burst)
    exact = Fraction((k // burst) * burst) / Fraction(rate) * NS_PER_S
    assert schedule.due_ns(k) == t0 + int(exact)


@given(rate=rates, burst=st.integers(1, 16))
def test_a_group_is_simultaneous_and_groups_are_evenly_spaced(rate: float, burst: int) -> None:
    schedule = Schedule(0, rate, burst)
    for group in range(5):
        due = {schedule.due_ns(group * burst + i) for i in range(burst)}
        assert len(due) == 1
        step = schedule.due_ns((group + 1) * burst) - schedule.due_ns(group * burst)
        assert step in (schedule.period_ns, schedule.period_ns + 1)


def test_the_first_request_is_due_at_t0() -> None:
    assert Schedule(77, 3.0, 1).due_ns(0) == 77


def test_no_drift_after_a_day() -> None:
    # 0.1 s has no exact binary form; an accumulating schedule would be off by microseconds.
    schedule = Schedule(0, 10.0, 1)
    assert schedule.due_ns(864_000) == 86_400 * NS_PER_S


@pytest.mark.parametrize(("text", "size"), [("steady", 1), ("burst:8", 8), ("burst:1", 1)])
def test_arrival_classes(text: str, size: int) -> None:
    assert burst_size(text) == size


@pytest.mark.parametrize("text", ["", "burst", "burst:0", "burst:-8", "Steady", "poisson"])
def test_other_arrival_classes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="arrival class"):
        burst_size(text)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(InputError, match="no schedule"):
        Schedule(0, rate, 1)


@pytest.mark.parametrize(("seconds", "ns"), [(0.1, 100_000_000), (80, 80 * NS_PER_S), (1e-9, 1)])
def test_seconds_become_exact_nanoseconds(seconds: float, ns: int) -> None:
    assert seconds_to_ns(seconds) == ns
