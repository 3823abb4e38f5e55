"""A small HTTP/1.1 server side on asyncio: whole requests in, bytes out, limits on everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import msgspec

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 64 << 20
MAX_PIPELINED_BYTES = 1 << 20
_SIMULATED = b"x-opprof-simulated: true\r\n"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One whole request."""

    method: str
    path: str
    body: bytes


Handler = Callable[["HttpConnection", HttpRequest], None]


class HttpConnection(asyncio.Protocol):
    """One client; requests are handled one after the other, in order.

    The handler must end every request by :meth:`answer` or :meth:`end_stream`.
    """

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._busy = False
        self._close_after = False
        self._chunked = False
        self.on_lost: Callable[[], None] | None = None
        """Called when the client leaves in the middle of a request."""

    # ------------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        lost, self.on_lost = self.on_lost, None
        if lost is not None:
            lost()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._busy and len(self._buffer) > MAX_PIPELINED_BYTES:
            self.abort()
            return
        self._next()

    # ------------------------------------------------------------------ requests

    def _next(self) -> None:
        while not self._busy and self._buffer and self._transport is not None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head too large")
                return
            head = _Head.parse(bytes(self._buffer[:end]))
            if head is None:
                self._refuse(HTTPStatus.BAD_REQUEST, "malformed request head")
                return
            if head.is_chunked:
                self._refuse(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
                return
            if head.length > MAX_BODY_BYTES:
                self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body too large")
                return
            if len(self._buffer) < end + 4 + head.length:
                if head.expects and len(self._buffer) == end + 4:
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._buffer[end + 4 : end + 4 + head.length])
            del self._buffer[: end + 4 + head.length]
            self._busy = True
            self._chunked = head.version == "HTTP/1.1"
            self._close_after = head.closes
            self._handle(self, HttpRequest(head.method, head.path, body))

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._busy = self._close_after = True
        self.fail(status, message)

    def _done(self) -> None:
        self._busy = False
        self.on_lost = None
        if self._close_after and self._transport is not None:
            self._transport.close()
        elif self._buffer and self._transport is not None:
            # In the loop's next turn, so that a long pipeline does not grow the stack.
            asyncio.get_running_loop().call_soon(self._next)

    # ------------------------------------------------------------------ answers

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens once the client has left."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def answer(
        self, status: HTTPStatus, body: bytes, *, content_type: str = "application/json"
    ) -> None:
        """Send a whole answer and end the request."""
        closing = b"connection: close\r\n" if self._close_after else b""
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {content_type}\r\n"
        length = b"content-length: %d\r\n" % len(body)
        self.write(head.encode() + length + _SIMULATED + closing + b"\r\n" + body)
        self._done()

    def fail(self, status: HTTPStatus, message: str) -> None:
        """Send an error in OpenAI's form and end the request."""
        kind = "BadRequestError" if status.value < 500 else "InternalServerError"
        if status is HTTPStatus.NOT_FOUND:
            kind = "NotFoundError"
        error = {"message": message, "type": kind, "param": None, "code": status.value}
        self.answer(status, msgspec.json.encode({"error": error}))

    def start_stream(self) -> None:
        """Send the head of an event stream."""
        if not self._chunked:
            self._close_after = True
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b"connection: close\r\n"
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            + framing
            + _SIMULATED
            + b"\r\n"
        )

    def stream(self, data: bytes) -> None:
        """Send a piece of an event stream."""
        self.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end_stream(self) -> None:
        """End an event stream and the request."""
        if self._chunked:
            self.write(b"0\r\n\r\n")
        self._done()


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    path: str
    version: str
    length: int
    is_chunked: bool
    closes: bool
    expects: bool

    @classmethod
    def parse(cls, head: bytes) -> _Head | None:
        """Read a request head; None when it is malformed."""
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
            return None
        fields: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                return None
            fields[name.lower()] = value.strip()
        length = fields.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 12:
            return None
        connection = fields.get("connection", "").lower()
        closes = "close" in connection or (parts[2] == "HTTP/1.0" and "keep" not in connection)
        return cls(
            method=parts[0],
            path=parts[1].split("?", 1)[0],
            version=parts[2],
            length=int(length),
            is_chunked="chunked" in fields.get("transfer-encoding", "").lower(),
            closes=closes,
            expects=fields.get("expect", "").lower() == "100-continue",
        )
