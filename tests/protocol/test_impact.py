"""Which runs a change touches, and when a campaign may take an amendment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from opprof.artifacts.run import LoadPoint, Role
from opprof.campaign.plan import planned_runs
from opprof.cli.protocol_change import diff_command
from opprof.protocol import Protocol
from opprof.protocol.amend import Request, amend_protocol
from opprof.protocol.design import cells
from opprof.protocol.freeze import Approvals, Installation, freeze_protocol
from opprof.protocol.impact import check_amendment, impact
from opprof.protocol.load import packaged_path, parse_protocol

TEXT = packaged_path().read_text()
DATE = "2026-11-30"
HERE = Installation("1", "1" * 64, "2" * 64, "3" * 64, "4" * 64, {"v1": "5" * 64, "v2": "6" * 64})


@dataclass(frozen=True)
class Run:
    run: str
    pattern: str
    config: str
    load_point: LoadPoint = "moderate"
    role: Role = "primary"


P01 = Run("P01-C00-moderate", "P01", "C00")
P01_SATURATION = Run("P01-C00-saturation", "P01", "C00", "saturation")
P10 = Run("P10-C01-saturation", "P10", "C01", "saturation")
P10_C10 = Run("P10-C10-moderate", "P10", "C10")
CONFIRMATION = Run("P10-C00-moderate-confirmation", "P10", "C00", "moderate", "confirmation")
BURNIN = Run("P06-C10-saturation-burnin", "P06", "C10", "saturation", "burnin")
RUNS = [P01, P01_SATURATION, P10, P10_C10, CONFIRMATION, BURNIN]
SHORTER_COMMAND = (
    "patterns.P10.manifest",
    "materialize-private --id P10 --max-input-tokens 32768 --output-cap 64 --arrival steady",
)


@pytest.fixture(scope="module")
def base() -> Protocol:
    draft = parse_protocol(TEXT.encode(), source="draft.toml")
    data = freeze_protocol(draft, Approvals(), date=DATE, here=HERE)
    return parse_protocol(data, source="frozen.toml")


def amended(base: Protocol, *pairs: tuple[str, str], rejudge: bool = False) -> Protocol:
    request = Request("A-X", f"t{len(base.file.amendments)}", "r", DATE, pairs, rejudge)
    return parse_protocol(amend_protocol(base, request, here=HERE), source="amended.toml")


@pytest.mark.parametrize(
    ("key", "value", "touched", "rejudgeable"),
    [
        ("patterns.P10.drain_budget_s", "700", [P10, P10_C10, CONFIRMATION], True),
        ("patterns.P10.output", "trace-capped:64", [P10, P10_C10, CONFIRMATION], False),
        ("patterns.P02.warmup_rule", "completions_or_stabilized", [], True),
        ("configs.C10.max_num_seqs", "128", [P10_C10, BURNIN], False),
        ("configs.C10.purpose", "x", [], False),
        ("gates.warmup_stabilized_drift_max", "0.2", RUNS[:-1], True),
        ("gates.drain_watchdog_s", "900", RUNS[:-1], False),
        ("timeline.warmup_s", "90", RUNS[:-1], False),
        ("timeline.profile_window_fallback_s", "9", [P01, P01_SATURATION, P10, P10_C10], False),
        ("representativeness.smd_max", "0.3", [P01, P01_SATURATION, P10, P10_C10], True),
        ("load.moderate_rate_fraction", "0.5", [P01, P10_C10, CONFIRMATION], False),
        ("load.saturation_max_concurrency", "128", RUNS, False),
        ("pinned.hardware", "NVIDIA H200", RUNS, False),
        ("seeds.execution_order", "1", [], False),
        ("seeds.statistics", "1", RUNS[:-1], True),
        ("load.primary_config", "C10", RUNS[:-1], True),
        ("h1b.thresholds.R64", "0.3", RUNS[:-1], True),
        ("burnin.seconds", "30", [BURNIN], False),
        ("confirmations.load_point", "saturation", [CONFIRMATION], False),
        ("placement.gpus", "9", [], False),
        ("budget.gpu_hours_max", "20.0", [], False),
    ],
)
def test_which_runs_a_key_touches(
    base: Protocol, key: str, value: str, touched: list[Run], rejudgeable: bool
) -> None:
    pairs = [(key, value)]
    if key == "placement.gpus":
        pairs += [
            ("placement.cpu_map", str([f"{n}-{n}" for n in range(9)])),
            ("placement.numa_nodes", str([0] * 9)),
        ]
    if key == "timeline.warmup_s":
        pairs += [("expected.primary_run_s", "518"), ("budget.wall_hours_estimate", "7.5")]
        pairs += [("budget.gpu_hours_estimate", "7.85"), ("budget.confirmation_s", "410")]
    if key == "patterns.P10.output":
        pairs += [SHORTER_COMMAND]
    if key == "configs.C10.max_num_seqs":
        pairs += [("configs.C10.flags", '["--max-num-seqs", "128"]')]
    if key == "burnin.seconds":
        pairs += [("budget.gpu_hours_estimate", "7.4")]
    found = impact(base.file, amended(base, *pairs).file)
    [touch] = [touch for touch in found.touches if touch.change.key == key]
    assert [run for run in RUNS if touch.touches(run)] == touched
    assert touch.rejudgeable is rejudgeable or not touched


def test_only_runs_that_are_planned_are_named(base: Protocol) -> None:
    """A cell has not every role, and a role not every load point."""
    planned = {(r.pattern, r.config, r.load_point, r.role) for r in planned_runs(base.file)}
    new = amended(base, ("pinned.hardware", "NVIDIA H200"), ("load.moderate_rate_fraction", "0.5"))
    both, moderate = (touch.runs for touch in impact(base.file, new.file).touches)
    kinds = {(r.pattern, r.config, r.load_point, r.role) for r in both}
    assert {kind for kind in kinds if kind[3] != "colocation"} == planned
    rule = base.file.colocation
    assert rule is not None
    assert {kind for kind in kinds if kind[3] == "colocation"} == {
        (rule.pattern, rule.config, "moderate", "colocation"),
        *(
            (p, rule.config, "saturation", "colocation")
            for p in {rule.pattern, *rule.backgrounds_eight}
        ),
    }
    assert moderate == {run for run in both if run.load_point == "moderate"}


@pytest.mark.parametrize(
    ("pair", "touches"),
    [
        (("patterns.P02.drain_budget_s", "240"), "primary of P02/C00, colocation of P02/C00"),
        (
            ("patterns.P10.drain_budget_s", "700"),
            "primary of P10/C00 P10/C00-TP2 P10/C01 P10/C10 P10/C11, confirmation of P10/C00",
        ),
        (
            ("load.moderate_rate_fraction", "0.5"),
            "primary (moderate) of all cells, confirmation of all cells, "
            "colocation (moderate) of P05/C00",
        ),
        (("burnin.seconds", "61"), "burnin of all cells"),
    ],
)
def test_what_diff_and_amend_say(
    base: Protocol, pair: tuple[str, str], touches: str, tmp_path: Path
) -> None:
    old, out = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_bytes(base.data)
    out.write_bytes(amended(base, pair).data)
    said = CliRunner().invoke(diff_command, [str(old), str(out)])
    assert f"; touches {touches}; " in said.output
    [change] = json.loads(CliRunner().invoke(diff_command, [str(old), str(out), "--json"]).output)[
        "changes"
    ]
    found = {(run["load_point"], run["role"]) for run in change["runs"]}
    assert {load for load, _ in found} == set(change["load_points"])
    assert {role for _, role in found} == set(change["roles"])


def test_cells_that_came_or_went_are_touched(base: Protocol) -> None:
    new = amended(
        base,
        ("cells.sentinel_patterns", "['P01', 'P03', 'P06']"),
        ("expected.cells", "21"),
        ("expected.tp1_cells", "20"),
        ("expected.primary_runs", "42"),
        ("expected.measured_runs", "46"),
        ("expected.windows", "84"),
        ("expected.trace_files", "88"),
        ("budget.wall_hours_estimate", "6.3"),
        ("budget.gpu_hours_estimate", "6.6"),
    )
    found = impact(base.file, new.file)
    assert found.cells == {("P10", "C10"), ("P10", "C01"), ("P10", "C11")}
    assert found.cells == set(cells(base.file)) - set(cells(new.file))
    assert found.roles == {"primary"}
    assert not found.rejudgeable


def test_an_amendment_of_cells_not_yet_run_is_taken(base: Protocol) -> None:
    new = amended(base, ("patterns.P10.output", "trace-capped:64"), SHORTER_COMMAND)
    assert check_amendment(base, new, [P01, P01_SATURATION, BURNIN]) == []
    assert check_amendment(base, new, [P01, P10]) == [
        f"patterns.P10.{key} touches what has begun (P10-C01-saturation), and kept data cannot "
        "answer it"
        for key in ("output", "manifest")
    ]


def test_a_refusal_says_a_key_once_and_names_three_runs(base: Protocol) -> None:
    new = amended(base, ("gates.classifiable_min", "0.75"))
    runs = [P01, P01_SATURATION, P10, P10_C10]
    [problem] = check_amendment(base, new, runs)
    named = ", ".join(run.run for run in runs[:3])
    assert f"touches what has begun ({named} and 1 more)" in problem


def test_completed_runs_are_judged_again_only_on_purpose(base: Protocol) -> None:
    pair = ("patterns.P10.drain_budget_s", "700")
    assert check_amendment(base, amended(base, pair), [P01, P10]) == [
        "patterns.P10.drain_budget_s touches what has begun (P10-C01-saturation); amend with "
        "--rejudge to judge it again"
    ]
    assert check_amendment(base, amended(base, pair, rejudge=True), [P01, P10]) == []


def test_rejudging_does_not_admit_what_kept_data_cannot_answer(base: Protocol) -> None:
    new = amended(base, ("load.moderate_rate_fraction", "0.5"), rejudge=True)
    assert check_amendment(base, new, [P01_SATURATION]) == []
    [problem] = check_amendment(base, new, [P01_SATURATION, P01])
    assert "kept data cannot answer it" in problem


def test_only_the_next_links_of_the_chain_replace_a_protocol(base: Protocol) -> None:
    first = amended(base, ("gates.classifiable_min", "0.75"))
    second = amended(first, ("gates.classifiable_min", "0.8"))
    assert check_amendment(base, second, []) == []
    assert check_amendment(first, second, []) == []
    assert "nothing is amended" in check_amendment(first, first, [])[0]
    other = amended(base, ("pinned.hardware", "NVIDIA H200"))
    assert "does not amend the protocol in force" in check_amendment(other, second, [])[0]
    assert "does not amend the protocol in force" in check_amendment(second, first, [])[0]
    draft = parse_protocol(TEXT.encode(), source="draft.toml")
    assert check_amendment(base, draft, []) == ["the amended protocol is a draft"]
    touched = second.data.replace(b"smd_max = 0.25", b"smd_max = 0.75")
    [problem] = check_amendment(base, parse_protocol(touched, source="x.toml"), [])
    assert "its seal does not fit" in problem
