"""Sentences and number formats: what is claimed, with which caveat, and what is left open."""

from __future__ import annotations

import math

import msgspec
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.common import Series
from opprof.report import fill, formats
from opprof.report.inputs import ReportInput, RunView
from opprof.report.text import ranking, verdict
from opprof.report.text.glossary import GLOSSARY
from opprof.telemetry.series import EMPTY

SAMPLE = samples.sample()
P01, P03, P03_C01, TP2, P08 = SAMPLE.runs


def plain(text: str) -> str:
    return text.replace(formats.NBSP, " ")


def test_kernels_that_exceed_a_clean_step_are_no_share_of_it() -> None:
    assert "take 45.0 to 98.0 % of a median clean FULL step." in plain(
        verdict._fill_sentence("FULL", [0.45, 0.98])
    )
    assert "larger steps, or the profiler" in verdict._fill_sentence("NONE", [0.9, 14.13])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"NONE": EMPTY}, "none of 210 clean NONE steps ran between two of its mode"),
        ({}, "the analysis is of before this figure; analyse the run again"),
    ],
)
def test_a_mode_without_steps_among_their_like_has_no_share_and_says_why(
    change: dict[str, Series], why: str
) -> None:
    assert P01.layer1 is not None and P01.layer1.clean_union is not None
    union = msgspec.structs.replace(P01.layer1.clean_union, step_duration_ms_among_like=change)
    run = msgspec.structs.replace(
        P01, layer1=msgspec.structs.replace(P01.layer1, clean_union=union)
    )
    (row,) = [row for row in fill.fills(run) if row.rank == 0]
    assert (row.fraction, row.why_not) == (None, why)
    (sentence,) = verdict._fill_sentences(run) or [""]
    assert sentence == f"How much of a clean NONE step kernels take is not known: {why}."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "n/a"),
        (0, "0"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (-3, "−3"),
        (0.012345, "0.01235"),
        (1234.5678, "1,235"),
        (3e-7, "3.000e-07"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (True, "yes"),
    ],
)
def test_number(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


def test_percent_never_rounds_something_to_nothing() -> None:
    assert plain(formats.percent(0.0002)) == "<0.1 %"
    assert plain(formats.percent(0.0)) == "0.0 %"
    assert plain(formats.percent(0.4123)) == "41.2 %"
    assert formats.percent(None) == "n/a"


def test_points_are_signed() -> None:
    assert formats.points(0.081) == "+8.1"
    assert formats.points(-0.081) == "−8.1"
    assert formats.points(-0.0001) == "−0.01"
    assert formats.points(0.0) == "0.0"


@given(st.text())
def test_plot_text_leaves_no_markup(text: str) -> None:
    escaped = formats.plot_text(text)
    assert "<" not in escaped and ">" not in escaped


def test_one_leader_with_its_range() -> None:
    text = plain(verdict.limit_sentence(P01))
    assert text == (
        "MoE GEMM takes the largest share of kernel time, 46.1 to 47.0 % in both windows; "
        "next is attention with 18.0 to 19.6 %. Kernels take 98.7 % of a median clean NONE step."
    )


def test_windows_that_disagree_are_not_averaged() -> None:
    text = plain(verdict.limit_sentence(P03))
    assert "the windows do not agree on what leads: MoE GEMM with 38.0 % in window 0" in text
    assert "attention with 39.5 % in window 1" in text


def test_unrepresentative_breakdown_names_the_gates_own_failure_rate() -> None:
    text = plain(verdict.limit_sentences(SAMPLE)[-1])
    assert text.startswith("The windows of P03 · C00 · saturation failed the representativeness")
    assert "By itself the gate rejects 99.8 % of window pairs" in text
    assert len(verdict.limit_sentences(ReportInput((P01,)))) == 1


def test_ranks_are_named_and_not_summed() -> None:
    assert "in both windows on all 2 ranks" in verdict.limit_sentence(TP2)


def rejected(run: RunView, count: int) -> RunView:
    assert run.kernels is not None
    windows = [
        msgspec.structs.replace(w, accepted=k >= count, reasons=["nine annotations"])
        for k, w in enumerate(run.windows)
    ]
    return msgspec.structs.replace(
        run, kernels=msgspec.structs.replace(run.kernels, windows=windows)
    )


def test_rejected_windows_are_left_out_and_said() -> None:
    assert "1 trace of 2 not accepted and left out" in verdict.limit_sentence(rejected(P01, 1))
    none = verdict.limit_sentence(rejected(P01, 2))
    assert none == (
        "no window was accepted (nine annotations), so nothing is known of the GPU's time."
    )


def test_red_flags_and_failures_name_their_run_and_reason() -> None:
    assert verdict.red_flag_sentences(SAMPLE, []) == (
        "P09 · C00-TP2 · moderate: clean prefix-hit ratio 0.99 in a pattern without shared "
        "prefixes.",
    )
    (sentence,) = verdict.invalid_sentences(SAMPLE)
    assert sentence == (
        "prefix_hits fails in P09 · C00-TP2 · moderate: prefix_hits is beyond its limit. "
        "The figures of this run may measure the cache and not the model."
    )


def test_gates_that_fail_in_few_runs_come_first() -> None:
    both = [
        samples.view(samples.identity(p), [samples.DECODE] * 2, failed=failed)
        for p, failed in (("P01", ("everywhere", "rare")), ("P02", ("everywhere",)))
    ]
    sentences = verdict.invalid_sentences(ReportInput(tuple(both)))
    assert sentences[0].startswith("rare fails in P01 · C00 · saturation: ")
    assert sentences[1].startswith("everywhere fails in every run: ")


def test_simulated_scaled_and_unbound_runs_are_announced() -> None:
    odd = samples.view(
        samples.identity("P02", simulated=True, time_scale=0.1), [samples.DECODE] * 2
    )
    assert odd.sanity is not None
    loose = msgspec.structs.replace(odd.sanity.provenance, protocol_sha256=None, protocol_id=None)
    odd = msgspec.structs.replace(odd, sanity=msgspec.structs.replace(odd.sanity, provenance=loose))
    text = " ".join(verdict.standing_sentences(ReportInput((odd, P01))))
    assert "P02 · C00 · saturation was SIMULATED" in text
    assert "scaled by 0.1" in text
    assert "analysed without a protocol" in text and "neither pass nor fail" in text
    assert "2 different protocols" in text


def test_mapping_disagreement_is_a_sentence() -> None:
    sentences = [plain(text) for text in verdict.mapping_sentences(SAMPLE)]
    assert sentences[0].startswith(
        "Under v1 in place of v2 (deciding), shares move by up to 7.5 pp: MoE GEMM gains"
    )
    assert verdict.mapping_notes(SAMPLE) == (
        "Every run: nvjet kernels are moe_gemm under v1 and dense_gemm under v2.",
    )
    assert any(
        "what leads depends on the mapping table" in text
        and "P03 · C00" in text
        and "attention (39.5 %) under v2 (deciding) and MoE GEMM" in text
        for text in sentences
    )


def test_headline_counts_and_names() -> None:
    text = verdict.headline(SAMPLE)
    assert text.startswith("5 runs of 4 patterns, 1 of them invalid.")
    assert "the windows disagree in P03 · C00 · saturation" in text


def test_ranking_change_is_answered_per_group_and_marked_as_supporting() -> None:
    sentences = [plain(text) for text in ranking.ranking_sentences(SAMPLE)]
    assert any(
        text.startswith("C00 · saturation: the order turns between P01 and P08. Under P01 MoE GEMM")
        and "permutation test (criterion 3) is not done" in text
        for text in sentences
    )
    assert "supporting evidence only" in sentences[-1]


def test_ranking_is_open_without_comparison_or_protocol() -> None:
    bare = msgspec.structs.replace(SAMPLE, comparison=None, comparison_reason="two attempts.")
    assert ranking.ranking_sentences(bare) == ("Not known: two attempts.",)
    assert SAMPLE.comparison is not None
    unbound = msgspec.structs.replace(SAMPLE.comparison, rule=None)
    (sentence,) = ranking.ranking_sentences(msgspec.structs.replace(SAMPLE, comparison=unbound))
    assert sentence.startswith("Not judged: no protocol is bound")
    other = msgspec.structs.replace(SAMPLE, comparison=unbound, protocol_trouble=("P01 was ...",))
    (sentence,) = ranking.ranking_sentences(other)
    assert sentence.startswith("Not judged: the runs were analysed under another protocol")
    assert "P01 was ..." in verdict.standing_sentences(other)


@pytest.mark.parametrize(
    ("accepted", "classifiable", "words"),
    [
        (True, True, "All four criteria are met"),
        (False, True, "The permutation test does not agree"),
        (None, True, "is not done"),
        (None, False, "Too much kernel time has no known family"),
    ],
)
def test_every_state_of_an_inversion_has_its_words(
    accepted: bool | None, classifiable: bool, words: str
) -> None:
    assert SAMPLE.comparison is not None
    row = next(row for row in SAMPLE.comparison.inversions if row.gap_criteria_met)
    changed = msgspec.structs.replace(row, accepted=accepted, classifiable=classifiable)
    assert words in ranking.inversion_sentence(changed)


def test_glossary_is_sorted_and_one_line_a_term() -> None:
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.lower)
    assert all(text.endswith(".") and "\n" not in text for text in GLOSSARY.values())
