"""From pieces of a trace's text to its events, never holding more than a few pieces.

What is checked, and what is not. Every element of ``traceEvents`` is decoded by msgspec, so the
array is valid JSON made of objects, and the text before and after it is decoded as one document.
One exception buys the speed: after ``json_budget_bytes`` of ``python_function`` text have been
decoded, the rest of a run of such events in Kineto's own layout is only *searched*. Every ``},`` in
it must be followed by the head of another ``python_function`` event, so no other event hides there;
the JSON inside these events is not parsed. ``searched_bytes`` says how much text that was;
``json_budget_bytes=None`` parses everything.

Borders between events are guessed from the layout and proved by decoding: a chunk that decodes as a
list of whole objects was cut at borders. Where the guess fails, the tokenizer of
:mod:`opprof.trace.elements` finds the borders (compact JSON, other layouts) or the fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from opprof.errors import InputError
from opprof.trace.elements import UNDECODABLE, byte_of, decode_each, fault, plain, split
from opprof.trace.events import EVENTS, Event, PythonFunction
from opprof.trace.inflate import GzipText

JSON_BUDGET_BYTES = 8 << 20
"""Default text of ``python_function`` events that is decoded before searching begins. It changes no
figure, only how much is validated: traces of the usual moderate-load size are parsed whole."""

LIMIT_BYTES = 16 << 20
"""Bound on the text before the events, after them, and of a single event."""

CHUNK_BYTES = 1 << 18

_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BORDER = b"\n  },\n  {\n"
_ANY_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_PYTHON_HEAD = b'  {\n    "ph": "X", "cat": "python_function", "name": "'
_NOT_PYTHON = re.compile(rb'\},(?!\n  \{\n(?s:.{19})": "python_f)')
"""Finds a ``},`` that the head above does not follow. Only the category's value is compared, at its
place: ``": "`` cannot stand inside a JSON string, and no other key ends there."""
_GUESSES = 4
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class Chunk(NamedTuple):
    """Events that stood together."""

    events: list[Event]
    text: bytes
    """The JSON array that they were decoded from."""
    offset: int
    """Place of ``text`` in the inflated file (its opening bracket is not part of the file)."""


class Document(msgspec.Struct):
    """The trace's top level without its events."""

    traceEvents: list[msgspec.Raw]
    baseTimeNanoseconds: Any = None
    distributedInfo: Any = None

    @property
    def base_wall_ns(self) -> int | None:
        """Wall clock of the trace's zero, where the trace says it."""
        return self.baseTimeNanoseconds if isinstance(self.baseTimeNanoseconds, int) else None

    @property
    def rank(self) -> int | None:
        """The rank that wrote the trace, where it says it."""
        info = self.distributedInfo
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and not isinstance(rank, bool) else None


