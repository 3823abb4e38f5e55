"""Real runs: the comparison agrees with the oracle, which shares no code with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compare_builders import PROVENANCE, RULE, entry

from opprof.artifacts.comparison import Comparison, TableComparison
from opprof.compare import compare_runs

EXPECTED = Path(__file__).parents[1] / "oracle" / "expected"
ORACLE: dict[str, Any] = json.loads((EXPECTED / "compare.json").read_text())
RUNS: dict[str, Any] = {
    path.stem: json.loads(path.read_text())
    for path in sorted(EXPECTED.glob("*.json"))
    if path.stem != "compare"
}


def families(run: dict[str, Any], version: str) -> dict[tuple[int, int], dict[str, int]]:
    return {
        (w["window"], w["rank"]): {
            name: family["ns"] for name, family in w["mapping"][version]["families"].items()
        }
        for w in run["windows"]
    }


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    runs = [
        entry(
            run["pattern"],
            families(run, "v2"),
            v1=families(run, "v1"),
            config=run["config"],
            load_point=run["load_point"],
        )
        for run in RUNS.values()
    ]
    return compare_runs(runs, RULE, PROVENANCE)


def table(comparison: Comparison, version: str) -> Comparison | TableComparison:
    return comparison if version == "v2" else comparison.alternatives[version]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_places(comparison: Comparison, version: str) -> None:
    ours: dict[str, Any] = {}
    for row in table(comparison, version).windows:
        places = {n: f.place for n, f in row.families.items() if f.place is not None}
        ours.setdefault(row.run, {})[f"w{row.window}r{row.rank}"] = places
    assert ours == ORACLE[version]["ranks"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_tau_between_the_same_windows_of_two_patterns(comparison: Comparison, version: str) -> None:
    ours = {
        f"{t.pattern_p}-{t.config}-{t.load_point} {t.pattern_q}-{t.config}-{t.load_point}"
        f" w{t.window_p}r{t.rank}": t.tau_b
        for t in table(comparison, version).tau
        if t.pattern_p != t.pattern_q and t.window_p == t.window_q
    }
    assert ours == pytest.approx(ORACLE[version]["tau_b"])


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_pairs_that_lead_each_in_its_pattern(comparison: Comparison, version: str) -> None:
    """The oracle lists ordered pairs that lead in both windows of one and trail in the other's."""
    keys = ("pattern_p", "pattern_q", "family_a", "family_b", "gap_criteria_met", "classifiable")
    ours = [
        row
        for row in table(comparison, version).inversions
        if all(gap is not None and gap > 0 for gap in (*row.gaps_p, *row.gaps_q))
    ]
    theirs = ORACLE[version]["gaps"]
    assert [tuple(getattr(row, key) for key in keys) for row in ours] == [
        tuple(row[key] for key in keys) for row in theirs
    ]
    for row, expected in zip(ours, theirs, strict=True):
        assert row.gaps_p == pytest.approx(expected["gaps_p"])
        assert row.gaps_q == pytest.approx(expected["gaps_q"])


def test_what_the_real_runs_show(comparison: Comparison) -> None:
    assert [(p.pattern_p, p.pattern_q) for p in comparison.pattern_pairs] == [
        ("P01", "P03"), ("P01", "P08"), ("P03", "P08"),
    ]  # fmt: skip
    assert {u.run for u in comparison.unpaired} == {
        "P03-C00-moderate", "P09-C00-TP2-moderate",
    }  # fmt: skip
    assert len(comparison.inversions) == 3 * 36
    assert {row.gap_criteria_met for row in comparison.inversions} == {False}
    assert {tuple(row.top) for row in comparison.windows} == {("moe_gemm",)}
    spread = {(r.window, r.family): r for r in comparison.rank_spreads}
    # One rank waits four times as long in the all-reduce as the other (contract, section 3).
    assert spread[1, "collective"].max_share > 4 * spread[1, "collective"].min_share
    assert comparison.sanity.red_flags == []
