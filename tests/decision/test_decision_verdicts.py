"""Planted truths end in the right verdict; partial, invalid and quarantined matrices as A-P3-7."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from decision_builders import (
    FAMILIES,
    decided,
    facts,
    msgspec_replace,
    of,
    protocol,
    with_gate,
)

from opprof.artifacts.decision import Decision
from opprof.decision.planted import Truth, inverted
from opprof.decision.verdicts import NO_WINDOWS, decision_label
from opprof.errors import InputError
from opprof.protocol import Protocol

QUIET = Truth(share_noise=0.01, r64=0.1, drift=0.01)
INVERTED = inverted(QUIET, "attention", "moe_gemm")
WASTEFUL = replace(QUIET, padding=0.25, slowdown=0.12)


def test_no_effect_in_a_whole_matrix_supports_the_null() -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, {}, default=QUIET))
    assert decision.h1a.outcome == "REFUTED / NULL SUPPORTED"
    assert decision.h1a.evidence.null.common_top == ["moe_gemm"]
    assert decision.h1a.evidence.null.greatest_bound is not None
    assert decision.h1a.evidence.null.greatest_bound < 0.05
    assert decision.h1b.outcome == "REFUTED / NULL SUPPORTED", decision.h1b.reasons
    assert decision.compound.outcome == "REFUTED / NULL SUPPORTED"


def test_an_inversion_and_a_waste_confirm_the_compound_hypothesis() -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, {"P03": INVERTED, "P06": WASTEFUL}, default=QUIET))
    assert decision.h1a.outcome == "CONFIRMED"
    accepted = {(i.pattern_p, i.pattern_q) for i in decision.h1a.evidence.accepted}
    assert ("P01", "P03") in accepted
    assert all("P03" in pair for pair in accepted)
    assert all(i.holm_p is not None and i.holm_p <= 0.05 for i in decision.h1a.evidence.accepted)
    assert decision.h1b.outcome == "CONFIRMED"
    assert set(decision.h1b.evidence.passing) == {"P06 vs P02", "P06 vs P04"}
    assert decision.compound.outcome == "CONFIRMED"
    assert "attention" in decision.h1a.reasons[0]
    assert "padding_fraction" in decision.h1b.reasons[0]


@pytest.mark.parametrize(
    ("truths", "outcomes"),
    [
        ({"P03": INVERTED}, ("CONFIRMED", "REFUTED / NULL SUPPORTED", "PARTIAL")),
        ({"P06": WASTEFUL}, ("REFUTED / NULL SUPPORTED", "CONFIRMED", "PARTIAL")),
        (
            {"P06": replace(QUIET, padding=0.25)},
            ("REFUTED / NULL SUPPORTED", "INCONCLUSIVE", "INCONCLUSIVE"),
        ),
    ],
)
def test_one_part_alone_is_partial_and_waste_without_slower_service_is_open(
    truths: dict[str, Truth], outcomes: tuple[str, str, str]
) -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, truths, default=QUIET))
    found = (decision.h1a.outcome, decision.h1b.outcome, decision.compound.outcome)
    assert found == outcomes, (decision.h1a.reasons, decision.h1b.reasons)


def test_noise_that_hides_everything_is_inconclusive_and_no_evidence_for_the_null() -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, {}, default=replace(QUIET, share_noise=0.8)))
    assert decision.h1a.outcome == "INCONCLUSIVE"
    assert decision.h1a.evidence.null.bounds_below is False
    assert decision.compound.outcome == "INCONCLUSIVE"


def test_other_on_top_is_no_null() -> None:
    shares = {"attention": 0.2, "moe_gemm": 0.15, "dense_gemm": 0.1, "other": 0.55}
    bound = protocol()
    file = msgspec.structs.replace(
        bound.file,
        ranking=msgspec.structs.replace(bound.file.ranking, families=[*FAMILIES, "other"]),
        gates=msgspec.structs.replace(bound.file.gates, classifiable_min=0.4),
    )
    bound = type(bound)(file, bound.sha256, bound.source)
    decision = decided(bound, facts(bound, {}, default=replace(QUIET, shares=shares)))
    null = decision.h1a.evidence.null
    assert null.tops["P01"] == [["other"], ["other"]]
    assert null.common_top == []
    assert null.same_top is False
    assert decision.h1a.outcome == "INCONCLUSIVE"


# ------------------------------------------------------------------------------ A-P3-7


def test_the_frozen_matrix_confirms_and_never_refutes() -> None:
    bound = protocol(partial=True)
    quiet = decided(bound, facts(bound, {}, default=QUIET))
    assert quiet.h1a.outcome == "INCONCLUSIVE"
    assert quiet.h1b.outcome == "INCONCLUSIVE"
    assert list(quiet.h1a.evidence.not_evaluable) == ["P05", "P11"]
    assert list(quiet.h1b.evidence.not_evaluable) == ["P05 vs P01", "P05 vs P03"]
    loud = decided(bound, facts(bound, {"P03": INVERTED, "P06": WASTEFUL}, default=QUIET))
    assert loud.compound.outcome == "CONFIRMED"


def test_frozen_cells_take_no_part_even_when_a_run_of_them_is_given() -> None:
    bound = protocol(partial=True)
    decision = decided(bound, facts(bound, {"P05": inverted(WASTEFUL, "attention", "moe_gemm")}))
    assert decision.h1a.outcome == "INCONCLUSIVE"
    assert decision.h1b.outcome == "INCONCLUSIVE"
    of_p05 = [item for item in decision.inversions if "P05" in (item.pattern_p, item.pattern_q)]
    assert len(of_p05) == 10 * 3
    assert all(item.evaluable is False and item.accepted is None for item in of_p05)
    assert all(item.holm_p is None and "A-P3-7" in item.reasons[0] for item in of_p05)
    assert decision.cells["P05-C00-moderate"].startswith("NOT EVALUABLE: P05/C00 is frozen")


def test_every_registered_comparison_is_listed_whatever_is_missing() -> None:
    bound = protocol(partial=True)
    runs = [entry for entry in facts(bound, {}) if entry.run.pattern in ("P01", "P02")]
    decision = decided(bound, runs)
    assert len(decision.inversions) == 55 * 3
    assert sum(item.evaluable for item in decision.inversions) == 3
    absent = next(item for item in decision.inversions if item.pattern_q == "P03")
    assert (absent.gaps_p, absent.gaps_q, absent.permutation_p, absent.gap_criteria_met) == (
        [], [], None, None,
    )  # fmt: skip
    assert absent.reasons == ["P03-C00-moderate is missing"]
    assert len(decision.h1b.evidence.contrasts) == 8
    for contrast in decision.h1b.evidence.contrasts:
        assert len(contrast.metrics) == 6
        assert contrast.evaluable is False
        assert all(metric.difference is None and metric.reason for metric in contrast.metrics)


def test_holm_in_a_waste_family_counts_contrasts_that_are_not_evaluable() -> None:
    bound = protocol(partial=True)
    decision = decided(bound, facts(bound, {"P06": WASTEFUL}, default=QUIET))
    padding = [
        next(m for m in contrast.metrics if m.metric == "padding_fraction")
        for contrast in decision.h1b.evidence.contrasts
    ]
    known = sorted(m.p_value for m in padding if m.p_value is not None)
    assert len(known) == 6
    least = next(m for m in padding if m.p_value == known[0])
    assert least.holm_p == pytest.approx(8 * known[0])
    assert least.corrected_level == pytest.approx(1 - 0.05 / 8)
    assert decision.h1b.evidence.correction_families["padding_fraction"] == 8


# ------------------------------------------------------------------------ invalid runs


def test_an_invalid_run_is_not_evaluable_and_its_figures_stay_visible() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED}, default=QUIET)
    runs[of(runs, "P03")] = with_gate(runs[of(runs, "P03")], "clean_duration", "run")
    decision = decided(bound, runs)
    assert decision.h1a.outcome == "INCONCLUSIVE"
    shown = [item for item in decision.inversions if "P03" in (item.pattern_p, item.pattern_q)]
    assert any(item.gap_criteria_met for item in shown)
    assert all(item.permutation_p is not None and item.accepted is None for item in shown)
    assert "gate clean_duration failed" in shown[0].reasons[0]
    assert decision.h1b.evidence.not_evaluable.keys() == {"P05 vs P03", "P09 vs P03", "P10 vs P03"}


def test_a_breakdown_that_is_invalid_or_not_judged_supports_no_inversion() -> None:
    bound = protocol()
    for judged in (False, None):
        runs = facts(bound, {"P03": INVERTED}, default=QUIET)
        at = of(runs, "P03")
        kernels = msgspec.structs.replace(
            runs[at].kernels, breakdown_valid=judged, breakdown_reasons=["window 0: SMD 0.4"]
        )
        runs[at] = msgspec_replace(runs[at], kernels=kernels)
        decision = decided(bound, runs)
        assert decision.h1a.outcome == "INCONCLUSIVE"
        assert list(decision.h1a.evidence.not_evaluable) == ["P03"]
        # Layer 1 is not concerned: the contrasts with P03 stay evaluable.
        assert not decision.h1b.evidence.not_evaluable


def test_a_red_flag_stops_a_run_and_a_gate_that_could_not_be_judged_does_not() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED}, default=QUIET)
    at = of(runs, "P03")
    open_gate = with_gate(runs[at], "manifest_hash", "run", "not_evaluable")
    fine = decided(bound, [*runs[:at], open_gate, *runs[at + 1 :]])
    assert fine.h1a.outcome == "CONFIRMED"
    status = next(s for s in fine.runs if s.run.pattern == "P03")
    assert status.not_evaluable_gates == ["manifest_hash"]
    flagged = msgspec_replace(runs[at], red_flags=["negative counter"])
    stopped = decided(bound, [*runs[:at], flagged, *runs[at + 1 :]])
    assert stopped.h1a.outcome == "INCONCLUSIVE"
    assert "negative counter" in stopped.h1a.evidence.not_evaluable["P03"][0]


def test_only_invalid_runs_make_the_decision_invalid() -> None:
    bound = protocol()
    runs = [with_gate(entry, "clean_duration", "run") for entry in facts(bound, {})]
    decision = decided(bound, runs)
    assert (decision.h1a.outcome, decision.h1b.outcome) == ("INVALID", "INVALID")
    assert decision.compound.outcome == "INVALID"
    assert "clean_duration" in decision.h1a.reasons[1]


def test_a_design_without_windows_leaves_h1a_open_and_says_why() -> None:
    bound = protocol()
    timeline = msgspec.structs.replace(bound.file.timeline, profile_windows=0)
    bound = Protocol(
        msgspec.structs.replace(bound.file, timeline=timeline), bound.sha256, bound.source
    )
    runs = [with_gate(entry, "representativeness", "breakdown") for entry in facts(bound, {})]
    decision = decided(bound, runs)
    assert decision.h1a.outcome == "INCONCLUSIVE"
    assert decision.h1a.reasons == [NO_WINDOWS]
    # A run that may not be used at all is another matter.
    runs = [with_gate(entry, "clean_duration", "run") for entry in runs]
    assert decided(bound, runs).h1a.outcome == "INVALID"


@pytest.mark.parametrize(
    ("exploratory", "rehearsed", "label"),
    [
        (False, False, "registered campaign; "),
        (True, False, "exploratory: a list of runs, no campaign; "),
        (False, True, "rehearsal of a draft protocol, nothing is registered; "),
    ],
)
def test_the_label_says_what_is_registered(exploratory: bool, rehearsed: bool, label: str) -> None:
    file = msgspec.structs.replace(protocol().file, status="draft", partial_matrix=None)
    found = decision_label(file, exploratory=exploratory, rehearsed=rehearsed, simulated=True)
    assert found == label + "simulated runs, no measurement"


def test_quarantined_runs_stay_usable_and_are_marked_until_they_are_too_many() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED, "P06": WASTEFUL}, default=QUIET)

    def quarantine(count: int) -> Decision:
        changed = list(runs)
        for at in range(2, 2 + count):
            kernels = changed[at].kernels
            run = msgspec.structs.replace(kernels.run, drain_quarantined=True)
            changed[at] = msgspec_replace(
                changed[at], kernels=msgspec.structs.replace(kernels, run=run)
            )
        return decided(bound, changed)

    few = quarantine(2)
    assert few.compound.outcome == "CONFIRMED"
    marked = [i for i in few.inversions if "P03" in (i.pattern_p, i.pattern_q)]
    assert all("P03: drain quarantined" in item.marks for item in marked)
    contrast = next(c for c in few.h1b.evidence.contrasts if c.control == "P03")
    assert "P03: drain quarantined" in contrast.marks
    many = quarantine(3)
    assert many.compound.outcome == "INVALID"
    assert "3 of 11 measured runs (27%) are drain-quarantined" in many.compound.reasons[0]


def test_more_than_five_percent_of_runs_with_failures_stop_the_matrix() -> None:
    bound = protocol()
    runs = facts(bound, {}, default=QUIET)
    runs[0] = with_gate(runs[0], "request_failures", "run")
    decision = decided(bound, runs)
    assert decision.compound.outcome == "INVALID"
    assert "clean window" in decision.compound.reasons[0]
    assert decided(bound, runs, exploratory=True).compound.outcome != "INVALID"


# ---------------------------------------------------------------------------- identity


def test_the_decision_depends_on_neither_order_nor_workers() -> None:
    from opprof.decision.decide import decide
    from opprof.decision.planted import planted_provenance

    bound = protocol()
    runs = [r for r in facts(bound, {"P03": INVERTED}) if r.run.pattern in ("P01", "P03", "P09")]
    first = msgspec.json.encode(decided(bound, runs))
    assert first == msgspec.json.encode(decided(bound, runs[::-1]))
    again = decide(runs, bound, planted_provenance(), exploratory=False, jobs=2)
    assert first == msgspec.json.encode(again)
    assert msgspec.json.decode(first, type=Decision) == again


def test_another_run_changes_no_number_of_the_others() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED}, default=QUIET)
    whole = decided(bound, runs)
    part = decided(bound, [entry for entry in runs if entry.run.pattern in ("P01", "P03")])
    pick = [(i.permutation_p, i.exact_p) for i in whole.inversions if i.pattern_q == "P03"][:3]
    assert (
        pick == [(i.permutation_p, i.exact_p) for i in part.inversions if i.pattern_q == "P03"][:3]
    )
    name = "P01-C00-moderate"
    first, second = (
        next(i.metrics["padding_fraction"] for i in d.intervals if i.run == name)
        for d in (whole, part)
    )
    assert first == second


def test_what_cannot_be_decided_together_is_refused() -> None:
    bound = protocol()
    runs = facts(bound, {})
    with pytest.raises(InputError, match="no runs"):
        decided(bound, [])
    with pytest.raises(InputError, match="are both P01-C00-moderate"):
        decided(bound, [runs[0], runs[0]])
    kernels = runs[1].kernels
    run = msgspec.structs.replace(kernels.run, simulated=False)
    mixed = msgspec_replace(runs[1], kernels=msgspec.structs.replace(kernels, run=run))
    with pytest.raises(InputError, match="measured and simulated"):
        decided(bound, [runs[0], mixed])


def test_a_rehearsal_tolerates_scaled_time_and_says_so() -> None:
    from opprof.decision.decide import decide
    from opprof.decision.planted import planted_provenance

    bound = protocol()
    runs = [
        with_gate(r, "time_scale", "run") for r in facts(bound, {"P03": INVERTED}, default=QUIET)
    ]
    assert decided(bound, runs).compound.outcome == "INVALID"
    decision = decide(
        runs, bound, planted_provenance(), exploratory=False, tolerated=frozenset({"time_scale"})
    )
    assert decision.h1a.outcome == "CONFIRMED"
    assert all("tolerated: time_scale" in status.marks for status in decision.runs)
    assert decision.simulated
    assert "simulated" in decision.label


def test_numbers_of_a_contrast_are_those_of_its_runs() -> None:
    bound = protocol()
    runs = facts(bound, {"P06": WASTEFUL}, default=QUIET)
    decision = decided(bound, runs)
    contrast = next(
        c for c in decision.h1b.evidence.contrasts if (c.irregular, c.control) == ("P06", "P02")
    )
    sums = {p: runs[of(runs, p)].series.sums for p in ("P06", "P02")}  # type: ignore[union-attr]
    for metric in contrast.metrics:
        if metric.metric != "padding_fraction":
            continue
        values = [
            s["padded_tokens"].sum() / s["bucket_tokens"].sum() for s in (sums["P06"], sums["P02"])
        ]
        assert [metric.irregular, metric.control] == values
        assert metric.difference == values[0] - values[1]
        assert metric.low is not None
        assert metric.corrected_low is not None
        assert metric.corrected_low <= metric.low <= metric.difference
        assert metric.passes
    loss = [s["scheduled_tokens"].sum() / s["step_ms"].sum() for s in (sums["P06"], sums["P02"])]
    assert contrast.association is not None
    assert contrast.association.efficiency_loss.value == 1 - loss[0] / loss[1]
    r64 = next(m for m in contrast.metrics if m.metric == "R64")
    assert r64.deterministic
    assert (r64.low, r64.p_value, r64.holm_p) == (None, None, None)
    assert (r64.difference, r64.passes) == (0.0, False)


def test_raggedness_and_layer_variation_can_carry_a_contrast() -> None:
    bound = protocol()
    for truth, metric in (
        (replace(QUIET, r64=0.4, slowdown=0.12), "R64"),
        (replace(QUIET, cv_moe=0.5, slowdown=0.12), "CV_moe"),
        (replace(QUIET, mixed_extra=0.4), "I_mix"),
        (replace(QUIET, miss_rate=0.3, slowdown=0.12), "graph_miss_rate"),
    ):
        decision = decided(bound, facts(bound, {"P09": truth}, default=QUIET))
        assert decision.h1b.outcome == "CONFIRMED", (metric, decision.h1b.reasons)
        contrast = next(c for c in decision.h1b.evidence.contrasts if c.irregular == "P09")
        assert metric in contrast.passing_metrics


def test_less_waste_than_the_control_never_passes() -> None:
    bound = protocol()
    decision = decided(bound, facts(bound, {"P02": WASTEFUL, "P04": WASTEFUL}, default=QUIET))
    contrast = next(c for c in decision.h1b.evidence.contrasts if c.irregular == "P06")
    padding = next(m for m in contrast.metrics if m.metric == "padding_fraction")
    assert padding.excludes_zero
    assert padding.passes is False
    assert np.sign(padding.difference or 0) == -1


def test_runs_on_different_time_scales_are_kept_and_never_meet() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED}, default=QUIET)
    at = of(runs, "P03")
    kernels = runs[at].kernels
    run = msgspec.structs.replace(kernels.run, time_scale=0.5)
    runs[at] = msgspec_replace(runs[at], kernels=msgspec.structs.replace(kernels, run=run))
    decision = decided(bound, runs)
    assert decision.h1a.outcome == "INCONCLUSIVE"
    apart = [item for item in decision.inversions if "P03" in (item.pattern_p, item.pattern_q)]
    assert all(not item.evaluable and item.permutation_p is None for item in apart)
    assert "different time scales" in apart[0].reasons[0]
    assert "P09 vs P03" in decision.h1b.evidence.not_evaluable


def test_a_red_flag_in_the_decisions_own_numbers_makes_it_invalid() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED, "P06": WASTEFUL}, default=QUIET)
    series = runs[0].series
    copies = [msgspec_replace(item, series=series) for item in runs]
    decision = decided(bound, copies, exploratory=True)
    assert decision.compound.outcome == "INVALID"
    assert any("E_token_per_ms: identical in all 11 runs" in r for r in decision.compound.reasons)
    assert decision.sanity.red_flags


def test_sensitivities_stand_beside_and_decide_nothing() -> None:
    bound = protocol()
    runs = facts(bound, {"P03": INVERTED, "P06": WASTEFUL}, default=QUIET)
    decision = decided(bound, runs)
    for item in decision.h1a.evidence.accepted:
        assert item.windows_p is not None
        assert item.blocked_p is not None
        assert 1 / 400 <= item.blocked_p <= 1
    contrast = next(c for c in decision.h1b.evidence.contrasts if c.irregular == "P06")
    assert contrast.association is not None
    found = contrast.association
    assert found.residual.low is not None
    assert found.residual_corrected_low is not None
    assert found.residual_corrected_low <= found.residual.low
    correlation = decision.intervals[0].metrics["E_token_per_ms"].bin_correlation
    assert correlation is not None
    assert -1 <= correlation <= 1
    assert any("Neighbouring seconds" in note for note in decision.notes)
    assert any("some bound lay" in note for note in decision.notes)
