"""One form for the same text: white space collapsed, and every decoded view of encoded text.

Both sides of the scan, private prompts and artefacts, go through :func:`collapse`: every run of
white space (Unicode's, as ``str.isspace`` has it) becomes one space, in UTF-8. Artefacts may hold
text encoded, so :func:`views` adds what the bytes say once their encoding is undone: JSON, C and
Python escapes, HTML entities, percent encoding, doubled quotes, base64, and UTF-16 or UTF-32 of
ASCII text; each in any nesting up to :data:`MAX_DEPTH`.

Encoded text is rare, so a view holds only the surroundings of what was decoded: nothing shorter
than :data:`MIN_CHARS` characters is looked for, and nothing further away can be part of a match.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from urllib.parse import unquote_to_bytes

MIN_CHARS = 32
"""Characters that a substring of a prompt needs to count, after normalising white space."""
MAX_DEPTH = 3
"""Encodings inside one another that are undone."""
RADIUS_BYTES = 512
"""Surroundings of a decoded place that a view holds: 32 characters of up to 12 encoded bytes."""
SEPARATOR = b"\x00"
"""Between stretches that do not belong together; part of no prompt and of no match."""

_ASCII_SPACE = bytes(
    0x20 if byte in b"\t\n\v\f\r\x1c\x1d\x1e\x1f " else byte for byte in range(256)
)
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_UNICODE_SPACE = re.compile(
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}(?:\\x[0-9a-fA-F]{2})*"
    rb"|[0-3][0-7]{2}(?:\\[0-3][0-7]{2})*|(.))",
    re.DOTALL,
)
"""Begins with its backslash alone, which a search passes over the rest for, as the others do."""
_HIGH_POINT = re.compile(rb"\\x([89a-fA-F][0-9a-fA-F])")
_SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_ENTITY = re.compile(rb"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_PERCENT_BYTE = re.compile(rb"%[0-9A-Fa-f]{2}")
_PERCENT = re.compile(rb"%[0-9A-Fa-f]{2}(?:%[0-9A-Fa-f]{2})*")
_SHELL_QUOTE = re.compile(rb"""'(?:"'"|\\')'""")
_BEFORE_EMPTY, _AFTER_EMPTY = list(b"[({,:= "), list(b"])},; ")
_BASE64 = re.compile(
    rb"[A-Za-z0-9+/_-]{40,}(?:(?:\\r|\\n| ){1,2}[A-Za-z0-9+/_-]{40,})*"
    rb"(?:(?:\\r|\\n| ){1,2}[A-Za-z0-9+/_-]+)?={0,2}"
)
_BASE64_MIN = (MIN_CHARS * 4 + 2) // 3
_BASE64_GOES_ON = (b" ", b"\\")
"""A line break is white space by now, or an escape."""
_NOT_BASE64 = re.compile(rb"\\[nr]|[ =]")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def collapse(data: bytes) -> bytes:
    """Return ``data`` (UTF-8, or anything) with every run of white space as one space."""
    import numpy as np

    if not data.isascii():
        data = _UNICODE_SPACE.sub(b" ", data)
    data = data.translate(_ASCII_SPACE)
    if b"  " not in data:
        return data
    values = np.frombuffer(data, np.uint8)
    space = values == 0x20
    keep = np.empty(len(values), bool)
    keep[0] = True
    np.logical_and(space[1:], space[:-1], out=keep[1:])
    np.logical_not(keep[1:], out=keep[1:])
    return values[keep].tobytes()


def is_text(sample: bytes) -> bool:
    """Tell whether nine tenths of some bytes are UTF-8 (or ASCII in UTF-16) without controls."""
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
        if depth == MAX_DEPTH:
            continue
        for decode in decoders:
            found = decode(current)
            # Of large views only the digest is kept.
            if found and (digest := sha256(found).digest()) not in seen:
                seen.add(digest)
                yield found
                pending.append((found, depth + 1))


def _without_nul(text: bytes) -> bytes:
    """ASCII text in UTF-16 or UTF-32 is itself between NUL bytes."""
    if b"\x00" not in text or text.count(b"\x00") * 3 <= len(text):
        return b""
    return collapse(text.replace(b"\x00", b""))


