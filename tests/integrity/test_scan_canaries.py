"""Planted text is found in every artefact kind, whatever its encoding and wherever it is cut."""

from __future__ import annotations

import base64
import csv
import gzip
import html
import io
import json
import shlex
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from integrity_tree import (
    EVERY_FILE,
    IDS,
    LINE_FILES,
    PACKED_FILES,
    SECRET,
    filler,
    kinds,
    plant,
    scan,
    tar_of,
    write_manifest,
)

from opprof.integrity.index import GramIndex
from opprof.integrity.normalize import views
from opprof.integrity.scan import CHUNK_BYTES, OVERLAP_BYTES, Scanner
from opprof.integrity.source import PrivateSource, read_private
from opprof.integrity.stretches import MIN_CHARS, collapse
from opprof.integrity.tree import Entry

KEYED = '{"messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    root = tmp_path / "campaign"
    for name in EVERY_FILE:
        plant(root, name, "harmless")
    return root


@pytest.mark.parametrize("name", EVERY_FILE)
def test_text_ids_and_keys_are_found_in_every_artefact_kind(campaign: Path, name: str) -> None:
    private = campaign.parent / "private"
    text = write_manifest(private / "text", [SECRET])
    ids = write_manifest(private / "ids", [], [IDS])
    assert scan(campaign, text).findings == []
    for planted, manifest, kind in (
        (SECRET[40:75], text, "prompt_text"),
        (json.dumps(IDS), ids, "prompt_token_ids"),
        (KEYED, text, "forbidden_key"),
    ):
        plant(campaign, name, planted)
        report = scan(campaign, manifest)
        assert {finding.file for finding in report.findings} == {name}
        assert kind in kinds(report)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> PrivateSource:
    return read_private([write_manifest(tmp_path_factory.mktemp("private"), [SECRET])])


def found(source: PrivateSource, data: bytes, folder: Path, name: str = "server.log") -> set[str]:
    path = folder / name
    path.write_bytes(data)
    tally = Scanner(source).scan_entry(Entry(name, path, "file", len(data)))
    return {finding.kind for finding in tally.findings}


def csv_row(text: str) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(["1", text, "x"])
    return buffer.getvalue().encode()


def utf16(text: str) -> bytes:
    return text.encode("utf-16")


ENCODINGS = {
    "as it is": lambda text: text.encode(),
    "json": lambda text: json.dumps(text, ensure_ascii=False).encode(),
    "json ascii": lambda text: json.dumps(text).encode(),
    "json in json": lambda text: json.dumps(json.dumps(text)).encode(),
    "json in json in json": lambda text: json.dumps(json.dumps(json.dumps(text))).encode(),
    "upper hex": lambda text: json.dumps(text).encode().replace(b"\\u", b"\\U0000"),
    "python": lambda text: repr(text).encode(),
    "python ascii": lambda text: ascii(text).encode(),
    "python bytes": lambda text: repr(text.encode()).encode(),
    "html": lambda text: html.escape(text).encode(),
    "html numeric": lambda text: "".join(f"&#{ord(c)};" for c in text).encode(),
    "html hex": lambda text: "".join(f"&#x{ord(c):X};" for c in text).encode(),
    "json in html": lambda text: html.escape(json.dumps(text)).encode(),
    "percent": lambda text: urllib.parse.quote(text).encode(),
    "form": lambda text: urllib.parse.quote_plus(text).encode(),
    "csv in a log": lambda text: b"row " + csv_row(text),
    "yaml": lambda text: ("x: '" + text.replace("'", "''") + "'").encode(),
    "shell": lambda text: ("opprof run --note " + shlex.quote(text)).encode(),
    "json with solidus": lambda text: json.dumps(text).replace("/", "\\/").encode(),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 url": lambda text: base64.urlsafe_b64encode(text.encode()),
    "base64 wrapped": lambda text: base64.encodebytes(text.encode()),
    "utf-16": utf16,
    "wide": lambda text: text.replace(" ", "\n\t  \u3000\u00a0 ").encode(),
    "spread over lines": lambda text: text.replace(" ", "\n").encode(),
    "escaped lines": lambda text: text.replace(" ", "\\n\\t").encode(),
}


