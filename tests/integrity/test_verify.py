"""Every recorded hash is recomputed: what changed, is missing or came along is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from campaign_builder import MANIFEST, RUN, build, edit, gate_of, write

from opprof.analysis.load import LoadedRun, compare_found
from opprof.analysis.run import analyze_run
from opprof.analysis.write import encode
from opprof.artifacts.verification import VerifyReport
from opprof.cli import main
from opprof.errors import InputError
from opprof.files import sha256_bytes, sha256_file
from opprof.integrity import closing, provenance
from opprof.integrity.checks import MEANINGS
from opprof.integrity.verify import verify
from opprof.protocol.load import load_protocol, parse_protocol


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("campaign") / "c")


@pytest.fixture
def campaign(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "c")
    return tmp_path / "c"


def failed(report: VerifyReport) -> list[tuple[str, str]]:
    return [(check.name, check.subject) for check in report.checks if check.outcome == "fail"]


def test_an_untouched_campaign_passes_whole(built: Path) -> None:
    report = verify(built)
    assert report.checks == []
    assert report.outcome == "pass"
    assert report.kind == "campaign"
    assert report.passed["copy"] >= 8
    for name in ("sources", "frozen", "state", "recorded_file", "trace", "input", "code"):
        assert report.passed[name] > 0, name
    assert report.root_sha256 is not None


CHANGED = (
    "protocol.toml",
    "provenance/controller/opprof-sources.tar",
    "provenance/client/opprof-client-sources.tar",
    "provenance/mapping/v2.toml",
    "provenance/launch/C00.json",
    "provenance/hooks/seams.py",
    f"runs/{RUN}/client/requests.jsonl",
    f"runs/{RUN}/client/timeline.json",
    f"runs/{RUN}/client/result.json",
    f"runs/{RUN}/opprof/engine-0.jsonl",
    f"runs/{RUN}/opprof/engine-0.jsonl.footer.json",
    f"runs/{RUN}/traces/window0-rank0.pt.trace.json.gz",
    f"runs/{RUN}/analysis/kernels.json",
    f"runs/{RUN}/analysis/sanity.json",
    f"runs/{RUN}/commands.log",
)


@pytest.mark.parametrize("name", CHANGED)
def test_one_changed_byte_is_named_with_both_hashes(campaign: Path, name: str) -> None:
    path = campaign / name
    before, root = path.read_bytes(), verify(campaign).root_sha256
    path.chmod(0o644)
    path.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
    report = verify(campaign)
    assert report.outcome == "fail"
    pairs = {(check.expected, check.seen) for check in report.checks if check.subject == name}
    assert (sha256_bytes(before), sha256_bytes(path.read_bytes())) in pairs
    assert (report.root_sha256 != root) == name.startswith("provenance/")
    assert report.sanity.red_flags


@pytest.mark.parametrize("name", [*CHANGED[1:], f"provenance/runs/{RUN}.json"])
def test_a_missing_file_is_named(campaign: Path, name: str) -> None:
    (campaign / name).unlink()
    report = verify(campaign)
    assert report.outcome == "fail"
    named = {subject for _, subject in failed(report)}
    assert name in named or f"state/{RUN}.json" in named


@pytest.mark.parametrize(
    "name",
    [f"runs/{RUN}/late.json", f"runs/{RUN}/client/extra", "provenance/note.txt"],
)
def test_an_additional_file_is_named(campaign: Path, name: str) -> None:
    (campaign / name).write_text("x")
    report = verify(campaign)
    assert [subject for _, subject in failed(report)] == [name]
    assert report.checks[0].seen == sha256_bytes(b"x")


def test_what_nobody_records_is_not_evaluable(campaign: Path) -> None:
    (campaign / "notes.txt").write_text("x")
    shutil.copytree(campaign / "runs" / RUN, campaign / "runs" / "P02-C00-saturation")
    round_folder = campaign / "colocation" / "vm" / "solo-moderate"
    shutil.copytree(campaign / "runs" / RUN, round_folder / "P02-C00-moderate-colocation")
    added = {
        "runs/P02-C00-saturation",
        "colocation/vm/solo-moderate/P02-C00-moderate-colocation",
    }
    # Nothing of them was there when the controller left.
    assert {name.rpartition("/client")[0] for _, name in failed(verify(campaign))} >= added
    closing.reopen(campaign)
    report = verify(campaign)
    assert report.outcome == "not_evaluable"
    told = {check.subject for check in report.checks}
    assert told == {"notes.txt", "provenance/closing.json", *added}


def test_a_gate_is_held_to_its_inputs_host_and_code(campaign: Path) -> None:
    kernels = f"runs/{RUN}/analysis/kernels.json"
    gate = gate_of(campaign, {kernels: sha256_file(campaign / kernels)})
    path = campaign / "colocation" / "vm" / "gate.json"
    for other, name in (
        (gate, None),
        (msgspec.structs.replace(gate, inputs={kernels: "0" * 64}), kernels),
        (
            msgspec.structs.replace(gate, inputs={"../c/x.json": "0" * 64}),
            "colocation/vm/gate.json",
        ),
        (msgspec.structs.replace(gate, inputs={}), "colocation/vm/gate.json"),
        (msgspec.structs.replace(gate, host="other"), "colocation/vm/gate.json"),
        (msgspec.structs.replace(gate, code_sha256="0" * 64), "colocation/vm/gate.json"),
        (msgspec.structs.replace(gate, protocol_sha256="0" * 64), "colocation/vm/gate.json"),
    ):
        write(path, other)
        closing.close(campaign, wall_ns=4)
        assert [subject for _, subject in failed(verify(campaign))] == [name] * (name is not None)


def test_links_are_never_followed(campaign: Path) -> None:
    trace = campaign / f"runs/{RUN}/traces/window0-rank0.pt.trace.json.gz"
    trace.rename(campaign.parent / "moved")
    trace.symlink_to(campaign.parent / "moved")
    assert ("recorded_file", trace.relative_to(campaign).as_posix()) in failed(verify(campaign))


def _drop(name: str) -> Callable[[Any], None]:
    return lambda state: state["attempts"][-1]["checks"].pop(name)


def _fail(state: Any) -> None:
    state["attempts"][-1]["checks"]["clock_load"]["outcome"] = "fail"


def _source(name: str) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        state["attempts"][-1]["source_hashes"][name] = "0" * 64

    return change


def _set(**values: Any) -> Callable[[Any], None]:
    return lambda state: state["attempts"][-1].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_drop("gpu_memory"), "complete without the gpu_memory check"),
        (_fail, "its clock_load check failed"),
        (_source("code"), "made from another code"),
        (_source("manifest"), "made from another manifest"),
        (_source("launch"), "made from another launch"),
        (_source("protocol"), "made from another protocol"),
        (_set(phase="failed"), "its last attempt is not"),
        (_set(number=2), "recorded as another attempt"),
        (_set(folder="runs/other"), "was never recorded"),
        (_set(judged_sha256="0" * 64), "other files than those that were checked"),
        (_set(sanity={"families": [], "red_flags": ["negative: x"]}), "with a red flag"),
    ],
)
def test_complete_stands_only_where_everything_passed(
    campaign: Path, change: Callable[[Any], None], reason: str
) -> None:
    edit(campaign / "state" / f"{RUN}.json", change)
    report = verify(campaign)
    assert report.outcome == "fail"
    assert any(reason in check.reason for check in report.checks), report.checks


@pytest.mark.parametrize("key", ["id", "protocol_sha256", "code_sha256"])
def test_the_campaign_is_bound_to_its_provenance(campaign: Path, key: str) -> None:
    edit(campaign / "campaign.json", lambda value: value.update({key: "1" * 64}))
    assert failed(verify(campaign)) == [("campaign", "campaign.json")]


def test_sources_exchanged_together_with_their_hash_are_found(campaign: Path) -> None:
    data = provenance.sources_tar("client/")
    (campaign / "provenance" / provenance.SOURCES_TAR).chmod(0o644)
    (campaign / "provenance" / provenance.SOURCES_TAR).write_bytes(data)

    def change(value: Any) -> None:
        copy = next(c for c in value["copies"] if c["path"] == provenance.SOURCES_TAR)
        copy["sha256"], copy["bytes"] = sha256_bytes(data), len(data)

    edit(campaign / "provenance" / provenance.INDEX, change)
    closing.close(campaign, wall_ns=4)
    assert failed(verify(campaign)) == [("sources", f"provenance/{provenance.SOURCES_TAR}")]


def test_another_client_than_the_frozen_one_is_found(campaign: Path) -> None:
    edit(
        campaign / "provenance" / provenance.INDEX,
        lambda value: value.update(hooks_sha256="2" * 64, client_sha256="3" * 64),
    )
    names = {name for name, _ in failed(verify(campaign))}
    assert {"frozen", "sources"} <= names


def test_an_amendment_is_recorded_and_verifies(campaign: Path) -> None:
    amended = campaign / "protocol.toml"
    draft = amended.read_bytes() + b"# amended\n"
    amended.write_bytes(draft)
    assert ("protocol", "protocol.toml") in failed(verify(campaign))
    provenance.record_protocol(campaign, amended)
    # The seal of this hand-made amendment is broken, which only the seal's own check may tell.
    assert ("protocol", "protocol.toml") not in failed(verify(campaign))


def test_a_derived_artefact_of_a_campaign_names_the_campaigns_own(campaign: Path) -> None:
    run = campaign / "runs" / RUN
    edit(
        run / "analysis" / "waste.json",
        lambda value: value["provenance"].update(
            protocol_sha256="4" * 64, mapping_sha256="5" * 64, code_sha256="6" * 64
        ),
    )
    subject = f"runs/{RUN}/analysis/waste.json"
    expected = {("protocol", subject), ("mapping", subject), ("code", subject)}
    assert expected <= set(failed(verify(campaign)))


def test_a_run_alone_and_analyses_apart(campaign: Path, tmp_path: Path) -> None:
    run = campaign / "runs" / RUN
    digest = sha256_bytes((campaign / "protocol.toml").read_bytes())
    report = verify(run, protocols=frozenset({digest}))
    assert (report.kind, report.outcome) == ("run", "pass")
    assert {check.name for check in verify(run).checks} == {"protocol"}
    apart = tmp_path / "out" / RUN
    shutil.copytree(run / "analysis", apart)
    named = frozenset({digest})
    assert verify(apart.parent, protocols=named).outcome == "not_evaluable"
    runs = [campaign / "runs"]
    assert verify(apart.parent, runs=runs, protocols=named).outcome == "pass"
    (run / "opprof" / "engine-0.jsonl").write_text("other")
    report = verify(apart.parent, runs=runs, protocols=named)
    assert {check.reason for check in report.checks} == {"has changed"}


def test_a_comparison_is_tied_to_its_analyses(campaign: Path) -> None:
    run = campaign / "runs" / RUN
    folder = campaign.parent / "made"
    shutil.copytree(run / "analysis", folder / RUN)
    shutil.copy(campaign / "comparison.json", folder)
    edit(folder / RUN / "kernels.json", lambda value: value.update(breakdown_valid=False))
    reasons = [check.reason for check in verify(folder).checks if check.outcome == "fail"]
    assert reasons == [f"its input {RUN}/kernels.json has changed"]


def test_a_page_is_tied_to_what_is_here(campaign: Path) -> None:
    page = campaign / "report.html"
    stream = campaign / f"runs/{RUN}/opprof/engine-0.jsonl"
    page.write_text(f"<p>{sha256_bytes(stream.read_bytes())} {'7' * 64}</p>")
    checks = verify(campaign).checks
    assert [(check.name, check.outcome, check.seen) for check in checks] == [
        ("page", "not_evaluable", "7" * 64)
    ]
    page.write_text(f"<p>{sha256_bytes(stream.read_bytes())}</p>")
    assert verify(campaign).outcome == "pass"


def test_an_input_outside_of_the_run_is_refused(campaign: Path) -> None:
    run = campaign / "runs" / RUN
    edit(
        run / "analysis" / "waste.json",
        lambda value: value["provenance"]["inputs"].update({"../../x": MANIFEST}),
    )
    assert any("outside of its run" in check.reason for check in verify(run).checks)


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        verify(tmp_path / "none")
    with pytest.raises(InputError, match="no hash to recompute"):
        verify(tmp_path)


def test_the_command(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["verify", str(campaign)])
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert "campaign: pass" in out
    assert "provenance " in out
    (campaign / f"runs/{RUN}/late.json").write_text("x")
    with pytest.raises(SystemExit) as done:
        main(["verify", str(campaign), "--json"])
    assert done.value.code == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["subject"] == f"runs/{RUN}/late.json"


def _judge_again(campaign: Path, protocol: str, *, accepted: bool, check: str) -> None:
    """Give the run a failed check and a later verdict on it."""
    run = campaign / "runs" / RUN
    relative = f"adjudications/{protocol[:12]}/{RUN}"
    waste = json.loads((run / "analysis" / "waste.json").read_text())
    folder = campaign / relative
    folder.mkdir(parents=True)
    (folder / "adjudication.json").write_text(json.dumps({"provenance": waste["provenance"]}))

    def change(state: Any) -> None:
        state["attempts"][-1]["checks"][check]["outcome"] = "fail"
        state["adjudications"] = [
            {
                "protocol_sha256": protocol,
                "amendment": "A-P3-5",
                "accepted": accepted,
                "reasons": [],
                "artefact": relative,
            }
        ]

    edit(campaign / "state" / f"{RUN}.json", change)


@pytest.mark.parametrize(
    ("accepted", "check", "outcome"),
    [(True, "client", "pass"), (False, "client", "fail"), (True, "gpu_memory", "fail")],
)
def test_kept_data_may_be_judged_again_but_not_what_happened(
    campaign: Path, accepted: bool, check: str, outcome: str
) -> None:
    protocol = sha256_bytes((campaign / "protocol.toml").read_bytes())
    _judge_again(campaign, protocol, accepted=accepted, check=check)
    closing.close(campaign, wall_ns=4)
    assert verify(campaign).outcome == outcome


def test_a_later_verdict_is_tied_to_the_campaigns_protocols_and_the_raw_data(
    campaign: Path,
) -> None:
    _judge_again(campaign, "8" * 64, accepted=True, check="client")
    closing.close(campaign, wall_ns=4)
    assert [name for name, _ in failed(verify(campaign))] == ["adjudication"]
    path = campaign / "adjudications" / ("8" * 12) / RUN / "adjudication.json"
    edit(path, lambda v: v["provenance"]["inputs"].update({"client/timeline.json": "9" * 64}))
    assert {name for name, _ in failed(verify(campaign))} == {"adjudication", "input"}
    path.unlink()
    assert {name for name, _ in failed(verify(campaign))} == {"adjudication", "artefact"}


def in_memory_under_an_amendment(campaign: Path) -> None:
    """Compare the campaign's run under a later protocol than its stored analysis."""
    before = load_protocol(campaign / "protocol.toml")
    assert before is not None
    amended = campaign.parent / "amended.toml"
    amended.write_bytes(
        (campaign / "protocol.toml").read_bytes().replace(b"title = ", b"title  = ", 1)
    )
    provenance.record_protocol(campaign, amended)
    shutil.copy(amended, campaign / "protocol.toml")
    shutil.copy(amended, campaign / "protocols" / "01-amended.toml")
    protocol = parse_protocol(amended.read_bytes(), source="amended")
    found = [LoadedRun(campaign / "runs" / RUN, analyze_run(campaign / "runs" / RUN, protocol))]
    (campaign / "comparison.json").write_bytes(encode(compare_found(found, protocol)))
    closing.close(campaign, wall_ns=4)


