"""The whole comparison: windows, ranks, tables side by side, pairing, ratios, unusable input."""

from __future__ import annotations

import math

import msgspec
import pytest
from compare_builders import HASHES, PROVENANCE, RULE, cells, entry
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.comparison import Comparison, ComparisonRule
from opprof.compare import RunInput, compare_runs, comparison_rule, geometric_mean
from opprof.errors import InputError
from opprof.protocol import load_protocol

MOE = {"attention": 200, "moe_gemm": 600, "norm_elementwise": 200}
ATTENTION = {"attention": 500, "moe_gemm": 300, "norm_elementwise": 200}


def compare(*runs: RunInput, rule: ComparisonRule | None = RULE) -> Comparison:
    return compare_runs(runs, rule, PROVENANCE)


def test_the_rule_is_the_protocols() -> None:
    protocol = load_protocol("phase3")
    assert protocol is not None
    assert comparison_rule(protocol.file) == RULE


def test_shares_and_places_of_a_window() -> None:
    families = {"attention": 330, "moe_gemm": 335, "dense_gemm": 130, "graph_replay_opaque": 205}
    (row,) = compare(entry("P01", {(0, 0): families})).windows
    assert row.top == ["moe_gemm", "attention"]
    assert row.kernel_ns == 1000 and row.classified_fraction == 0.795 and row.classifiable
    assert {name: family.place for name, family in row.families.items()} == {
        "moe_router": 4, "collective": 4, "attention": 1, "moe_gemm": 1, "sampler": 4,
        "dense_gemm": 3, "norm_elementwise": 4, "kv_memory": 4, "other": 4,
        "graph_replay_opaque": None,
    }  # fmt: skip
    assert row.families["graph_replay_opaque"].share == 0.205
    assert row.families["sampler"].share == 0.0


def test_a_window_without_kernel_time_has_no_shares() -> None:
    row = compare(entry("P01", {(0, 0): {}})).windows[0]
    assert row.top == [] and row.classified_fraction is None and row.classifiable is None
    assert {family.share for family in row.families.values()} == {None}


def test_ranks_are_listed_with_mean_and_range_and_never_summed() -> None:
    first = {"collective": 60, "moe_gemm": 940}
    second = {"collective": 520, "moe_gemm": 1480}
    run = entry("P10", {(0, 0): first, (0, 1): second}, config="C00-TP2")
    comparison = compare(run)
    assert [(row.rank, row.kernel_ns) for row in comparison.windows] == [(0, 1000), (1, 2000)]
    (spread,) = [row for row in comparison.rank_spreads if row.family == "collective"]
    assert (spread.mean_share, spread.min_share, spread.max_share) == (0.16, 0.06, 0.26)
    assert spread.range_share == pytest.approx(0.2) and spread.ranks == 2
    assert compare(entry("P01", cells(MOE))).rank_spreads == []


def test_tau_is_between_every_two_windows_on_one_rank() -> None:
    comparison = compare(entry("P01", cells(MOE, MOE)), entry("P03", cells(ATTENTION, MOE)))
    found = {(t.pattern_p, t.window_p, t.pattern_q, t.window_q): t.tau_b for t in comparison.tau}
    assert len(found) == 6
    assert found["P01", 0, "P01", 1] == 1.0
    assert found["P01", 0, "P03", 1] == 1.0
    # attention, moe_gemm, norm_elementwise have places 2, 1, 2 and 1, 2, 3; six families tie below:
    # 18 + 1 concordant pairs, 1 discordant, 20 untied on one side and 21 on the other.
    assert found["P01", 0, "P03", 0] == pytest.approx((19 - 1) / math.sqrt(20 * 21))


def test_runs_of_other_conditions_are_said_and_not_compared() -> None:
    comparison = compare(
        entry("P01", cells(MOE, MOE), load_point="saturation"),
        entry("P03", cells(MOE, MOE), load_point="saturation"),
        entry("P03", cells(MOE, MOE)),
        entry("P10", cells(MOE, MOE), config="C00-TP2"),
        entry("P06", cells(MOE, MOE), role="confirmation"),
    )
    pairs = [(p.pattern_p, p.pattern_q, p.load_point) for p in comparison.pattern_pairs]
    assert pairs == [("P01", "P03", "saturation")]
    assert not comparison.pattern_pairs[0].primary
    assert {u.run: u.reason for u in comparison.unpaired} == {
        "P03-C00-moderate": "no other run at config C00, load point moderate, role primary",
        "P10-C00-TP2-moderate": "no other run at config C00-TP2, load point moderate, role primary",
        "P06-C00-moderate-confirmation": (
            "no other run at config C00, load point moderate, role confirmation"
        ),
    }
    assert len(comparison.windows) == 10


def test_measured_and_simulated_runs_never_pair() -> None:
    comparison = compare(
        entry("P01", cells(MOE, MOE)), entry("P03", cells(MOE, MOE), simulated=True)
    )
    assert comparison.pattern_pairs == [] and len(comparison.unpaired) == 2
    assert comparison.unpaired[1].reason.startswith("no other simulated run")
    assert comparison.runs[1].marks == ["simulated, no measurement"]