@pytest.mark.parametrize(
    "encoding", [name for name in ENCODINGS if name not in ("utf-16", "upper hex")]
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_32_characters_are_found_in_every_encoding(
    source: PrivateSource, tmp_path: Path, encoding: str, data: st.DataObject
) -> None:
    private = " ".join(SECRET.split())
    start = data.draw(
        st.integers(0, len(private) - MIN_CHARS).filter(
            lambda at: " " not in (private[at], private[at + MIN_CHARS - 1])
        )
    )
    encoded = ENCODINGS[encoding](private[start : start + MIN_CHARS])
    before = data.draw(st.binary(max_size=40).map(lambda b: b.replace(b"\\", b"/")))
    planted = before + b' {"x": ' + encoded + b" }"
    assert "prompt_text" in found(source, planted, tmp_path)


ID_LISTS = {
    "compact": lambda ids: json.dumps(ids, separators=(",", ":")),
    "indented": lambda ids: json.dumps({"x": ids}, indent=2),
    "tuple": lambda ids: repr(tuple(ids)),
    "nested": lambda ids: json.dumps([[ids]]),
    "strings": lambda ids: json.dumps([str(number) for number in ids]),
    "column": lambda ids: "\n".join(map(str, ids)),
    "row": lambda ids: ";".join(map(str, ids)),
    "blanks": lambda ids: "tokens " + "   ".join(map(str, ids)),
    "json in json": lambda ids: json.dumps(json.dumps({"x": list(map(str, ids))})),
}


@pytest.mark.parametrize("form", list(ID_LISTS))
@pytest.mark.parametrize("spaced", [False, True])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(start=st.integers(0, len(IDS) - 8), lead=st.binary(max_size=20))
def test_ids_are_found_in_every_form(
    tmp_path: Path, form: str, spaced: bool, start: int, lead: bytes
) -> None:
    manifest = write_manifest(tmp_path / "ids", [], [IDS])
    if spaced:
        manifest.write_text(json.dumps({"prompt_token_ids": IDS}))
    part = IDS[start:]
    if len(",".join(map(str, part))) < MIN_CHARS:
        return
    planted = lead + b"\xfe " + ID_LISTS[form](part).encode() + b" x"
    assert "prompt_token_ids" in found(read_private([manifest]), planted, tmp_path)


def test_utf_16_with_a_mark_is_found_and_ascii_without_one(
    source: PrivateSource, tmp_path: Path
) -> None:
    assert found(source, SECRET.encode("utf-16"), tmp_path) == {"prompt_text"}
    assert found(source, SECRET.encode("utf-32"), tmp_path) == {"prompt_text"}
    assert found(source, SECRET[:40].encode("utf-16-be"), tmp_path) == {"prompt_text"}


@pytest.mark.parametrize("packed", [False, True])
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shift=st.integers(-200, 200), escape=st.booleans(), chunk=st.integers(1, 2))
def test_no_chunk_border_hides_text(
    source: PrivateSource, tmp_path: Path, packed: bool, shift: int, escape: bool, chunk: int
) -> None:
    planted = json.dumps(SECRET[40:76]) if escape else SECRET[40:76]
    lead = filler(chunk * CHUNK_BYTES + 400)[: chunk * CHUNK_BYTES + shift]
    data = (lead + planted + filler(3000)).encode()
    assert "prompt_text" in found(source, gzip.compress(data, 1) if packed else data, tmp_path)


