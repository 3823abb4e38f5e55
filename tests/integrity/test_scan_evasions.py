"""Ways in which a prompt could sit in an artefact and be missed: found, refused, or out of scope.

The table of ``docs/integrity.md`` is this one. ``found`` is private text; ``unseen`` says that
nobody could look, which is no pass; ``out`` is missed, for the reason that stands in the document.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import html
import io
import json
import lzma
import pprint
import quopri
import struct
import tarfile
import textwrap
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from integrity_tree import IDS, SECRET, filler, scan, tar_of, write_manifest

from opprof.artifacts.scan import ScanReport

PLAIN = " ".join(SECRET.split())
PART = PLAIN[80:130]
"""Chinese, an emoji and markup; no two neighbouring blanks."""
ASCII = PLAIN[PLAIN.index("never repeat") :][:45]
TOKENS = [PLAIN[at : at + 3] for at in range(100, 190, 3)]
MOJIBAKE = "Ægir Öztürk sagt über Käse: süße Grüße aus Überlingen"
WIDE = "Dear doctor, Ａｌｌ ｏｆ ｔｈｉｓ ｉｓ ｗｉｄｅ, and ①② too"
PROMPTS = [SECRET, MOJIBAKE, WIDE]


def npy(array: object) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array))
    return buffer.getvalue()


def npz(text: str) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([text]))
    return buffer.getvalue()


def tokens_of(text: str, blank: str = " ") -> list[str]:
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    return [piece.replace(" ", blank) for piece in pieces]


def spans(text: str, tag: str = "tspan x='1' dy='1.2em'") -> str:
    name = tag.split()[0]
    return "".join(f"<{tag}>{text[at : at + 9]}</{name}>" for at in range(0, len(text), 9))


def commented(text: bytes, comment: bytes) -> bytes:
    plain = gzip.compress(text, mtime=0)
    return plain[:3] + b"\x10" + plain[4:10] + comment + b"\x00" + plain[10:]


def padded(text: bytes) -> bytes:
    data = bytearray(tar_of({"a": b"x", "b": b"y"}))
    data[512 + 8 : 512 + 8 + len(text)] = text
    return bytes(data)


def behind_name(text: bytes) -> bytes:
    member = tarfile.TarInfo("a").tobuf()
    header = bytearray(member)
    header[4 : 4 + len(text)] = text
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    header[148:156] = b"%06o\x00 " % total
    return bytes(header) + bytes(1024)


def deep(text: str, times: int) -> str:
    for _ in range(times):
        text = json.dumps(text)
    return text


def rows(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in textwrap.wrap(text, 20))


def latin(text: str) -> bytes:
    return text.encode("cp1252", "replace")


def _short_octal(byte: int) -> str:
    return f"\\{byte:o}"


INVISIBLE = (
    *(0x034F, 0x061C, 0x115F, 0x17B4, 0x180B, 0x180E, 0x200D, 0x2060, 0x2064, 0x206F, 0x3164),
    *(0xFE0F, 0xFFA0, 0xE0001, 0xE0061, 0xE0100, 0xE01EF),
)
"""Of every stretch of Unicode's ``Default_Ignorable_Code_Point`` with characters in use."""
Builder = Callable[[], "str | bytes"]
CASES: dict[str, tuple[str, Builder]] = {
    # Encodings of characters.
    "upper-case escapes": ("found", lambda: json.dumps(PART).upper().replace("\\U", "\\u")),
    "surrogate pair": ("found", lambda: json.dumps(PLAIN[100:140])),
    "braced escapes": ("found", lambda: "".join(f"\\u{{{ord(c):x}}}" for c in PART)),
    "NFD": ("found", lambda: unicodedata.normalize("NFD", MOJIBAKE)),
    "NFD in escapes": ("found", lambda: json.dumps(unicodedata.normalize("NFD", MOJIBAKE))),
    "Windows-1252": ("found", lambda: b"said: " + latin(MOJIBAKE)),
    "UTF-16 with a mark": ("found", lambda: PART.encode("utf-16")),
    "ASCII in UTF-16": ("found", lambda: ASCII.encode("utf-16-be")),
    "UTF-16 without a mark": ("unseen", lambda: PLAIN[70:110].encode("utf-16-le") * 9),
    "GB 18030": ("unseen", lambda: PLAIN[70:110].encode("gb18030") * 9),
    "UTF-8 mark inside": ("found", lambda: PART[:20] + "\ufeff" + PART[20:]),
    **{
        f"U+{mark:04X} between": ("found", lambda mark=mark: chr(mark).join(PART))
        for mark in INVISIBLE
    },
    "zero-width marks": ("found", lambda: "\u200b".join(PART)),
    "soft hyphens": ("found", lambda: "\u00ad".join(ASCII)),
    "direction marks": ("found", lambda: "\u202a".join(tokens_of(PART))),
    # Escapes and quotes.
    "solidus": ("found", lambda: json.dumps(PART).replace("/", "\\/")),
    "json 3 times": ("found", lambda: deep(PART, 3)),
    "json 6 times": ("out", lambda: deep(PART, 6)),
    "python repr": ("found", lambda: ascii(PART)),
    "bytes repr": ("found", lambda: repr(PART.encode())),
    "octal of two digits": ("found", lambda: "".join(map(_short_octal, ASCII.encode()))),
    "octal": ("found", lambda: "".join(f"\\{byte:03o}" for byte in PART.encode())),
    "pprint": ("found", lambda: pprint.pformat({"x": PLAIN}, width=30)),
    "C literals": ("found", lambda: f'"{ASCII[:20]}"\n    "{ASCII[20:]}"'),
    "csv": ("found", lambda: 'a,"' + PLAIN[:60].replace('"', '""') + '",b'),
    "sql": ("found", lambda: "VALUES ('" + PLAIN[:60].replace("'", "''") + "')"),
    "shell single": ("found", lambda: "'" + PLAIN[:60].replace("'", "'\"'\"'") + "'"),
    "shell backslashes": ("found", lambda: ASCII.replace(" ", "\\ ").replace(",", "\\,")),
    "shell ANSI-C": ("found", lambda: "$'" + PLAIN[:60].replace("'", "\\'") + "'"),
    "html": ("found", lambda: html.escape(PART)),
    "entities without semicolon": ("found", lambda: "".join(f"&#{ord(c)} " [:-1] for c in ASCII)),
    "percent twice": ("found", lambda: "".join(f"%25{b:02X}" for b in PART.encode())),
    "form": ("found", lambda: ASCII.replace(" ", "+").replace(",", "%2C")),
    # Something between.
    "SVG tspans": ("found", lambda: f"<svg><text>{spans(PART)}</text></svg>"),
    "SVG lines": ("found", lambda: "".join(f"<text>{w}</text>" for w in ASCII.split())),
    "coloured listing": ("found", lambda: spans(html.escape(PART), "span class='k'")),
    "line breaks in a page": ("found", lambda: ASCII[:20] + "<br/>" + ASCII[20:]),
    "ANSI colours": ("found", lambda: "".join(f"\x1b[3{n % 8}m{c}" for n, c in enumerate(PART))),
    "ANSI colours in json": ("found", lambda: json.dumps("\x1b[0;1m".join(tokens_of(PART)))),
    "overstriking": ("found", lambda: "".join(f"{c}\x08{c}" for c in ASCII)),
    "token strings": ("found", lambda: json.dumps({"tokens": TOKENS})),
    "token strings, marked": ("found", lambda: json.dumps(tokens_of(ASCII, "Ġ"))),
    "token strings, python": ("found", lambda: repr(tokens_of(ASCII, "▁"))),
    "words on lines": ("found", lambda: ASCII.replace(" ", "\r\n")),
    "wrapped at 80 columns": ("found", lambda: "\n".join(textwrap.wrap(PLAIN, 80))),
    "wrapped inside of words": ("found", lambda: PLAIN[40:120] + "\n" + PLAIN[120:]),
    "cut inside of a word": ("out", lambda: ASCII[:23] + "\n" + ASCII[23:40]),
    "short lines with a prefix": ("out", lambda: rows(ASCII, "INFO 12:00:01 ")),
    "two records": ("out", lambda: f'{{"a":"{ASCII[:22]}"}}\n{{"a":"{ASCII[22:]}"}}'),
    "a long line": ("found", lambda: filler(1_400_000).replace("\n", "") + PART),
    "other case": ("out", lambda: ASCII.swapcase()),
    "compatibility characters": ("out", lambda: unicodedata.normalize("NFKC", WIDE)),
    "mojibake": ("out", lambda: MOJIBAKE.encode().decode("latin-1")),
    # Digits for bytes.
    "base64": ("found", lambda: base64.b64encode(PART.encode())),
    "base64 of base64": ("found", lambda: base64.b64encode(base64.b64encode(PART.encode()))),
    "hexadecimal": ("found", lambda: "id=" + PART.encode().hex() + ";"),
    "base32": ("out", lambda: base64.b32encode(PART.encode())),
    "base85": ("out", lambda: base64.b85encode(PART.encode())),
    "quoted-printable": ("out", lambda: quopri.encodestring(MOJIBAKE.encode())),
    "gzip in base64": ("unseen", lambda: base64.b64encode(gzip.compress(PART.encode()))),
    "gzip in hexadecimal": ("unseen", lambda: gzip.compress(PART.encode()).hex()),
    "zlib in base64": ("out", lambda: base64.b64encode(zlib.compress(PART.encode()))),
    # Containers.
    "gzip members": ("found", lambda: gzip.compress(b"x" + PART.encode()[:9])
                     + gzip.compress(PART.encode()[9:])),
    "gzip comment": ("found", lambda: commented(b"x", b"y" * 3000 + PART.encode())),
    "comment of a later member": ("found", lambda: gzip.compress(b"x")
                                  + commented(b"x", b"y" * 3000 + PART.encode())),
    "endless gzip comment": ("found", lambda: commented(b"x", b"y" * 200_000 + PART.encode())),
    "gzip inside of text": ("unseen", lambda: filler(900).encode() + gzip.compress(PART.encode())),
    "zlib": ("unseen", lambda: zlib.compress(PLAIN.encode())),
    "zlib behind text": ("unseen", lambda: filler(9000).encode() + zlib.compress(PLAIN.encode())),
    "zstandard": ("unseen", lambda: b"\x28\xb5\x2f\xfd\x04" + PART.encode()[:9]),
    "letters of bzip2": ("found", lambda: "BZh91AY: " + PART),
    "letters of xz": ("found", lambda: b"\xfd7zXZ\x00 " + PART.encode()),
    "letters of gzip": ("found", lambda: b"\x1f\x8b\x08\x00 " + PART.encode() * 3),
    "letters of a tar": ("found", lambda: filler(900)[:257] + "ustar " + PART + filler(900)),
    "behind a damaged member": ("found", lambda: gzip.compress(b"x") + b"\x1f\x8b\x08"
                                + bytes(9) + PART.encode()),
    "bzip2": ("found", lambda: bz2.compress(PART.encode())),
    "bzip2 streams": ("found", lambda: bz2.compress(b"") + bz2.compress(PART.encode())),
    "xz": ("found", lambda: lzma.compress(PART.encode())),
    "tar in gzip": ("found", lambda: gzip.compress(tar_of({"a": PART.encode()}))),
    "padding of a tar": ("found", lambda: padded(PART.encode())),
    "behind a name in a tar": ("found", lambda: behind_name(ASCII.encode())),
    "npz": ("unseen", lambda: npz(PART)),
    "npy": ("found", lambda: npy([ASCII])),
    # Token ids, against a manifest of ids.
    "ids": ("found", lambda: json.dumps(IDS)),
    "ids of numpy": ("found", lambda: "[ " + "  ".join(map(str, IDS)) + "]"),
    "ids in binary": ("unseen", lambda: struct.pack(f"<{len(IDS)}i", *IDS) * 3),
    "ids with a point": ("out", lambda: ", ".join(f"{number}.0" for number in IDS)),
    "ids one a record": ("out", lambda: "\n".join(f'{{"t":{number}}}' for number in IDS)),
}  # fmt: skip


