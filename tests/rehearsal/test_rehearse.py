"""Whole small campaigns: planted truths come back, with their repeats."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from opprof.artifacts.rehearsal import Rehearsal
from opprof.cli.rehearse import rehearse as command
from opprof.engines.sim.seeds import run_seed
from opprof.errors import InputError, SchemaError, StateConflict
from opprof.protocol import load_protocol
from opprof.protocol.check import check_protocol
from opprof.rehearsal.repeats import rate
from opprof.rehearsal.truth import (
    NOTHING,
    Expectation,
    load_truth,
    planted_in,
    without_effects,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "rehearsal"
PATTERNS = ["P01", "P02", "P03", "P09"]
SHORT = {
    "warmup_s": "4",
    "clean_segment_s": "4",
    "recovery_s": "4",
    "recovery_rolling_s": "4",
    "recovery_zero_median_waiting_max": "65536",
    "warmup_completions_min": "1",
    "block_s": "1.0",
    "bin_s": "0.5",
    "bootstrap_resamples": "200",
    "null_draws": "20",
    "smd_max": "1000.0",
}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The twins protocol in seconds instead of minutes."""
    text = (EXAMPLES / "twins.toml").read_text()
    for key, value in SHORT.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    path = tmp_path_factory.mktemp("protocol") / "short.toml"
    path.write_text(text)
    return path


def run(arguments: Sequence[object]) -> tuple[int, str]:
    result = CliRunner().invoke(command, [str(item) for item in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_an_inversion_comes_back_with_its_repeats(short: Path, tmp_path: Path) -> None:
    truth = EXAMPLES / "truths" / "inversion.toml"
    out = tmp_path / "out"
    arguments = [short, "--truth", truth, "--seed", 3, "--repeat", 1, "--jobs", 1, "--out", out]
    code, text = run([*arguments, "--json"])
    report = msgspec.json.decode(text, type=Rehearsal)
    assert report.simulated and report.verdicts["H1a"].outcome == "CONFIRMED"
    assert code == 0 and report.expectation_missed == []
    assert len(report.runs) == 6 and all(run.accepted for run in report.runs), report.runs
    assert report.cost.gpu_hours > 0
    assert {row.gate for row in report.gates} >= {"representativeness", "recovery"}
    assert any(row.test == "gap P01/P02" and row.resolution for row in report.resolution)
    assert report.repeats is not None and report.repeats.recovered is not None
    assert report.repeats.recovered.count == report.repeats.repeats == 1
    decision = json.loads((out / "decision.json").read_bytes())
    assert decision["simulated"] is True and "simulated" in decision["label"]
    assert decision["label"].startswith("rehearsal of a draft protocol, nothing is registered")
    for file in ("client/timeline.json", "client/result.json", "environment.json"):
        assert json.loads((out / "runs" / report.runs[0].name / file).read_bytes())["simulated"]
    with pytest.raises(StateConflict):
        run(arguments)


def test_faults_are_found_and_the_output_says_simulated(short: Path, tmp_path: Path) -> None:
    truth = tmp_path / "faults.toml"
    text = (EXAMPLES / "truths" / "faults.toml").read_text().replace("step = 400", "step = 200")
    truth.write_text(text.replace("[500, 501]", "[100, 101]"))
    code, text = run([short, "--truth", truth, "--jobs", 1])
    assert code == 0 and "SIMULATED" in text and "refused" in text
    assert "H1b: INVALID" in text


@pytest.mark.parametrize("name", sorted(p.name for p in (EXAMPLES / "truths").glob("*.toml")))
def test_every_example_truth_is_readable(name: str) -> None:
    truth = load_truth(EXAMPLES / "truths" / name, PATTERNS, ["C00"])
    assert truth.file.name == name.removesuffix(".toml") and truth.sha256 is not None


@pytest.mark.parametrize("name", ["three-patterns.toml", "twins.toml"])
def test_example_protocols_are_sound(name: str) -> None:
    protocol = load_protocol(EXAMPLES / name)
    assert protocol is not None and check_protocol(protocol.file) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("schema = 1\nname = [", InputError),
        ('schema = 1\nname = "x"\nodd = 1\n', SchemaError),
        ('schema = 1\nname = "x"\n[[effects]]\nkind = "opaque_replays"\npatterns = ["P77"]\n',
         InputError),
        ('schema = 1\nname = "x"\n[[effects]]\nkind = "waste"\nwaste = "padding"\nsize = 2.0\n'
         "efficiency_loss = 0.0\n", SchemaError),
    ],
)  # fmt: skip
def test_unusable_truths(tmp_path: Path, text: str, error: type[Exception]) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(error):
        load_truth(path, PATTERNS)


