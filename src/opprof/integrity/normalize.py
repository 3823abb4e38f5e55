"""Every view of the same text: as it is, and with its encodings undone.

Artefacts may hold text encoded, so :func:`views` adds what the bytes say once that is undone: JSON,
C and Python escapes, HTML entities, percent encoding, doubled quotes, base64, hexadecimal, UTF-16
or UTF-32 of ASCII text, and what was put between (:mod:`opprof.integrity.inserted`); each in any
nesting up to :data:`MAX_DEPTH`.

Encoded text is rare, so a view holds only the surroundings of what was decoded: nothing shorter
than :data:`MIN_CHARS` characters is looked for, and nothing further away can be part of a match.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from urllib.parse import unquote_to_bytes

from opprof.integrity import inserted
from opprof.integrity.stretches import (
    MIN_CHARS,
    RADIUS_BYTES,
    SEPARATOR,
    around,
    collapse,
    positions,
    sites_of,
)

MAX_DEPTH = 3
"""Encodings inside one another that are undone."""
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_BLOCK_BYTES = 1 << 10
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}(?:\\x[0-9a-fA-F]{2})*"
    rb"|[0-3]?[0-7]{2}(?:\\[0-3]?[0-7]{2})*|(.))",
    re.DOTALL,
)
"""Begins with its backslash alone, which a search passes over the rest for, as the others do."""
_HIGH_POINT = re.compile(rb"\\x([89a-fA-F][0-9a-fA-F])")
_SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_ENTITY = re.compile(rb"&(?:#[0-9]{1,7};?|#[xX][0-9a-fA-F]{1,6};?|[A-Za-z][A-Za-z0-9]{1,30};)")
_PERCENT_BYTE = re.compile(rb"%[0-9A-Fa-f]{2}")
_PERCENT = re.compile(rb"%[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*")
_SHELL_QUOTE = re.compile(rb"""'(?:"'"|\\')'""")
_BEFORE_EMPTY, _AFTER_EMPTY = list(b"[({,:= "), list(b"])},; ")
_BASE64 = re.compile(
    rb"[A-Za-z0-9+/_-]{40,}(?:(?:\\r|\\n| ){1,2}[A-Za-z0-9+/_-]{40,})*"
    rb"(?:(?:\\r|\\n| ){1,2}[A-Za-z0-9+/_-]+)?={0,2}"
)
_HEX = re.compile(rb"[0-9a-fA-F]{%d,}" % (2 * MIN_CHARS))
_BASE64_MIN = (MIN_CHARS * 4 + 2) // 3
_BASE64_GOES_ON = (b" ", b"\\")
"""A line break is white space by now, or an escape."""
_NOT_BASE64 = re.compile(rb"\\[nr]|[ =]")
_SAID = re.compile(rb"(?:[\x00\t\n\r\x1b\x20-\x7e]|[\xc2-\xf4][\x80-\xbf]{1,3}){%d}" % MIN_CHARS)
"""As many characters in a row, perhaps with NUL between them (UTF-16)."""
_PACKED = b"\x1f\x8b"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def is_text(data: bytes) -> bool:
    """Tell whether nine tenths of every KiB are UTF-8 (or ASCII in UTF-16) without controls."""
    if data.isascii() and len(data.translate(None, _CONTROLS)) == len(data):
        return True
    starts = range(0, len(data), _BLOCK_BYTES)
    return all(_is_text(data[start : start + _BLOCK_BYTES]) for start in starts)


def _is_text(sample: bytes) -> bool:
    if sample.count(b"\x00") * 3 > len(sample):
        sample = sample.replace(b"\x00", b"")
    odd = len(sample) - len(sample.translate(None, _CONTROLS))
    if not sample.isascii():
        odd += len(sample) - len(sample.decode("utf-8", "ignore").encode())
    # Half a character may stand at either end.
    return (odd - 6) * 10 <= len(sample)


