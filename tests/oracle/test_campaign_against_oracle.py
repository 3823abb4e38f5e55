"""Every number of `protocol show` and `campaign plan` against a plain second calculation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from plain_campaign import Plain, compare_design, compare_plan

from opprof.cli import main

PROTOCOLS = Path(__file__).parents[2] / "protocols"
FULL = (PROTOCOLS / "phase3.toml").read_text(encoding="utf-8")

CHANGES = {
    "as it is": {},
    "another order": {"execution_order = 20260713": "execution_order = 7"},
    "no windows": {"profile_windows = 2\n": "profile_windows = 0\n"},
    "four GPUs, one node each two": {
        "gpus = 8": "gpus = 4",
        '"0-19", "20-39", "40-59", "60-79", "80-99", "100-119", "120-139", "140-159"': (
            '"0-3", "4-7", "8-9", "10"'
        ),
        "numa_nodes = [0, 0, 0, 0, 1, 1, 1, 1]": "numa_nodes = [0, 0, 1, 1]",
    },
    "more on two GPUs": {
        'extra = [["P10", "C00-TP2"]]': (
            'extra = [["P10", "C00-TP2"], ["P01", "C00-TP2"], ["P02", "C00-TP2"]]'
        ),
    },
    "a small budget": {"gpu_hours_max = 16.0": "gpu_hours_max = 10.5"},
    "a budget that is the reservation": {
        "gpu_hours_max = 16.0": "gpu_hours_max = 2.0",
        "gpu_hours_used = 3.964": "gpu_hours_used = 1.3",
        "shutdown_timeout_s = 60": "shutdown_timeout_s = 50",
    },
    "confirmations in another order": {
        'patterns = ["P10", "P06", "P03", "P01"]   #': 'patterns = ["P02", "P11"]   #',
        "confirmation_s = 380": "confirmation_s = 401.5",
    },
}


def sound(text: str) -> str:
    """The protocol with [expected] and the estimates that its own tables imply."""
    design = Plain(text).design()
    head, mark, rest = text.partition("[expected]")
    for name, value in design.items():
        line = f"{name} = {float(value):g}"
        rest = re.sub(rf"^{name} = [0-9.]+$", line, rest, count=1, flags=re.M)
    text = head + mark + rest
    for name in ("gpu_hours", "wall_hours"):
        line = f"{name}_estimate = {float(design[name]):.3f}"
        text = re.sub(rf"^{name}_estimate = [0-9.]+", line, text, flags=re.M)
    return text


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    with pytest.raises(SystemExit):
        main([*words, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("serial", [False, True])
def test_design_and_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, serial: bool
) -> None:
    text = FULL
    for old, new in CHANGES[name].items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    text = sound(text)
    path, plain = tmp_path / "own.toml", Plain(text)
    path.write_text(text, encoding="utf-8")
    assert list(compare_design(plain, said(capsys, "protocol", "show", str(path)))) == []
    plan = said(capsys, "campaign", "plan", str(path), *(["--serial"] if serial else []))
    assert list(compare_plan(plain, plan, serial=serial)) == []


def test_the_specifications_own_numbers() -> None:
    design = Plain(FULL).design()
    assert [design[name] for name in ("patterns", "cells", "tp1_cells")] == [11, 24, 23]
    assert [design[name] for name in ("primary_runs", "measured_runs")] == [48, 52]
    assert [design[name] for name in ("windows", "trace_files", "primary_run_s")] == [96, 100, 488]
    assert [round(float(design[name]), 1) for name in ("wall_hours", "gpu_hours")] == [7.1, 7.4]
