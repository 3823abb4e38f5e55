"""The full matrix on a fake eight-GPU host: waves, masks, ports, ledger and stop rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from campaign_builders import NS, PACE, host, phase3, where

from opprof.artifacts.campaign import RunRecord, Stop
from opprof.campaign.costs import Pace, run_cost
from opprof.campaign.facts import MatrixFacts
from opprof.campaign.forecast import (
    Forecast,
    Outcome,
    Outcomes,
    expected_outcomes,
    play,
    queue_wall_s,
)
from opprof.campaign.ledger import balance, ledger_problems, open_reservations
from opprof.campaign.plan import planned_runs
from opprof.campaign.stops import judge_matrix
from opprof.campaign.waves import Done, Refusal
from opprof.host.cpus import parse_cpus
from opprof.host.fake import FakeHost
from opprof.host.fake_file import load_machine

PROTOCOL = phase3()
EXPECTED = expected_outcomes(PROTOCOL, PACE, "none")


def full(outcomes: Outcomes = EXPECTED, **how: object) -> Forecast:
    return play(planned_runs(PROTOCOL), where(), PROTOCOL, PACE, outcomes, **how)  # type: ignore[arg-type]


def matrix_rule(clean_failed: Callable[[RunRecord], bool] = lambda _record: False) -> object:
    """The campaign's own stop rules over the records alone."""

    def rule(records: Sequence[RunRecord], wall_ns: int) -> Stop | None:
        measured = [r for r in records if r.role != "burnin"]
        ended = [r for r in measured if r.state in ("complete", "failed")]
        facts = MatrixFacts(
            planned=len(measured),
            measured=len(ended),
            quarantined=sum(r.drain_quarantined is True for r in ended),
            clean_failed=sum(map(clean_failed, ended)),
            finished=False,
        )
        return next(iter(judge_matrix(facts, PROTOCOL, wall_ns=wall_ns)), None)

    return rule


def test_everything_runs_once_and_the_totals_are_the_specifications() -> None:
    forecast = full()
    assert isinstance(forecast.ending, Done) and not forecast.ending.blocked
    roles = [r.role for r in forecast.records if r.state == "complete"]
    assert (roles.count("primary"), roles.count("confirmation"), roles.count("burnin")) == (
        48,
        4,
        5,
    )
    assert all(len(r.attempts) == 1 for r in forecast.records)
    assert [(p.wave.group, len(p.wave.lanes)) for p in forecast.waves] == [
        ("burnin", 5),
        ("matrix", 8),
        ("matrix", 8),
        ("matrix", 7),
        ("matrix", 1),
        ("confirmation", 4),
    ]
    # "about 7.5 H20-hours"; 488 s a primary run, 380 s a confirmation, TP2 twice.
    assert forecast.gpu_s == 2 * 488 * 25 + 4 * 380 + 140 * 6
    assert 7.4 < forecast.gpu_s / 3600 < 7.5
    assert balance(forecast.charges).consumed_hours == pytest.approx(3.964 + 7.4333, abs=1e-4)


def test_one_at_a_time_it_takes_the_serial_hours() -> None:
    forecast = play(planned_runs(PROTOCOL), where(width=1), PROTOCOL, PACE, EXPECTED)
    assert forecast.wall_s == 48 * 488 + 4 * 380 + 5 * 140
    assert 7.0 < forecast.wall_s / 3600 < 7.2


def test_wall_time_with_the_drains_that_the_amendment_reckoned_with() -> None:
    forecast = full(expected_outcomes(PROTOCOL, PACE, "shortest"))
    assert 1.5 <= forecast.wall_s / 3600 <= 2.0


def test_no_gpu_cpu_or_port_is_shared_at_any_time() -> None:
    machine = FakeHost(load_machine("dash0")).topology()
    node_cpus = {node.node: set(parse_cpus(node.cpus)) for node in machine.numa_nodes}
    node_of = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    forecast = play(planned_runs(PROTOCOL), where([machine]), PROTOCOL, PACE, EXPECTED)
    assert isinstance(forecast.ending, Done)
    for played in forecast.waves:
        slots = [lane.slot for lane in played.wave.lanes]
        gpus = [index for slot in slots for index in slot.gpus]
        cpus = [cpu for slot in slots for cpu in parse_cpus(slot.cpus)]
        assert len(gpus) == len(set(gpus)) <= 8
        assert len(cpus) == len(set(cpus)) == 20 * len(gpus)
        assert len({slot.port for slot in slots}) == len(slots)
        for slot in slots:
            nodes = {node_of[index] for index in slot.gpus}
            assert len(nodes) == 1
            node = nodes.pop()
            assert node is not None and set(parse_cpus(slot.cpus)) <= node_cpus[node]
            assert slot.gpu_uuids == [machine.gpus[i].uuid for i in slot.gpus]


