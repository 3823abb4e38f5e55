"""Views of text that something was put into: tags, terminal codes, invisible characters, borders.

Each function returns what it changed, or collapsed surroundings of that, and ``b""`` where nothing
was. They are steps of :func:`opprof.integrity.normalize.views`, beside those that undo an encoding.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from opprof.integrity.stretches import MIN_CHARS, SEPARATOR, around, collapse

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BREAK, _BREAK_BEGINS = re.compile(rb"<w?br\b", re.IGNORECASE), list(b"bBwW")
"""Markup has closing tags; the names of C++ kernels have angle brackets without."""
_TAG = re.compile(rb"<[A-Za-z/!][^<>]*>")
_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z^-~])")
"""ECMA-48 control sequences, a terminal's titles and links."""
_BACK = re.compile(rb"[^\x08]\x08")
"""Overstriking."""
_INVISIBLE = re.compile(
    rb"\xc2\xad|\xcd\x8f|\xd8\x9c|\xe1(?:\x85[\x9f\xa0]|\x9e[\xb4\xb5]|\xa0[\x8b-\x8f])"
    rb"|\xe2(?:\x80[\x8b-\x8f\xaa-\xae]|\x81[\xa0-\xaf])|\xe3\x85\xa4"
    rb"|\xef(?:\xb8[\x80-\x8f]|\xbb\xbf|\xbe\xa0)|\xf3\xa0[\x80-\xbf][\x80-\xbf]"
)
"""Unicode's ``Default_Ignorable_Code_Point``, which nobody sees: zero-width and directional marks,
joiners, variation selectors and their supplement, tags, fillers, soft hyphens."""
_BLANK_TOKENS = re.compile(rb"\xc4[\xa0\x8a]|\xe2\x96\x81")
"""A blank or line break at the beginning of a token's text: GPT-2's and SentencePiece's."""
_MISREAD = re.compile("[\udc80-\udcff]")
"""A byte that is no UTF-8."""
_REACH = 31
_NEARBY = range(0x80, 0x100)


def without_tags(text: bytes) -> bytes:
    """Return what a page, an SVG or a coloured listing says: tags cut inside of words or lines."""
    if b"<" not in text:
        return b""
    import numpy as np

    values = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(values[:-1] == 0x3C)
    after = values[at + 1]
    sites = at[after == 0x2F].tolist()
    sites += [n for n in at[np.isin(after, _BREAK_BEGINS)].tolist() if _BREAK.match(text, n)]
    sites.sort()
    both = (
        around(text, sites, lambda part, by=by: _TAG.sub(by, part))  # type: ignore[misc]
        for by in (b"", b" ")
    )
    return SEPARATOR.join(both)


def without_codes(text: bytes) -> bytes:
    """Return all of the text as a terminal shows it."""
    if b"\x1b" not in text and b"\x08" not in text:
        return b""
    return collapse(_BACK.sub(b"", _CODE.sub(b"", text)))


def without_invisible(text: bytes) -> bytes:
    """Return all of the text without characters that nobody sees."""
    if text.isascii():
        return b""
    found, count = _INVISIBLE.subn(b"", text)
    return collapse(found) if count else b""


def normalised(text: bytes, form: Literal["NFC", "NFD"]) -> bytes:
    """Return text in a Unicode normal form, where it is in another one."""
    characters = text.decode("utf-8", "surrogateescape")
    if unicodedata.is_normalized(form, characters):
        return b""
    found = unicodedata.normalize(form, characters)
    return collapse(found.encode("utf-8", "surrogateescape"))


def from_windows(text: bytes) -> bytes:
    """Return text whose bytes that are no UTF-8 are read as Windows-1252 (Latin-1 and more)."""
    if text.isascii():
        return b""
    characters = text.decode("utf-8", "surrogateescape")
    stretches: list[tuple[int, int]] = []
    for match in _MISREAD.finditer(characters):
        start = max(0, match.start() - _REACH)
        if stretches and start <= stretches[-1][1]:
            start = stretches.pop()[0]
        stretches.append((start, match.end() + _REACH))
    parts = [characters[start:end].translate(_WINDOWS) for start, end in stretches]
    return collapse(SEPARATOR.join(part.encode("utf-8", "surrogatepass") for part in parts))


def _windows() -> dict[int, str]:
    table = {}
    for byte in _NEARBY:
        raw = bytes([byte])
        try:
            table[0xDC00 + byte] = raw.decode("cp1252")
        except UnicodeDecodeError:
            table[0xDC00 + byte] = raw.decode("latin-1")
    return table


_WINDOWS = _windows()


def without_borders(text: bytes, quote: bytes) -> bytes:
    """Return one text of strings that stand in a row: tokens of an array, parts of a literal.

    ``["a", "b", "c"]`` counts from three strings on, for any object has two around a comma;
    ``'a' 'b'``, as Python's ``pprint`` breaks a long string, always does.
    """
    if quote not in text:
        return b""
    import numpy as np

    values = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(values == quote[0])
    if len(at) < 2:
        return b""
    gap = np.diff(at)
    after = np.take(values, at[:-1] + 1)
    broken = at[:-1][(gap == 2) & (after == 0x20)]
    border = re.compile(quote + rb"(?:, ?| )" + quote)
    found = [around(text, broken.tolist(), lambda part: border.sub(b"", part))]
    comma = after == 0x2C
    comma &= (gap == 2) | ((gap == 3) & (np.take(values, at[:-1] + 2, mode="clip") == 0x20))
    # Traces hold the same few lists of types and dimensions without end.
    rows = dict.fromkeys(text[start:end] for start, end in _rows(at, comma, len(text)))
    found += [_BLANK_TOKENS.sub(b" ", border.sub(b"", row)) for row in rows]
    return collapse(SEPARATOR.join(part for part in found if part))


def _rows(at: NDArray[Any], comma: NDArray[Any], size: int) -> Iterator[tuple[int, int]]:
    """Yield where three strings or more stand in a row that have 32 bytes together.

    ``comma`` tells that between a quote and the next one stands nothing else; between the two of
    a row lies a string.
    """
    import numpy as np

    for first in (0, 1):
        edges = np.diff(np.concatenate([[0], comma[first::2].view(np.int8), [0]]))
        begin, end = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
        long = end - begin > 1
        begin, end = begin[long], end[long]
        # A row that the stretch cuts goes on to its border.
        left, right = begin * 2 + first - 1, end * 2 + first
        start = np.where(left < 0, 0, at[np.maximum(left, 0)])
        stop = np.where(right < len(at), at[np.minimum(right, len(at) - 1)] + 1, size)
        enough = stop - start - 4 * (end - begin) >= MIN_CHARS
        yield from zip(start[enough].tolist(), stop[enough].tolist(), strict=True)


CLEANERS = (without_codes, without_invisible)
"""What remains stands for the text: no encoding needs what they take out."""
FORMS = (partial(normalised, form="NFC"), partial(normalised, form="NFD"))
JOINERS = (partial(without_borders, quote=b'"'), partial(without_borders, quote=b"'"))
"""Like the forms, the last step: an encoding inside is undone before."""