def test_two_runs_of_one_identity_are_an_error_that_names_both() -> None:
    with pytest.raises(InputError, match=r"b/run and a/run are both P01 under C00 at moderate"):
        compare(
            entry("P01", cells(MOE, MOE), source="a/run"),
            entry("P01", cells(ATTENTION, MOE), source="b/run"),
        )


def test_no_runs() -> None:
    with pytest.raises(InputError, match="no runs"):
        compare()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_ns": 999}, r"families sum to 1000 ns, kernel_ns is 999"),
        ({"window": 1}, r"window 1 rank 0 occurs twice"),
        ({"families": {}}, r"families sum to 0 ns"),
    ],
)
def test_an_artefact_that_contradicts_itself(change: dict[str, object], message: str) -> None:
    good = entry("P01", cells(MOE, MOE))
    windows = good.kernels.windows
    bad = msgspec.structs.replace(
        good.kernels, windows=[msgspec.structs.replace(windows[0], **change), windows[1]]
    )
    with pytest.raises(InputError, match=message) as caught:
        compare(RunInput(kernels=bad, source="runs/P01"))
    assert "runs/P01" in str(caught.value)


def test_unknown_and_negative_families_are_refused() -> None:
    with pytest.raises(InputError, match="unknown family 'attn'"):
        compare(entry("P01", cells({"attn": 10})))
    with pytest.raises(InputError, match="negative"):
        compare(entry("P01", cells({"attention": -1, "moe_gemm": 2})))


V1 = {"attention": 300, "moe_gemm": 500, "norm_elementwise": 200}
V2 = {"attention": 300, "moe_gemm": 270, "dense_gemm": 230, "norm_elementwise": 200}
OTHER = {"attention": 200, "moe_gemm": 600, "norm_elementwise": 200}


def test_tables_that_agree_say_nothing() -> None:
    comparison = compare(*[entry(p, cells(MOE, MOE), v1=cells(MOE, MOE)) for p in ("P01", "P02")])
    assert comparison.disagreements == []
    assert list(comparison.alternatives) == ["v1"]
    assert comparison.alternatives["v1"].windows == comparison.windows


def test_tables_that_disagree_say_so_in_plain_sentences() -> None:
    comparison = compare(
        entry("P01", cells(OTHER, OTHER), v1=cells(OTHER, OTHER)),
        entry("P03", cells(ATTENTION, V2), v1=cells(V1, V1)),
    )
    assert comparison.mapping_version == "v2"
    assert comparison.alternatives["v1"].mapping_sha256 == HASHES["v1"]
    assert comparison.disagreements == [
        "P03-C00-moderate window 0 rank 0: the top family is attention (50.0 %) under v2,"
        " moe_gemm (50.0 %) under v1.",
        "P03-C00-moderate window 1 rank 0: the top family is attention (30.0 %) under v2,"
        " moe_gemm (50.0 %) under v1.",
        "P03-C00-moderate: only under v1 moe_gemm leads by at least 5 points in every window:"
        " attention by 20.0, 20.0 (-20.0, -3.0 under v2);"
        " dense_gemm by 50.0, 50.0 (30.0, 4.0 under v2).",
        "P03-C00-moderate: only under v1 norm_elementwise leads by at least 5 points in every"
        " window: dense_gemm by 20.0, 20.0 (20.0, -3.0 under v2).",
    ]


def test_an_inversion_under_one_table_only_is_a_sentence() -> None:
    comparison = compare(
        entry("P01", cells(OTHER, OTHER), v1=cells(OTHER, OTHER)),
        entry("P03", cells(ATTENTION, ATTENTION), v1=cells(V1, V1)),
    )
    assert (
        "C00 moderate: moe_gemm leads attention in P01 and trails it in P03 (gap criteria met)"
        " under v2, not under v1." in comparison.disagreements
    )


def test_a_table_that_one_run_lacks_is_said() -> None:
    comparison = compare(
        entry("P01", cells(MOE, MOE), v1=cells(MOE, MOE)), entry("P02", cells(MOE, MOE))
    )
    assert comparison.alternatives == {}
    assert [(u.run, u.reason) for u in comparison.unpaired] == [
        ("P02-C00-moderate", "has no results under mapping table 'v1', which is not compared")
    ]


def test_the_pinned_table_decides_whatever_the_runs_were_decided_by() -> None:
    rule = msgspec.structs.replace(RULE, mapping_pinned="v1")
    comparison = compare(
        entry("P01", cells(MOE, MOE), v1=cells(ATTENTION, ATTENTION)),
        entry("P02", cells(MOE, MOE), v1=cells(MOE, MOE)),
        rule=rule,
    )
    assert (comparison.mapping_version, comparison.mapping_sha256) == ("v1", HASHES["v1"])
    assert comparison.windows[0].top == ["attention"]
    assert list(comparison.alternatives) == ["v2"]
    with pytest.raises(InputError, match=r"runs/P02.*no results under mapping table 'v1'"):
        compare(
            entry("P01", cells(MOE, MOE), v1=cells(MOE, MOE)),
            entry("P02", cells(MOE, MOE)),
            rule=rule,
        )


