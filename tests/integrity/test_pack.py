"""Only what verifies and scans clean is packed: whole, alike each time, and never over anything."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from campaign_builder import MANIFEST, RUN, build, edit
from integrity_tree import SECRET, scan, write_manifest

from opprof.artifacts.pack import Pack
from opprof.cli import main
from opprof.errors import InputError, IntegrityError, StateConflict
from opprof.files import sha256_bytes, sha256_file
from opprof.integrity import closing
from opprof.integrity import pack as packing
from opprof.integrity.pack import Packed, PackOptions, pack
from opprof.integrity.verify import verify
from opprof.protocol import load_protocol


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("campaign") / "c")


@pytest.fixture
def campaign(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "c")
    return tmp_path / "c"


def run_pack(campaign: Path, manifest: Path, name: str = "out/c.tar.gz", **changes: Any) -> Packed:
    protocol = load_protocol(campaign / "protocol.toml")
    assert protocol is not None
    options = PackOptions(manifests=(manifest,), protocol=protocol)
    options = PackOptions(**(vars(options) | changes))
    return pack(campaign, campaign.parent / name, options)


def test_a_campaign_is_packed_whole_and_verifies_when_unpacked(
    campaign: Path, manifest: Path, tmp_path: Path
) -> None:
    done = run_pack(campaign, manifest)
    assert sha256_file(done.path) == done.sha256
    beside = done.path.with_name("c.tar.gz.sha256").read_text()
    assert beside == f"{done.sha256}  c.tar.gz\n"
    with tarfile.open(done.path) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert members[0].name == "c/pack.json"
    names = [member.name for member in members[1:]]
    assert names == sorted(names)
    for member in members:
        assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
        assert member.isreg()
    unpacked = tmp_path / "unpacked" / "c"
    contents = msgspec.json.decode((unpacked / "pack.json").read_bytes(), type=Pack)
    assert contents.verified == contents.scanned == "pass"
    for item in contents.files:
        assert (unpacked / item.path).read_bytes() == (campaign / item.path).read_bytes()
    report = verify(unpacked)
    assert (report.outcome, report.root_sha256) == ("pass", contents.root_sha256)
    assert scan(unpacked, manifest).findings == []
    assert scan(done.path.parent, manifest).findings == []


def test_the_same_folder_gives_the_same_bytes(campaign: Path, manifest: Path) -> None:
    first = run_pack(campaign, manifest)
    os.utime(campaign / "campaign.json", (1, 1))
    (campaign / "campaign.json").chmod(0o600)
    assert run_pack(campaign, manifest, "other/c.tar.gz").sha256 == first.sha256
    plain = run_pack(campaign, manifest, "c.tar")
    assert gzip.decompress(first.path.read_bytes()) == plain.path.read_bytes()


def test_a_folder_that_fails_a_check_is_refused(campaign: Path, manifest: Path) -> None:
    (campaign / f"runs/{RUN}/late.json").write_text("{}")
    with pytest.raises(IntegrityError, match="1 checks failed; nothing was packed"):
        run_pack(campaign, manifest)
    assert not (campaign.parent / "out").exists()


def test_what_is_not_evaluable_is_packed_only_when_accepted(campaign: Path, manifest: Path) -> None:
    (campaign / "notes.txt").write_text("x")
    with pytest.raises(IntegrityError, match="not evaluable, which is no pass"):
        run_pack(campaign, manifest)
    done = run_pack(campaign, manifest, accept_not_evaluable=True)
    assert done.contents.verified == "not_evaluable"
    assert done.contents.not_evaluable[0].startswith("notes.txt: tree:")


def test_private_text_is_refused(campaign: Path, manifest: Path) -> None:
    (campaign / "controller.log").write_text(SECRET)
    closing.close(campaign, wall_ns=4)
    with pytest.raises(IntegrityError, match="the scan has 1 finding; nothing was packed"):
        run_pack(campaign, manifest)
    assert not (campaign.parent / "out").exists()


@pytest.mark.parametrize("dies", [False, True])
def test_what_nobody_could_look_at_is_refused_and_called_nothing_else(
    campaign: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    (campaign / "cut.gz").write_bytes(b"x")
    if dies:
        monkeypatch.setattr("opprof.integrity.scan.Scanner.scan_entry", no_memory)
    reason = "there is no verdict" if dies else "could not look at 1 things; nothing was packed"
    with pytest.raises(InputError, match=reason):
        run_pack(campaign, manifest, accept_not_evaluable=True)
    monkeypatch.undo()
    (campaign / "notes.txt").write_text(SECRET)
    with pytest.raises(IntegrityError, match="the scan has 2 findings; nothing was packed"):
        run_pack(campaign, manifest, accept_not_evaluable=True)
    assert not (campaign.parent / "out").exists()


def test_a_private_manifest_that_was_used_must_be_scanned_against(
    campaign: Path, manifest: Path
) -> None:
    summary = {
        "schema": 1,
        "sha256": MANIFEST,
        "pattern": "P10",
        "arrival": "steady",
        "prefix": "natural",
        "input_tokens": dict.fromkeys(("n", "min", "median", "p95", "max", "sum", "distinct"), 1),
        "output_tokens": dict.fromkeys(("n", "min", "median", "p95", "max", "sum", "distinct"), 1),
        "generator": {},
        "private": True,
    }
    attempts = campaign / "attempts" / "x.1"
    attempts.mkdir(parents=True)
    (attempts / "manifest.sha256").write_text(json.dumps(summary))
    closing.close(campaign, wall_ns=4)
    with pytest.raises(IntegrityError, match=f"private manifest {MANIFEST}, which --private did"):
        run_pack(campaign, manifest, accept_not_evaluable=True)
    summary["sha256"] = sha256_file(manifest)
    (attempts / "manifest.sha256").write_text(json.dumps(summary))
    closing.close(campaign, wall_ns=4)
    assert run_pack(campaign, manifest, accept_not_evaluable=True).bytes > 0


def test_the_public_size_stop_holds(campaign: Path, manifest: Path) -> None:
    with (campaign / "sparse").open("wb") as stream:
        stream.truncate(8_000_000_001)
    with pytest.raises(IntegrityError, match=r"allows 8000000000 to be public \(hard stop 9\)"):
        run_pack(campaign, manifest)


def test_nothing_is_overwritten(campaign: Path, manifest: Path) -> None:
    done = run_pack(campaign, manifest)
    before = done.path.read_bytes()
    with pytest.raises(StateConflict, match="nothing is overwritten"):
        run_pack(campaign, manifest)
    done.path.unlink()
    with pytest.raises(StateConflict, match=r"c\.tar\.gz\.sha256"):
        run_pack(campaign, manifest)
    assert before
    dangling = campaign.parent / "d.tar.gz"
    dangling.symlink_to("nowhere")
    with pytest.raises(StateConflict, match="nothing is overwritten"):
        run_pack(campaign, manifest, "d.tar.gz")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("c/x.tar.gz", "would lie in the folder"), ("x.zip", "--out takes"), ("x", "--out takes")],
)
def test_unusable_places_are_refused(
    campaign: Path, manifest: Path, name: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        run_pack(campaign, manifest, name)


def test_links_out_of_the_folder_are_never_packed(campaign: Path, manifest: Path) -> None:
    (campaign / "logs").symlink_to(manifest.parent)
    with pytest.raises(IntegrityError, match="holds a link"):
        run_pack(campaign, manifest)


@pytest.mark.parametrize("change", [b"longer than before, by some", b"x", None])
def test_what_changes_during_the_scan_is_refused(
    campaign: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, change: bytes | None
) -> None:
    real = packing.scan_folder
    path = campaign / f"runs/{RUN}/commands.log"

    def scan_then_change(*arguments: Any, **named: Any) -> Any:
        report = real(*arguments, **named)
        path.unlink()
        if change is not None:
            path.write_bytes(change)
        return report

    monkeypatch.setattr(packing, "scan_folder", scan_then_change)
    with pytest.raises((IntegrityError, InputError), match=r"changed while|No such file"):
        run_pack(campaign, manifest)
    assert list((campaign.parent / "out").iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from opprof.integrity import closing
from opprof.integrity import pack as packing
from opprof.protocol import load_protocol

campaign, manifest, out, when = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if when == "member":
    real, count = packing.open_plain, []
    def open_plain(path):
        count.append(path)
        die() if len(count) == 5 else None
        return real(path)
    packing.open_plain = open_plain
elif when == "whole":
    real_write = packing._write_tar
    def write_tar(*arguments):
        real_write(*arguments)
        die()
    packing._write_tar = write_tar
else:
    real_link, links = os.link, []
    def link(*arguments, **named):
        links.append(arguments)
        die() if len(links) == int(when) else None
        return real_link(*arguments, **named)
    os.link = link
protocol = load_protocol(campaign / "protocol.toml")
options = packing.PackOptions(manifests=(manifest,), protocol=protocol)
packing.pack(campaign, out, options)
"""


