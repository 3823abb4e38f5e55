"""Reads one HTTP/1.1 response of the completions endpoint, decoding only what the client needs.

A stream of 64 tokens is 64 chunks, 64 times a second and connection: decoding each as JSON is what
makes other clients the bottleneck of their own measurement. Here every chunk costs one walk over
its length line; the events' JSON is decoded only at the end, and only the last few, for ``usage``
and ``finish_reason``. Framing is followed exactly (RFC 9112, section 7.1), so an answer's end is
never guessed from its bytes. Generated text is never decoded, kept beyond the tail or reported.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

_HEAD_MAX = 65_536
_SIZE_LINE_MAX = 64
_TAIL_MIN = 4_096
"""At least this much of a stream's end is kept: usage, ``[DONE]`` and the last token events."""
_EVENTS_MAX = 8
"""Events looked at from the end, for ``usage`` and ``finish_reason``."""
_VERSION = b"http/1."
_STATUS_LINE = re.compile(rb"http/1\.[0-9] ([1-5][0-9]{2})(?![^ \r])")

_HEAD, _CHUNKED, _LENGTH, _UNTIL_CLOSE, _TRAILER, _DONE = range(6)


class BadResponse(Exception):
    """The bytes are no HTTP/1.1 response; the message holds none of them."""


_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A server's count: what no JSON reader can hold exactly is no count."""


class _Usage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


class StreamEnd(msgspec.Struct, frozen=True):
    """What the end of a stream said."""

    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    error: str | None
    """Reason code, or None for a complete stream."""


class ResponseReader:
    """Feed it bytes until it says that the response is complete."""

    __slots__ = (
        "_carry",
        "_keep_all",
        "_kept",
        "_pieces",
        "_remaining",
        "_skip",
        "_skips",
        "_state",
        "event_seen",
        "reusable",
        "started",
        "status",
    )

    def __init__(self, *, keep_all: bool = False) -> None:
        self._state = _HEAD
        self._carry = b""
        self._skip = 0
        self._remaining = 0
        self._pieces: list[bytes] = []
        self._skips: list[int] = []
        self._kept = 0
        self._keep_all = keep_all
        self.status: int | None = None
        self.started = False
        """A byte has arrived."""
        self.event_seen = False
        """The first event of the stream has begun to arrive."""
        self.reusable = True
        """The connection may take another request."""

    def feed(self, data: bytes) -> bool:
        """Take bytes; return True when the response is complete.

        Raises:
            BadResponse: the bytes do not follow HTTP/1.1 framing.
        """
        self.started = True
        if self._state == _CHUNKED:
            return self._feed_chunked(data)
        if self._state == _HEAD:
            return self._feed_head(data)
        if self._state == _LENGTH:
            return self._feed_length(data)
        if self._state == _TRAILER:
            return self._feed_trailer(data)
        if self._state == _DONE:
            raise BadResponse("bytes after the end of the response")
        self._keep(data, 0)
        self._look_for_event(data)
        return False

    def eof(self) -> bool:
        """The server has closed; return True when that completes the response."""
        self.reusable = False
        return self._state in (_UNTIL_CLOSE, _DONE)

    def body(self) -> bytes:
        """Return the kept payload: everything with ``keep_all``, else at least its last 4 KiB."""
        if self._state in (_LENGTH, _UNTIL_CLOSE) or not self._skips or self._skips[0] < 0:
            return b"".join(self._pieces)
        return b"".join(
            part
            for data, skip in zip(self._pieces, self._skips, strict=True)
            for part in _payload(data, skip)
        )

    def stream_end(self) -> StreamEnd:
        """Read the end of an event stream: usage, finish reason, ``[DONE]``."""
        end = _read_end(b"".join(self._pieces))
        if end.error is not None:
            # An event that lies across two chunks is whole only without the framing.
            end = _read_end(self.body())
        return end

    def _feed_head(self, data: bytes) -> bool:
        data = self._carry + data
        if not _VERSION.startswith(data[: len(_VERSION)].lower()):
            # Said at once: a peer that speaks something else may never send an empty line.
            raise BadResponse("no HTTP/1.x status line")
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _HEAD_MAX:
                raise BadResponse("header longer than 64 KiB")
            self._carry = data
            return False
        head = data[:end].lower()
        line = _STATUS_LINE.match(head)
        if line is None:
            raise BadResponse("no HTTP/1.x status line")
        self._carry = b""
        rest = data[end + 4 :]
        status = int(line.group(1))
        if 100 <= status < 200:
            return self._feed_head(rest) if rest else False
        self.status = status
        self._choose_body(head, status)
        if self._state == _DONE:
            return True
        return self.feed(rest) if rest else False

    def _choose_body(self, head: bytes, status: int) -> None:
        fields = head.split(b"\r\n")[1:]
        values = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(b":") for line in fields)
        }
        if b"close" in values.get(b"connection", b"") or head.startswith(b"http/1.0"):
            self.reusable = False
        length = values.get(b"content-length")
        if b"chunked" in values.get(b"transfer-encoding", b""):
            self._state = _CHUNKED
        elif length is not None:
            if not length.isdigit():
                raise BadResponse("content-length is no number")
            self._remaining = int(length)
            self._state = _LENGTH if self._remaining else _DONE
        elif status in (204, 304):
            self._state = _DONE
        else:
            self.reusable = False
            self._state = _UNTIL_CLOSE

    def _feed_length(self, data: bytes) -> bool:
        if len(data) > self._remaining:
            self.reusable = False
            data = data[: self._remaining]
        self._remaining -= len(data)
        self._keep(data, -1)
        self._look_for_event(data)
        if self._remaining == 0:
            self._state = _DONE
            return True
        return False

    def _feed_chunked(self, data: bytes) -> bool:
        if self._carry:
            data = self._carry + data
            self._carry = b""
        position, size_end, length = self._skip, 0, len(data)
        start = position
        while position < length:
            size_end = data.find(b"\r\n", position, position + _SIZE_LINE_MAX)
            if size_end < 0:
                if length - position >= _SIZE_LINE_MAX:
                    raise BadResponse("no chunk length where one is due")
                self._carry = data[position:]
                data = data[:position]
                length = position
                break
            size = _chunk_size(data[position:size_end])
            if size == 0:
                self._keep(data[:position], start)
                self._state = _TRAILER
                self._look_for_event(data)
                return self._feed_trailer(data[size_end + 2 :])
            position = size_end + size + 4
        self._skip = position - length
        if length:
            self._keep(data, start)
            if not self.event_seen:
                self._look_for_event(data)
        return False

    def _feed_trailer(self, data: bytes) -> bool:
        data = self._carry + data
        if data.startswith(b"\r\n"):
            end = 2
        else:
            found = data.find(b"\r\n\r\n")
            if found < 0:
                if len(data) > _HEAD_MAX:
                    raise BadResponse("trailer longer than 64 KiB")
                self._carry = data
                return False
            end = found + 4
        self._carry = b""
        if len(data) > end:
            self.reusable = False
        self._state = _DONE
        return True

    def _look_for_event(self, data: bytes) -> None:
        if not self.event_seen and (
            b"data:" in data or (len(self._pieces) > 1 and b"data:" in self.body())
        ):
            self.event_seen = True

    def _keep(self, data: bytes, skip: int) -> None:
        self._pieces.append(data)
        self._skips.append(skip)
        self._kept += len(data)
        if self._kept > 4 * _TAIL_MIN and not self._keep_all:
            self._trim()

    def _trim(self) -> None:
        """Drop whole pieces from the front while at least the minimum remains."""
        drop, kept = 0, self._kept
        while kept - len(self._pieces[drop]) >= _TAIL_MIN:
            kept -= len(self._pieces[drop])
            drop += 1
        del self._pieces[:drop], self._skips[:drop]
        self._kept = kept


