"""The slow, exact way through ``traceEvents``: borders by tokens, faults with their byte.

Used where the layout's borders do not prove right: compact or reordered JSON, the array's end, and
every damaged trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from opprof.errors import InputError, SchemaError
from opprof.trace.events import KNOWN_CATEGORIES, ONE_EVENT, PEEK, Event

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises for text that it cannot take; the last for nesting without end."""

SPAN_BYTES = 1 << 18
"""Text after which the tokenizer stops at the next border."""

_TOKEN = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.)*+"|[\[\]{},"]')
_OPEN_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.)*+\\?\Z')
_BYTE = re.compile(r"\(byte ([0-9]+)\)")
_FAULT_BYTES = 1 << 16


class Elements(NamedTuple):
    """What the tokenizer found from a position on."""

    spans: list[tuple[int, int]]
    """Begin and end of each whole element, separators left out; an empty span is a fault."""
    closed_at: int | None
    """Index of the array's closing bracket."""
    fault_at: int | None
    """Begin of an element whose text cannot be tokenized."""


def split(buffer: bytes, start: int) -> Elements:
    """Find the whole elements of an array from ``start``, which is just after ``[`` or ``,``."""
    spans: list[tuple[int, int]] = []
    depth = 0
    begin = start
    for match in _TOKEN.finditer(buffer, start):
        at = match.start()
        token = buffer[at : at + 1]
        if token in b"{[":
            depth += 1
        elif token == b",":
            if depth == 0:
                spans.append((begin, at))
                begin = at + 1
                if at - start > SPAN_BYTES:
                    break
        elif token in b"}]":
            if depth == 0:
                if token == b"}":
                    return Elements(spans, None, begin)
                if spans or buffer[begin:at].strip():
                    spans.append((begin, at))
                return Elements(spans, at, None)
            depth -= 1
        elif match.end() == at + 1:
            cut = _OPEN_STRING.match(buffer, at) is not None
            return Elements(spans, None, None if cut else begin)
    return Elements(spans, None, None)


def decode_each(texts: Iterable[msgspec.Raw | bytes]) -> list[Event]:
    """Decode elements one by one; those of unknown or no category are left out.

    Raises:
        msgspec.DecodeError: an element is malformed, no object, or does not fit its category.
        RecursionError: an element is nested too deeply.
    """
    events = []
    for text in texts:
        category = PEEK.decode(text).cat
        if category is not None and category in KNOWN_CATEGORIES:
            events.append(ONE_EVENT[category].decode(text))
    return events


def fault(path: Path, element: bytes, offset: int, error: Exception | None = None) -> InputError:
    """Return the error for an element that cannot be used; ``offset`` is its first byte's place."""
    if not element.strip():
        reason = "trailing or doubled comma in traceEvents"
        return InputError(reason, path=path, offset=offset + len(element))
    if error is None:
        try:
            decode_each([element[:_FAULT_BYTES]])
        except UNDECODABLE as found:
            error = found
    lead = len(element) - len(element.lstrip(b" \t\r\n"))
    offset += lead
    if isinstance(error, msgspec.ValidationError):
        return SchemaError(f"trace event {plain(error)}", path=path, offset=offset)
    at = max(byte_of(error) - lead, 0) if error is not None else 0
    reason = "trace event is no valid JSON"
    if error is not None:
        reason += f": {plain(error)}"
    return InputError(reason, path=path, offset=offset + at)


def offset_of(chunk_text: bytes, index: int) -> int:
    """Return where the ``index``-th known event of a chunk begins, in bytes of its text."""
    start, known = 1, 0
    while True:
        found = split(chunk_text, start)
        for begin, end in found.spans:
            element = chunk_text[begin:end]
            if PEEK.decode(element).cat in KNOWN_CATEGORIES:
                if known == index:
                    return begin + len(element) - len(element.lstrip(b" \t\r\n"))
                known += 1
        if found.closed_at is not None or not found.spans:
            return start
        start = found.spans[-1][1] + 1


def plain(error: Exception) -> str:
    """Return a decoder's message without its prefix and byte, and with its field."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = _BYTE.sub("", str(error)).replace("JSON is malformed: ", "").strip()
    return text[:1].lower() + text[1:]


def byte_of(error: Exception) -> int:
    """Return the byte that a decoder's message names; 0 when it names none."""
    if isinstance(error, UnicodeDecodeError):
        return error.start
    match = _BYTE.search(str(error))
    return int(match.group(1)) if match else 0
