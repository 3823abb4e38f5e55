"""What an attempt is made from is looked at before its load and after its checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from ray_builders import make_spec

from opprof.artifacts.common import Gate
from opprof.campaign import source_checks
from opprof.campaign.attempt import AttemptSpec
from opprof.campaign.gate_rules import fault_of, rule_of
from opprof.campaign.source_checks import sources_after, sources_before
from opprof.code_hash import code_sha256
from opprof.files import sha256_file

OTHER = "0" * 64


@pytest.fixture
def spec(tmp_path: Path) -> AttemptSpec:
    return make_spec(tmp_path, "here")


def leave(run: Path, spec: AttemptSpec, **changes: str) -> Path:
    """Write what client and analysis leave, with changed hashes at ``place__name``."""
    own = {"protocol_sha256": spec.source_hashes["protocol"], "code_sha256": code_sha256()}

    def origin(place: str) -> Mapping[str, str]:
        found = {k.split("__")[1]: v for k, v in changes.items() if k.startswith(f"{place}__")}
        return {**own, **found}

    (run / "client").mkdir(parents=True)
    (run / "analysis").mkdir()
    manifest = changes.get("manifest", spec.manifest_sha256)
    result = {"manifest_sha256": manifest, "metrics": origin("client"), "accepted": True}
    (run / "client" / "result.json").write_text(json.dumps(result))
    for name in ("layer1", "kernels", "waste", "sanity"):
        text = json.dumps({"provenance": {**origin(name), "inputs": {}}})
        (run / "analysis" / f"{name}.json").write_text(text)
    return run


def failed(gates: list[Gate]) -> str:
    (gate,) = gates
    assert (gate.name, gate.outcome) == ("hashes", "fail")
    rule = rule_of(gate)
    assert rule is not None and rule.condition == 1
    assert fault_of(gates) == "semantic"
    return gate.reason


def test_nothing_changed(spec: AttemptSpec, tmp_path: Path) -> None:
    assert sources_before(spec).outcome == "pass"
    assert sources_after(spec, leave(tmp_path / "run", spec)) == []
    assert sources_after(spec, tmp_path / "nothing") == [], "what is missing fails elsewhere"


@pytest.mark.parametrize("name", ["manifest", "protocol"])
def test_a_file_that_is_another_one_at_the_end(
    spec: AttemptSpec, tmp_path: Path, name: str
) -> None:
    run, path = leave(tmp_path / "run", spec), Path(getattr(spec, name))
    path.write_text("another one")
    assert f"{name} is {sha256_file(path)[:12]}" in failed(sources_after(spec, run))
    path.unlink()
    assert f"{name} is absent" in failed(sources_after(spec, run))


def test_sources_that_were_replaced_under_the_controller(
    spec: AttemptSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = leave(tmp_path / "run", spec)

    class Replaced:
        @staticmethod
        def __wrapped__() -> str:
            return OTHER

    monkeypatch.setattr(source_checks, "code_sha256", Replaced)
    assert "code is 000000000000" in failed(sources_after(spec, run))
    assert sources_before(spec).outcome == "fail"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("client__protocol_sha256", "protocol of client/result.json"),
        ("client__code_sha256", "code of client/result.json"),
        ("kernels__protocol_sha256", "protocol of analysis/kernels.json"),
        ("layer1__code_sha256", "code of analysis/layer1.json"),
        ("manifest", "manifest of client/result.json"),
    ],
)
def test_a_file_that_was_another_one_only_meanwhile(
    spec: AttemptSpec, tmp_path: Path, change: str, reason: str
) -> None:
    run = leave(tmp_path / "run", spec, **{change: OTHER})
    assert f"{reason} is 000000000000" in failed(sources_after(spec, run))


def test_a_result_that_is_bound_to_nothing(spec: AttemptSpec, tmp_path: Path) -> None:
    run = leave(tmp_path / "run", spec)
    path = run / "client" / "result.json"
    result = json.loads(path.read_text())
    del result["metrics"]["protocol_sha256"]
    path.write_text(json.dumps(result))
    assert "protocol of client/result.json is absent" in failed(sources_after(spec, run))
