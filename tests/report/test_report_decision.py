"""A decision on the page: from outcome to raw number, and honest beside other runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from opprof.artifacts.common import Gate
from opprof.artifacts.decision import Decision
from opprof.decision.decide import decide
from opprof.decision.facts import GateReach, RunFacts
from opprof.decision.planted import Plan, Truth, inverted, planted_facts, planted_provenance
from opprof.decision.write import write_decision
from opprof.errors import InputError, SchemaError
from opprof.files import sha256_bytes
from opprof.protocol import Protocol, load_protocol
from opprof.report import ReportInput, render
from opprof.report.blocks import Table, walk
from opprof.report.inputs import RunView
from opprof.report.load import decision_trouble, load_report, split_decision
from opprof.report.page import build_page

QUIET = Truth(share_noise=0.01, r64=0.1, drift=0.01)
FAMILIES = ["attention", "moe_gemm", "dense_gemm"]


def bound(*, partial: bool) -> Protocol:
    packaged = load_protocol("phase3")
    assert packaged is not None
    file = packaged.file
    statistics = msgspec.structs.replace(
        file.statistics, bootstrap_resamples=600, permutations=6000
    )
    file = msgspec.structs.replace(
        file,
        statistics=statistics,
        ranking=msgspec.structs.replace(file.ranking, families=FAMILIES),
        partial_matrix=file.partial_matrix if partial else None,
    )
    return replace(packaged, file=file)


def planted(*, partial: bool = False) -> tuple[Decision, list[RunFacts]]:
    protocol = bound(partial=partial)
    truths = {
        "P03": inverted(QUIET, "attention", "moe_gemm"),
        "P06": replace(QUIET, padding=0.25, slowdown=0.12),
    }
    every = {row.id: truths.get(row.id, QUIET) for row in protocol.file.patterns}
    facts = planted_facts(
        protocol.file,
        every,
        np.random.default_rng(1),
        plan=Plan(active_steps=6, bins=60, steps_a_bin=30),
        quarantined=[("P04", "C00", "moderate", "primary")],
    )
    at = next(i for i, item in enumerate(facts) if item.run.pattern == "P10")
    gate = Gate(
        "warmup_completions", "pass", "20 completions, stabilised", {"normalized_drift": 0.031}
    )
    facts[at] = replace(facts[at], gates=[GateReach(gate, "run")])
    return decide(facts, protocol, planted_provenance(), exploratory=False), facts


@pytest.fixture(scope="module")
def made() -> tuple[Decision, list[RunFacts]]:
    return planted()


def page_of(decision: Decision, facts: list[RunFacts] | None = None) -> ReportInput:
    views = tuple(RunView(kernels=item.kernels) for item in facts or [])
    return ReportInput(views, "Decided", decision=decision)


def table(report: ReportInput, ident: str) -> Table:
    for section in build_page(report).sections:
        for block in walk(section.blocks):
            if isinstance(block, Table) and block.ident == ident:
                return block
    raise AssertionError(f"no table {ident}")


def test_the_reader_can_follow_the_verdict_down_to_an_active_step(
    made: tuple[Decision, list[RunFacts]],
) -> None:
    decision, facts = made
    report = page_of(decision, facts)
    outcomes = table(report, "decision-outcomes")
    assert [row[1].text for row in outcomes.rows] == ["CONFIRMED"] * 3
    criteria = table(report, outcomes.rows[1][1].href[1:])
    assert [row[3].text for row in criteria.rows[:3]] == ["● met"] * 3
    met = table(report, criteria.rows[0][4].href[1:])
    accepted = decision.h1a.evidence.accepted
    assert len(met.rows) == len(accepted) > 0
    detail = met.rows[0][0].href[1:]
    windows, steps = table(report, detail), table(report, f"{detail}-steps")
    assert len(windows.rows) == 4
    assert len(steps.rows) == 4 * 6
    first = next(i for i in accepted if f"{i.pattern_p} / {i.pattern_q}" == met.rows[0][0].text)
    kernels = {item.run.name: item.kernels for item in facts}
    name = windows.rows[0][-1].text.split("/")[0]
    window = kernels[name].windows[0]
    a, b = (window.families[family].share for family in (first.family_a, first.family_b))
    assert windows.rows[0][4].sort == pytest.approx(100 * (a - b))
    assert windows.rows[0][4].sort == pytest.approx(100 * (first.gaps_p[0] or 0.0))
    assert steps.rows[0][-1].text == "kernels.json windows[0].steps[0]"
    assert steps.rows[0][6].sort == window.steps[0].families[first.family_a] / 1e6


def test_every_anchor_leads_somewhere_and_every_registered_comparison_is_listed(
    made: tuple[Decision, list[RunFacts]],
) -> None:
    decision, facts = made
    text = render(page_of(decision, facts))
    idents = re.findall(r'\bid="([^"]+)"', text)
    assert len(idents) == len(set(idents))
    assert set(re.findall(r'href="#([^"$]+)"', text)) <= set(idents)
    report = page_of(decision)
    for n in range(2):
        assert len(table(report, f"h1a-all-{n}").rows) == 55 * 3
    assert len(table(report, "h1b-metrics").rows) == 8 * 6
    metrics = table(report, "h1b-metrics").rows
    padding = next(
        r for r in metrics if (r[0].text, r[1].text) == ("P06 vs P02", "padding_fraction")
    )
    assert padding[11].text == "● met"
    assert "drain quarantined" in next(r for r in metrics if r[0].text == "P06 vs P04")[0].sub


def test_marks_evidence_of_p10_and_sanity_reach_the_page(
    made: tuple[Decision, list[RunFacts]],
) -> None:
    decision, _ = made
    text = render(page_of(decision))
    assert "SIMULATED" in text
    assert "simulated runs, no measurement" in text
    warm = table(page_of(decision), "decision-warmup").rows[0]
    assert (warm[0].text, warm[1].text) == ("P10-C00-moderate", "✓ pass")
    assert "normalized_drift: 0.031" in warm[3].sub
    states = table(page_of(decision), "decision-run-states").rows
    assert "drain quarantined" in next(r for r in states if r[0].text.startswith("P04"))[4].text
    parts = {row[0].text for row in table(page_of(decision), "sanity-decision").rows}
    assert parts == {"decision", *(f"mapping {name}" for name in decision.alternatives)}
    for other in decision.alternatives.values():
        assert other.sanity is not None and other.sanity.red_flags == []
        names = [family.name for family in other.sanity.families]
        assert names == ["gap", "permutation_p", "holm_p", "exact_p", "tau_b", "family_share"]
    for note in decision.notes:
        assert note.split(".")[0].replace("'", "&#39;") in text


def test_a_frozen_partial_matrix_lists_what_is_not_evaluable() -> None:
    decision, _ = planted(partial=True)
    text = render(page_of(decision))
    assert "NOT EVALUABLE: never zero" in text
    assert "H1a, P05: P05 is not in the frozen comparison (A-P3-7)" in text
    assert "H1b, P05 vs P01: fixed as NOT EVALUABLE (A-P3-7)" in text
    cells = table(page_of(decision), "decision-cells").rows
    assert cells[0][1].text.startswith("NOT EVALUABLE")


def test_runs_of_another_analysis_beside_a_decision_are_told(
    made: tuple[Decision, list[RunFacts]],
) -> None:
    from opprof.analysis.write import encode

    decision, facts = made
    views = tuple(RunView(kernels=item.kernels) for item in facts)
    (changed,) = decision_trouble(decision, views)
    assert "hash differs" in changed
    digests = {f"{i.run.name}/kernels.json": sha256_bytes(encode(i.kernels)) for i in facts}
    origin = msgspec.structs.replace(decision.provenance, inputs=digests)
    sound = msgspec.structs.replace(decision, provenance=origin)
    assert decision_trouble(sound, views) == ()
    (missing,) = decision_trouble(sound, views[1:])
    assert missing == "Not on this page: P01-C00-moderate."
    fewer = msgspec.structs.replace(sound, runs=sound.runs[1:])
    (more,) = decision_trouble(fewer, views)
    assert more == "Took no part in the decision: P01-C00-moderate."


def test_a_decision_is_found_as_a_file_in_a_folder_and_in_a_campaign(
    made: tuple[Decision, list[RunFacts]], tmp_path: Path
) -> None:
    decision, _ = made
    out, campaign = tmp_path / "out", tmp_path / "campaign"
    path = write_decision(decision, out)[-1]
    assert split_decision([out]) == ([], path)
    assert split_decision([path]) == ([], path)
    (campaign / "runs").mkdir(parents=True)
    (campaign / "campaign.json").write_text("{}")
    assert split_decision([campaign]) == ([campaign / "runs"], None)
    assert split_decision([campaign, path]) == ([campaign / "runs"], path)
    write_decision(decision, campaign)
    with pytest.raises(InputError, match="second decision"):
        split_decision([campaign, path])
    report = load_report([path], None, lambda _: (), title="x")
    assert report.decision == decision
    assert report.runs == ()
    (tmp_path / "broken.json").write_text('{"schema": 1}')
    with pytest.raises(SchemaError, match=r"broken\.json"):
        load_report([tmp_path / "broken.json"], None, lambda _: (), title="x")
