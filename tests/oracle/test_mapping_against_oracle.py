"""`opprof mapping show` and the oracle's own tables name the same family for every kernel seen."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from plain_families import family
from plain_trace import correlation, enclosing_ops, read_events

from opprof.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


def kernels_by_scopes(trace: Path) -> dict[tuple[str, ...], set[str]]:
    events = read_events(trace)
    calls = {correlation(c): c for c in events["cuda_runtime"] + events["cuda_driver"]}
    around = enclosing_ops(list(calls.values()), events["cpu_op"])
    found: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for kernel in events["kernel"]:
        call = calls.get(correlation(kernel))
        scoped = call is not None and "GraphLaunch" not in call["name"]
        scopes = tuple(op["name"] for op in around[correlation(kernel)]) if scoped else ()
        found[scopes].add(kernel["name"])
    return found


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, ...], set[str]]:
    """Every kernel of the real runs by its scopes, as the oracle reads them; for reading only."""
    found: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for trace in sorted(EXAMPLES.glob("*/traces/*.gz")):
        for scopes, names in kernels_by_scopes(trace).items():
            found[scopes] |= names
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_every_kernel_of_the_real_runs_with_its_scopes(
    version: str, seen: dict[tuple[str, ...], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sum(map(len, seen.values())) > 100
    different = []
    for scopes, names in seen.items():
        options = [text for scope in scopes for text in ("--scope", scope)]
        with pytest.raises(SystemExit) as ended:
            main(["mapping", "show", version, *sorted(names), *options, "--json"])
        assert ended.value.code == 0
        for row in json.loads(capsys.readouterr().out)["kernels"]:
            mine = family(row["name"], scopes, version)
            if row["hit"]["family"] != mine:
                different.append((row["name"], scopes, row["hit"]["family"], mine))
    assert different == []
