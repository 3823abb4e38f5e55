"""Text in one form, and the stretches of it around certain places.

Both sides of the scan, private prompts and artefacts, go through :func:`collapse`: every run of
white space (Unicode's, as ``str.isspace`` has it) becomes one space, in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

MIN_CHARS = 32
"""Characters that a substring of a prompt needs to count, after normalising white space."""
RADIUS_BYTES = 512
"""Surroundings of a decoded place that a view holds: 32 characters of up to 12 encoded bytes."""
SEPARATOR = b"\x00"
"""Between stretches that do not belong together; part of no prompt and of no match."""

_ASCII_SPACE = bytes(
    0x20 if byte in b"\t\n\v\f\r\x1c\x1d\x1e\x1f " else byte for byte in range(256)
)
_UNICODE_SPACE = re.compile(
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)


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


def around(text: bytes, sites: Iterable[int], decode: Callable[[bytes], bytes]) -> bytes:
    """Return the decoded surroundings of the sites, collapsed."""
    stretches: list[tuple[int, int]] = []
    for at in sites:
        start = max(0, at - RADIUS_BYTES)
        if stretches and start <= stretches[-1][1]:
            start = stretches.pop()[0]
        stretches.append((start, at + RADIUS_BYTES))
    parts = [text[start:end] for start, end in stretches]
    return collapse(SEPARATOR.join(decode(part) for part in parts)) if parts else b""


def positions(text: bytes, byte: bytes) -> list[int]:
    import numpy as np

    found: list[int] = np.flatnonzero(np.frombuffer(text, np.uint8) == byte[0]).tolist()
    return found


def sites_of(text: bytes, first: bytes, pattern: re.Pattern[bytes]) -> list[int]:
    """Where a pattern matches that begins with one certain character, which is rare."""
    return [at for at in positions(text, first) if pattern.match(text, at)]
