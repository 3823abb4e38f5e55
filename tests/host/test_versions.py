"""Versions of this interpreter and of another one, without importing what they name."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import msgspec
import pytest

from opprof.campaign.processes import ProcessTable
from opprof.errors import EnvironmentFailure
from opprof.host import version_probe
from opprof.host.versions import versions


def test_this_interpreter() -> None:
    found, reasons = versions(("580.159.04", "13.0"))
    assert found.python == platform.python_version()
    assert found.msgspec == msgspec.__version__
    assert (found.driver, found.cuda_driver) == ("580.159.04", "13.0")
    assert found.kernel == platform.release()
    for name in ("vllm", "torch", "cuda_runtime", "nccl"):
        assert (getattr(found, name) is None) == (name in reasons)
    assert "torch" not in sys.modules


def install(folder: Path) -> dict[str, str]:
    """A site folder with packages of which only their version files may be read."""
    for package, file, text in (
        ("vllm", "_version.py", "__version__ = version = '0.24.0'\n"),
        (
            "torch",
            "version.py",
            "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: str | None = None\n",
        ),
    ):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise SystemExit('imported')\n")
        (folder / package / file).write_text(text)
    return os.environ | {"PYTHONPATH": str(folder)}


def test_another_interpreter_is_asked_without_importing_anything(tmp_path: Path) -> None:
    environment = install(tmp_path / "site")
    found, reasons = versions((None, None), python=sys.executable, environment=environment)
    assert (found.vllm, found.torch, found.cuda_runtime) == ("0.24.0", "2.11.0+cu130", "13.0")
    assert set(reasons) >= {"driver", "cuda_driver"}


def test_a_build_without_cuda(tmp_path: Path) -> None:
    environment = install(tmp_path / "site")
    (tmp_path / "site" / "torch" / "version.py").write_text(
        "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n"
    )
    found, reasons = versions((None, None), python=sys.executable, environment=environment)
    assert found.torch == "2.11.0+cpu"
    assert "built without CUDA" in reasons["cuda_runtime"]


def test_an_interpreter_that_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot start"):
        versions((None, None), python=str(tmp_path / "absent"))
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho nothing\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match="exit status 3"):
        versions((None, None), python=str(script))
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(EnvironmentFailure, match=r"within 0\.2 s"):
        versions((None, None), python=str(script), timeout_s=0.2)


def test_what_an_interpreter_leaves_behind_is_ended_and_holds_nothing_up(tmp_path: Path) -> None:
    script, left = tmp_path / "python", tmp_path / "left"
    text = f'#!/bin/sh\nsleep 60 &\necho $! > "{left}"\nexec "{sys.executable}" "$@"\n'
    script.write_text(text)
    script.chmod(0o755)
    found, _ = versions((None, None), python=str(script), timeout_s=30)
    assert found.python == platform.python_version()
    pid, give_up = int(left.read_text()), time.monotonic() + 300
    while (seen := ProcessTable().look(pid)) is not None and seen.state != "Z":
        assert time.monotonic() < give_up, "it lives on"
        time.sleep(0.01)


def test_noise_before_the_answer_is_no_harm(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho hello\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    found, _ = versions((None, None), python=str(script))
    assert found.python == platform.python_version()


def test_the_probe_needs_the_standard_library_only() -> None:
    text = Path(version_probe.__file__).read_text()
    assert "from opprof" not in text
    assert "import opprof" not in text
