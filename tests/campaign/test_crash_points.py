"""A small version of the crash harness; `make crash` kills 200 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("crash_harness.py")


@pytest.mark.slow
def test_a_campaign_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    command = [sys.executable, str(HARNESS), "--work", str(tmp_path), "--kills", "16"]
    done = subprocess.run([*command, "--points-only", "8"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 kills" in done.stdout
    killed = {line[:24].strip(): int(line[24:32]) for line in done.stdout.splitlines()[-8:-3]}
    assert killed.pop("controller at a point") == 8
    assert killed == {"controller": 2, "server": 2, "client": 2, "whole group": 2}
    assert "0 problems" in done.stdout
