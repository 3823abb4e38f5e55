"""`opprof analyze` and `opprof compare`, run as commands, give the oracle's figures, every one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agreement import (
    compare_pairs,
    differences,
    kernels_pairs,
    layer1_pairs,
    null_rate_within_noise,
    waste_pairs,
)

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
EXAMPLES = REPOSITORY / "examples" / "h200-runs"
EXPECTED = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((HERE / "expected").glob("P*.json"))
}
QUICK = "P01-C00-saturation"
PAIRED = (("layer1", layer1_pairs), ("waste", waste_pairs), ("kernels", kernels_pairs))


def opprof(*arguments: object) -> str:
    """Run a command; a failed gate (1) is an answer, unusable input or a traceback is not."""
    command = [sys.executable, "-m", "opprof", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def artefact(folder: Path, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trimmed run, analysed; for reading only."""
    out = tmp_path_factory.mktemp("quick")
    opprof("analyze", EXAMPLES / QUICK, "--out", out)
    return out / QUICK


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trimmed runs, analysed; for reading only."""
    out = tmp_path_factory.mktemp("analysed")
    opprof("analyze", *(EXAMPLES / name for name in EXPECTED), "--out", out)
    return out


def every_figure_agrees(folder: Path) -> None:
    oracle = EXPECTED[folder.name]
    for name, pairs in PAIRED:
        product = artefact(folder, name)
        assert len(list(pairs(product, oracle))) > 20
        assert differences(pairs(product, oracle)) == []
    assert null_rate_within_noise(artefact(folder, "kernels"), oracle)


def test_one_trimmed_run(quick: Path) -> None:
    every_figure_agrees(quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPECTED if name != QUICK])
def test_the_other_trimmed_runs(name: str, analysed: Path) -> None:
    every_figure_agrees(analysed / name)


@pytest.mark.slow
def test_comparison_of_all_runs(analysed: Path) -> None:
    told = json.loads(opprof("compare", analysed, "--json"))
    assert len(told["windows"]) == 12
    assert len(told["inversions"]) == 3 * 36
    for version, part in (("v2", told), ("v1", told["alternatives"]["v1"])):
        assert differences(compare_pairs(part, EXPECTED, version)) == []


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", EXPECTED)
def test_the_originals(name: str, tmp_path: Path) -> None:
    for folder in REPOSITORY.parents:
        run = folder / "shared" / "h200-runs" / name
        if run.is_dir():
            opprof("analyze", run, "--out", tmp_path)
            every_figure_agrees(tmp_path / name)
            return
    pytest.skip("no shared/h200-runs beside the repository")


def test_a_wrong_figure_is_seen(quick: Path) -> None:
    """The comparison itself: one nanosecond, one missing null, one swapped step are differences."""
    oracle = EXPECTED[QUICK]
    product = artefact(quick, "kernels")
    window = product["windows"][0]
    window["families"]["attention"]["ns"] += 1
    window["steps"][3]["layer1_step"] += 1
    window["steps"][4]["moe_layer_cv"] = 0.0
    found = [where for where, _, _ in differences(kernels_pairs(product, oracle))]
    assert found == ["w0r0.attention.ns", "w0r0.step5.layer1_step", "w0r0.step6.moe_layer_cv"]
