"""The gap part of the inversion rule: borders, orientation, tensor parallelism, order of runs."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest
from compare_builders import FAMILIES, PROVENANCE, RULE, Cells, Families, cells, entry
from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.artifacts.comparison import Comparison, ComparisonRule, Inversion
from opprof.compare import RunInput, compare_runs


def compare(*runs: RunInput, rule: ComparisonRule | None = RULE) -> Comparison:
    return compare_runs(runs, rule, PROVENANCE)


def record(comparison: Comparison, *families: str) -> Inversion:
    found = [r for r in comparison.inversions if {r.family_a, r.family_b} == set(families)]
    assert len(found) == 1
    return found[0]


def split(attention: int, moe_gemm: int, total: int = 1000) -> Families:
    rest = total - attention - moe_gemm
    return {"attention": attention, "moe_gemm": moe_gemm, "norm_elementwise": rest}


def test_an_inversion_and_the_records_shape() -> None:
    comparison = compare(
        entry("P03", cells(split(450, 400), split(460, 400))),
        entry("P01", cells(split(200, 600), split(210, 600))),
    )
    row = record(comparison, "attention", "moe_gemm")
    assert msgspec.to_builtins(row) == {
        "pattern_p": "P01",
        "pattern_q": "P03",
        "family_a": "moe_gemm",
        "family_b": "attention",
        "gaps_p": [0.4, 0.39],
        "gaps_q": [0.05, 0.06],
        "gap_criteria_met": True,
        "permutation_p": None,
        "holm_p": None,
        "classifiable": True,
        "accepted": None,
        "config": "C00",
        "load_point": "moderate",
        "role": "primary",
    }


@pytest.mark.parametrize(
    ("first", "second", "met"),
    [
        (450, 450, True),
        (449, 450, False),
        (450, 449, False),
        (400, 400, False),
        (300, 300, False),
    ],
)
def test_five_points_are_enough_and_less_is_not(first: int, second: int, met: bool) -> None:
    comparison = compare(
        entry("P01", cells(split(200, 600), split(200, 600))),
        entry("P03", cells(split(first, 400), split(second, 400))),
    )
    assert record(comparison, "attention", "moe_gemm").gap_criteria_met is met


def test_every_registered_comparison_is_listed() -> None:
    runs = [entry(f"P0{n}", cells(split(100 * n, 300), split(100 * n, 310))) for n in range(1, 5)]
    comparison = compare(*runs)
    listed = [
        (r.pattern_p, r.pattern_q, frozenset((r.family_a, r.family_b)))
        for r in comparison.inversions
    ]
    expected = [
        (p, q, frozenset(pair))
        for p, q in combinations(["P01", "P02", "P03", "P04"], 2)
        for pair in combinations(FAMILIES, 2)
    ]
    assert listed == expected
    assert len(listed) == 6 * 36


def test_a_comparison_without_inversion_has_the_leader_of_p_first() -> None:
    comparison = compare(
        entry("P01", cells(split(200, 600), split(700, 100))),
        entry("P03", cells(split(100, 800), split(100, 800))),
    )
    # Mean of P01: attention 0.45, moe_gemm 0.35, though it trails in the first window.
    row = record(comparison, "attention", "moe_gemm")
    assert (row.family_a, row.gap_criteria_met) == ("attention", False)
    assert row.gaps_p == [-0.4, 0.6] and row.gaps_q == [0.7, 0.7]
    tied = record(comparison, "sampler", "kv_memory")
    assert (tied.family_a, tied.family_b) == ("sampler", "kv_memory")


def test_rankable_families_are_the_rules() -> None:
    rule = msgspec.structs.replace(RULE, families=["attention", "moe_gemm", "other"])
    runs = [entry(p, cells(split(200, 600), split(200, 600))) for p in ("P01", "P02")]
    pairs = [(r.family_a, r.family_b) for r in compare(*runs, rule=rule).inversions]
    assert pairs == [("moe_gemm", "attention"), ("attention", "other"), ("moe_gemm", "other")]


def test_too_much_unclassified_time_fails_criterion_four_only() -> None:
    opaque = {"attention": 450, "moe_gemm": 250, "other": 100, "graph_replay_opaque": 200}
    murky = {**opaque, "graph_replay_opaque": 201, "attention": 449}
    clear = split(200, 600)
    for windows, classifiable in (((opaque, opaque), True), ((opaque, murky), False)):
        comparison = compare(entry("P01", cells(clear, clear)), entry("P03", cells(*windows)))
        row = record(comparison, "attention", "moe_gemm")
        assert row.classifiable is classifiable
        assert row.gap_criteria_met is True
    # Opaque replays stay in the denominator.
    assert row.gaps_q[0] == pytest.approx(0.2)


def tp2(attention: tuple[int, int], moe_gemm: tuple[int, int]) -> Cells:
    return {
        (window, rank): split(attention[rank], moe_gemm[rank])
        for window in (0, 1)
        for rank in (0, 1)
    }


def test_a_tensor_parallel_run_leads_only_where_every_rank_leads() -> None:
    steady = entry("P01", tp2((200, 200), (600, 600)), config="C00-TP2")
    both = entry("P10", tp2((450, 500), (400, 400)), config="C00-TP2")
    one = entry("P10", tp2((449, 900), (400, 100)), config="C00-TP2")
    met = record(compare(steady, both), "attention", "moe_gemm")
    assert met.gap_criteria_met is True and met.gaps_q == [0.05, 0.05]
    unmet = record(compare(steady, one), "attention", "moe_gemm")
    assert unmet.gap_criteria_met is False and unmet.gaps_q == [0.049, 0.049]


def test_a_missing_rank_is_said_and_not_judged() -> None:
    whole = tp2((450, 450), (400, 400))
    cut = {key: ns for key, ns in whole.items() if key != (1, 1)}
    comparison = compare(
        entry("P01", tp2((200, 200), (600, 600)), config="C00-TP2"),
        entry("P10", cut, config="C00-TP2"),
    )
    row = record(comparison, "attention", "moe_gemm")
    assert (row.gap_criteria_met, row.classifiable) == (None, None)
    assert row.gaps_q == [0.05, None]
    (pair,) = comparison.pattern_pairs
    assert not pair.evaluable and pair.reasons == ["P10 window 1 lacks rank 1"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rejected": [(1, 0)]}, "P03 window 1 rank 0 is not accepted: nine annotations"),
        ({"families": cells(split(450, 400))}, "P03 has 1 of 2 windows"),
        ({"families": {}}, "P03 has 0 of 2 windows"),
        ({"families": cells(*[split(450, 400)] * 3)}, "P03 has 3 of 2 windows"),
        ({"families": cells(split(450, 400), {})}, "P03 window 1 rank 0 has no kernel time"),
    ],
)
def test_what_stands_in_the_way_is_said(changes: dict[str, Any], reason: str) -> None:
    arguments: dict[str, Any] = {"families": cells(split(450, 400), split(450, 400)), **changes}
    comparison = compare(
        entry("P01", cells(split(200, 600), split(200, 600))), entry("P03", **arguments)
    )
    (pair,) = comparison.pattern_pairs
    assert pair.reasons == [reason] and not pair.evaluable
    assert {row.gap_criteria_met for row in comparison.inversions} == {None}
    assert len(comparison.inversions) == 36


def test_failed_gates_mark_a_pair_and_leave_its_figures() -> None:
    comparison = compare(
        entry("P01", cells(split(200, 600), split(200, 600)), breakdown_valid=False),
        entry("P03", cells(split(450, 400), split(450, 400)), drain_quarantined=True),
    )
    (pair,) = comparison.pattern_pairs
    assert pair.evaluable and pair.primary
    assert pair.marks == [
        "P01: windows are not representative of the clean steps (breakdown invalid)",
        "P03: drain quarantined",
    ]
    assert record(comparison, "attention", "moe_gemm").gap_criteria_met is True


def test_without_a_protocol_gaps_are_shown_and_nothing_is_judged() -> None:
    comparison = compare(
        entry("P01", cells(split(200, 600), split(200, 600))),
        entry("P03", cells(split(450, 400), split(450, 400))),
        rule=None,
    )
    row = record(comparison, "attention", "moe_gemm")
    assert (row.gap_criteria_met, row.classifiable) == (None, None)
    assert row.gaps_q == [0.05, 0.05]
    assert comparison.pattern_pairs[0].reasons == ["no protocol judges this comparison"]
    assert comparison.windows[0].top == ["moe_gemm"]
    assert {f.place for w in comparison.windows for f in w.families.values()} == {None}
    assert {row.tau_b for row in comparison.tau} == {None}
    assert comparison.ratios == []


NS = st.integers(0, 20).map(lambda n: n * 50)
WINDOW = st.fixed_dictionaries(dict.fromkeys(("attention", "moe_gemm", "dense_gemm", "other"), NS))
RUN = st.tuples(WINDOW, WINDOW).map(lambda pair: cells(*pair))


@settings(max_examples=60)
@given(runs=st.lists(RUN, min_size=1, max_size=4), data=st.data())
def test_the_order_of_the_runs_changes_nothing(runs: list[Cells], data: st.DataObject) -> None:
    entries = [
        entry(f"P{n:02d}", families, v1=families, config=("C00", "C10")[n % 2])
        for n, families in enumerate(runs)
    ]
    shuffled = data.draw(st.permutations(entries))
    assert compare(*shuffled) == compare(*entries)


@settings(max_examples=60)
@given(first=RUN, second=RUN)
def test_swapping_two_patterns_swaps_their_roles(first: Cells, second: Cells) -> None:
    """An inversion between p and q is the same finding from q's side."""
    there = compare(entry("P01", first), entry("P02", second))
    back = compare(entry("P01", second), entry("P02", first))
    for row, twin in zip(there.inversions, back.inversions, strict=True):
        assert {row.family_a, row.family_b} == {twin.family_a, twin.family_b}
        assert row.gap_criteria_met == twin.gap_criteria_met
        assert row.classifiable == twin.classifiable
        if row.gap_criteria_met:
            assert (row.family_a, row.family_b) == (twin.family_b, twin.family_a)
            assert (row.gaps_p, row.gaps_q) == (twin.gaps_q, twin.gaps_p)
        elif row.family_a == twin.family_a and None not in row.gaps_p + row.gaps_q:
            assert [-gap for gap in row.gaps_p if gap is not None] == twin.gaps_q


@settings(max_examples=60)
@given(first=RUN, second=RUN)
def test_a_met_criterion_is_what_the_protocol_says(first: Cells, second: Cells) -> None:
    for row in compare(entry("P01", first), entry("P02", second)).inversions:
        if row.gap_criteria_met is None:
            assert any(not sum(ns.values()) for ns in (*first.values(), *second.values()))
            continue
        a, b = row.family_a, row.family_b

        def ahead(runs: Cells, x: str, y: str) -> bool:
            return all(
                20 * (ns.get(x, 0) - ns.get(y, 0)) >= sum(ns.values()) for ns in runs.values()
            )

        met = ahead(first, a, b) and ahead(second, b, a)
        other_way = ahead(first, b, a) and ahead(second, a, b)
        assert row.gap_criteria_met == (met or other_way)
