"""``opprof mapping check|show``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opprof.cli import main
from opprof.mapping import load_table


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["mapping", *arguments])
    output = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, output.out, output.err


def test_check_of_a_built_in_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "v1")
    assert code == 0
    assert load_table("v1").sha256 in out and out.endswith("ok\n")
    assert "moe_gemm.nvjet" in out


def test_check_of_a_broken_table_fails_and_says_where(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'schema = 1\nversion = "x"\ntitle = "x"\nprovenance = "x"\n[[rules]]\nid = "a"\n'
        'family = "attention"\npriority = 3\ndescription = "d"\nnames = ["flash"]\n'
        'examples = [{ name = "gemm" }]\n'
    )
    code, out, _ = run(capsys, "check", str(path))
    assert code == 1
    assert "error: a: example 'gemm' reaches no rule (other)" in out and "NOT OK" in out
    code, out, _ = run(capsys, "check", "--json", str(path))
    report = json.loads(out)
    assert code == 1 and report["ok"] is False
    assert report["rules"][0]["examples"][0]["rule"] is None


def test_check_of_a_missing_file_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "check", str(tmp_path / "no.toml"))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and "no.toml" in err and "E-INPUT" in err


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    name = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
    code, out, _ = run(capsys, "show", "v2", name, "memcpy128", "--scope", "vllm::moe_forward")
    assert code == 0
    assert "moe_gemm (priority 4) by rule moe_gemm.nvjet" in out
    assert "'vllm::moe_forward' found by" in out
    assert "other (priority 9): no rule matches" in out


def test_show_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "v1", "--json", "fused_moe_kernel")
    shown = json.loads(out)
    assert code == 0 and shown["sha256"] == load_table("v1").sha256
    assert shown["kernels"][0]["hit"]["family"] == "moe_gemm"
    assert shown["kernels"][0]["hit"]["name_match"] == "fused_moe"


def test_show_with_an_unknown_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", "v9", "x")
    assert code == 2 and "v9" in err
