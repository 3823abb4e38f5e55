"""`opprof analyze` as a user runs it: files, exit codes, messages, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "h200-runs"
P01 = RUNS / "P01-C00-saturation"
P09 = RUNS / "P09-C00-TP2-moderate"
ARTEFACTS = {"layer1.json", "kernels.json", "waste.json", "sanity.json"}


def opprof(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "OPPROF_PROTOCOL"}
    done = subprocess.run(
        [sys.executable, "-m", "opprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )
    assert "Traceback" not in done.stderr
    return done


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a real run whose files a test may damage."""
    target = tmp_path / "runs" / P01.name
    shutil.copytree(P01, target)
    return target


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analysed")
    done = opprof("analyze", P01, P09, "--out", out, "--jobs", 2)
    assert done.returncode == 1  # short collections fail the protocol's durations
    return out


def test_four_artefacts_are_written_with_their_hashes(analysed: Path) -> None:
    for run in (P01, P09):
        folder = analysed / run.name
        assert {path.name for path in folder.iterdir()} == ARTEFACTS
        origin = read(folder, "kernels")["provenance"]
        assert origin["protocol_id"] == "phase3"
        assert set(origin["inputs"]) >= {"client/timeline.json", "opprof/engine-0.jsonl"}
        for name in ARTEFACTS:
            assert read(folder, name.removesuffix(".json"))["provenance"] == origin


def test_the_known_fault_of_p09_is_found(analysed: Path) -> None:
    gates = {g["name"]: g for g in read(analysed / P09.name, "sanity")["gates"]}
    assert gates["prefix_sharing"]["outcome"] == "fail"
    assert gates["prefix_sharing"]["numbers"]["hit_ratio"] > 0.99
    assert gates["warmup_recorded"]["outcome"] == "fail"
    windows = read(analysed / P09.name, "kernels")["windows"]
    assert [(w["window"], w["rank"], w["accepted"]) for w in windows] == [
        (0, 0, True),
        (0, 1, True),
        (1, 0, True),
        (1, 1, True),
    ]


def test_shares_add_up_under_both_tables(analysed: Path) -> None:
    kernels = read(analysed / P01.name, "kernels")
    assert kernels["mapping_version"] == "v2"
    for window in kernels["windows"]:
        for under in (window, window["alternatives"]["v1"]):
            families = under["families"].values()
            assert sum(time["ns"] for time in families) == under["kernel_ns"]
            assert sum(time["share"] for time in families) == pytest.approx(1.0)
        assert sum(step["kernel_ns"] for step in window["steps"]) == window["kernel_ns"]
        assert [step["profiler_step"] for step in window["steps"]] == list(range(2, 10))


def test_the_number_of_workers_changes_no_byte(analysed: Path, tmp_path: Path) -> None:
    done = opprof("analyze", P01, "--out", tmp_path, "--jobs", 1)
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(P01.name)]
    # No replay was opaque: that is a share of zero, as in `opprof compare`, not an unknown one.
    assert [row[-1] for row in rows if "yes" in row] == ["0.0", "0.0"]
    for name in ARTEFACTS:
        assert (tmp_path / P01.name / name).read_bytes() == (
            analysed / P01.name / name
        ).read_bytes()


def test_without_a_protocol_gates_are_not_evaluable(tmp_path: Path) -> None:
    done = opprof("analyze", P01, "--out", tmp_path, "--protocol", "none")
    assert done.returncode == 0, done.stdout
    assert "protocol none" in done.stdout
    kernels = read(tmp_path / P01.name, "kernels")
    assert kernels["breakdown_valid"] is None
    assert kernels["provenance"]["protocol_sha256"] is None
    assert all(window["classifiable"] is None for window in kernels["windows"])
    outcomes = {g["name"]: g["outcome"] for g in read(tmp_path / P01.name, "sanity")["gates"]}
    assert outcomes["clean_duration"] == outcomes["classifiable"] == "not_evaluable"


def test_mapping_v1_decides_when_asked(tmp_path: Path) -> None:
    opprof("analyze", P01, "--out", tmp_path, "--mapping", "v1")
    kernels = read(tmp_path / P01.name, "kernels")
    assert kernels["mapping_version"] == "v1"
    assert list(kernels["alternatives"]) == ["v2"]
    assert kernels["windows"][0]["families"]["dense_gemm"]["ns"] == 0


def test_default_output_lies_in_the_run(run: Path) -> None:
    opprof("analyze", run)
    assert {path.name for path in (run / "analysis").iterdir()} == ARTEFACTS


