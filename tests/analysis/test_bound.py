"""Runs in a campaign's folder are judged by the campaign's protocol, whichever command is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

import opprof
from opprof.analysis.bound import protocol_for
from opprof.artifacts.campaign import Adjudication, Attempt, RunRecord
from opprof.artifacts.common import Gate
from opprof.cli import main
from opprof.errors import InputError, SchemaError
from opprof.files import sha256_file
from opprof.protocol.load import ENVIRONMENT_VARIABLE, packaged_path

EXAMPLE = Path(__file__).parents[2] / "examples" / "h200-runs" / "P01-C00-saturation"
PHASE3 = sha256_file(packaged_path())


def campaign(folder: Path, tolerance: str = "0.75", *, run: bool = False) -> Path:
    """Make a campaign's folder with a protocol of its own, and a run in it."""
    (folder / "runs").mkdir(parents=True)
    text = packaged_path().read_text().replace("smd_max = 0.25", f"smd_max = {tolerance}")
    (folder / "protocol.toml").write_text(text)
    (folder / "campaign.json").write_text('{"schema": 1, "protocol_id": "phase3"}')
    if run:
        shutil.copytree(EXAMPLE, folder / "runs" / EXAMPLE.name)
    return folder


def sha256_for(named: str | None, *paths: Path) -> str:
    protocol = protocol_for(named, paths)
    assert protocol is not None
    return protocol.sha256


def test_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    root, outside = campaign(tmp_path / "c"), tmp_path / "elsewhere"
    own = sha256_file(root / "protocol.toml")
    runs = root / "runs"
    for place in (root, runs, runs / "P01-C00-saturation", root / "attempts" / "x.1" / "analysis"):
        assert sha256_for(None, place) == own
    assert sha256_for(None, outside) == PHASE3
    assert sha256_for(None, outside, runs) == own
    link = tmp_path / "link"
    link.symlink_to(runs)
    assert sha256_for(None, link) == own
    monkeypatch.chdir(runs)
    assert sha256_for(None, Path()) == own
    # Named beats the campaign's, which beats what is set for everything.
    assert sha256_for("phase3", runs) == PHASE3
    assert protocol_for("none", [runs]) is None
    other = campaign(tmp_path / "d", "0.5") / "protocol.toml"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(other))
    assert sha256_for(None, runs) == own
    assert sha256_for(None, outside) == sha256_file(other)


def test_campaigns_of_two_protocols_need_one_that_is_named(tmp_path: Path) -> None:
    first, second = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    assert sha256_for(None, first, second / "runs") == sha256_file(first / "protocol.toml")
    other = campaign(tmp_path / "c", "0.5")
    with pytest.raises(InputError, match=r"c: is another campaign's .* of .*/a: name") as caught:
        protocol_for(None, [first / "runs", other / "runs"])
    assert caught.value.path == str(other)
    assert sha256_for("phase3", first, other) == PHASE3


def test_a_protocol_that_is_not_the_campaigns_is_refused(tmp_path: Path) -> None:
    root = campaign(tmp_path / "c")
    (root / "campaign.json").write_text('{"protocol_id": "other"}')
    with pytest.raises(InputError, match=r"protocol.toml: is not the campaign's protocol other"):
        protocol_for(None, [root])
    (root / "campaign.json").write_text("{}")
    with pytest.raises(SchemaError, match="protocol_id"):
        protocol_for(None, [root])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert left.value.code == 2
    return capsys.readouterr().err


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit):
        main([str(word) for word in words])
    told = capsys.readouterr()
    assert "error" not in told.err
    return told.out


def test_every_command_follows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    root = campaign(tmp_path / "c", run=True)
    own, runs = sha256_file(root / "protocol.toml"), root / "runs"
    run = runs / EXAMPLE.name
    assert opprof.load(run).sanity.provenance.protocol_sha256 == own
    compared = json.loads(said(capsys, "compare", runs, "--json", "--jobs", 1))
    assert compared["provenance"]["protocol_sha256"] == own
    decided = json.loads(said(capsys, "decide", runs, "--json", "--jobs", 1))
    assert decided["provenance"]["protocol_sha256"] == own
    said(capsys, "report", root, "--out", tmp_path / "page.html", "--jobs", 1)
    page = (tmp_path / "page.html").read_text()
    assert own in page and PHASE3 not in page
    said(capsys, "analyze", run, "--jobs", 1)
    written = json.loads((run / "analysis" / "sanity.json").read_bytes())
    assert written["provenance"]["protocol_sha256"] == own
    named = json.loads(said(capsys, "compare", runs, "--json", "--protocol", "phase3"))
    assert named["provenance"]["protocol_sha256"] == PHASE3