def views(text: bytes, *, table: bool = False) -> Iterator[bytes]:
    """Yield collapsed ``text`` itself and every decoded view of it, each collapsed.

    ``table`` is CSV or YAML, in which every quote inside of quotes is doubled.
    """
    yield text
    decoders = (*_DECODERS, *_quote_decoders(table=table))
    pending = [(text, 0)]
    seen: set[bytes] = set()
    while pending:
        current, depth = pending.pop()
        for clean in inserted.CLEANERS:
            # Nothing is encoded by these, so that only what remains is decoded further.
            if cleaned := clean(current):
                yield cleaned
                current = cleaned
        if not current.isascii():
            for form in inserted.FORMS:
                if found := form(current):
                    yield found
        if depth == MAX_DEPTH:
            continue
        # What was decoded is in no encoding of one byte a character.
        first = () if depth or current.isascii() else (inserted.from_windows,)
        for decode in (*decoders, *first):
            found = decode(current)
            # Of large views only the digest is kept.
            if found and (digest := sha256(found).digest()) not in seen:
                seen.add(digest)
                yield found
                pending.append((found, depth + 1))
        for join in inserted.JOINERS:
            if found := join(current):
                yield found


def _without_nul(text: bytes) -> bytes:
    """ASCII text in UTF-16 or UTF-32 is itself between NUL bytes."""
    if b"\x00" not in text or text.count(b"\x00") * 3 <= len(text):
        return b""
    return collapse(text.replace(b"\x00", b""))


def _unescaped(text: bytes) -> bytes:
    if b"\\" not in text:
        return b""
    return around(text, positions(text, b"\\"), lambda part: _ESCAPE.sub(_escape, part))


def _unescaped_points(text: bytes) -> bytes:
    """In Python's text ``\\xe4`` is a character, in its bytes one byte of UTF-8: both are tried."""
    if b"\\" not in text:
        return b""
    sites = sites_of(text, b"\\", _HIGH_POINT)

    def decode(part: bytes) -> bytes:
        return _ESCAPE.sub(_escape, _HIGH_POINT.sub(_point, part))

    return around(text, sites, decode)


def _point(match: re.Match[bytes]) -> bytes:
    return chr(int(match.group(1), 16)).encode()


def _escape(match: re.Match[bytes]) -> bytes:
    found = match.group()
    kind = found[1:2]
    if match.group(1) is not None:
        # Any other escaped character stands for itself: quotes, slashes, the backslash.
        return _SIMPLE.get(kind, kind)
    if kind == b"x":
        return bytes.fromhex(found.replace(b"\\x", b"").decode())
    if kind in b"01234567":
        return bytes(int(digits, 8) for digits in found[1:].split(b"\\"))
    digits = found[2:6] if kind == b"u" and found[2:3] != b"{" else found[2:].strip(b"{}")
    code = int(digits, 16)
    if found[6:8] == b"\\u":
        code = 0x10000 + ((code - 0xD800) << 10) + int(found[8:], 16) - 0xDC00
    return chr(code).encode("utf-8", "surrogatepass") if code < 0x110000 else found


def _from_html(text: bytes) -> bytes:
    if b"&" not in text:
        return b""
    sites = sites_of(text, b"&", _ENTITY)
    return around(text, sites, lambda part: _ENTITY.sub(_entity, part))


def _entity(match: re.Match[bytes]) -> bytes:
    return html.unescape(match.group().decode()).encode("utf-8", "surrogatepass")


def _from_percent(text: bytes) -> bytes:
    if b"%" not in text:
        return b""
    sites = sites_of(text, b"%", _PERCENT_BYTE)
    return around(text, sites, lambda part: _PERCENT.sub(_percent, part))


def _from_form(text: bytes) -> bytes:
    """A form's text has ``+`` for a blank, and percent encoding for what it needs."""
    sites = positions(text, b"+") if b"+" in text else []
    return around(text, sites, lambda part: _PERCENT.sub(_percent, part.replace(b"+", b" ")))


def _percent(match: re.Match[bytes]) -> bytes:
    return unquote_to_bytes(match.group())


def _undoubled(text: bytes, quote: bytes, *, table: bool) -> bytes:
    """CSV and YAML double a quote inside of quotes.

    Two of them between brackets, commas and blanks are an empty string, but in a ``table``.
    """
    import numpy as np

    if quote not in text:
        return b""
    values = np.frombuffer(text, np.uint8)
    same = values == quote[0]
    at = np.flatnonzero(same[1:] & same[:-1])
    if not table and len(at):
        before, after = values[np.maximum(at - 1, 0)], values[np.minimum(at + 2, len(values) - 1)]
        empty = np.isin(before, _BEFORE_EMPTY) & np.isin(after, _AFTER_EMPTY)
        at = at[~empty]
    return around(text, at.tolist(), lambda part: part.replace(quote * 2, quote))


