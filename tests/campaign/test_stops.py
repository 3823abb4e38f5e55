"""The ten hard stops and the two shares: borders exactly, and what amendments changed."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.campaign import Stop
from opprof.artifacts.common import Gate
from opprof.campaign import stops
from opprof.campaign.attempt import Facts
from opprof.campaign.checks import refused_input
from opprof.campaign.facts import MatrixFacts, RunFacts
from opprof.campaign.gate_rules import RULES, fault_of
from opprof.protocol import load_protocol
from opprof.protocol.model import ProtocolFile, Reruns

PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None
FILE = PROTOCOL.file
GATES, BUDGET = FILE.gates, FILE.budget
NOW = 1_800_000_000_000_000_000


def gate(name: str, outcome: str = "fail", reason: str = "because", **numbers: int) -> Gate:
    return Gate(name=name, outcome=outcome, reason=reason, numbers=dict(numbers))  # type: ignore[arg-type]


def run(*gates: Gate, **changes: object) -> RunFacts:
    facts = RunFacts(
        run="P01-C00-moderate",
        pattern="P01",
        config="C00",
        load_point="moderate",
        role="primary",
        time_scale=1.0,
        simulated=False,
        gates=list(gates),
        red_flags=[],
        accepted=True,
        drain_quarantined=False,
        missing=[],
    )
    return msgspec.structs.replace(facts, **changes)


def matrix(**changes: object) -> MatrixFacts:
    clean = MatrixFacts(planned=52, measured=0, quarantined=0, clean_failed=0, finished=False)
    return msgspec.structs.replace(clean, **changes)


def numbers_of(found: list[Stop]) -> list[int]:
    return [stop.condition for stop in found]


def judge(facts: RunFacts, before: int = 0) -> list[int]:
    return numbers_of(stops.judge_run(facts, FILE, wall_ns=NOW, unrepresentative_before=before))


def judge_matrix(facts: MatrixFacts) -> list[Stop]:
    return stops.judge_matrix(facts, FILE, wall_ns=NOW)


def test_a_good_run_stops_nothing() -> None:
    assert judge(run(*(gate(name, "pass") for name in RULES))) == []
    assert judge(run(*(gate(name, "not_evaluable") for name in RULES))) == []


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("hashes", 1),
        ("effective_config", 1),
        ("compile_cache_key", 1),
        ("gpu_idle", 2),
        ("gpu_contamination", 2),
        ("server_health", 2),
        ("gpu_memory", 2),
        ("request_failures", 3),
        ("clean_requests", 3),
        ("token_counts", 3),
        ("offered_rate", 3),
        ("layer1_accounting", 4),
        ("sidecar_age", 4),
        ("profile_leak", 4),
        ("window_integrity", 5),
        ("rank_completeness", 5),
        ("join", 5),
        ("recovery", 6),
        ("classifiable", 7),
        ("mode_segment_steps", 7),
        ("privacy", 8),
        ("prefix_sharing", 10),
        ("clean_duration", 10),
    ],
)
def test_a_failed_gate_is_its_conditions(name: str, condition: int) -> None:
    (stop,) = stops.judge_run(run(gate(name, a=7)), FILE, wall_ns=NOW)
    assert stop.condition == condition
    assert stop.name == stops.NAMES[condition]
    assert stop.reason == f"{name}: because"
    assert stop.numbers[f"{name}.a"] == 7
    assert (stop.run, stop.wall_ns) == ("P01-C00-moderate", NOW)


@pytest.mark.parametrize(
    "name",
    ["drain_quarantine", "time_scale", "simulated", "client_lag", "client_cpu", "warmup"],
)
def test_some_failures_stop_nothing_by_themselves(name: str) -> None:
    assert judge(run(gate(name))) == []


def test_a_drain_over_budget_is_no_stop_any_more() -> None:
    quarantined = run(gate("drain", "pass"), gate("drain_quarantine"), drain_quarantined=True)
    assert judge(quarantined) == []


def test_a_drain_that_never_ends_is_a_server_that_hangs() -> None:
    assert judge(run(gate("drain"))) == [2]


def test_representativeness_stops_the_second_time() -> None:
    """Both windows of one run are one failure; the retried run is the second."""
    off = run(gate("representativeness"), gate("representativeness"))
    assert off.unrepresentative
    assert judge(off) == []
    assert judge(off, before=1) == [5]
    assert judge(run(), before=1) == []
    (stop,) = stops.judge_run(off, FILE, wall_ns=NOW, unrepresentative_before=1)
    assert stop.numbers["unrepresentative_attempts"] == 2


@pytest.mark.parametrize("retries", [0, 2])
def test_the_protocol_says_how_often_windows_may_be_retried(retries: int) -> None:
    file = msgspec.structs.replace(FILE, reruns=Reruns(1, retries))
    off = run(gate("representativeness"))
    for before in range(4):
        found = stops.judge_run(off, file, wall_ns=NOW, unrepresentative_before=before)
        assert numbers_of(found) == ([5] if before >= retries else [])


@pytest.mark.parametrize("number", range(1, 11))
def test_a_condition_that_the_protocol_does_not_list_stops_nothing(number: int) -> None:
    """Taking one row away takes away that stop and no other one."""
    rows = [row for row in FILE.stops if row.number != number]
    file = msgspec.structs.replace(FILE, stops=rows)
    names = {rule.condition: name for name, rule in RULES.items() if rule.condition}
    bad = run(*(gate(name) for name in names.values()))
    over = matrix(public_bytes=BUDGET.public_bytes_max)
    for listed in (FILE, file):
        found = numbers_of(stops.judge_run(bad, listed, wall_ns=NOW, unrepresentative_before=1))
        found += numbers_of(stops.judge_matrix(over, listed, wall_ns=NOW))
        assert sorted(found) == [row.number for row in listed.stops]


def test_the_shares_are_gates_and_need_no_row() -> None:
    file = msgspec.structs.replace(FILE, stops=[])
    (stop,) = stops.judge_matrix(matrix(measured=20, clean_failed=3), file, wall_ns=NOW)
    assert stop.condition == 0


def test_a_bad_trace_stops_at_once_even_beside_representativeness() -> None:
    assert judge(run(gate("window_integrity"), gate("representativeness"))) == [5]


def test_only_primary_windows_must_be_classifiable() -> None:
    for role, expected in (("primary", [7]), ("colocation", []), ("confirmation", [])):
        assert judge(run(gate("classifiable"), role=role)) == expected


def test_a_burn_in_is_not_measured() -> None:
    names = ("hashes", "server_health", "request_failures", "layer1_accounting", "recovery")
    found = run(*map(gate, (*names, "clean_duration")), role="burnin", red_flags=["client: x"])
    assert judge(found) == [1, 2]


def test_contamination_in_the_clock_check_is_condition_two() -> None:
    assert judge(run(gate("clock_load", foreign_processes=1))) == [2]
    assert judge(run(gate("clock_load", foreign_processes=0))) == [10]


def test_an_input_that_the_analysis_refuses_is_a_failed_schema() -> None:
    assert refused_input(Facts(analysis_exit=1)) == []
    refused = refused_input(Facts(analysis_exit=2, analysis_refusal="engine-0.jsonl:31: no step"))
    (stop,) = stops.judge_run(run(*refused), FILE, wall_ns=NOW)
    assert (stop.condition, stop.run) == (4, "P01-C00-moderate")
    assert "engine-0.jsonl:31" in stop.reason
    assert fault_of(refused) == "infrastructure"


def test_a_cut_trace_that_no_scan_could_look_at_may_have_its_rerun() -> None:
    assert fault_of([gate("privacy")]) == "semantic"
    assert fault_of([gate("privacy"), gate("window_integrity")]) == "infrastructure"
    assert judge(run(gate("privacy"), gate("window_integrity"))) == [5, 8]


def test_a_further_stop_is_told_beside_the_first() -> None:
    first, further = stops.judge_run(
        run(gate("join", reason="lost", a=1), gate("privacy", reason="text", b=2)),
        FILE,
        wall_ns=NOW,
    )
    both = stops.joined(first, further)
    assert (both.condition, both.run) == (5, "P01-C00-moderate")
    assert both.reason == (
        f"join: lost; also hard stop 8 ({stops.NAMES[8]}) at P01-C00-moderate: privacy: text"
    )
    assert both.numbers == {"join.a": 1, "privacy.b": 2}


def test_red_flags_are_condition_ten() -> None:
    (stop,) = stops.judge_run(run(red_flags=["analysis: negative: x"]), FILE, wall_ns=NOW)
    assert (stop.condition, stop.reason) == (10, "analysis: negative: x")
    assert stop.numbers["red_flags"] == 1


def test_an_unknown_gate_asks_for_a_look() -> None:
    assert judge(run(gate("of_a_newer_release"))) == [10]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("12 requests in a row failed, the last with connect", [2]),
        ("the server does not accept connections any more", [2]),
        ("the manifest ran out of requests; it never wraps", [10]),
        ("profile window 1: /start_profile was not answered", [5]),
        ("interrupted", []),
    ],
)
def test_a_broken_off_timeline_by_its_reason(reason: str, expected: list[int]) -> None:
    assert judge(run(gate("timeline", reason=reason))) == expected


def test_every_condition_is_listed_in_order() -> None:
    found = run(*(gate(name) for name in RULES))
    assert judge(found, before=1) == [1, 2, 3, 4, 5, 6, 7, 8, 10]


# ---------------------------------------------------------------------------- condition 9


@pytest.mark.parametrize(
    ("changes", "stopped"),
    [
        ({"public_bytes": 7_999_999_999}, False),
        ({"public_bytes": 8_000_000_000}, True),
        ({"private_bytes": 1_999_999_999}, False),
        ({"private_bytes": 2_000_000_000}, True),
        ({"free_bytes": 100_000_000_000}, False),
        ({"free_bytes": 99_999_999_999}, True),
        ({"gpu_seconds": 57_599.999}, False),
        ({"gpu_seconds": 57_600.0}, True),
        ({}, False),
    ],
)
def test_caps_are_reached_and_floors_are_passed(changes: dict[str, object], stopped: bool) -> None:
    found = judge_matrix(matrix(**changes))
    assert numbers_of(found) == ([9] if stopped else [])


def test_two_windows_of_one_run_keep_their_numbers() -> None:
    first, second = (
        msgspec.structs.replace(gate("representativeness", tokens=number), scope=f"window{number}")
        for number in (0, 1)
    )
    (stop,) = stops.judge_run(run(first, second), FILE, wall_ns=NOW, unrepresentative_before=1)
    assert stop.numbers["representativeness (window0).tokens"] == 0
    assert stop.numbers["representativeness (window1).tokens"] == 1


def test_a_stop_of_the_budget_names_every_reason_and_number() -> None:
    (stop,) = judge_matrix(matrix(public_bytes=9 * 10**9, free_bytes=1, gpu_seconds=60_000.0))
    assert stop.reason.count(";") == 2
    assert stop.numbers["gpu_hours"] == pytest.approx(16.6667, abs=1e-4)
    assert stop.numbers["free_bytes_min"] == 100_000_000_000
    assert stop.run == ""


# --------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("count", "of", "limit", "over"),
    [
        (10, 50, 0.20, False),
        (11, 50, 0.20, True),
        (10, 52, 0.20, False),
        (11, 52, 0.20, True),
        (1, 20, 0.05, False),
        (2, 20, 0.05, True),
        (2, 52, 0.05, False),
        (3, 52, 0.05, True),
        (0, 0, 0.20, False),
        (3, 10, 0.3, False),
        (7, 10, 0.7, False),
    ],
)
def test_shares_at_their_border(count: int, of: int, limit: float, over: bool) -> None:
    assert stops.share_exceeded(count, of, limit) is over


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 100))
def test_shares_are_exact(count: int, of: int, percent: int) -> None:
    expected = 100 * count > percent * of
    assert stops.share_exceeded(count, of, percent / 100) is expected
    assert Fraction(str(percent / 100)) * 100 == percent


def test_while_runs_are_to_come_the_planned_ones_are_the_denominator() -> None:
    assert judge_matrix(matrix(measured=1, quarantined=1)) == []
    assert judge_matrix(matrix(measured=10, quarantined=10)) == []
    (stop,) = judge_matrix(matrix(measured=11, quarantined=11))
    assert stop.condition == 0
    assert "11 of 52 planned runs are drain-quarantined, more than 20%" in stop.reason
    assert stop.numbers["share_of_measured"] == 1.0


def test_at_the_end_the_measured_ones_are() -> None:
    """A-P3-7 froze the matrix at 40 of 52 runs."""
    assert judge_matrix(matrix(measured=40, quarantined=8, finished=True)) == []
    assert judge_matrix(matrix(measured=40, quarantined=9, finished=False)) == []
    (stop,) = judge_matrix(matrix(measured=40, quarantined=9, finished=True))
    assert "9 of 40 measured runs" in stop.reason


@pytest.mark.parametrize("what", ["quarantined", "clean_failed"])
def test_a_released_share_stops_again_when_a_further_run_joins_it(what: str) -> None:
    def judged(released: list[Stop], protocol: ProtocolFile = FILE, **facts: object) -> list[Stop]:
        facts = {"measured": 20, what: 11} | facts
        return stops.judge_matrix(matrix(**facts), protocol, wall_ns=NOW, released=released)

    (first,) = judged([])
    released = [msgspec.structs.replace(first, reviewed="Ann")]
    assert judged(released) == []
    assert judged(released, measured=52, finished=True) == []
    (again,) = judged(released, **{what: 12})
    assert judged([*released, again], **{what: 12}) == []
    other = {"quarantined": "clean_failed", "clean_failed": "quarantined"}[what]
    assert len(judged(released, **{other: 11})) == 1
    gates = msgspec.structs.replace(
        FILE.gates, drain_quarantine_share_max=0.01, clean_failure_share_max=0.01
    )
    assert len(judged(released, msgspec.structs.replace(FILE, gates=gates))) == 1


def test_clean_failures() -> None:
    assert judge_matrix(matrix(measured=20, clean_failed=2)) == []
    (stop,) = judge_matrix(matrix(measured=20, clean_failed=3))
    assert stop.reason == "3 of 52 planned runs failed in the clean window, more than 5%"


@given(st.integers(0, 52), st.integers(0, 52), st.booleans())
def test_a_share_never_stops_fewer_when_more_runs_fail(
    quarantined: int, more: int, finished: bool
) -> None:
    measured = 52
    first = judge_matrix(matrix(measured=measured, quarantined=quarantined, finished=finished))
    second = judge_matrix(
        matrix(measured=measured, quarantined=min(52, quarantined + more), finished=finished)
    )
    assert not first or second