def test_a_finished_analysis_is_judged_by_no_other_protocol_than_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdicts are those of the protocol it names: with another one bound, both are told."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    root, out = campaign(tmp_path / "c", run=True), tmp_path / "an"
    own = sha256_file(root / "protocol.toml")
    run = root / "runs" / EXAMPLE.name
    said(capsys, "analyze", run, "--out", out, "--jobs", 1)
    both = f"under protocol phase3 {own[:12]}, and protocol phase3 {PHASE3[:12]} is bound"
    for command in ("compare", "decide"):
        assert both in refused(capsys, command, out)
    for named in (root / "protocol.toml", "none"):
        said(capsys, "compare", out, "--protocol", named)
    # A page is made all the same: it shows both hashes, and judges nothing by the bound one.
    page = tmp_path / "page.html"
    assert both in said(capsys, "report", out, "--out", page)
    assert f"P01 · C00 · saturation was analysed {both}" in page.read_text()
    # An analysis without a protocol contradicts none, but is not enough for a decision.
    said(capsys, "analyze", run, "--out", tmp_path / "bare", "--protocol", "none", "--jobs", 1)
    said(capsys, "compare", tmp_path / "bare")
    assert "under no protocol, and" in refused(capsys, "decide", tmp_path / "bare")


def test_a_campaigns_page_judges_by_the_amendments_in_force_and_shows_both_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    root = campaign(tmp_path / "c", run=True)
    said(capsys, "analyze", root / "runs" / EXAMPLE.name, "--jobs", 1)
    first = sha256_file(root / "protocol.toml")
    amended = campaign(tmp_path / "d", "0.9") / "protocol.toml"
    shutil.copy(amended, root / "protocol.toml")
    later = sha256_file(root / "protocol.toml")
    check = Gate("client", "fail", "recovery (window1): too fast", {})
    attempt = Attempt(1, f"runs/{EXAMPLE.name}", "complete", [], None, [],
                      {"protocol": first}, {"client": check})  # fmt: skip
    record = RunRecord(
        1, EXAMPLE.name, "P01", "C00", "saturation", "primary", 0, [], "complete", [attempt],
        adjudications=[Adjudication(later, "A-X-1 (Wider)", True, [], "adjudications/x")],
    )  # fmt: skip
    (root / "state").mkdir()
    (root / "state" / f"{EXAMPLE.name}.json").write_bytes(msgspec.json.encode(record))
    page = tmp_path / "page.html"
    told = said(capsys, "report", root, "--out", page, "--jobs", 1)
    assert f"judged anew under protocol phase3 {later[:12]}" in told
    text = page.read_text()
    # The hash of every artefact on the page is the later one's; the earlier verdict stands beside.
    assert later in text and first not in text and "different protocols" not in text
    assert (
        f"was judged again: protocol {first[:12]}: rejected (client: recovery (window1): too fast);"
        f" then A-X-1 (Wider), protocol {later[:12]}: accepted."
    ) in text
    # What lies in the run stays as it was.
    kept = json.loads((root / "runs" / EXAMPLE.name / "analysis" / "sanity.json").read_bytes())
    assert kept["provenance"]["protocol_sha256"] == first


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "--out", "x"],
        ["compare"],
        ["protocol", "rejudge", "--old", "phase3", "--new", "phase3", "--out", "x"],
    ],
)
def test_a_run_that_was_moved_is_named_where_it_is(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = campaign(tmp_path / "c")
    for name in ("R.1", "R.2", "R.10", "R-confirmation.11", "R.x"):
        (root / "attempts" / name).mkdir(parents=True)

    def said(run: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, str(root / "runs" / run)])
        assert ended.value.code == 2
        return capsys.readouterr().err

    assert f"its last attempt was moved to {root / 'attempts' / 'R.10'}" in said("R")
    assert "moved to" not in said("S")