def test_one_version_with_two_hashes_is_an_error() -> None:
    other = entry("P02", cells(MOE, MOE))
    changed = msgspec.structs.replace(other.kernels, mapping_sha256="f" * 64)
    with pytest.raises(InputError, match=r"'v2' has hash ffffffffffff in runs/P02"):
        compare(entry("P01", cells(MOE, MOE)), RunInput(kernels=changed, source=other.source))


def test_absolute_values_stand_beside_every_ratio() -> None:
    half = {name: ns // 2 for name, ns in MOE.items()}
    comparison = compare(
        entry("P01", cells(MOE, MOE), metrics={"completed_rps": 10.0}),
        entry("P01", cells(half, half), config="C10", metrics={"completed_rps": 8.0}),
        entry("P03", cells(MOE, MOE), config="C10", metrics={"completed_rps": None}),
    )
    rows = {(r.pattern, r.config, r.metric): r for r in comparison.ratios}
    rps = rows["P01", "C10", "completed_rps"]
    assert (rps.value, rps.baseline_value, rps.ratio) == (8.0, 10.0, 0.8)
    kernel = rows["P01", "C10", "kernel_ms_per_step"]
    assert kernel.value == pytest.approx(500 / 8 / 1e6) and kernel.ratio == 0.5
    assert rows["P01", "C00", "completed_rps"].ratio == 1.0
    absent = rows["P03", "C10", "kernel_ms_per_step"]
    assert absent.ratio is None and absent.value is not None
    assert absent.reason == "P03 has no run under C00 at moderate"
    assert rows["P01", "C10", "sampler_ms_per_step"].reason == "the baseline's value is zero"


def test_ranks_of_tensor_parallel_runs_have_a_ratio_each() -> None:
    run = entry("P10", {(0, 0): {"moe_gemm": 100}, (0, 1): {"moe_gemm": 50}}, config="C00-TP2")
    comparison = compare(run, entry("P10", cells({"moe_gemm": 200})))
    ratios = {
        r.rank: r.ratio
        for r in comparison.ratios
        if r.config == "C00-TP2" and r.metric == "kernel_ms_per_step"
    }
    assert ratios == {0: 0.5, 1: 0.25}


def test_aggregates_are_geometric_and_keep_every_cell() -> None:
    def pair(pattern: str, value: float | None) -> list[RunInput]:
        return [
            entry(pattern, cells(MOE), metrics={"completed_rps": 10.0}),
            entry(pattern, cells(MOE), config="C10", metrics={"completed_rps": value}),
        ]

    found = [
        row
        for row in compare(*pair("P01", 20.0), *pair("P03", 5.0)).aggregates
        if row.metric == "completed_rps"
    ]
    (row,) = found
    assert row.geometric_mean == pytest.approx(1.0)
    assert row.cells == {"P01": 2.0, "P03": 0.5} and row.reason is None
    (row,) = [
        row
        for row in compare(*pair("P01", 20.0), *pair("P03", None)).aggregates
        if row.metric == "completed_rps"
    ]
    assert row.geometric_mean is None and row.reason == "cell P03 is missing"
    assert row.cells == {"P01": 2.0, "P03": None}


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, None])
def test_a_geometric_mean_refuses_what_it_cannot_average(value: float | None) -> None:
    with pytest.raises(InputError, match="cell P03"):
        geometric_mean({"P01": 1.0, "P03": value})
    with pytest.raises(InputError, match="no cells"):
        geometric_mean({})


@given(values=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8))
def test_a_geometric_mean_of_inverses_is_the_inverse(values: list[float]) -> None:
    cells_ = {str(i): value for i, value in enumerate(values)}
    mean = geometric_mean(cells_)
    inverse = geometric_mean({name: 1 / value for name, value in cells_.items()})
    assert mean * inverse == pytest.approx(1.0)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)


def test_the_sanity_block_counts_and_raises_flags() -> None:
    sound = compare(entry("P01", cells(MOE, ATTENTION)), entry("P02", cells(ATTENTION, MOE)))
    families = {family.name: family for family in sound.sanity.families}
    assert sound.sanity.red_flags == []
    assert (families["share"].n, families["share"].min, families["share"].max) == (40, 0.0, 0.6)
    assert families["gap"].n == 36 * 4 and families["gap"].signed
    twins = compare(entry("P01", cells(MOE, MOE)), entry("P02", cells(MOE, MOE)))
    assert twins.sanity.red_flags == [
        "P02-C00-moderate and P01-C00-moderate have identical family times"
    ]


def test_a_comparison_goes_through_json() -> None:
    comparison = compare(entry("P01", cells(MOE, ATTENTION), v1=cells(MOE, MOE)))
    data = msgspec.json.encode(comparison)
    assert msgspec.json.decode(data, type=Comparison) == comparison
