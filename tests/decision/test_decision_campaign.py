"""``opprof decide`` over a campaign directory and over folders that cannot be decided."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from opprof.artifacts.campaign import Adjudication, Attempt, Campaign, Phase, RunRecord
from opprof.artifacts.decision import Decision
from opprof.artifacts.run import Timeline
from opprof.cli import main
from opprof.protocol import load_protocol
from opprof.rehearsal.campaign import rehearse_campaign
from opprof.rehearsal.truth import load_truth

EXAMPLES = Path(__file__).parents[2] / "examples" / "rehearsal"
RUNS = [f"{p}-C00-{load}" for p in ("P01", "P02", "P09") for load in ("moderate", "saturation")]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("campaign")
    protocol = load_protocol(str(EXAMPLES / "twins.toml"))
    assert protocol is not None
    truth = load_truth(EXAMPLES / "truths" / "inversion.toml", ["P01", "P02", "P09"])
    rehearse_campaign(protocol, Path(protocol.source).read_bytes(), truth, root / "runs", seed=1)
    return root / "runs"


Make = Callable[..., Path]


@pytest.fixture
def make(rehearsed: Path, tmp_path: Path) -> Make:
    """Make a campaign of the rehearsed runs; records change by run."""

    def build(status: str = "frozen", **changes: RunRecord | None) -> Path:
        root = tmp_path / "campaign"
        shutil.copytree(rehearsed, root / "runs", symlinks=True)
        text = (EXAMPLES / "twins.toml").read_text()
        (root / "protocol.toml").write_text(
            text.replace('status = "draft"', f'status = "{status}"')
        )
        protocol = load_protocol(str(root / "protocol.toml"))
        assert protocol is not None
        campaign = Campaign(
            1, "c", "twins", protocol.sha256, "sim", {}, {}, 1.0, 1, ["here"], "local", {},
            "0", "0" * 64, 1, simulated=True,
        )  # fmt: skip
        (root / "campaign.json").write_bytes(msgspec.json.encode(campaign))
        (root / "state").mkdir()
        for name in RUNS:
            record = changes.get(name.replace("-", "_"), complete(name))
            if record is not None:
                path = root / "state" / f"{name}.json"
                path.write_bytes(msgspec.json.encode(record))
        return root

    return build


def attempt(name: str, number: int, phase: Phase, reason: str = "") -> Attempt:
    return Attempt(number, f"runs/{name}", phase, [], None, [], {}, {}, reason)


def complete(name: str, **changes: object) -> RunRecord:
    pattern, config, load = name.split("-")
    record = RunRecord(
        1, name, pattern, config, load, "primary", 0, [], "complete",  # type: ignore[arg-type]
        [attempt(name, 1, "complete")], accepted=True, drain_quarantined=False,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def code_of(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(str(left.value.code))


def read(folder: Path) -> Decision:
    return msgspec.json.decode((folder / "decision.json").read_bytes(), type=Decision)


def test_a_campaign_is_decided_under_its_own_protocol_and_labelled_registered(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make()
    assert code_of("decide", root, "--jobs", 1) == 0
    decision = read(root)
    assert decision.h1a.outcome == "CONFIRMED"
    assert (decision.exploratory, decision.simulated) == (False, True)
    assert decision.label.startswith("registered campaign")
    assert {item.run.name for item in decision.runs} == set(RUNS)
    page = (root / "report.html").read_text()
    assert "H1a, composition: CONFIRMED" in page
    # The outcome is the first part's title, and the page has one of its own.
    assert page.count(">Decision: ") == 2  # in the contents and above the part
    assert f"<h1>OpProf decision under {decision.provenance.protocol_id}</h1>" in page
    assert "kernels.json windows[0].steps[0]" in page
    assert "hash differs" not in page
    assert "report.html" in capsys.readouterr().out
    # Again: the same runs, the same numbers.
    assert code_of("decide", root, "--jobs", 1, "--no-report") == 0
    assert read(root) == decision


def test_states_tell_what_takes_part_and_what_is_marked(make: Make) -> None:
    failed = complete(
        "P09-C00-moderate",
        state="failed",
        attempts=[attempt("P09-C00-moderate", 1, "failed", "server died")],
    )
    rerun = complete(
        "P02-C00-moderate",
        attempts=[attempt("x", 1, "failed", "disk full"), attempt("x", 2, "complete")],
        adjudications=[Adjudication("0" * 64, "A-P3-6", True, [], "adjudications/x.json")],
    )
    root = make(
        P09_C00_moderate=failed,
        P02_C00_moderate=rerun,
        P01_C00_saturation=complete("P01-C00-saturation", drain_quarantined=True),
    )
    assert code_of("decide", root, "--jobs", 1, "--no-report") == 0
    decision = read(root)
    names = {item.run.name: item for item in decision.runs}
    assert set(names) == set(RUNS) - {"P09-C00-moderate"}
    marks = names["P02-C00-moderate"].marks
    assert "rerun, 2 attempts (attempt 1 failed: disk full)" in marks
    assert "adjudicated again under A-P3-6: accepted" in marks
    assert names["P01-C00-saturation"].run.drain_quarantined
    assert "drain quarantined" in names["P01-C00-saturation"].marks
    state = decision.cells["P09-C00-moderate"]
    assert state.startswith("NOT EVALUABLE: P09-C00-moderate is missing: its state is failed")
    assert "server died" in state
    assert decision.h1b.evidence.not_evaluable.keys() == {"P09 vs P01"}
    assert decision.h1b.outcome == "INVALID" or decision.h1b.outcome == "INCONCLUSIVE"
    assert decision.h1a.outcome == "CONFIRMED"


def test_an_unfrozen_protocol_or_a_list_of_runs_is_exploratory(make: Make, tmp_path: Path) -> None:
    root = make(status="draft")
    code_of("decide", root, "--jobs", 1, "--no-report")
    assert read(root).exploratory
    out = tmp_path / "list"
    own = root / "protocol.toml"
    code_of("decide", root / "runs", "--protocol", own, "--jobs", 1, "--out", out, "--no-report")
    assert read(out).label.startswith("exploratory")


def test_what_cannot_be_decided_is_one_message(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make()

    def refused(*arguments: object) -> str:
        assert code_of("decide", *arguments) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert "Traceback" not in text
        return text

    assert "decided alone" in refused(root, root / "runs")
    assert "own protocol" in refused(root, "--protocol", "phase3")
    assert "no such folder" in refused(tmp_path / "nothing")
    assert "is a file" in refused(root / "protocol.toml")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds neither" in refused(empty)
    (empty / "runs").mkdir()
    assert "a campaign's lie in its folder runs" in refused(empty)
    assert "no default" in refused(root / "runs", "--protocol", "none")
    twice = tmp_path / "twice"
    shutil.copytree(root / "runs" / RUNS[0], twice / "a", symlinks=True)
    shutil.copytree(root / "runs" / RUNS[0], twice / "b", symlinks=True)
    assert "are both P01-C00-moderate" in refused(twice, "--jobs", 1)
    state = root / "state" / f"{RUNS[0]}.json"
    kept = state.read_bytes()
    state.write_bytes(kept.replace(b'"complete"', b'"finished"'))
    assert f"{RUNS[0]}.json" in refused(root)
    state.write_bytes(kept.replace(RUNS[0].encode(), b"P05-C00-moderate"))
    assert "holds the state of P05-C00-moderate" in refused(root)
    state.write_bytes(kept)
    shutil.rmtree(root / "runs" / RUNS[0])
    assert "complete in its state and not here" in refused(root)
    for name in RUNS:
        pending = complete(name, state="pending", attempts=[])
        (root / "state" / f"{name}.json").write_bytes(msgspec.json.encode(pending))
    assert "no measured run is complete" in refused(root)
    (root / "decision.json").write_text("{}")
    assert "no decision that can be read" in refused(root)


def test_analyses_in_the_runs_are_used_only_where_they_fit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opprof.decision import campaign as reader

    root = make()
    run = root / "runs" / RUNS[0]
    code = code_of("analyze", run, "--protocol", root / "protocol.toml", "--out", root / "an")
    assert code in (0, 1)
    shutil.copytree(root / "an" / RUNS[0], run / "analysis")
    protocol = load_protocol(str(root / "protocol.toml"))
    assert protocol is not None
    found = reader.stored_analysis(run, protocol)
    assert found is not None
    assert found.analysis.kernels.run.name == RUNS[0]
    other = load_protocol("phase3")
    assert other is not None
    assert reader.stored_analysis(run, other) is None
    timeline = run / "client" / "timeline.json"
    decoded = msgspec.json.decode(timeline.read_bytes(), type=Timeline)
    timeline.write_bytes(json.dumps(msgspec.to_builtins(decoded)).encode())
    assert reader.stored_analysis(run, protocol) is None
