"""``opprof doctor --host``: the machine, from a file and as it is."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from opprof.cli.doctor import doctor
from opprof.errors import EnvironmentFailure, InputError
from opprof.host.cpu import NO_GPU, CpuHost
from opprof.host.fake_file import MACHINES, load_machine
from opprof.protocol import load_protocol


def run(*words: str) -> str:
    found = CliRunner().invoke(doctor, list(words), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_packaged_machine_fits_the_protocol() -> None:
    text = run("--host-file", "dash0")
    assert "dash0, looked at through fake (from a file: nothing of its GPUs is real)" in text
    assert text.count("NVIDIA H20 (fake)") == 8
    assert "placement      as protocol phase3's map says" in text
    assert "SM 345/1980 MHz" in text
    assert "none on these GPUs" in text


def test_a_map_for_this_machine_is_the_protocol_s_own(tmp_path: Path) -> None:
    bound = load_protocol("phase3")
    assert bound is not None
    placement = bound.file.placement
    found = tomllib.loads(run("--host-file", "dash0", "--cpu-map"))
    assert found["gpus"] == placement.gpus
    assert found["cpu_map"] == placement.cpu_map
    assert found["numa_nodes"] == placement.numa_nodes
    for gpus, reason in (("1-2", "counts its GPUs from 0"), ("8", "has no GPU 8")):
        words = ["--host-file", "dash0", "--cpu-map", "--gpus", gpus]
        told = CliRunner().invoke(doctor, words).exception
        assert isinstance(told, InputError)
        assert reason in str(told)


def test_for_programs() -> None:
    found = json.loads(run("--host-file", "dash0", "--gpus", "1,4-5", "--json"))
    assert [gpu["index"] for gpu in found["snapshot"]["gpus"]] == [1, 4, 5]
    assert found["placement_problems"] == []
    assert found["versions"]["driver"] == "000.00.fake"


def test_a_wrong_topology_is_told(tmp_path: Path) -> None:
    text = (MACHINES / "dash0.toml").read_text()
    path = tmp_path / "odd.toml"
    path.write_text(text.replace("numa_node = 1 }", "numa_node = 0 }", 1))
    told = run("--host-file", str(path))
    assert "GPU 4 is local to NUMA node 0, the protocol's map says 1" in told
    assert "placement " not in run("--host-file", str(path), "--protocol", "none")


def test_a_machine_without_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opprof.host.detect.open_real_host", lambda: CpuHost("plain"))
    text = run("--host")
    assert "plain, looked at through cpu" in text
    assert f"not available  gpus: {NO_GPU}" in text
    assert "versions.driver: no driver was asked" in text


def test_unusable_arguments_and_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    found = runner.invoke(doctor, ["--host-file", "dash0", "--gpus", "8"])
    assert isinstance(found.exception, InputError)
    found = runner.invoke(doctor, ["--host-file", "dash0", "--gpus", "x"])
    assert isinstance(found.exception, InputError)
    assert "--gpus 'x'" in str(found.exception)

    def gone() -> CpuHost:
        raise EnvironmentFailure("there is a GPU that cannot be asked")

    monkeypatch.setattr("opprof.host.detect.open_real_host", gone)
    found = runner.invoke(doctor, ["--host"])
    assert isinstance(found.exception, EnvironmentFailure)


def test_a_machine_without_gpus_says_what_to_do_instead_of_a_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = msgspec.structs.replace(load_machine("dash0"), gpus=[])
    monkeypatch.setattr("opprof.host.fake_file.load_machine", lambda _source: machine)
    found = CliRunner().invoke(doctor, ["--host-file", "dash0", "--cpu-map"]).exception
    assert isinstance(found, InputError)
    assert "dash0 has no GPU, so there is nothing to map" in found.reason
    assert "--host-file" in found.reason and "--no-cpu-masks" in found.reason
