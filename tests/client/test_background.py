"""A co-location background: loads until it is told to stop, drains, and is measured nowhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from client_helpers import SCRIPT, environment

from opprof.cli.run import run
from opprof.errors import InputError

Flags = Callable[..., list[str]]
BACKGROUND: dict[str, Any] = {
    "until_signal": True,
    "role": "colocation",
    "num_clean_segments": None,
    "clean_segment_seconds": None,
    "profile_after_clean": False,
    "num_profile_windows": None,
    "time_scale": 1.0,
}


def start(flags: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def wait_for_lines(folder: Path) -> None:
    give_up = time.monotonic() + 120
    path = folder / "requests.jsonl"
    while not (path.is_file() and path.read_bytes().count(b"\n") > 50):
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_told_background_drains_and_is_accepted(
    number: signal.Signals, tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "10")
    folder = tmp_path / "run" / "client"
    process = start(run_flags(manifest(40_000), server.url, folder, **BACKGROUND))
    wait_for_lines(folder)
    process.send_signal(number)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, output + errors
    result = json.loads((folder / "result.json").read_text())
    assert result["accepted"] and result["completed_rps"] is None
    timeline = json.loads((folder / "timeline.json").read_text())
    assert [each["kind"] for each in timeline["intervals"]] == ["warmup", "drain"]
    assert (timeline["role"], timeline["state"]) == ("colocation", "complete")
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert all(line["error"] is None for line in lines)
    told_ns = timeline["intervals"][0]["end_mono_ns"]
    assert max(line["admitted_mono_ns"] for line in lines) <= told_ns


def test_one_that_nobody_told_in_time_is_not_accepted(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "10")
    folder = tmp_path / "run" / "client"
    flags = run_flags(manifest(), server.url, folder, **{**BACKGROUND, "warmup_seconds": 1})
    process = start(flags)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    result = json.loads((folder / "result.json").read_text())
    assert not result["accepted"]
    assert any("not told to stop" in reason for reason in result["reasons"])


def test_a_background_that_runs_out_of_requests_is_not_accepted(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "2")
    folder = tmp_path / "run" / "client"
    process = start(run_flags(manifest(200), server.url, folder, **BACKGROUND))
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    reasons = json.loads((folder / "result.json").read_text())["reasons"]
    assert any("ran out of requests" in reason for reason in reasons)


def test_a_failed_request_of_a_background_is_not_accepted(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "10", "--faults", json.dumps({"30": "http_500"}))
    folder = tmp_path / "run" / "client"
    process = start(run_flags(manifest(40_000), server.url, folder, **BACKGROUND))
    wait_for_lines(folder)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    reasons = json.loads((folder / "result.json").read_text())["reasons"]
    assert any("1 requests failed: http_500" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": None}, "role colocation"),
        ({"load_point": "moderate"}, "co-location background|moderate needs"),
        ({"num_profile_windows": 1, "profile_after_clean": True}, "neither clean segments"),
        ({"num_clean_segments": 3}, "neither clean segments"),
        ({"warmup_seconds": None}, "needs --warmup-seconds"),
        ({"warmup_seconds": 0}, "needs --warmup-seconds"),
    ],
)
def test_meaningless_combinations_are_refused(
    changes: dict[str, Any], text: str, tmp_path: Path, manifest: Any, run_flags: Flags
) -> None:
    flags = run_flags(manifest(), "http://127.0.0.1:1", tmp_path / "c", **{**BACKGROUND, **changes})
    outcome = CliRunner().invoke(run, flags[1:])
    assert isinstance(outcome.exception, InputError), outcome
    assert any(part in str(outcome.exception) for part in text.split("|"))
