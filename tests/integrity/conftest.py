"""What the scans of this folder look at: a private manifest of one prompt, a harmless campaign."""

from __future__ import annotations

from pathlib import Path

import pytest
from integrity_tree import LOG, SECRET, plant, write_manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_manifest(tmp_path / "private", [SECRET])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    plant(tmp_path / "campaign", LOG, "harmless")
    return tmp_path / "campaign"
