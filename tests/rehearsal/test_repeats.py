"""Repeats say what whole rehearsals under their seeds say, to the last digit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from opprof.artifacts.rehearsal import Rehearsal, Spread
from opprof.cli.rehearse import rehearse as command
from opprof.rehearsal.measures import spreads
from opprof.rehearsal.repeats import repeat_seed

SMALL = Path(__file__).parents[2] / "protocols" / "small.toml"
TOLERANCE = 1e-12
"""Relative. The two ways share every line of code: only the order of a sum may differ."""
SHORT = {
    "warmup_s": "2",
    "clean_segment_s": "2",
    "recovery_s": "2",
    "recovery_rolling_s": "2",
    "recovery_tolerance": "1000.0",
    "recovery_zero_median_waiting_max": "65536",
    "profile_windows": "2",
    "warmup_completions_min": "1",
    "block_s": "1.0",
    "bin_s": "0.5",
    "bootstrap_resamples": "100",
    "permutations": "200",
}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small protocol in seconds instead of minutes, with profiler windows."""
    text = SMALL.read_text()
    for key, value in SHORT.items():
        text, count = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
        assert count == 1, key
    path = tmp_path_factory.mktemp("protocol") / "short.toml"
    path.write_text(text)
    return path


def run(*arguments: object) -> Rehearsal:
    result = CliRunner().invoke(command, [*map(str, arguments), "--json"])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return msgspec.json.decode(result.stdout, type=Rehearsal)


def agrees(protocol: Path, *, count: int, jobs: int) -> Rehearsal:
    """Assert that repeats and whole rehearsals agree; return the report of the repeats."""
    report = run(protocol, "--seed", 4, "--repeat", count, "--jobs", jobs)
    repeats = report.repeats
    assert repeats is not None and len(repeats.rows) == count
    assert [row.seed for row in repeats.rows] == [repeat_seed(4, n) for n in range(count)]
    whole = [run(protocol, "--seed", row.seed, "--jobs", 1) for row in repeats.rows]
    for row, other in zip(repeats.rows, whole, strict=True):
        assert row.outcomes == {part: found.outcome for part, found in other.verdicts.items()}
        assert row.refused == [item.name for item in other.runs if not item.accepted]
        failing = {name for names in row.failed_gates.values() for name in names}
        assert failing == {gate.gate for gate in other.gates if gate.failed.count}
    equal(repeats.spread, spreads([other.measures for other in whole]))
    return report


def equal(found: dict[str, dict[str, Spread]], wanted: dict[str, dict[str, Spread]]) -> None:
    assert {run: set(values) for run, values in found.items()} == {
        run: set(values) for run, values in wanted.items()
    }
    for name, values in found.items():
        for metric, spread in values.items():
            other = wanted[name][metric]
            assert spread.count == other.count, (name, metric)
            assert spread.mean == pytest.approx(other.mean, rel=TOLERANCE), (name, metric)
            assert (spread.sd is None) == (other.sd is None), (name, metric)
            assert (spread.sd or 0.0) == pytest.approx(other.sd or 0.0, rel=TOLERANCE)


def test_repeats_agree_with_the_whole_path_with_windows(short: Path) -> None:
    report = agrees(short, count=1, jobs=1)
    assert report.repeats is not None
    for values in (report.measures, report.repeats.spread):
        names: Sequence[str] = sorted(values["chat-wide-moderate"])
        assert {"completed_rps", "E_token_per_ms", "graph_miss_rate"} <= set(names)
        assert {"mode_share.NONE", "share.attention", "share.moe_gemm"} <= set(names)


@pytest.mark.slow
def test_repeats_agree_with_the_whole_path_on_the_small_campaign() -> None:
    report = agrees(SMALL, count=3, jobs=2)
    assert report.repeats is not None
    spread = report.repeats.spread["chat-wide-saturation"]["completed_rps"]
    assert spread.sd is not None and spread.sd > 0


def test_a_spread_is_mean_and_sample_deviation() -> None:
    found = spreads([{"r": {"a": 1.0, "b": 5.0}}, {"r": {"a": 3.0}}])
    assert found["r"]["a"] == Spread(2, 2.0, pytest.approx(2**0.5))
    assert found["r"]["b"] == Spread(1, 5.0, None)
