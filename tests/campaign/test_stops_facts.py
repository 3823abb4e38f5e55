"""Facts from run directories, the table of gates, the class of a fault, and real runs."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import msgspec
import pytest

import opprof.client
from opprof.analysis.gates import CATALOGUE
from opprof.analysis.run import analyze_run
from opprof.artifacts.common import Gate
from opprof.campaign.facts import RunFacts, facts_of
from opprof.campaign.gate_rules import RULES, fault_of
from opprof.campaign.stops import judge_run
from opprof.errors import InputError, SchemaError
from opprof.protocol import load_protocol

PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None
FILE = PROTOCOL.file
ROOT = Path(__file__).parents[2]
PLUGIN_RUNS = ROOT / "examples" / "h200-plugin-runs"
OTHER_RUNS = ROOT / "examples" / "h200-runs"


def gate(name: str, outcome: str = "fail") -> Gate:
    return Gate(name=name, outcome=outcome, reason="because")  # type: ignore[arg-type]


def client_gate_names() -> set[str]:
    """Names that the client gives its gates, read from its source."""
    names = set()
    for path in sorted(Path(opprof.client.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            values = [word.value for word in node.keywords if word.arg == "name"]
            if node.func.id == "_absent":
                values = node.args[:1]
            if node.func.id in ("Gate", "_absent"):
                names |= {v.value for v in values if isinstance(v, ast.Constant)}
    return {name for name in names if isinstance(name, str)}


def test_every_gate_has_a_row() -> None:
    client = client_gate_names()
    assert {"timeline", "warmup", "clean_requests", "recovery", "drain", "client_lag"} <= client
    assert set(CATALOGUE) | client <= set(RULES)


def test_rows_are_sound() -> None:
    for name, rule in RULES.items():
        assert rule.condition is None or 1 <= rule.condition <= 10, name
        assert rule.explained_by <= set(RULES), name
        assert not rule.explained_by or rule.fault == "semantic", name
        assert rule.fault or rule.condition is None, name
    used = {rule.condition for rule in RULES.values()} - {None}
    assert used == {1, 2, 3, 4, 5, 6, 7, 8, 10}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["drain_quarantine", "time_scale"], ""),
        (["window_integrity"], "infrastructure"),
        (["representativeness", "recovery"], "infrastructure"),
        (["request_failures"], "semantic"),
        (["request_failures", "server_health"], "infrastructure"),
        (["offered_rate"], "semantic"),
        (["offered_rate", "client_cpu"], "infrastructure"),
        (["offered_rate", "client_cpu", "token_counts"], "semantic"),
        (["effective_config", "server_health"], "semantic"),
        (["of_a_newer_release"], "semantic"),
    ],
)
def test_the_class_of_a_fault(names: list[str], expected: str) -> None:
    assert fault_of([gate(name) for name in names] + [gate("join", "pass")]) == expected


def small_run(folder: Path) -> Path:
    source = PLUGIN_RUNS / "P03-C00-saturation"
    shutil.copytree(source / "client", folder / "client")
    return folder


def test_facts_of_a_client_without_an_analysis(tmp_path: Path) -> None:
    facts = facts_of(small_run(tmp_path / "run"), gates=[gate("gpu_idle", "pass")])
    assert facts.run == "P03-C00-saturation"
    assert facts.measured
    assert facts.missing == ["analysis/sanity.json"]
    assert facts.time_scale == 0.3
    assert {"timeline", "clean_requests", "gpu_idle"} <= {g.name for g in facts.gates}
    assert not facts.clean_failure


def test_a_folder_without_a_timeline_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="timeline"):
        facts_of(tmp_path)


def test_a_client_that_was_killed_leaves_its_gaps(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "client" / "result.json").unlink()
    (folder / "client" / "sanity.json").unlink()
    facts = facts_of(folder)
    assert facts.missing == ["client/result.json", "client/sanity.json", "analysis/sanity.json"]
    assert (facts.accepted, facts.drain_quarantined) == (None, None)
    assert judge_run(facts, FILE, wall_ns=0) == []


def test_a_damaged_artefact_is_a_red_flag_and_hides_no_other(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "client" / "result.json").write_text("{}")
    (folder / "analysis").mkdir()
    (folder / "analysis" / "sanity.json").write_bytes(b"{")
    facts = facts_of(folder)
    assert "clean_requests" in {gate.name for gate in facts.gates}
    assert [flag.split(": ")[:2] for flag in facts.red_flags] == [
        ["damaged", "client/result.json"],
        ["damaged", "analysis/sanity.json"],
    ]
    assert facts.missing == []
    assert [stop.condition for stop in judge_run(facts, FILE, wall_ns=0)] == [10]


def test_a_damaged_timeline_is_an_error(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    (folder / "client" / "timeline.json").write_text("{}")
    with pytest.raises(SchemaError, match=r"timeline\.json"):
        facts_of(folder)


def test_of_a_finished_analysis_its_sanity_is_enough(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    analysis = analyze_run(PLUGIN_RUNS / "P03-C00-saturation", load_protocol("phase3"))
    (folder / "analysis").mkdir()
    (folder / "analysis" / "sanity.json").write_bytes(msgspec.json.encode(analysis.sanity))
    assert facts_of(folder) == facts_of(folder, analysis=analysis)


def judged(folder: Path) -> tuple[RunFacts, dict[int, str]]:
    facts = facts_of(folder, analysis=analyze_run(folder, PROTOCOL))
    return facts, {stop.condition: stop.reason for stop in judge_run(facts, FILE, wall_ns=0)}


def test_a_bundled_run_of_the_plugin() -> None:
    """A short collection at a time scale: its clean interval has not the protocol's length."""
    facts, found = judged(PLUGIN_RUNS / "P03-C00-saturation")
    assert set(found) == {10}
    assert found[10].startswith("clean_duration: 24.3 clean seconds, 72 asked for")
    assert facts.missing == []
    assert facts.unrepresentative


def test_a_run_under_another_configuration_than_its_name_says() -> None:
    """Its timeline says C00, its server ran two ranks."""
    _, found = judged(PLUGIN_RUNS / "P01-C00-TP2-saturation")
    assert "tensor_parallel_size 2, declared 1" in found[1]


def test_a_stale_prefix_cache_is_condition_ten() -> None:
    facts, found = judged(OTHER_RUNS / "P09-C00-TP2-moderate")
    assert set(found) == {10}
    assert "prefix_sharing: clean hit ratio 99.48%, must be below 1%" in found[10]
    assert fault_of(facts.gates) == "semantic"
