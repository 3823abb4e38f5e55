"""What a stranger puts into the folder: never silence, and never more memory than a chunk needs."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from integrity_tree import LOG, SECRET, kinds, scan, tar_of, write_manifest

from opprof.artifacts.scan import ScanReport
from opprof.integrity import scan as scanning
from opprof.integrity.containers import PlainFile
from opprof.integrity.normalize import is_text


def reasons(report: ScanReport, name: str) -> str:
    return "; ".join(f.detail for f in report.findings if f.file == name)


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(9000),
        bytes(range(1, 256)) * 20,
        "他的病已经好了但是我不相信".encode("gb18030") * 30,
        "Grüße aus Überlingen, äöü ÄÖÜ ß".encode("latin-1") * 30,
        b"plain at first " * 90_000 + os.urandom(600_000),
    ],
    ids=["random", "every byte", "GB 18030", "Latin-1", "later"],
)
def test_binary_and_unknown_encodings_are_findings(tree: Path, manifest: Path, data: bytes) -> None:
    (tree / "x.bin").write_bytes(data)
    assert "binary or in an unknown encoding" in reasons(scan(tree, manifest), "x.bin")
    (tree / "x.bin").write_bytes(gzip.compress(data))
    assert "binary or in an unknown encoding" in reasons(scan(tree, manifest), "x.bin")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x1b[32mINFO\x1b[0m\r\n\ttext",
        '{"name": "cut \ufffd\x01"}',
        "我昨天在医院遇见了一位老朋友",
        "a" * 5 + "\x00" * 400,
    ],
)
def test_logs_of_this_world_are_text(text: str) -> None:
    assert is_text(text.encode())
    assert is_text(text.encode() + b"\xe6\x88")
    assert is_text(text.encode("utf-16-le")) or not text.isascii()


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        (b"PK\x05\x06" + bytes(18), "zip"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "7z"),
        (b"Rar!\x1a\x07\x00", "RAR"),
        (b"\x04\x22\x4d\x18\x64\x40", "LZ4"),
        (b"%PDF-1.7\n", "PDF"),
        (b"\x89PNG\r\n\x1a\n", "image"),
        (b"SQLite format 3\x00", "data base"),
        (b"\x28\xb5\x2f\xfd\x04", "Zstandard"),
    ],
)
def test_what_cannot_be_opened_is_a_finding_wherever_it_lies(
    tree: Path, manifest: Path, mark: bytes, what: str
) -> None:
    for name, data in (
        ("x", mark),
        ("y.tar", tar_of({"inner": mark})),
        ("z.gz", gzip.compress(mark)),
    ):
        (tree / name).write_bytes(data)
        assert what in reasons(scan(tree, manifest), name)


def test_a_damaged_header_inside_of_a_tar_hides_no_member(tree: Path, manifest: Path) -> None:
    data = bytearray(tar_of({"a": b"x" * 600, "b.gz": gzip.compress(SECRET.encode()), "c": b"y"}))
    data[1536] ^= 0xFF  # the second header's name; its checksum no longer fits
    (tree / "x.tar").write_bytes(data)
    assert "damaged tar" in reasons(scan(tree, manifest), "x.tar")
    (tree / "x.tar").write_bytes(tar_of({"a": b"x"}) + tar_of({"b": b"y"}))
    assert "damaged tar" in reasons(scan(tree, manifest), "x.tar")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_that_would_fill_the_memory_is_refused(
    tree: Path, manifest: Path, kind: bytes
) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, 300 << 20
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as stream:
        stream.write(member.tobuf())
        for _ in range(300):
            stream.write(bytes(1 << 20))
    (tree / "x.tar.gz").write_bytes(buffer.getvalue())
    assert "a header of 314572800 bytes" in reasons(scan(tree, manifest), "x.tar.gz")


@pytest.mark.parametrize("change", ["grows", "shrinks", "is touched"])
def test_a_file_that_changes_while_it_is_read_is_a_finding(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    real = PlainFile.read

    def read(self: PlainFile, size: int, /) -> bytes:
        part = real(self, size)
        if change == "grows":
            with (tree / LOG).open("ab") as stream:
                stream.write(b"" if part else b"more\n")
        elif part:
            os.truncate(tree / LOG, 3 if change == "shrinks" else len(part))
            os.utime(tree / LOG, (1, 1))
        return part

    monkeypatch.setattr(PlainFile, "read", read)
    assert "changed while it was looked at" in reasons(scan(tree, manifest), LOG)


@pytest.mark.parametrize("name", ["late.json", LOG])
def test_what_appears_or_changes_after_the_listing_is_a_finding(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = scanning.Scanner.scan_entry

    def scan_entry(self: Any, entry: Any) -> Any:
        tally = real(self, entry)
        (tree / name).write_text("a text that is longer now")
        return tally

    monkeypatch.setattr(scanning.Scanner, "scan_entry", scan_entry)
    assert "while the scan ran" in reasons(scan(tree, manifest), name)


def test_a_private_folder_inside_is_private_whatever_it_holds(
    tree: Path, tmp_path: Path, manifest: Path
) -> None:
    inside = write_manifest(tree / "private", [SECRET])
    (tree / "private" / "harmless.txt").write_text("x")
    report = scan(tree, inside)
    found = {f.file for f in report.findings if f.kind == "private_file"}
    assert found == {"private/P10.jsonl", "private/harmless.txt"}
    other = tree / "traces"
    other.mkdir()
    (other / "a").write_text("x")
    report = scan(tree, manifest, private_dirs=[other])
    assert {f.file for f in report.findings if f.kind == "private_file"} == {"traces/a"}


def test_a_link_swapped_in_after_the_listing_is_not_followed(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scanning.walk

    def walk(root: Path) -> Any:
        found = list(real(root))
        (tree / LOG).unlink()
        (tree / LOG).symlink_to("/dev/zero")
        monkeypatch.setattr(scanning, "walk", real)
        return found

    monkeypatch.setattr(scanning, "walk", walk)
    report = scan(tree, manifest)
    assert kinds(report) == {"not_looked_at"}
    assert {f.file for f in report.findings} == {LOG}


def test_a_chart_label_hides_no_key_beside_it(tree: Path, manifest: Path) -> None:
    page = tree / "report.html"
    for text in (
        '{"text":["5 %"],"prompt":"tell me"}',
        '{"text":["a ] b","and then she told him about it all"]}',
        '{"text": [ "5 %", "and then she told him about it all"]}',
        '{"text":[["5 %"],["and then she told him about it all"]]}',
    ):
        page.write_text(f"<script>{text}</script>")
        assert kinds(scan(tree, manifest)) == {"forbidden_key"}, text


def test_public_text_hides_nothing_that_overlaps_it(tree: Path, tmp_path: Path) -> None:
    licence = "Permission is hereby granted, free of charge, to any person"
    own = "to any person, but above all to my dear friend Ægir"
    manifest = write_manifest(tmp_path / "two", [licence, own])
    public = tmp_path / "licence.txt"
    public.write_text(licence)
    (tree / LOG).write_text(licence)
    assert scan(tree, manifest, public=[public]).outcome == "pass"
    (tree / LOG).write_text(licence + own.removeprefix("to any person"))
    assert kinds(scan(tree, manifest, public=[public])) == {"prompt_text"}


PEAK = """
import resource, sys
from pathlib import Path
from opprof.integrity.check import scan_folder
folder, manifest = map(Path, sys.argv[1:])
small = folder.parent / "small"
small.mkdir()
(small / "a").write_text("x" * 3000)
scan_folder(small, manifests=[manifest])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = scan_folder(folder, manifests=[manifest])
print(report.stream_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_file_of_one_line_needs_no_more_memory_than_a_chunk(
    tree: Path, manifest: Path, tmp_path: Path
) -> None:
    size = 24 << 20
    with (tree / "one-line.json").open("wb") as stream:
        stream.write(b'{"traceEvents":[')
        for number in range(size >> 20):
            part = json.dumps({"name": f"aten::mm \\u00e9 {number}", "args": {"a": "b" * 90}})
            stream.write((part + ",").encode() * ((1 << 20) // (len(part) + 1)))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tree), str(manifest)],
        check=True,
        capture_output=True,
        text=True,
    )
    looked_at, grown_kb = map(int, done.stdout.split())
    assert looked_at > size * 9 // 10
    assert grown_kb * 1024 < size
