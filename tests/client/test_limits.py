"""What the system does not allow is told before the first request."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from opprof.client import limits
from opprof.errors import EnvironmentFailure

Set = list[tuple[int, int]]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Set:
    """A system of 1,000 local ports, and a process of 256 open files of at most 512."""
    ports, made = tmp_path / "range", Set()
    ports.write_text("32001\t33000\n")
    monkeypatch.setattr(limits, "_PORTS", ports)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: made.append(pair))
    return made


@pytest.mark.parametrize(("count", "raised"), [(192, []), (193, [(257, 512)]), (448, [(512, 512)])])
def test_the_limit_is_raised_as_far_as_needed(changed: Set, count: int, raised: Set) -> None:
    limits.allow_connections(count)
    assert changed == raised


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (449, "449 requests at once need 513 open files, this process may have 512"),
        (1001, "1001 requests at once need as many local ports, this system has 1000"),
    ],
)
def test_what_the_system_does_not_allow_is_told(changed: Set, count: int, reason: str) -> None:
    with pytest.raises(EnvironmentFailure, match=reason):
        limits.allow_connections(count)
    assert changed == []


def test_no_limit_and_no_range_allow_everything(
    changed: Set, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "_PORTS", tmp_path / "none")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    limits.allow_connections(64_512)
    assert changed == []