def _chunk_size(line: bytes) -> int:
    """Return the length of a chunk from its size line (extensions are ignored)."""
    try:
        size = int(line if line.isalnum() else line.split(b";", 1)[0].strip(), 16)
    except ValueError:
        raise BadResponse("chunk length is no hexadecimal number") from None
    if size < 0:
        raise BadResponse("chunk length is negative")
    return size


def _payload(data: bytes, skip: int) -> list[bytes]:
    """Return the payload parts of one piece; ``skip`` bytes belong to an earlier chunk.

    Of those the last two are the chunk's closing CRLF, which may lie across two pieces.
    """
    length = len(data)
    parts = [data[: max(0, min(skip - 2, length))]]
    position = skip
    while position < length:
        size_end = data.find(b"\r\n", position)
        size = _chunk_size(data[position:size_end])
        parts.append(data[size_end + 2 : size_end + 2 + size])
        position = size_end + size + 4
    return parts


def _read_end(tail: bytes) -> StreamEnd:
    """Find usage and finish reason in the last events before ``[DONE]``."""
    # Only a line's start counts: a newline cannot stand in a JSON string, so no generated text can
    # look like an event.
    tail = b"\n" + tail
    end = max(tail.rfind(b"\ndata: [DONE]"), tail.rfind(b"\ndata:[DONE]"))
    if end < 0:
        return StreamEnd(None, None, None, "no_done")
    usage: _Usage | None = None
    finish: str | None = None
    for _ in range(_EVENTS_MAX):
        # The space after the colon is optional in an event stream.
        start = max(tail.rfind(b"\ndata: {", 0, end), tail.rfind(b"\ndata:{", 0, end))
        if start < 0:
            break
        stop = tail.find(b"\n", start + 1)
        try:
            event = _decode_event(tail[start + 6 : stop])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return StreamEnd(None, None, None, "bad_event")
        if event.error is not None:
            return StreamEnd(None, None, None, "stream_error")
        usage = usage or event.usage
        if event.choices:
            finish = event.choices[0].finish_reason
            break
        end = start
    if usage is None:
        return StreamEnd(None, None, finish, "no_usage")
    return StreamEnd(usage.prompt_tokens, usage.completion_tokens, finish, None)
