"""From folders to the page: analyses, runs, both together; what does not fit is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from opprof.analysis.many import analyze_many
from opprof.analysis.results import RunAnalysis
from opprof.analysis.write import write_analysis
from opprof.cli.report import report
from opprof.errors import EnvironmentFailure, InputError, SchemaError
from opprof.protocol import load_protocol
from opprof.report.inputs import ReportInput
from opprof.report.load import find_sources, load_report
from opprof.report.render import plotly_js, write_report
from opprof.report.text.ranking import ranking_sentences

RUNS = Path(__file__).parents[2] / "examples" / "h200-runs"
NAMES = ("P03-C00-saturation", "P08-C00-saturation")
PROTOCOL = load_protocol("phase3")


@pytest.fixture(scope="module")
def analyses() -> dict[str, RunAnalysis]:
    found = analyze_many([RUNS / name for name in NAMES], PROTOCOL, jobs=1)
    return dict(zip(NAMES, found, strict=True))


@pytest.fixture
def folder(tmp_path: Path, analyses: dict[str, RunAnalysis]) -> Path:
    """What ``opprof analyze --out`` leaves."""
    for name, analysis in analyses.items():
        write_analysis(analysis, tmp_path / "out" / name)
    return tmp_path / "out"


def refuse(runs: Sequence[Path]) -> Sequence[RunAnalysis]:
    raise AssertionError(f"nothing should be analysed here: {runs}")


def load(*paths: Path) -> ReportInput:
    return load_report(paths, PROTOCOL, refuse, title="t")


def test_analyses_alone_have_no_steps_and_say_so(folder: Path) -> None:
    found = load(folder)
    assert [run.identity.name for run in found.runs] == list(NAMES)
    assert all(
        run.steps is None and "name the run's folder" in run.steps_reason for run in found.runs
    )
    assert found.comparison is not None and len(found.comparison.pattern_pairs) == 1


def test_a_run_is_analysed_where_it_holds_no_analysis(analyses: dict[str, RunAnalysis]) -> None:
    asked: list[Path] = []

    def analyse(runs: Sequence[Path]) -> Sequence[RunAnalysis]:
        asked.extend(runs)
        return [analyses[run.name] for run in runs]

    found = load_report([RUNS / NAMES[0]], PROTOCOL, analyse, title="t")
    assert asked == [RUNS / NAMES[0]]
    (run,) = found.runs
    assert run.steps is not None and len(run.steps.complete_mono_ns) == len(run.steps.waiting) > 100
    assert [interval.kind for interval in run.intervals] == ["clean", "profile", "profile"]


def test_analysis_inside_a_run_is_used(tmp_path: Path, analyses: dict[str, RunAnalysis]) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / NAMES[0], run, ignore=shutil.ignore_patterns("traces"))
    write_analysis(analyses[NAMES[0]], run / "analysis")
    found = load(run)
    assert found.runs[0].steps is not None


def test_changed_stream_is_refused(tmp_path: Path, analyses: dict[str, RunAnalysis]) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / NAMES[0], run, ignore=shutil.ignore_patterns("traces"))
    write_analysis(analyses[NAMES[0]], run / "analysis")
    with (run / "opprof" / "engine-0.jsonl").open("ab") as stream:
        stream.write(b"\n")
    with pytest.raises(InputError, match=r"engine-0.jsonl: is not the file .* analyze again"):
        load(run)


def test_analysis_meets_its_run(folder: Path) -> None:
    assert [(s.analysis, s.run) for s in find_sources([folder, RUNS / NAMES[1]])] == [
        (folder / NAMES[0], None),
        (folder / NAMES[1], RUNS / NAMES[1]),
    ]
    found = load(folder, RUNS / NAMES[1])
    assert [run.steps is None for run in found.runs] == [True, False]


def test_two_attempts_at_one_cell_are_told_apart_and_not_compared(
    folder: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder / NAMES[0], again / "second-attempt")
    found = load(folder / NAMES[0], again)
    assert [run.label.split(" · ")[-1] for run in found.runs] == [NAMES[0], "second-attempt"]
    assert found.comparison is None and found.comparison_reason


def as_simulated(analysis: RunAnalysis) -> RunAnalysis:
    run = msgspec.structs.replace(analysis.run, simulated=True)
    names = ("layer1", "kernels", "waste", "sanity")
    parts = {name: msgspec.structs.replace(getattr(analysis, name), run=run) for name in names}
    return RunAnalysis(**parts)


def test_measured_and_simulated_runs_of_the_same_cells_have_an_answer_each(
    folder: Path, tmp_path: Path, analyses: dict[str, RunAnalysis]
) -> None:
    for name, analysis in analyses.items():
        write_analysis(as_simulated(analysis), tmp_path / "sim" / name)
    found = load(folder, tmp_path / "sim")
    assert found.comparison is None and [part.title for part in found.parts] == [
        "measured runs",
        "simulated runs",
    ]
    for part, kind in zip(found.parts, (False, True), strict=True):
        assert {run.identity.simulated for run in part.runs} == {kind}
        assert part.comparison is not None and len(part.comparison.pattern_pairs) == 1
    told = ranking_sentences(found)
    assert any(text.startswith("Measured runs: C00 · saturation: ") for text in told)
    assert any(text.startswith("Simulated runs: C00 · saturation: ") for text in told)
    assert not any("ot known" in text for text in told)
    write_report(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    idents = re.findall(r' id="([^"]+)"', page)
    assert len(set(idents)) == len(idents)
    for ident in ("ranking", "ranking-simulated", "cells", "cells-simulated"):
        assert f'<a href="#{ident}">' in page
    # Every run has a row of its own in the table of runs; none is the one above it again.
    table = page[page.index('<table id="runs">') :]
    assert 'class="again"' not in table[: table.index("</table>")]
    # One kind alone is one part.
    assert load(tmp_path / "sim").parts == ()


def test_runs_of_one_cell_in_folders_of_one_name_are_told_apart(
    folder: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(folder / NAMES[0], again / NAMES[0])
    found = load(folder / NAMES[0], again)
    labels = [run.label.split(" · ")[-1] for run in found.runs]
    assert sorted(labels) == sorted([f"{folder.name}/{NAMES[0]}", f"again/{NAMES[0]}"])


def test_broken_artefact_is_one_message_with_its_file(folder: Path) -> None:
    path = folder / NAMES[0] / "waste.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SchemaError, match=r"waste\.json: does not fit its schema"):
        load(folder)


@pytest.mark.parametrize(("make", "reason"), [(True, "holds neither"), (False, "no such folder")])
def test_unusable_folder_is_refused(tmp_path: Path, make: bool, reason: str) -> None:
    path = tmp_path / "nothing"
    if make:
        path.mkdir()
    with pytest.raises(InputError, match=reason):
        load(path)


def test_command_writes_the_file_and_names_invalid_runs(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    arguments = [str(folder), "--out", str(out), "--title", "Two runs", "--json"]
    done = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["bytes"] == out.stat().st_size and told["runs"] == list(NAMES)
    assert told["invalid"] == list(NAMES)  # short collections: clean_duration fails by design
    assert "<h1>Two runs</h1>" in out.read_text(encoding="utf-8")
    spoken = CliRunner().invoke(report, arguments[:-1], catch_exceptions=False)
    assert "2 runs" in spoken.stdout and "invalid" in spoken.stdout


def test_command_gives_the_same_bytes_twice(folder: Path, tmp_path: Path) -> None:
    files = []
    for name in ("a.html", "b.html"):
        arguments = [str(folder), "--out", str(tmp_path / name)]
        CliRunner().invoke(report, arguments, catch_exceptions=False)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_command_refuses_a_folder_as_output(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--out names the HTML file"):
        CliRunner().invoke(report, [str(folder), "--out", str(tmp_path)], catch_exceptions=False)


def test_command_stops_before_any_analysis_without_the_extra(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    plotly_js.cache_clear()
    with pytest.raises(EnvironmentFailure, match=r"opprof\[report\]"):
        CliRunner().invoke(
            report, [str(RUNS), "--out", str(tmp_path / "r.html")], catch_exceptions=False
        )


def test_real_runs_make_the_claims_that_their_artefacts_make(
    folder: Path, analyses: dict[str, RunAnalysis]
) -> None:
    for run in load(folder).runs:
        analysis = analyses[run.identity.name]
        assert run.kernels == analysis.kernels
        assert {g.name for g in run.failed_gates} == {g.name for g in analysis.failed}
        assert msgspec.json.encode(run.sanity) == msgspec.json.encode(analysis.sanity)