@pytest.mark.parametrize(
    ("when", "left"),
    [("member", []), ("whole", []), ("1", []), ("2", ["c.tar.gz.sha256"])],
)
def test_a_killed_pack_leaves_nothing_half_written(
    campaign: Path, manifest: Path, when: str, left: list[str]
) -> None:
    out = campaign.parent / "out" / "c.tar.gz"
    command = [sys.executable, "-c", KILLED, str(campaign), str(manifest), str(out), when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] == left
    if left:
        with pytest.raises(StateConflict, match="a pack was killed just before"):
            run_pack(campaign, manifest)
        (out.parent / left[0]).unlink()
    assert run_pack(campaign, manifest).bytes > 0


def test_what_appears_in_the_archives_place_meanwhile_stays(
    campaign: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = campaign.parent / "out" / "c.tar.gz"
    real = packing._write_tar

    def write_tar(*arguments: Any) -> None:
        real(*arguments)
        out.write_text("another one's")

    monkeypatch.setattr(packing, "_write_tar", write_tar)
    with pytest.raises(StateConflict, match="nothing is overwritten"):
        run_pack(campaign, manifest)
    assert out.read_text() == "another one's"
    assert [path.name for path in out.parent.iterdir()] == ["c.tar.gz"]


def test_without_nameless_files_the_same_archive_is_written(
    campaign: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_pack(campaign, manifest)
    monkeypatch.delattr(os, "O_TMPFILE")
    second = run_pack(campaign, manifest, "other/c.tar.gz")
    assert second.sha256 == first.sha256
    assert len(list(second.path.parent.iterdir())) == 2


def test_a_private_folder_inside_is_never_packed(campaign: Path) -> None:
    inside = write_manifest(campaign / "private", [SECRET])
    (campaign / "private" / "harmless").write_text("x")
    with pytest.raises(IntegrityError, match="nothing was packed"):
        run_pack(campaign, inside, accept_not_evaluable=True)
    assert not (campaign.parent / "out").exists()


def test_zstandard_is_refused_where_python_has_none(campaign: Path, manifest: Path) -> None:
    try:
        import compression.zstd  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match=r"take \.tar\.gz"):
            run_pack(campaign, manifest, "c.tar.zst")
    else:
        assert run_pack(campaign, manifest, "c.tar.zst").bytes > 0


def test_the_command(campaign: Path, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = campaign.parent / "c.tar.gz"
    arguments = ["pack", str(campaign), "--out", str(out), "--private", str(manifest)]
    started = (campaign / "campaign.json").read_bytes()
    edit(campaign / "campaign.json", lambda value: value.update(id="other"))
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 1
    assert "E-INTEGRITY" in capsys.readouterr().err
    (campaign / "campaign.json").write_bytes(started)
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--json"])
    assert done.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sha256"] == sha256_bytes(out.read_bytes())
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2