def test_effects_act_where_they_are_planted() -> None:
    truth = load_truth(EXAMPLES / "truths" / "padding-with-loss.toml", PATTERNS)
    planted = planted_in(truth, "P09", "C00", "moderate", 0).effects
    other = planted_in(truth, "P01", "C00", "moderate", 0).effects
    assert planted.padding == 0.2 and planted.slowdown == pytest.approx(1 / 0.9)
    assert other.padding == 0.0 and other.slowdown == 1.0 and other.same_shares
    assert planted_in(NOTHING, "P01", "C00", "moderate", 0).effects.slowdown == 1.0


def test_runs_have_their_own_streams() -> None:
    assert run_seed(1, "a") != run_seed(1, "b") != run_seed(2, "b")
    assert run_seed(1, "a") == run_seed(1, "a")


def test_rates_carry_wilson_intervals() -> None:
    found = rate(5, 10)
    assert found.low is not None and found.high is not None
    assert found.low == pytest.approx(0.2366, abs=1e-3)
    assert found.high == pytest.approx(0.7634, abs=1e-3)
    assert rate(0, 0).share is None


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        ('kind = "slow_neighbour"\nfactor = inf', "finite"),
        ('kind = "slow_neighbour"\nfactor = 2.0\nfrom_s = 50.0\nto_s = 10.0', "after"),
        ('kind = "opaque_replays"\nconfigs = ["C77"]', "C77"),
    ],
)
def test_effects_that_cannot_act_are_refused(tmp_path: Path, effect: str, reason: str) -> None:
    path = tmp_path / "truth.toml"
    path.write_text(f'schema = 1\nname = "x"\n[[effects]]\n{effect}\n')
    with pytest.raises(InputError, match=reason):
        load_truth(path, PATTERNS, ["C00"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('failed_gates = ["recovery", "prefix_sharin"]', "'prefix_sharin'.* did you mean prefix_"),
        ('failed_gates = ["zzz"]', "'zzz', which does not exist$"),
        ('refused_runs = ["P01-C00-peak"]', "'P01-C00-peak', which is not planned"),
        ('quarantined_runs = ["P77-C00-moderate"]', "'P77-C00-moderate'"),
    ],
)
def test_expectations_that_nothing_can_meet_are_refused(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "truth.toml"
    path.write_text(f'schema = 1\nname = "x"\n[expect]\n{line}\n')
    with pytest.raises(InputError, match=reason):
        load_truth(path, PATTERNS, ["C00"])


@pytest.mark.parametrize("seed", ["-1", str(1 << 62), "9" * 30, "9" * 5000, "1.5", "nan"])
def test_seeds_that_no_artefact_can_hold_are_refused(seed: str) -> None:
    result = CliRunner().invoke(command, [str(EXAMPLES / "twins.toml"), "--seed", seed])
    assert result.exit_code == 2 and "'--seed'" in result.stderr
    assert "Traceback" not in result.output


def test_a_truth_of_no_effect_keeps_equal_shares_only() -> None:
    truth = load_truth(EXAMPLES / "truths" / "padding-with-loss.toml", PATTERNS)
    null = without_effects(truth)
    assert null is not None and [type(e).__name__ for e in null.file.effects] == ["SameShares"]
    assert null.file.expect == Expectation() and without_effects(NOTHING) is None
