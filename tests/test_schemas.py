"""The committed JSON Schemas say what the Structs say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_committed_schemas_match_the_structs() -> None:
    script = ROOT / "scripts" / "export_schemas.py"
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT / "schemas"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