def verdict(report: ScanReport) -> str:
    return {"pass": "out", "fail": "found", "not_evaluable": "unseen"}[report.outcome]


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("private")
    return {
        False: write_manifest(folder / "text", PROMPTS),
        True: write_manifest(folder / "ids", [], [IDS]),
    }


@pytest.mark.parametrize("name", list(CASES))
def test_each_way_is_decided(tmp_path: Path, manifests: dict[bool, Path], name: str) -> None:
    expected, build = CASES[name]
    data = build()
    (tmp_path / "x").write_bytes(data.encode() if isinstance(data, str) else data)
    report = scan(tmp_path, manifests[name.startswith("ids")])
    assert verdict(report) == expected, report.findings


@pytest.mark.parametrize(
    "name", [ASCII, base64.urlsafe_b64encode(ASCII.encode()).decode(), ASCII.replace(" ", "%20")]
)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_names_are_text_too(
    tmp_path: Path, manifests: dict[bool, Path], name: str, kind: str
) -> None:
    (tmp_path / "other").write_text("x")
    path = tmp_path / name
    if kind == "file":
        path.write_text("x")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(name)  # in a circle
    assert verdict(scan(tmp_path, manifests[False])) == "found"


def test_a_link_to_text_is_no_pass(tmp_path: Path, manifests: dict[bool, Path]) -> None:
    (tmp_path / "link").symlink_to(ASCII)
    assert verdict(scan(tmp_path, manifests[False])) == "unseen"