def test_more_white_space_than_a_chunk_hides_nothing(source: PrivateSource, tmp_path: Path) -> None:
    wide = SECRET[40:76].replace(" ", " " * (CHUNK_BYTES + OVERLAP_BYTES + 5))
    assert "prompt_text" in found(source, wide.encode(), tmp_path)


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_several_gzip_members_are_one_text(source: PrivateSource, tmp_path: Path, cut: int) -> None:
    text = ("x" * 20 + SECRET[40:76]).encode()
    data = gzip.compress(text[:cut]) + b"\x00" * 7 + gzip.compress(b"") + gzip.compress(text[cut:])
    assert found(source, data, tmp_path, "t.gz") == {"prompt_text"}


def test_packed_in_packed_is_looked_into(source: PrivateSource, tmp_path: Path) -> None:
    inner = gzip.compress(SECRET.encode())
    tar = tar_of({"runs/a/traces/w.json.gz": inner, "b": b"x"})
    for data in (tar, gzip.compress(tar), tar_of({"deep.tar.gz": gzip.compress(tar)})):
        assert "prompt_text" in found(source, data, tmp_path, "pack.tar")


def test_a_header_and_what_follows_the_last_member_are_looked_at(
    source: PrivateSource, tmp_path: Path
) -> None:
    named = gzip.compress(b"x")
    header = named[:3] + b"\x08" + named[4:10] + SECRET[40:76].encode() + b"\x00" + named[10:]
    assert "prompt_text" in found(source, header, tmp_path, "a.gz")
    followed = found(source, named + SECRET.encode(), tmp_path, "b.gz")
    assert followed == {"prompt_text", "not_looked_at"}
    tail = tar_of({"a": b"x"}) + SECRET.encode()
    assert "prompt_text" in found(source, tail, tmp_path, "c.tar")


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(
        st.characters(codec="utf-8", exclude_characters="\x00"), min_size=60, max_size=200
    ),
    dense=st.booleans(),
    lead=st.binary(max_size=20),
    data=st.data(),
)
def test_the_index_misses_no_substring(
    text: str, dense: bool, lead: bytes, data: st.DataObject
) -> None:
    private = collapse(text.encode())
    characters = private.decode()
    if len(characters) < MIN_CHARS:
        return
    start = data.draw(st.integers(0, len(characters) - MIN_CHARS))
    part = characters[start : start + MIN_CHARS]
    index = GramIndex(private, dense=dense)
    matches = list(index.find(b"\x00" + lead + b"\x00" + part.encode() + b"\x00"))
    assert bool(matches) == (len(set(part)) >= 4)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80))
def test_matches_are_real(private: str, other: str) -> None:
    text, stream = collapse(private.encode()), collapse(other.encode())
    for match in GramIndex(text).find(stream):
        assert match.text in text
        assert match.text in stream


@given(st.text())
def test_collapse_is_what_python_calls_white_space(text: str) -> None:
    ours = collapse(text.encode()).decode().strip()
    assert ours == " ".join(text.split())


def test_views_end(tmp_path: Path) -> None:
    for nasty in (
        b"\\" * 5000,
        b"&amp;" * 2000,
        b"%25" * 2000,
        b"A" * 5000,
        b"\\u005c" * 900,
        b"JTI1" * 9000,
    ):
        assert len(list(views(nasty))) < 500


def test_names_are_looked_at_and_withheld(tmp_path: Path) -> None:
    root = tmp_path / "campaign"
    plant(root, LINE_FILES[0], "harmless")
    (root / SECRET[75:110].replace("/", "")).write_text("x")
    report = scan(root, write_manifest(tmp_path / "private", [SECRET]))
    assert kinds(report) == {"prompt_text"}
    assert SECRET[80:100] not in repr(report)


def test_no_finding_shows_private_text(tmp_path: Path) -> None:
    root = tmp_path / "campaign"
    for name in (*PACKED_FILES, LINE_FILES[0]):
        plant(root, name, SECRET)
    (root / "x.tar").write_bytes(tar_of({SECRET[:60].replace("/", ""): b"x"}))
    report = repr(scan(root, write_manifest(tmp_path / "private", [SECRET])))
    for start in range(len(SECRET) - 12):
        assert SECRET[start : start + 12] not in report
