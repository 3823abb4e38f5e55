"""GPU-time sums, the border of the budget, settlement after a crash."""

from __future__ import annotations

import msgspec
import pytest
from campaign_builders import NS, attempt, phase3

from opprof.artifacts.campaign import Charge, RunRecord, Slot
from opprof.campaign.ledger import (
    attempt_cost,
    balance,
    charge_attempt,
    fits,
    gpu_ns,
    ledger_problems,
    open_reservations,
    opening,
    over_budget,
    release,
    reserve,
    settle,
)
from opprof.campaign.plan import planned_runs
from opprof.campaign.stamps import Stamp

TWO_GPUS = Slot("dash0", [4, 5], ["a", "b"], 18004, "80-119", 3, 8)


def _record(**changes: object) -> RunRecord:
    first = planned_runs(phase3())[5]
    return msgspec.structs.replace(first, **changes)


def _prior() -> Charge:
    return opening(phase3().budget, wall_ns=0, simulated=True)


def test_a_ledger_opens_with_the_declared_prior_use() -> None:
    now = balance([_prior()])
    assert now.consumed_hours == 3.964
    assert now.by_kind["prior"] == gpu_ns(3.964 * 3600)


def test_the_border_is_reached_and_not_passed() -> None:
    budget = phase3().budget
    now = balance([_prior()])
    left_s = (16.0 - 3.964) * 3600
    assert fits(now, left_s, budget)
    assert not fits(now, left_s + 1e-6, budget)
    assert not over_budget(now, left_s - 1e-6, budget)
    assert over_budget(now, left_s, budget)


def test_many_small_charges_reach_the_border_exactly() -> None:
    one = msgspec.structs.replace(_prior(), kind="run", run="x", gpu_seconds=0.1)
    # 12.036 GPU-hours are left, a tenth of a second each: a sum of floats would miss the border.
    now = balance([_prior(), *[one] * 433_296])
    assert now.consumed_ns == 16 * 3600 * NS
    assert fits(now, 0.0, phase3().budget)
    assert not fits(now, 1e-9, phase3().budget)


def test_an_open_reservation_counts_until_its_release() -> None:
    lines = [
        _prior(),
        *reserve({"A": (1, 600.0), "B": (2, 50.0)}, wave=1, wall_ns=0, simulated=True),
    ]
    assert balance(lines).reserved_ns == 650 * NS
    lines += release(lines, "A", 1, wall_ns=1, simulated=True)
    assert open_reservations(lines) == {("B", 1): 50.0}
    assert release(lines, "A", 1, wall_ns=2, simulated=True) == []
    assert release(lines, "B", 2, wall_ns=2, simulated=True) == []
    assert balance(lines).reserved_ns == 50 * NS


def test_an_attempt_costs_its_gpus_from_launch_to_free_memory() -> None:
    last = attempt(1, "complete", TWO_GPUS, start_s=10.0, cleaning_s=110.0, end_s=112.5)
    cost = attempt_cost(last)
    assert (cost.run_gpu_s, cost.cleanup_gpu_s, cost.gpu_s) == (200.0, 5.0, 205.0)


def test_checking_costs_no_gpu_time() -> None:
    last = attempt(1, "checking", TWO_GPUS, start_s=0.0, cleaning_s=10.0, end_s=11.0)
    done = msgspec.structs.replace(
        last,
        phase="complete",
        transitions=[
            *last.transitions,
            msgspec.structs.replace(last.transitions[-1], phase="complete", wall_ns=900 * NS),
        ],
    )
    assert attempt_cost(done).gpu_s == 22.0


def test_an_attempt_nobody_saw_end_costs_until_its_gpus_were_found_free() -> None:
    last = attempt(1, "loading", TWO_GPUS, start_s=10.0)
    assert attempt_cost(last, until=Stamp(60 * NS)).gpu_s == 100.0
    assert attempt_cost(last).gpu_s == 0.0


def test_a_clock_set_back_is_no_negative_time() -> None:
    last = attempt(1, "failed", TWO_GPUS, start_s=100.0, cleaning_s=90.0, end_s=80.0)
    assert attempt_cost(last).gpu_s == 0.0


@pytest.mark.parametrize(
    ("role", "number", "kind"),
    [
        ("primary", 1, "run"),
        ("burnin", 1, "burnin"),
        ("colocation", 1, "colocation"),
        ("primary", 2, "retry"),
        ("burnin", 3, "retry"),
    ],
)
def test_charges_are_of_the_right_kind(role: str, number: int, kind: str) -> None:
    last = attempt(number, "complete", TWO_GPUS, start_s=0.0, cleaning_s=5.0, end_s=6.0)
    lines = charge_attempt(_record(role=role), last, attempt_cost(last), wall_ns=7, simulated=True)
    assert [(line.kind, line.gpu_seconds, line.gpus) for line in lines] == [
        (kind, 10.0, 2),
        ("cleanup", 2.0, 2),
    ]
    assert all(line.attempt == number for line in lines)


def test_a_crash_is_settled_once() -> None:
    last = attempt(1, "loading", TWO_GPUS, start_s=10.0)
    record = _record(state="loading", attempts=[last])
    lines = [_prior(), *reserve({record.run: (2, 976.0)}, wave=3, wall_ns=0, simulated=True)]
    added = settle(lines, [record], wall_ns=70 * NS, simulated=True)
    assert [(line.kind, line.gpu_seconds) for line in added] == [
        ("run", 120.0),
        ("release", -976.0),
    ]
    assert all("crash" in line.note for line in added)
    lines += added
    assert balance(lines).reserved_ns == 0
    closed = msgspec.structs.replace(last, phase="interrupted", gpu_seconds=120.0)
    record = msgspec.structs.replace(record, state="interrupted", attempts=[closed])
    assert settle(lines, [record], wall_ns=99 * NS, simulated=True) == []
    assert ledger_problems(lines, [record]) == []


def test_a_torn_pair_of_charges_is_completed() -> None:
    last = attempt(
        1, "complete", TWO_GPUS, start_s=0.0, cleaning_s=100.0, end_s=103.0, gpu_seconds=206.0
    )
    record = _record(state="complete", attempts=[last])
    whole = charge_attempt(record, last, attempt_cost(last), wall_ns=0, simulated=True)
    lines = [_prior(), whole[0]]
    assert ledger_problems(lines, [record])
    added = settle(lines, [record], wall_ns=0, simulated=True)
    assert [line.gpu_seconds for line in added] == [6.0]
    assert ledger_problems([*lines, *added], [record]) == []


def test_the_sum_check_finds_what_differs() -> None:
    last = attempt(1, "complete", TWO_GPUS, end_s=5.0, gpu_seconds=10.0)
    record = _record(state="complete", attempts=[last])
    good = charge_attempt(record, last, attempt_cost(last), wall_ns=0, simulated=True)
    assert ledger_problems([_prior(), *good], [record]) == []
    assert "0.000 GPU-s in the ledger" in ledger_problems([_prior()], [record])[0]
    foreign = msgspec.structs.replace(good[0], run="P99-C00-moderate")
    assert "no such attempt" in ledger_problems([_prior(), *good, foreign], [record])[0]
