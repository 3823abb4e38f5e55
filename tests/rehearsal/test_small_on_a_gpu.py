"""What the ``(GPU)`` marks of ``protocols/small.toml`` say is a protocol that runs through."""

from __future__ import annotations

import re
from pathlib import Path

from opprof.artifacts.rehearsal import Rehearsal
from opprof.protocol import load_protocol
from opprof.protocol.check import check_protocol
from opprof.protocol.load import Protocol, parse_protocol
from opprof.rehearsal.rehearse import rehearse
from opprof.rehearsal.truth import NOTHING

TEXT = (Path(__file__).parents[2] / "protocols" / "small.toml").read_text()
MARK = re.compile(r"(?m)^(?P<before>\w+ = .*?) *# \(GPU\) (?P<what>[^;\n]+).*$")


def on_a_gpu(text: str) -> str:
    """Do what each mark says: a new value, a flag's new value, or a word that goes."""

    def changed(line: re.Match[str]) -> str:
        before, what = line["before"], line["what"].strip()
        if what.startswith("without "):
            word = f" {what.removeprefix('without ')} "
            assert before.count(word) == 1
            return before.replace(word, " ")
        if what.startswith("--"):
            flag, _ = what.split()
            after, count = re.subn(rf"{flag} \S+", what, before)
            assert count == 1
            return after
        return f"{before.split(' = ')[0]} = {what}"

    # The head of the file speaks of the marks; every other one must have been understood.
    assert len(MARK.findall(text)) == text.count("# (GPU) ")
    return MARK.sub(changed, text)


def small() -> Protocol:
    return parse_protocol(on_a_gpu(TEXT).encode(), source="gpu.toml")


def test_every_line_that_changes_with_windows_is_marked() -> None:
    file = small().file
    assert check_protocol(file) == []
    assert file.timeline.profile_windows == 2
    assert "--enforce-eager" not in file.server.command


def test_it_runs_through(tmp_path: Path) -> None:
    source = tmp_path / "gpu.toml"
    source.write_text(on_a_gpu(TEXT))
    protocol = load_protocol(source)
    assert protocol is not None
    out, quiet = tmp_path / "out", list[str]().append
    done = rehearse(protocol, NOTHING, out, seed=0, repeats=0, jobs=2, advance=quiet)
    report: Rehearsal = done.report
    assert [run.name for run in report.runs if not run.accepted] == []
    assert report.skipped == []
    assert [gate.gate for gate in report.gates if gate.failed.count] == []
    # Nothing is planted, and nothing stands in the way of a verdict on operator families.
    assert done.decision is not None
    assert done.decision.h1a.evidence.not_evaluable == {}
    assert done.decision.h1a.outcome in ("REFUTED / NULL SUPPORTED", "INCONCLUSIVE")
    assert report.cost.gpu_hours <= protocol.file.budget.gpu_hours_estimate