def test_two_runs_of_one_name_collide(run: Path, tmp_path: Path) -> None:
    done = opprof("analyze", P01, run, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "collides with" in done.stderr
    assert not (tmp_path / "out").exists()


def test_another_runs_analysis_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert opprof("analyze", P01, "--out", out).returncode == 1
    before = {path: path.read_bytes() for path in (out / P01.name).iterdir()}
    (run / "client" / "timeline.json").write_text(
        (run / "client" / "timeline.json").read_text().replace('"P01"', '"P02"')
    )
    done = opprof("analyze", run, "--out", out)
    assert done.returncode == 2
    assert "holds the analysis of another run" in done.stderr
    assert before == {path: path.read_bytes() for path in (out / P01.name).iterdir()}
    # The same run may be analysed again, under another table.
    assert opprof("analyze", P01, "--out", out, "--mapping", "v1").returncode == 1
    assert read(out / P01.name, "kernels")["mapping_version"] == "v1"


def test_a_cut_trace_invalidates_its_window_and_no_other(run: Path, tmp_path: Path) -> None:
    trace = run / "traces" / "window0-rank0.pt.trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:-5000])
    done = opprof("analyze", run, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "window0-rank0.pt.trace.json.gz @ byte" in done.stderr
    first, second = read(tmp_path / "out" / run.name, "kernels")["windows"]
    assert first["accepted"] is False
    assert "trace_unreadable" in first["reasons"][0]
    assert second["accepted"] is True


def test_a_missing_trace_is_no_zero_time(run: Path, tmp_path: Path) -> None:
    (run / "traces" / "window1-rank0.pt.trace.json.gz").unlink()
    done = opprof("analyze", run, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "trace_missing" in done.stderr
    window = read(tmp_path / "out" / run.name, "kernels")["windows"][1]
    assert window["accepted"] is False
    assert window["families"] == {}


def test_a_profile_call_that_failed_invalidates_its_window(run: Path, tmp_path: Path) -> None:
    path = run / "client" / "timeline.json"
    timeline = json.loads(path.read_text())
    profile = next(i for i in timeline["intervals"] if i["kind"] == "profile")
    profile["http_status"] = [200, 500]
    path.write_text(json.dumps(timeline))
    assert opprof("analyze", run, "--out", tmp_path / "out").returncode == 1
    first, second = read(tmp_path / "out" / run.name, "kernels")["windows"]
    assert any("stop_profile 500" in reason for reason in first["reasons"])
    assert second["accepted"]


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("client/timeline.json", "{", "does not fit the schema"),
        ("client/timeline.json", None, "client/timeline.json is missing"),
        ("opprof/engine-0.jsonl", None, "opprof"),
        ("opprof/engine-0.jsonl", '{"type":"step"}\n', "engine-0.jsonl:1"),
    ],
)
def test_unusable_files_end_in_one_message(
    run: Path, tmp_path: Path, name: str, damage: str | None, message: str
) -> None:
    path = run / name
    path.unlink() if damage is None else path.write_text(damage)
    done = opprof("analyze", run, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_torn_line_invalidates_the_run_and_is_written_down(run: Path, tmp_path: Path) -> None:
    stream = run / "opprof" / "engine-0.jsonl"
    stream.write_bytes(stream.read_bytes()[:-40])
    assert opprof("analyze", run, "--out", tmp_path / "out").returncode == 1
    accounting = read(tmp_path / "out" / run.name, "layer1")["accounting"]
    assert accounting["valid"] is False
    assert any(reason.startswith("partial_last_line") for reason in accounting["reasons"])


def test_json_for_programs(tmp_path: Path) -> None:
    done = opprof("analyze", P01, "--out", tmp_path, "--json")
    listed = json.loads(done.stdout)
    assert listed[0]["run"]["name"] == "P01-C00-saturation"
    assert listed[0]["outcome"] == "fail"


def test_a_message_is_one_line_whatever_a_file_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a\nb\x1b[31m \udcff ü"
    folder.mkdir()
    done = opprof("analyze", folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "a\\nb\\x1b[31m \\udcff ü: no run directory" in done.stderr


@pytest.mark.parametrize("source", ["window1-rank0", "other run"])
def test_a_trace_in_another_windows_place_is_found(source: str, run: Path, tmp_path: Path) -> None:
    """Counts and distances of pure decode fit many traces; the wall clock fits one interval."""
    first, second = (run / f"traces/window{w}-rank0.pt.trace.json.gz" for w in (0, 1))
    foreign = RUNS / "P08-C00-saturation" / "traces" / first.name
    data = first.read_bytes(), (second if source == "window1-rank0" else foreign).read_bytes()
    first.chmod(0o644)
    second.chmod(0o644)
    first.write_bytes(data[1])
    if source == "window1-rank0":
        second.write_bytes(data[0])
    done = opprof("analyze", run, "--out", tmp_path / "out")
    assert done.returncode == 1
    windows = read(tmp_path / "out" / run.name, "kernels")["windows"]
    assert [w["accepted"] for w in windows] == [False, False]
    for window in windows:
        assert any(r.startswith("trace_clock_disagrees: ") for r in window["reasons"])


def test_a_table_may_not_take_the_name_of_another(run: Path, tmp_path: Path) -> None:
    """Else its figures would stand in the artefacts as those of the registered table."""
    builtin = ROOT / "src" / "opprof" / "mapping" / "tables" / "v2.toml"
    table = tmp_path / "mine.toml"
    table.write_text(builtin.read_text().replace('version = "v2"', 'version = "v1"'))
    done = opprof("analyze", run, "--out", tmp_path / "out", "--mapping", table)
    assert done.returncode == 2
    assert "mine.toml: calls itself 'v1', which is another table" in done.stderr
    table.write_text(builtin.read_text())
    assert opprof("analyze", run, "--out", tmp_path / "out", "--mapping", table).returncode == 1
