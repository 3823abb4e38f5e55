"""The fit check on small fake packages, activation, the import hook and ``opprof doctor``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from opprof.cli.doctor import doctor
from opprof.engines.vllm import fit, importhook, plugin, register
from opprof.engines.vllm.fit import TestedVersion, check, hash_seams, load_table, read_version
from opprof.engines.vllm.seams import SEAMS, Seam

SOURCE = '''
class Scheduler:
    """A class."""

    @decorated
    def schedule(self):
        return 1

    def other(self):
        return 2


def free():
    return 3
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    seams = (
        Seam("core.py", "Scheduler.schedule", "hook", "a step begins"),
        Seam("core.py", "free", "read", "something"),
        Seam("old.py", "gone", "hook", "old versions", ("0.1",)),
    )
    monkeypatch.setattr(fit, "SEAMS", seams)
    monkeypatch.setattr("opprof.engines.vllm.seams.SEAMS", seams)
    root = tmp_path / "site" / "vllm"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (root / "_version.py").write_text("__version__ = version = '9.8.7+cpu'\n")
    (root / "core.py").write_text(SOURCE)
    return root


def table_of(root: Path) -> dict[str, TestedVersion]:
    hashes = fit.scan(root, "9.8.7", None)
    return {"9.8.7": TestedVersion(how="here", files={"core.py": "0" * 64}, seams=hashes)}


def test_the_packaged_table_covers_the_seams_of_each_version() -> None:
    table = load_table()
    assert {"0.24.0", "0.32.0"} <= set(table)
    for version, row in table.items():
        wanted = {fit.seam_key(s) for s in SEAMS if not s.only or version in s.only}
        assert set(row.seams) == wanted
        assert set(row.files) == {key.partition("::")[0] for key in wanted}


def test_a_tested_package_fits(package: Path) -> None:
    verdict = check(package, table_of(package))
    assert (verdict.version, verdict.tested, verdict.differences) == ("9.8.7", True, [])
    assert set(verdict.hashes) == {"core.py::Scheduler.schedule", "core.py::free"}


def test_a_change_elsewhere_in_the_file_does_not_matter(package: Path) -> None:
    table = table_of(package)
    (package / "core.py").write_text("import os\n" + SOURCE.replace("return 2", "return 4"))
    assert check(package, table).tested


@pytest.mark.parametrize("change", [("return 1", "return 0"), ("@decorated", "@changed")])
def test_a_changed_seam_is_named(package: Path, change: tuple[str, str]) -> None:
    table = table_of(package)
    (package / "core.py").write_text(SOURCE.replace(*change))
    verdict = check(package, table)
    assert not verdict.tested
    assert verdict.usable
    (line,) = verdict.differences
    assert line.startswith("core.py::Scheduler.schedule differs from vLLM 9.8.7")


def test_an_unknown_version_is_compared_with_the_nearest(package: Path) -> None:
    table = table_of(package)
    (package / "_version.py").write_text("__version__ = version = '9.9.0'\n")
    verdict = check(package, table)
    assert not verdict.tested
    assert verdict.differences == ["vLLM 9.9.0 was never tested (tested: 9.8.7)"]


def test_a_missing_hook_cannot_be_used(package: Path) -> None:
    table = table_of(package)
    (package / "core.py").write_text("def free():\n    return 3\n")
    verdict = check(package, table)
    assert not verdict.usable
    assert verdict.missing == ["core.py::Scheduler.schedule"]


def test_a_file_equal_as_a_whole_is_not_parsed(package: Path) -> None:
    import hashlib

    digest = hashlib.sha256((package / "core.py").read_bytes()).hexdigest()
    row = TestedVersion(how="", files={"core.py": digest}, seams={"core.py::free": "f" * 64})
    assert fit.scan(package, "9.8.7", row) == {"core.py::free": "f" * 64}


def test_hashes_ignore_trailing_blanks_only() -> None:
    first = hash_seams("def f():\n    return 1  \n", {"f"})
    assert first == hash_seams("\n\ndef f():\n    return 1\n", {"f"})
    assert first != hash_seams("def f():\n    return  1\n", {"f"})


def test_version_without_file(tmp_path: Path) -> None:
    assert read_version(tmp_path) == "unknown"


def test_register_does_nothing_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_OPPROF_DIR", raising=False)
    monkeypatch.setattr(plugin, "activate", lambda: pytest.fail("activated"))
    register()


def test_activation_is_refused_inside_the_call(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OPPROF_DIR", str(tmp_path))
    monkeypatch.delenv("OPPROF_ALLOW_UNTESTED", raising=False)
    monkeypatch.setattr(fit, "find_package", lambda: package)
    monkeypatch.setattr(plugin, "_state", {})
    with pytest.raises(RuntimeError, match=r"(?s)opprof refuses vLLM 9\.8\.7.*never tested"):
        register()
    monkeypatch.setenv("OPPROF_ALLOW_UNTESTED", "1")
    assert not plugin.check_installed().tested
    (package / "core.py").write_text("")
    with pytest.raises(RuntimeError, match="cannot hook"):
        plugin.check_installed()


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "find_package", lambda: None)
    with pytest.raises(RuntimeError, match="cannot be found"):
        plugin.check_installed()


def test_the_entry_point_module_imports_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, opprof.engines.vllm; "
        "print([m for m in ('msgspec', 'click', 'numpy', 'ast', 'vllm') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(fit.__file__).parents[3])},
    )
    assert result.stdout.strip() == "[]"


def test_the_recorder_needs_neither_numpy_nor_click() -> None:
    import subprocess

    code = (
        "import sys, opprof.engines.vllm.session, opprof.engines.vllm.layer1, "
        "opprof.engines.vllm.layer2, opprof.engines.recorder.writer; "
        "print([m for m in ('click', 'numpy', 'rich', 'isal', 'vllm') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert result.stdout.strip() == "[]"


def test_hooks_run_after_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opprof_hooked_example.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[int] = []

    def hook(module: ModuleType) -> None:
        seen.append(module.VALUE)
        module.VALUE = 2  # type: ignore[attr-defined]

    importhook.after_import("opprof_hooked_example", hook)
    assert seen == []
    import opprof_hooked_example  # type: ignore[import-not-found]

    assert (seen, opprof_hooked_example.VALUE) == ([1], 2)
    importhook.after_import("opprof_hooked_example", hook)
    assert seen == [1, 2]
    del sys.modules["opprof_hooked_example"]


def test_doctor_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "find_package", lambda: None)
    result = CliRunner().invoke(doctor, [])
    assert result.exit_code == 0
    assert "not installed for this Python" in result.output
    assert "tested with    vLLM 0.24.0" in result.output


def test_doctor_on_a_package_that_differs(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_OPPROF_DIR", str(tmp_path / "new"))
    monkeypatch.delenv("OPPROF_ALLOW_UNTESTED", raising=False)
    monkeypatch.setattr(fit, "load_table", dict)
    refused = CliRunner().invoke(doctor, ["--vllm", str(package)])
    assert refused.exit_code == 1
    assert "never tested" in refused.output
    assert "verdict        refused" in refused.output
    assert not (tmp_path / "new").exists(), "doctor must start nothing"
    table = table_of(package)
    monkeypatch.setattr(fit, "load_table", lambda: table)
    fits = CliRunner().invoke(doctor, ["--vllm", str(package), "--json"])
    assert fits.exit_code == 0
    report = json.loads(fits.output)
    assert report["verdict"] == "fits"
    assert {hook["state"] for hook in report["hooks"]} == {"same"}
