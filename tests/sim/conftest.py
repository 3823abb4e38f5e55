"""Fixtures of the embedded engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sim_helpers import Bench

from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.effects import Effects


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    def make(*, effects: Effects | None = None, seed: int = 1, **settings: object) -> Bench:
        config = SimConfig(model="m", **settings)  # type: ignore[arg-type]
        return Bench(tmp_path, config, effects or Effects(), seed)

    return make