def test_tp2_leaves_its_second_slot_empty() -> None:
    wave = next(
        p.wave for p in full().waves for lane in p.wave.lanes if "C00-TP2-moderate" in lane.runs[-1]
    )
    assert [len(lane.slot.gpus) for lane in wave.lanes].count(2) == 1
    assert sum(len(lane.slot.gpus) for lane in wave.lanes) == 8


def test_pairs_are_contiguous_on_one_slot_and_cells_keep_their_order() -> None:
    forecast = full()
    order = [r.run for r in planned_runs(PROTOCOL) if r.role == "primary"]
    launched = [run for p in forecast.waves if p.wave.group == "matrix" for run in p.wave.runs]
    assert launched == order
    records = {r.run: r for r in forecast.records}
    for saturation, moderate in zip(order[::2], order[1::2], strict=True):
        before, after = records[saturation].attempt, records[moderate].attempt
        assert before is not None and after is not None
        assert before.slot == after.slot
        assert before.transitions[-1].wall_ns == after.transitions[0].wall_ns


def test_the_ledger_agrees_with_the_state_files_and_no_reservation_stays_open() -> None:
    forecast = full()
    assert ledger_problems(forecast.charges, forecast.records) == []
    assert open_reservations(forecast.charges) == {}
    reserved = sum(c.gpu_seconds for c in forecast.charges if c.kind == "reserve")
    worst = sum(run_cost(PROTOCOL, r, PACE).reserved_gpu_s for r in forecast.records)
    assert reserved == pytest.approx(worst)
    assert all(charge.simulated for charge in forecast.charges)


def test_every_wave_fitted_the_budget_when_it_was_launched() -> None:
    for played in full().waves:
        before = played.consumed_ns / NS - played.gpu_s
        assert before + played.wave.reserved_gpu_s <= 16 * 3600


def test_the_budget_refuses_the_wave_that_could_pass_it() -> None:
    # With 60 s of shutdown as well, every drain at its whole allowance is 0.73 GPU-hours too much.
    pace = Pace(1.0, 60.0)
    outcomes = expected_outcomes(PROTOCOL, pace, "whole")
    forecast = play(planned_runs(PROTOCOL), where(), PROTOCOL, pace, outcomes)
    assert isinstance(forecast.ending, Refusal)
    assert (forecast.ending.kind, len(forecast.waves)) == ("budget", 5)
    assert balance(forecast.charges).consumed_hours < 16.0
    assert [r.role for r in forecast.records if r.state == "pending"] == ["confirmation"] * 4


def test_a_wave_that_overruns_its_reservation_is_stopped_by_the_cap() -> None:
    def slow(record: RunRecord, number: int) -> Outcome:
        hang = record.run == "P01-C00-saturation"
        return Outcome(run_s=40_000.0) if hang else EXPECTED(record, number)

    forecast = full(slow)
    assert forecast.stop is not None
    assert (forecast.stop.condition, forecast.stop.name) == (9, "budget")
    assert isinstance(forecast.ending, Refusal) and forecast.ending.kind == "stop"


def _quarantine(count: int) -> Outcomes:
    """The first ``count`` saturation runs overrun their drain and stay usable."""
    slow = [r.run for r in planned_runs(PROTOCOL) if r.load_point == "saturation"]
    chosen = set([run for run in slow if not run.endswith("burnin")][:count])

    def outcome(record: RunRecord, number: int) -> Outcome:
        usual = EXPECTED(record, number)
        return Outcome(run_s=usual.run_s, drain_quarantined=record.run in chosen)

    return outcome


def test_ten_quarantined_runs_of_52_are_usable_and_the_eleventh_stops() -> None:
    ten = full(_quarantine(10), stop_rule=matrix_rule())
    assert ten.stop is None and isinstance(ten.ending, Done)
    assert sum(r.drain_quarantined is True for r in ten.records) == 10
    eleven = full(_quarantine(11), stop_rule=matrix_rule())
    assert eleven.stop is not None and "quarantine" in eleven.stop.reason
    assert isinstance(eleven.ending, Refusal) and eleven.ending.kind == "stop"
    # The matrix stops in the wave of the eleventh: no later wave is launched.
    assert len(eleven.waves) == 3
    assert sum(r.drain_quarantined is True for r in eleven.records) >= 11


def _clean_failures(count: int) -> Outcomes:
    chosen = {
        r.run for r in planned_runs(PROTOCOL) if r.load_point == "moderate" and r.role == "primary"
    }
    first = [r.run for r in planned_runs(PROTOCOL) if r.run in chosen][:count]

    def outcome(record: RunRecord, number: int) -> Outcome:
        usual = EXPECTED(record, number)
        if record.run in first:
            return Outcome(run_s=usual.run_s, phase="failed", fault="semantic")
        return usual

    return outcome


