"""The HTTP transport: raw asyncio protocols over a pool of kept connections.

Why not an HTTP library: docs/decisions.md and docs/evidence/client-bench.md hold the measurement.
A connection serves one request at a time and goes back to the pool; the pool hands out the most
recently used one and never one that has been idle long enough for the server to close it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import cast

from opprof.client.endpoint import Endpoint, RequestEncoder
from opprof.client.ports import Clock, ControlReply, Outcome, Prepared, RequestSpec
from opprof.client.response import BadResponse, ResponseReader

IDLE_MAX_NS = 2_500_000_000
"""Half of vLLM's (uvicorn's) keep-alive of 5 s: an older connection may be closing right now."""

STALE_WITHIN_NS = 1_000_000_000
"""A kept connection that the server has closed says so within a round trip; a request that was
taken and then cut lies longer. Only the former is sent again, once, and counted."""

CONNECT_TIMEOUT_S = 10.0
_ANSWER_MAX_BYTES = 64 << 20
"""Longest answer to a call that is kept whole (an OpenAPI document has a few hundred KB)."""

Done = Callable[[Outcome], None]


class Connection(asyncio.Protocol):
    """One TCP connection; at most one request in flight."""

    __slots__ = (
        "_done",
        "_first_ns",
        "_now_ns",
        "_pool",
        "_reader",
        "_request",
        "_resent",
        "_sent_ns",
        "_was_idle",
        "idle_since_ns",
        "transport",
    )

    def __init__(self, pool: HttpTransport, now_ns: Callable[[], int]) -> None:
        self._pool = pool
        self._now_ns = now_ns
        self._reader: ResponseReader | None = None
        self._request: Prepared | None = None
        self._done: Done | None = None
        self._first_ns: int | None = None
        self._was_idle = self._resent = False
        self._sent_ns = 0
        self.idle_since_ns = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.idle_since_ns = self._now_ns()

    def send(
        self, request: Prepared, done: Done, *, was_idle: bool = True, resent: bool = False
    ) -> None:
        """Write the request; ``done`` is called from a later turn of the loop."""
        assert self.transport is not None
        self._reader = ResponseReader()
        self._request, self._done = request, done
        self._was_idle, self._resent = was_idle, resent
        self._first_ns = None
        self._sent_ns = self._now_ns()
        self.transport.write(request.wire)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:
            # An idle connection has nothing to say (a 408 before closing, at most).
            self.close()
            return
        try:
            complete = reader.feed(data)
        except BadResponse:
            self._fail("bad_response")
            return
        if self._first_ns is None and reader.event_seen:
            self._first_ns = self._now_ns()
        if complete:
            self._complete()

    def eof_received(self) -> bool:
        if self._reader is not None and self._reader.eof():
            self._complete()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self._pool.forget(self)
        if self._done is not None:
            self._fail("cut_stream")

    def close(self) -> None:
        """Close; the pool forgets it when the loop says so."""
        if self.transport is not None:
            self.transport.close()

    def _complete(self) -> None:
        now_ns, reader, done = self._now_ns(), self._reader, self._done
        assert reader is not None and done is not None
        outcome = Outcome(now_ns, self._first_ns, reader.status, resent=self._resent)
        if reader.status != 200:
            outcome.error = f"http_{reader.status}"
        else:
            end = reader.stream_end()
            outcome.prompt_tokens, outcome.output_tokens = end.prompt_tokens, end.output_tokens
            outcome.finish_reason, outcome.error = end.finish_reason, end.error
            if end.error is None and outcome.first_token_ns is None:
                # All of it came in one read, cut so finely that no event stood out.
                outcome.first_token_ns = now_ns
        self._reader = self._request = self._done = None
        if reader.reusable:
            self.idle_since_ns = now_ns
            self._pool.give_back(self)
        else:
            self.close()
        done(outcome)

    def _fail(self, error: str) -> None:
        now_ns, reader, done, request = self._now_ns(), self._reader, self._done, self._request
        assert reader is not None and done is not None and request is not None
        self._reader = self._request = self._done = None
        self.close()
        stale = self._was_idle and now_ns - self._sent_ns < STALE_WITHIN_NS
        if stale and error == "cut_stream" and not reader.started and not self._resent:
            # The server had closed the kept connection before it read the request.
            self._pool.resend(request, done)
            return
        done(Outcome(now_ns, self._first_ns, reader.status, error=error, resent=self._resent))


class HttpTransport:
    """Transport over real HTTP for one endpoint."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, endpoint: Endpoint, model: str
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._endpoint = endpoint
        self._encoder = RequestEncoder(endpoint, model)
        self._tls = ssl.create_default_context() if endpoint.tls else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = 0
        self._closed = False
        self.resent = 0
        """Requests sent a second time since the first connection had been closed while idle."""
        self.connected_late = 0
        """Requests that had to wait for a new connection."""
        self.connections = 0
        """Connections opened in all."""

    def prepare(self, spec: RequestSpec) -> Prepared:
        """Build the request's bytes."""
        return Prepared(spec, self._encoder.encode(spec))

    def ready(self, count: int) -> None:
        """Open connections until ``count`` fresh ones are idle; close those idle for too long."""
        self._drop_stale()
        for _ in range(count - len(self._idle) - self._connecting):
            self._start(self._open_idle())

    def send(self, request: Prepared, done: Done) -> None:
        """Send on the most recently used connection, or on a new one."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            transport = connection.transport
            if transport is None or transport.is_closing():
                continue
            if self._clock.now_ns() - connection.idle_since_ns > IDLE_MAX_NS:
                connection.close()
                continue
            connection.send(request, done)
            return
        self.connected_late += 1
        self._start(self._open_and_send(request, done))

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """POST with an empty body on a connection of its own."""
        self._start(self._control(path, done))

    def resend(self, request: Prepared, done: Done) -> None:
        """Send again what a stale connection swallowed."""
        if self._closed:
            return
        self.resent += 1
        self._start(self._open_and_send(request, done, resent=True))

    def give_back(self, connection: Connection) -> None:
        """A connection has answered and may serve again."""
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close everything; requests in flight end as cut streams."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._open):
            connection.close()

    @property
    def idle(self) -> int:
        """Connections that could take a request at once."""
        return len(self._idle)

    def _drop_stale(self) -> None:
        now_ns = self._clock.now_ns()
        for connection in [c for c in self._idle if now_ns - c.idle_since_ns > IDLE_MAX_NS]:
            self._idle.remove(connection)
            connection.close()

    async def _connect(self) -> Connection:
        connection = Connection(self, self._clock.now_ns)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._loop.create_connection(
                lambda: connection, self._endpoint.host, self._endpoint.port, ssl=self._tls
            )
        self._open.add(connection)
        self.connections += 1
        return connection

    async def _open_idle(self) -> None:
        self._connecting += 1
        try:
            self._idle.append(await self._connect())
        except OSError:
            # Nobody waits for it; a request that finds no connection reports the failure.
            return
        finally:
            self._connecting -= 1

    async def _open_and_send(self, request: Prepared, done: Done, resent: bool = False) -> None:
        try:
            connection = await self._connect()
        except OSError:
            done(Outcome(self._clock.now_ns(), error="connect", resent=resent))
            return
        connection.send(request, done, was_idle=False, resent=resent)

    async def _control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        before_ns = self._clock.now_ns()
        try:
            status, _ = await fetch(self._endpoint, "POST", path)
        except (OSError, BadResponse) as error:
            done(ControlReply(before_ns, self._clock.now_ns(), None, type(error).__name__))
            return
        done(ControlReply(before_ns, self._clock.now_ns(), status))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def fetch(endpoint: Endpoint, method: str, path: str) -> tuple[int, bytes]:
    """Make one call on a connection of its own and return (status, body).

    Raises:
        OSError: no connection, or it was cut.
        BadResponse: the answer is no HTTP/1.1.
    """
    tls = ssl.create_default_context() if endpoint.tls else None
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        stream, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls)
    try:
        length = b"Content-Length: 0\r\n" if method == "POST" else b""
        writer.write(endpoint.head(method, path) + length + b"Connection: close\r\n\r\n")
        reader = ResponseReader(keep_all=True)
        read = 0
        while data := await stream.read(65_536):
            read += len(data)
            if reader.feed(data):
                break
            if read > _ANSWER_MAX_BYTES:
                raise BadResponse("the answer is too long")
        else:
            if not reader.eof():
                raise ConnectionResetError("cut answer")
        assert reader.status is not None
        return reader.status, reader.body()
    finally:
        writer.close()
