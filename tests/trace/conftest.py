"""Shared by the tests of traces: a reader with fixed limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opprof.trace.model import TraceLimits, WindowTrace
from opprof.trace.window import read_window

LIMITS = TraceLimits(early_ns=1_000_000, horizon_ns=60 * 10**9, overrun_factor=100)


@pytest.fixture(scope="session")
def read() -> Callable[..., WindowTrace]:
    def reader(path: Path, **more: Any) -> WindowTrace:
        options: dict[str, Any] = {
            "expected_steps": range(2, 10),
            "limits": LIMITS,
            "layer_scope": re.compile(r"vllm::moe_forward$"),
        }
        return read_window(path, **(options | more))

    return reader