def test_more_than_five_percent_of_clean_failures_stop_the_matrix() -> None:
    rule = matrix_rule(lambda record: record.state == "failed")
    two = full(_clean_failures(2), stop_rule=rule)
    assert two.stop is None and isinstance(two.ending, Done)
    assert len(two.ending.blocked) == 2
    three = full(_clean_failures(3), stop_rule=rule)
    assert three.stop is not None and "clean" in three.stop.reason


def test_a_stop_lets_no_further_run_start_and_review_lets_the_campaign_go_on() -> None:
    eleven = full(_quarantine(11), stop_rule=matrix_rule())
    launched = {run for p in eleven.waves for run, _ in p.attempts}
    planned = {run for p in eleven.waves for run in p.wave.runs}
    assert launched < planned
    again = play(
        list(eleven.records),
        where(),
        PROTOCOL,
        PACE,
        EXPECTED,
        charges=eleven.charges,
        start_ns=eleven.waves[-1].end_ns,
    )
    assert isinstance(again.ending, Done) and not again.ending.blocked
    assert again.waves[0].wave.number == eleven.waves[-1].wave.number + 1


@pytest.mark.parametrize("waves", [0, 1, 2, 3, 4, 5])
def test_a_campaign_resumed_between_waves_ends_like_an_undisturbed_one(waves: int) -> None:
    whole = full()
    first = full(waves_max=waves)
    start_ns = first.waves[-1].end_ns if first.waves else 0
    rest = play(
        list(first.records),
        where(),
        PROTOCOL,
        PACE,
        EXPECTED,
        charges=first.charges,
        start_ns=start_ns,
    )
    assert rest.records == whole.records
    assert rest.charges == whole.charges


def test_a_saturation_that_is_not_accepted_blocks_its_cell_alone() -> None:
    def outcome(record: RunRecord, number: int) -> Outcome:
        usual = EXPECTED(record, number)
        return Outcome(usual.run_s, accepted=record.run != "P01-C00-saturation")

    forecast = full(outcome)
    assert isinstance(forecast.ending, Done)
    assert set(forecast.ending.blocked) == {"P01-C00-moderate", "P01-C00-moderate-confirmation"}
    assert all("was not accepted" in why for why in forecast.ending.blocked.values())


def test_an_infrastructure_fault_is_rerun_once_in_a_later_wave_and_charged_as_a_retry() -> None:
    def outcome(record: RunRecord, number: int) -> Outcome:
        usual = EXPECTED(record, number)
        if record.run == "P03-C00-saturation" and number == 1:
            return Outcome(90.0, cleanup_s=5.0, phase="failed", fault="infrastructure")
        return usual

    forecast = full(outcome)
    assert isinstance(forecast.ending, Done) and not forecast.ending.blocked
    attempts = next(r for r in forecast.records if r.run == "P03-C00-saturation").attempts
    assert [a.phase for a in attempts] == ["failed", "complete"]
    assert attempts[0].slot is not None and attempts[1].slot is not None
    assert attempts[0].slot.wave < attempts[1].slot.wave
    kinds = [
        (c.kind, c.gpu_seconds)
        for c in forecast.charges
        if c.run == "P03-C00-saturation" and c.kind not in ("reserve", "release")
    ]
    assert kinds == [("run", 90.0), ("cleanup", 5.0), ("retry", 488.0)]


def test_four_wide_uses_half_of_the_host() -> None:
    forecast = play(planned_runs(PROTOCOL), where([host()], width=4), PROTOCOL, PACE, EXPECTED)
    assert isinstance(forecast.ending, Done) and not forecast.ending.blocked
    used = {i for p in forecast.waves for lane in p.wave.lanes for i in lane.slot.gpus}
    assert used == {0, 1, 2, 3}


def test_a_queue_would_win_only_what_waves_wait_for() -> None:
    same = full()
    assert queue_wall_s(same.waves, 8) == same.wall_s

    def uneven(record: RunRecord, _number: int) -> Outcome:
        return Outcome(600.0 if record.pattern == "P10" else 488.0)

    forecast = full(uneven)
    queue_s = queue_wall_s(forecast.waves, 8)
    assert queue_s < forecast.wall_s
    # No schedule beats the GPU time over eight GPUs.
    assert queue_s >= forecast.gpu_s / 8

    # Two lanes of two GPUs and one of one: the queue keeps them apart where slots lack.
    pairs = play(
        planned_runs(PROTOCOL, ["P10/C00-TP2", "P01/C00"]),
        where([host(gpus=2)]),
        PROTOCOL,
        PACE,
        EXPECTED,
    )
    assert queue_wall_s(pairs.waves, 2) == pairs.wall_s