class EventScanner:
    """One pass over one trace: iterate over :meth:`chunks`, then look at the attributes."""

    def __init__(self, path: Path, *, json_budget_bytes: int | None) -> None:
        """``json_budget_bytes``: see the module's text; None parses every byte."""
        self.path = path
        self.text = GzipText(path)
        self.searched_bytes = 0
        self.document: Document | None = None
        """Set when :meth:`chunks` has ended without an exception."""
        self._budget = json_budget_bytes
        self._pieces = iter(self.text)
        self._buffer = b""
        self._offset = 0
        self._position = 0
        self._in_run = False
        self._after_comma = False
        self._closed = False

    def chunks(self) -> Iterator[Chunk]:
        """Yield the events in file order.

        Raises:
            InputError: the gzip or the JSON is damaged; names the file and the byte in the
                inflated text.
            SchemaError: an event of a known category lacks a field or has one of a wrong type.
        """
        head = self._head()
        while not self._closed:
            if self._in_run:
                self._search_run()
            chunk = self._guess()
            if chunk is None:
                chunk = self._tokenize()
            if chunk.events:
                self._note_run(chunk)
                yield chunk
        self._tail(head)

    # ------------------------------------------------------------------ the text around

    def _head(self) -> bytes:
        """Return the text up to and with the events' opening bracket."""
        while (match := _ARRAY.search(self._buffer)) is None:
            if len(self._buffer) > LIMIT_BYTES or not self._more():
                raise self._no_events()
        self._position = match.end()
        return self._buffer[: match.end()]

    def _no_events(self) -> InputError:
        try:
            msgspec.json.decode(self._buffer)
        except UNDECODABLE as error:
            reason = f"no traceEvents array, and no valid JSON: {plain(error)}"
            return InputError(reason, path=self.path, offset=byte_of(error))
        return InputError("no traceEvents array", path=self.path, offset=0)

    def _tail(self, head: bytes) -> None:
        """Read what follows the events and decode the document around them."""
        while self._more():
            if len(self._buffer) > LIMIT_BYTES:
                raise self._error(f"over {LIMIT_BYTES} bytes after traceEvents", 0)
        text = head + self._buffer[self._position :]
        try:
            document = msgspec.json.decode(text, type=Document)
        except UNDECODABLE as error:
            at = byte_of(error)
            if at >= len(head) or not at:
                at += self._offset + self._position - len(head)
            reason = f"text around traceEvents is no valid document: {plain(error)}"
            raise InputError(reason, path=self.path, offset=at) from error
        if document.traceEvents:
            raise self._error("traceEvents occurs twice", self._position)
        self.document = document

    # ------------------------------------------------------------------ the events

    def _guess(self) -> Chunk | None:
        """Decode up to the last border that the layout suggests; None when that proves wrong."""
        ends = self._guessed_ends()
        start = self._position
        for end in reversed(ends):
            text = b"".join((b"[", memoryview(self._buffer)[start:end], b"]"))
            events = _decode(text)
            if events is not None:
                chunk = Chunk(events, text, self._offset + start - 1)
                self._advance(self._buffer.index(b",", end))
                return chunk
        return None

    def _guessed_ends(self) -> list[int]:
        """Return where whole elements may end, reading on while nothing suggests a border."""
        while True:
            start = self._position
            for limit in (start + CHUNK_BYTES, len(self._buffer)):
                end = self._buffer.rfind(_BORDER, start, limit)
                if end >= 0:
                    return [end + len("\n  }")]
                found = [m.start() + 1 for m in _ANY_BORDER.finditer(self._buffer, start, limit)]
                if found:
                    return found[-_GUESSES:]
            if len(self._buffer) - start > LIMIT_BYTES or not self._more():
                return []

    def _tokenize(self) -> Chunk:
        """Decode the whole elements that tokens show, up to the closing bracket.

        Raises:
            InputError: what stands here is no valid JSON, or the text ends inside the array.
        """
        found = split(self._buffer, self._position)
        while not found.spans and found.closed_at is None and found.fault_at is None:
            if len(self._buffer) - self._position > LIMIT_BYTES:
                raise self._error(f"a trace event of over {LIMIT_BYTES} bytes", self._position)
            # Doubling keeps the repeated splitting of one long event linear.
            wanted = 2 * (len(self._buffer) - self._position)
            if not self._more():
                raise self._error("the text ends inside traceEvents", len(self._buffer))
            while len(self._buffer) < wanted and self._more():
                pass
            found = split(self._buffer, self._position)
        events = self._decode_spans(found.spans)
        start = self._position
        if found.closed_at is not None:
            if self._after_comma and not found.spans:
                raise fault(self.path, b"", self._offset + found.closed_at)
            self._position, self._closed = found.closed_at, True
        elif found.spans:
            self._advance(found.spans[-1][1])
        elif found.fault_at is not None:
            raise fault(self.path, self._buffer[found.fault_at :], self._offset + found.fault_at)
        end = found.spans[-1][1] if found.spans else start
        return Chunk(events, b"[" + self._buffer[start:end] + b"]", self._offset + start - 1)

    def _decode_spans(self, spans: list[tuple[int, int]]) -> list[Event]:
        events: list[Event] = []
        for begin, end in spans:
            element = self._buffer[begin:end]
            try:
                events += decode_each([element])
            except UNDECODABLE as error:
                raise fault(self.path, element, self._offset + begin, error) from error
        return events

    def _note_run(self, chunk: Chunk) -> None:
        """Spend the budget of parsed ``python_function`` text; start searching when it is spent."""
        if self._budget is None or not isinstance(chunk.events[-1], PythonFunction):
            return
        self._budget -= len(chunk.text)
        self._in_run = self._budget <= 0 and not self._closed

    def _search_run(self) -> None:
        """Pass over ``python_function`` events; end the run before anything else."""
        while True:
            end = self._buffer.rfind(_BORDER, self._position)
            if end < 0:
                if len(self._buffer) - self._position < LIMIT_BYTES and self._more():
                    continue
                break
            if not self._buffer.startswith(_PYTHON_HEAD, self._position):
                break
            other = _NOT_PYTHON.search(self._buffer, self._position, end + 4)
            if other is not None:
                # What was found may lie in a name: go back to the border before it, if any.
                end = self._buffer.rfind(_BORDER, self._position, other.start() + 2)
            if end >= 0:
                self.searched_bytes += end + 4 - self._position
                self._advance(end + 4)
            if other is not None:
                break
        self._in_run = False

    # ------------------------------------------------------------------ the buffer

    def _more(self) -> bool:
        """Append the next piece, dropping what has been passed; False at the end of the text."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._buffer = self._buffer[self._position :] + piece
        self._offset += self._position
        self._position = 0
        return True

    def _advance(self, comma: int) -> None:
        """Go to the text after a separating comma, past the line end that Kineto puts there."""
        self._after_comma = True
        self._position = comma + 1
        if self._buffer.startswith(b"\n", self._position):
            self._position += 1

    def _error(self, reason: str, index: int) -> InputError:
        return InputError(reason, path=self.path, offset=self._offset + index)


def _decode(text: bytes) -> list[Event] | None:
    """Decode an array of events; None when it is no array of whole, fitting elements."""
    try:
        return EVENTS.decode(text)
    except (msgspec.ValidationError, UnicodeDecodeError):
        # An unknown category, most likely: worth the second, slower way.
        try:
            return decode_each(_RAWS.decode(text))
        except UNDECODABLE:
            return None
    except (msgspec.DecodeError, RecursionError):
        return None