def _quote_decoders(*, table: bool) -> tuple[Callable[[bytes], bytes], ...]:
    return tuple(partial(_undoubled, quote=quote, table=table) for quote in (b'"', b"'"))


def _from_shell(text: bytes) -> bytes:
    """Inside of single quotes a shell's word has ``'"'"'`` or ``'\\''`` for one."""
    if b"'" not in text:
        return b""
    sites = sites_of(text, b"'", _SHELL_QUOTE)
    return around(text, sites, lambda part: _SHELL_QUOTE.sub(b"'", part))


def _from_digits(text: bytes) -> bytes:
    parts: list[bytes] = []
    seen: set[bytes] = set()
    for start, end in long_runs(text, BASE64_CLASS, _BASE64_MIN):
        # Identifiers of that length repeat; only what goes on over a line break needs a new look.
        run = text[start : end + 1]
        if run in seen:
            continue
        if run[-1:] not in _BASE64_GOES_ON:
            seen.add(run)
        for match in _HEX.finditer(run) if len(run) >= 2 * MIN_CHARS else ():
            parts += _hex_parts(match.group())
        for match in _BASE64.finditer(text, start, min(end + RADIUS_BYTES, len(text))):
            if match.end() - match.start() >= _BASE64_MIN:
                parts += _base64_parts(_NOT_BASE64.sub(b"", match.group()).translate(_URL_SAFE))
    # Nearly all are names or hashes, which say nothing.
    said = [part for part in dict.fromkeys(parts) if _SAID.search(part) or part[:2] == _PACKED]
    return collapse(SEPARATOR.join(said)) if said else b""


def _hex_parts(digits: bytes) -> list[bytes]:
    """Decode at both alignments."""
    return [
        bytes.fromhex(digits[start : len(digits) - (len(digits) - start) % 2].decode())
        for start in (0, 1)
    ]


def _base64_parts(digits: bytes) -> list[bytes]:
    """Decode at every alignment: a run may begin with characters that are no part of it."""
    parts = []
    for start in range(4):
        part = digits[start:]
        if len(part) % 4 == 1:
            part = part[:-1]
        try:
            parts.append(base64.b64decode(part + b"=" * (-len(part) % 4)))
        except binascii.Error:
            continue
    return parts


def class_table(members: bytes) -> bytes:
    """Return a table of 256 bytes for :func:`long_runs`: 1 for the members."""
    return bytes(byte in members for byte in range(256))


_ALPHANUMERIC = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
BASE64_CLASS = class_table(_ALPHANUMERIC + b"+/-_")


def long_runs(text: bytes, table: bytes, shortest: int) -> list[tuple[int, int]]:
    """Return [start, end) of every maximal run of a character class with ``shortest`` or more.

    Found by whole aligned words of eight members, of which such a run holds several in a row.
    """
    import numpy as np

    mask = text.translate(table)
    full = np.frombuffer(mask, np.uint64, len(mask) // 8) == 0x0101010101010101
    need = (shortest - 7) // 8
    if len(full) < need:
        return []
    row = full[: len(full) - need + 1].copy()
    for shift in range(1, need):
        row &= full[shift : len(full) - need + 1 + shift]
    runs: list[tuple[int, int]] = []
    end = -1
    for at in (np.flatnonzero(row) * 8).tolist():
        if at < end:
            continue
        start = mask.rfind(b"\x00", 0, at) + 1
        stop = mask.find(b"\x00", at)
        end = len(text) if stop < 0 else stop
        if end - start >= shortest:
            runs.append((start, end))
    return runs


_DECODERS: tuple[Callable[[bytes], bytes], ...] = (
    _without_nul,
    _unescaped,
    _unescaped_points,
    _from_html,
    _from_percent,
    _from_form,
    _from_shell,
    _from_digits,
    inserted.without_tags,
)
