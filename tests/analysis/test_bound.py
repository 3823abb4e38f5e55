"""Runs in a campaign's folder are judged by the campaign's protocol, whichever command is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import opprof
from opprof.analysis.bound import protocol_for
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
