"""A GPU machine never passes for one without GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvml_stub import StubNvml
from opprof.errors import EnvironmentFailure
from opprof.host.detect import has_nvidia_gpu, open_real_host


def nothing(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "dev").mkdir()
    return {"driver": tmp_path / "absent", "devices": tmp_path / "dev"}


def test_without_a_gpu_it_is_a_cpu_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert open_real_host("box", **nothing(tmp_path)).kind == "cpu"


def test_with_a_gpu_nvml_must_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = nothing(tmp_path)
    (places["devices"] / "nvidiactl").touch()
    (places["devices"] / "nvidia-uvm").touch()
    assert not has_nvidia_gpu(**places)
    (places["devices"] / "nvidia0").touch()
    assert has_nvidia_gpu(**places)
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(EnvironmentFailure, match="there is a GPU that cannot be asked"):
        open_real_host("box", **places)


def test_the_drivers_folder_tells_too(tmp_path: Path) -> None:
    places = nothing(tmp_path)
    places["driver"] = tmp_path / "gpus"
    places["driver"].mkdir()
    assert not has_nvidia_gpu(**places)
    (places["driver"] / "0000:1b:00.0").mkdir()
    assert has_nvidia_gpu(**places)


def test_where_nvml_answers_it_is_an_nvml_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opprof.host.nvml.import_pynvml", StubNvml)
    assert open_real_host("box", **nothing(tmp_path)).kind == "nvml"
