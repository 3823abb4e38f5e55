"""What lies beside the finished folders: whoever alters, cuts, removes or adds to it is told of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from campaign_builder import RUN, build

from opprof.cli import main
from opprof.integrity import closing
from opprof.integrity.verify import verify

BESIDE = (
    "campaign.json",
    "commands.log",
    "controller.json",
    "controller.log",
    "decision.json",
    "ledger.jsonl",
    "colocation/vm/gate.json",
    f"logs/{RUN}.1.client.log",
    "stop.json",
    f"state/{RUN}.json",
    f"provenance/runs/{RUN}.json",
    "provenance/provenance.json",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("campaign") / "c")


@pytest.fixture
def left(built: Path, tmp_path: Path) -> Path:
    """A campaign with a file of every kind that a controller leaves beside its runs."""
    campaign = tmp_path / "c"
    shutil.copytree(built, campaign)
    closing.reopen(campaign)
    for name in BESIDE:
        path = campaign / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(b'{"one": "line"}\n')
    closing.close(campaign, wall_ns=4)
    return campaign


def told(campaign: Path) -> set[str]:
    return {c.subject for c in verify(campaign).checks if c.name == "closing"}


def named(campaign: Path, name: str) -> bool:
    return any(name in (c.subject, *c.reason.split()) for c in verify(campaign).checks)


@pytest.mark.parametrize("name", BESIDE)
def test_every_change_is_named(left: Path, name: str) -> None:
    assert told(left) == set()
    path = left / name
    before = path.read_bytes()
    path.chmod(0o644)
    half = len(before) // 2
    for after in (before[:half] + bytes([before[half] ^ 1]) + before[half + 1 :], before[:-2], b""):
        path.write_bytes(after)
        assert verify(left).outcome == "fail"
        assert named(left, name), after
    path.write_bytes(before + b"\n")
    assert named(left, name) == (name not in closing.GROWS)
    path.unlink()
    assert named(left, name)


@pytest.mark.parametrize(
    "name",
    [
        "attempts/other.1/client/x.json",
        "colocation/other/gate.json",
        "colocation/vm/solo-moderate/P01-C00-moderate-colocation/client/x.json",
        "logs/late.log",
        "protocols/x.txt",
        "runs/other/x.json",
        "state/other.json",
    ],
)
def test_what_was_added_is_named(left: Path, name: str) -> None:
    (left / name).parent.mkdir(parents=True, exist_ok=True)
    (left / name).write_bytes(b"{}")
    assert verify(left).outcome == "fail"
    assert named(left, name)


def test_a_stop_or_ledger_that_was_not_left_is_named(left: Path) -> None:
    for name in ("stop.json", "ledger.jsonl"):
        (left / name).unlink()
    closing.close(left, wall_ns=4)
    (left / "stop.json").write_bytes(b"{}")
    (left / "ledger.jsonl").write_bytes(b"")
    (left / "notes.txt").write_bytes(b"no part of a campaign, told as such")
    assert told(left) == {"stop.json", "ledger.jsonl"}


def test_a_log_that_a_refused_resume_began_is_no_addition(left: Path) -> None:
    """A campaign that was started with --foreground has no log of its controller."""
    (left / "controller.log").unlink()
    closing.close(left, wall_ns=4)
    (left / "controller.log").write_text("error [E-STATE]\n")
    assert told(left) == set()


def test_without_the_record_nothing_is_passed_in_silence(left: Path) -> None:
    closing.reopen(left)
    (found,) = (c for c in verify(left).checks if c.name == "closing")
    assert (found.subject, found.outcome) == ("provenance/closing.json", "not_evaluable")


def test_a_decision_made_again_is_recorded_and_nothing_else(left: Path) -> None:
    (left / "decision.json").write_bytes(b"{}")
    (left / "decision.md").write_bytes(b"# new")
    (left / "ledger.jsonl").write_bytes(b"")
    (left / "page.html").write_bytes(b"<p>")
    closing.record_again(left, [left / "decision.md", left / "decision.json", left / "page.html"])
    closing.record_again(left.parent, [left.parent / "decision.json"])
    assert told(left) == {"ledger.jsonl"}
    (left / "decision.md").write_bytes(b"# other")
    assert told(left) == {"ledger.jsonl", "decision.md"}


def test_a_page_made_again_in_its_place_is_recorded(left: Path) -> None:
    page = left / "report.html"
    page.write_bytes(b"<p>an older one")
    closing.close(left, wall_ns=5)
    with pytest.raises(SystemExit):
        main(["report", str(left / "runs"), "--out", str(page)])
    assert page.stat().st_size > 100
    assert told(left) == set()