def _unescaped(text: bytes) -> bytes:
    if b"\\" not in text:
        return b""
    return _around(text, _positions(text, b"\\"), lambda part: _ESCAPE.sub(_escape, part))


def _unescaped_points(text: bytes) -> bytes:
    """In Python's text ``\\xe4`` is a character, in its bytes one byte of UTF-8: both are tried."""
    if b"\\" not in text:
        return b""
    sites = _sites(text, b"\\", _HIGH_POINT)

    def decode(part: bytes) -> bytes:
        return _ESCAPE.sub(_escape, _HIGH_POINT.sub(_point, part))

    return _around(text, sites, decode)


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
    if kind in b"0123":
        return bytes(int(digits, 8) for digits in found[1:].split(b"\\"))
    code = int(found[2:6], 16) if kind == b"u" else int(found[2:], 16)
    if len(found) == 12:
        code = 0x10000 + ((code - 0xD800) << 10) + int(found[8:], 16) - 0xDC00
    return chr(code).encode("utf-8", "surrogatepass") if code < 0x110000 else found


def _from_html(text: bytes) -> bytes:
    if b"&" not in text:
        return b""
    sites = _sites(text, b"&", _ENTITY)
    return _around(text, sites, lambda part: _ENTITY.sub(_entity, part))


def _entity(match: re.Match[bytes]) -> bytes:
    return html.unescape(match.group().decode()).encode("utf-8", "surrogatepass")


def _from_percent(text: bytes) -> bytes:
    if b"%" not in text:
        return b""
    sites = _sites(text, b"%", _PERCENT_BYTE)
    return _around(text, sites, lambda part: _PERCENT.sub(_percent, part))


def _from_form(text: bytes) -> bytes:
    """A form's text has ``+`` for a blank, and percent encoding for what it needs."""
    sites = _positions(text, b"+") if b"+" in text else []
    return _around(text, sites, lambda part: _PERCENT.sub(_percent, part.replace(b"+", b" ")))


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
    return _around(text, at.tolist(), lambda part: part.replace(quote * 2, quote))


def _quote_decoders(*, table: bool) -> tuple[Callable[[bytes], bytes], ...]:
    return tuple(partial(_undoubled, quote=quote, table=table) for quote in (b'"', b"'"))


def _from_shell(text: bytes) -> bytes:
    """Inside of single quotes a shell's word has ``'"'"'`` or ``'\\''`` for one."""
    if b"'" not in text:
        return b""
    sites = _sites(text, b"'", _SHELL_QUOTE)
    return _around(text, sites, lambda part: _SHELL_QUOTE.sub(b"'", part))


def _from_base64(text: bytes) -> bytes:
    parts: list[bytes] = []
    seen: set[bytes] = set()
    for start, end in long_runs(text, BASE64_CLASS, _BASE64_MIN):
        # Identifiers of that length repeat; only what goes on over a line break needs a new look.
        run = text[start : end + 1]
        if run in seen:
            continue
        if run[-1:] not in _BASE64_GOES_ON:
            seen.add(run)
        for match in _BASE64.finditer(text, start, min(end + RADIUS_BYTES, len(text))):
            if match.end() - match.start() >= _BASE64_MIN:
                parts += _base64_parts(_NOT_BASE64.sub(b"", match.group()).translate(_URL_SAFE))
    return collapse(SEPARATOR.join(dict.fromkeys(parts))) if parts else b""


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
    _from_base64,
)


def _around(text: bytes, sites: Iterable[int], decode: Callable[[bytes], bytes]) -> bytes:
    """Return the decoded surroundings of the sites, collapsed."""
    stretches: list[tuple[int, int]] = []
    for at in sites:
        start = max(0, at - RADIUS_BYTES)
        if stretches and start <= stretches[-1][1]:
            start = stretches.pop()[0]
        stretches.append((start, at + RADIUS_BYTES))
    parts = [text[start:end] for start, end in stretches]
    return collapse(SEPARATOR.join(decode(part) for part in parts)) if parts else b""


def _positions(text: bytes, byte: bytes) -> list[int]:
    import numpy as np

    found: list[int] = np.flatnonzero(np.frombuffer(text, np.uint8) == byte[0]).tolist()
    return found


def _sites(text: bytes, first: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    """Where a pattern matches that begins with one certain character, which is rare."""
    return [at for at in _positions(text, first) if pattern.match(text, at)]