def test_an_analysis_in_memory_under_an_amended_protocol_is_made_again(campaign: Path) -> None:
    in_memory_under_an_amendment(campaign)
    inputs = json.loads((campaign / "comparison.json").read_text())["provenance"]["inputs"]
    (campaign / "report.html").write_text(f"<td>{inputs[f'{RUN}/kernels.json']}</td>")
    checks = [check for check in verify(campaign).checks if check.name != "frozen"]
    assert checks == []
    (campaign / "report.html").unlink()
    edit(
        campaign / "comparison.json",
        lambda value: value["provenance"]["inputs"].update({f"{RUN}/kernels.json": "1" * 64}),
    )
    closing.close(campaign, wall_ns=5)
    checks = [check for check in verify(campaign).checks if check.name != "frozen"]
    assert [check.reason for check in checks] == [f"its input {RUN}/kernels.json has changed"]


def test_an_analysis_in_memory_by_other_code_cannot_be_judged(campaign: Path) -> None:
    in_memory_under_an_amendment(campaign)
    edit(
        campaign / "comparison.json",
        lambda value: value["provenance"].update({"code_sha256": "2" * 64}),
    )
    checks = [check for check in verify(campaign).checks if check.name == "input"]
    assert {check.outcome for check in checks} == {"not_evaluable"}
    assert f"its input {RUN}/kernels.json was made in memory by other code" in checks[0].reason


def test_every_count_says_what_was_looked_at(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(closing.__file__).parent
    named = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'checks\.(?:add|equal|file|read)\(\s*"(\w+)"', path.read_text())
    }
    assert len(named) > 20
    assert named == set(MEANINGS)
    with pytest.raises(SystemExit):
        main(["verify", str(campaign)])
    counts = verify(campaign).passed
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"campaign: pass; {sum(counts.values())} checks passed")
    shown = [line.split(maxsplit=2) for line in lines[1 : 1 + len(counts)]]
    assert shown == [[str(count), name, MEANINGS[name]] for name, count in counts.items()]
