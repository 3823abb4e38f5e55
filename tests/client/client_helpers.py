"""Paths and environment of child processes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "opprof_phase3_client.py"


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child: this checkout's sources, no key from outside."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "OPPROF_HEADERS"))}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **extra}
