"""A decision over rehearsed run directories against one that shares no line of code with it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import plain_decision as plain
import pytest

from opprof.artifacts.decision import Decision, NullEvidence
from opprof.decision.load import decide_paths
from opprof.protocol import load_protocol
from opprof.rehearsal.campaign import rehearse_campaign
from opprof.rehearsal.truth import load_truth

EXAMPLES = Path(__file__).parents[2] / "examples" / "rehearsal"
PATTERNS = ("P01", "P02", "P09")
RESAMPLES = 20_000
TRUTH = """
schema = 1
name = "both"
description = "Attention and expert GEMMs turned over in P02; interference with a loss in P09."

[[effects]]
kind = "inversion"
pattern_p = "P02"
pattern_q = "P01"
family_a = "attention"
family_b = "moe_gemm"
gap = 0.12

[[effects]]
kind = "waste"
waste = "interference"
patterns = ["P09"]
size = 0.40
efficiency_loss = 0.10
"""


@dataclass(frozen=True)
class Both:
    """The product's decision and what the oracle reads."""

    decision: Decision
    runs: dict[str, plain.PlainRun]
    rule: dict[str, dict[str, object]]

    @property
    def families(self) -> list[str]:
        """The ranked families."""
        return list(self.rule["ranking"]["families"])  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Rehearse three patterns with both effects, analyse and decide."""
    from opprof.analysis.many import analyze_many
    from opprof.analysis.write import write_analysis

    root = tmp_path_factory.mktemp("rehearsed")
    (root / "truth.toml").write_text(TRUTH)
    source = EXAMPLES / "twins.toml"
    protocol = load_protocol(str(source))
    assert protocol is not None
    truth = load_truth(root / "truth.toml", list(PATTERNS))
    rehearse_campaign(protocol, source.read_bytes(), truth, root / "runs", seed=3)
    more = msgspec.structs.replace(
        protocol.file.statistics, bootstrap_resamples=RESAMPLES, permutations=RESAMPLES
    )
    bound = replace(protocol, file=msgspec.structs.replace(protocol.file, statistics=more))
    folders = [root / "runs" / f"{pattern}-C00-moderate" for pattern in PATTERNS]
    for folder, analysis in zip(folders, analyze_many(folders, bound, jobs=1), strict=True):
        write_analysis(analysis, folder / "analysis")
    decision = decide_paths([root / "runs"], bound, exploratory=False, rehearsal=True, jobs=1)
    runs = {f.name[:3]: plain.read_run(f, f / "analysis") for f in folders}
    return Both(decision.decision, runs, tomllib.loads((EXAMPLES / "twins.toml").read_text()))


def test_ratios_of_sums_and_their_moving_block_intervals(both: Both) -> None:
    intervals = {item.run: item.metrics for item in both.decision.intervals}
    for run in both.runs.values():
        for metric, parts in plain.waste_sums(run, 10**9).items():
            found = intervals[run.name][metric]
            assert found.value == pytest.approx(parts[0].sum() / parts[1].sum(), rel=1e-12)
            for circular, ends in (
                (False, (found.low, found.high)),
                (True, (found.circular_low, found.circular_high)),
            ):
                drawn = plain.moving_blocks(parts, 5, RESAMPLES, 7, circular=circular)
                low, high = np.percentile(drawn, [2.5, 97.5])
                # Monte-Carlo error of a 2.5 % point at 20,000 resamples is 0.5 % of the width.
                assert ends == pytest.approx((low, high), abs=0.03 * (high - low) + 1e-15), metric


def test_permutation_p_values_gaps_and_acceptance_under_both_tables(both: Both) -> None:
    tables = {"v2": both.decision.inversions}
    tables |= {v: table.comparisons for v, table in both.decision.alternatives.items()}
    assert set(tables) == {"v1", "v2"}
    for version, items in tables.items():
        assert len(items) == 3 * 36
        exact = []
        for item in items:
            a, b = (both.families.index(f) for f in (item.family_a, item.family_b))
            p, q = (
                plain.window_rows(both.runs[name], both.families, version)
                for name in (item.pattern_p, item.pattern_q)
            )
            exact.append(plain.exact_p(p, q, a, b))
            assert item.exact_p == pytest.approx(exact[-1], abs=1e-12)
            assert item.gaps_p == pytest.approx([plain.lead(rows, a, b) for rows in p], abs=1e-15)
            assert item.gaps_q == pytest.approx([-plain.lead(rows, a, b) for rows in q], abs=1e-15)
            gaps = [gap for gap in (*item.gaps_p, *item.gaps_q) if gap is not None]
            assert item.gap_criteria_met == all(gap >= 0.05 for gap in gaps)
            assert item.reached is not None
            assert item.permutation_p == (item.reached + 1) / (RESAMPLES + 1)
            error = np.sqrt(exact[-1] * (1 - exact[-1]) / RESAMPLES)
            assert item.reached / RESAMPLES == pytest.approx(exact[-1], abs=5 * error + 3e-4)
        drawn = plain.holm([item.permutation_p or 0.0 for item in items])
        assert [item.holm_p for item in items] == pytest.approx(drawn)
        assert [item.exact_holm_p for item in items] == pytest.approx(plain.holm(exact))
        for item, corrected in zip(items, drawn, strict=True):
            met = item.gap_criteria_met and item.classifiable and corrected <= 0.05
            assert item.accepted == met
    assert any(item.accepted for item in tables["v2"])


def test_shuffled_labels_give_the_drawn_p_value(both: Both) -> None:
    item = max(both.decision.inversions, key=lambda i: 0.0 if i.exact_p == 1 else i.exact_p or 0.0)
    a, b = (both.families.index(f) for f in (item.family_a, item.family_b))
    p, q = (
        plain.window_rows(both.runs[name], both.families, "v2")
        for name in (item.pattern_p, item.pattern_q)
    )
    assert plain.drawn_p(p, q, a, b, 2000, 1) == pytest.approx(item.permutation_p, abs=0.06)


def test_simultaneous_bounds_of_the_null(both: Both) -> None:
    runs = list(both.runs.values())
    nulls: dict[str, NullEvidence] = {"v2": both.decision.h1a.evidence.null}
    nulls |= {v: table.null for v, table in both.decision.alternatives.items()}
    for version, null in nulls.items():
        bound = plain.deepest_inversion_bound(runs, both.families, version, 0.05)
        assert null.greatest_bound == pytest.approx(bound, abs=1e-12)
        assert null.bounded == 3 * 9 * 8


def test_splines_support_alpha_and_residuals_left_one_pattern_out(both: Both) -> None:
    group = list(both.runs.values())
    seen = 0
    for fit in both.decision.interference:
        if fit.load_point != "moderate":
            continue
        found = plain.interference(both.runs[fit.pattern], group, both.rule["interference"])
        assert fit.alpha_ms == found["alpha_ms"]
        assert fit.mixed_supported == found["supported"]
        assert fit.mixed_supported + fit.mixed_unsupported == found["mixed"]
        pure = found.get("pure_prefill", 0) + found.get("pure_decode", 0)
        assert fit.pure_supported == pure
        for mine, theirs in (
            (fit.i_mix.value, found["I_mix"]),
            (fit.step_residual.value, found["step_residual"]),
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert mine == pytest.approx(theirs, abs=1e-9)
                seen += 1
    assert seen >= 4


def test_the_contrast_and_the_verdict_follow_from_the_numbers(both: Both) -> None:
    (contrast,) = both.decision.h1b.evidence.contrasts
    sides = [both.runs[name] for name in (contrast.irregular, contrast.control)]
    token = [plain.waste_sums(run, 10**9)["E_token_per_ms"] for run in sides]
    rates = [top.sum() / bottom.sum() for top, bottom in token]
    assert contrast.association is not None
    assert contrast.association.efficiency_loss.value == pytest.approx(1 - rates[0] / rates[1])
    assert contrast.association.efficiency_loss_met == (1 - rates[0] / rates[1] >= 0.05)
    metrics = {item.metric: item for item in contrast.metrics}
    ragged = sides[0].waste["R64"] - sides[1].waste["R64"]
    assert (metrics["R64"].difference, metrics["R64"].low) == (ragged, None)
    for metric in ("padding_fraction", "graph_miss_rate"):
        values = []
        for run in sides:
            top, bottom = plain.waste_sums(run, 10**9)[metric]
            values.append(top.sum() / bottom.sum())
        assert metrics[metric].difference == pytest.approx(values[0] - values[1])
    group = list(both.runs.values())
    mixed = [plain.interference(run, group, both.rule["interference"])["I_mix"] for run in sides]
    assert metrics["I_mix"].difference == pytest.approx(mixed[0] - mixed[1], abs=1e-9)
    # The planted interference also makes requests pile up, so that steps outgrow their graphs.
    thresholds = both.rule["h1b"]["thresholds"]
    assert contrast.passing_metrics == [
        name
        for name, item in metrics.items()
        if item.difference is not None
        and item.difference >= thresholds[name]  # type: ignore[index]
        and (item.low is None or item.low > 0)
    ]
    assert "I_mix" in contrast.passing_metrics
    assert "padding_fraction" not in contrast.passing_metrics
    outcomes = (both.decision.h1a.outcome, both.decision.h1b.outcome)
    assert outcomes == ("CONFIRMED", "CONFIRMED")
    assert both.decision.compound.outcome == "CONFIRMED"
