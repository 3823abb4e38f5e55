"""``opprof decide`` over the bundled real runs: exploratory, invalid by its gates, all listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opprof.cli import main

RUNS = Path(__file__).parents[2] / "examples" / "h200-runs"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_real_runs_end_invalid_and_their_inversions_are_explored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(RUNS / name) for name in ("P03-C00-saturation", "P08-C00-saturation")]
    assert run("decide", *runs, "--out", str(tmp_path), "--jobs", "1") == 0
    shown = capsys.readouterr().out
    assert "exploratory" in shown
    raw = json.loads((tmp_path / "decision.json").read_text())
    # No run at the primary load point was given: nothing is invalid, nothing can be concluded.
    assert raw["H1a"]["outcome"] == "INCONCLUSIVE"
    assert raw["compound"]["outcome"] == "INCONCLUSIVE"
    assert raw["exploratory"] is True
    assert len(raw["inversions"]) == 55 * 36
    assert set(raw["explored"]) == {"v1", "v2"}
    for version, found in raw["explored"].items():
        assert len(found) == 36, version
        assert all(item["permutation_p"] is not None for item in found)
        assert all(item["accepted"] is None for item in found)
    # Sampler and unmapped time change places, by far less than five points.
    turned = [
        item
        for item in raw["explored"]["v2"]
        if all(gap > 0 for gap in item["gaps_p"] + item["gaps_q"])
    ]
    assert [(i["family_a"], i["family_b"]) for i in turned] == [("sampler", "other")]
    assert turned[0]["gap_criteria_met"] is False


def test_a_run_at_the_primary_load_point_that_fails_its_gates_is_invalid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("decide", str(RUNS / "P03-C00-moderate"), "--json") == 1
    raw = json.loads(capsys.readouterr().out)
    assert raw["compound"]["outcome"] == "INVALID"
    assert any("clean_duration" in reason for reason in raw["H1a"]["reasons"] + raw["runs"][0][
        "invalid_reasons"])  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decide", "nowhere"], "no such folder"),
        (["decide", str(RUNS / "P03-C00-moderate"), "--protocol", "none"], "needs a protocol"),
    ],
)
def test_unusable_input_is_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
