"""A mock of vLLM's completions endpoint with its own arrival log, for tests and benchmarks.

``python -m opprof.client.mock_server --port 0`` prints ``listening on PORT``. It streams one SSE
event and one HTTP chunk per token, as vLLM does, from an engine-like step: every ``--step-ms`` one
token for every running request (0: as fast as the loop turns). Timing of a client is judged from
this log (``GET /_mock/log``), never from what the client says. Of a prompt only a digest is logged.

Faults are injected by arrival index, ``--faults '{"3": "http_500"}'``; see :data:`FAULTS`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import os
import resource
import signal
import sys
import time
from collections import deque
from typing import Any, cast

import msgspec

from opprof.client.mock_stream import MockStream

FAULTS = (
    "http_500",
    "cut",
    "no_done",
    "no_usage",
    "wrong_output",
    "wrong_input",
    "stream_error",
    "stall",
    "swallow",
)
"""``cut`` closes in mid-stream; ``stall`` never ends; ``swallow`` closes without an answer."""


class _Body(msgspec.Struct):
    prompt: list[int] | str
    max_tokens: int
    model: str = ""
    temperature: float | None = None
    ignore_eos: bool | None = None
    stream: bool = False
    stream_options: dict[str, Any] = {}


class Arrival(msgspec.Struct):
    """One request as the server saw it; times are CLOCK_MONOTONIC nanoseconds."""

    index: int
    first_byte_ns: int
    complete_ns: int
    connection: int
    max_tokens: int
    prompt_tokens: int
    prompt_digest: str
    greedy: bool
    ignore_eos: bool
    usage_asked: bool
    outstanding: int
    """Requests in flight at this moment, this one included."""
    ended_ns: int | None = None
    aborted: bool = False


class Settings(msgspec.Struct, frozen=True):
    """How the mock behaves."""

    step_ns: int = 0
    slots: int = 1024
    model: str = "mock"
    token_text: str = " the"
    profile_delay_s: float = 0.0
    profile: bool = True
    keep_alive_s: float = 5.0
    faults: dict[int, str] = {}
    opprof_dir: str | None = None
    require_key: str | None = None


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_DONE = _chunk(b"data: [DONE]\n\n")
_END = b"0\r\n\r\n"


class _Request:
    __slots__ = ("arrival", "connection", "fault", "left")

    def __init__(self, connection: _Connection, arrival: Arrival, fault: str | None) -> None:
        self.connection = connection
        self.arrival = arrival
        self.fault = fault
        self.left = arrival.max_tokens - (fault == "wrong_output")


class MockServer:
    """The engine-like core and its log."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self.log: list[Arrival] = []
        self.calls: list[dict[str, Any]] = []
        self.running: list[_Request] = []
        self.waiting: deque[_Request] = deque()
        self.connections = 0
        self._stepping = False
        self._next_step_ns = 0
        self._stream = (
            MockStream(settings.opprof_dir, settings.model) if settings.opprof_dir else None
        )
        base = {
            "id": "cmpl-mock",
            "object": "text_completion",
            "created": 1,
            "model": settings.model,
        }
        choice = {"index": 0, "text": settings.token_text, "logprobs": None, "finish_reason": None}
        self._base = base
        self._token = _chunk(_event({**base, "choices": [choice], "usage": None}))
        last = {**choice, "finish_reason": "length"}
        self._last = _chunk(_event({**base, "choices": [last], "usage": None}))

    @property
    def outstanding(self) -> int:
        """Requests in flight."""
        return len(self.running) + len(self.waiting)

    def accept(self, connection: _Connection, body: _Body, first_byte_ns: int) -> None:
        """Log a request and queue it."""
        index = len(self.log)
        arrival = Arrival(
            index=index,
            first_byte_ns=first_byte_ns,
            complete_ns=time.monotonic_ns(),
            connection=connection.number,
            max_tokens=body.max_tokens,
            prompt_tokens=len(body.prompt.split())
            if isinstance(body.prompt, str)
            else len(body.prompt),
            prompt_digest=hashlib.blake2b(
                msgspec.json.encode(body.prompt), digest_size=8
            ).hexdigest(),
            greedy=body.temperature == 0,
            ignore_eos=body.ignore_eos is True,
            usage_asked=body.stream and bool(body.stream_options.get("include_usage")),
            outstanding=self.outstanding + 1,
        )
        self.log.append(arrival)
        fault = self.settings.faults.get(index)
        if fault == "http_500":
            arrival.ended_ns = time.monotonic_ns()
            connection.answer(500, b'{"error":{"message":"injected"}}')
        elif fault == "swallow":
            arrival.aborted = True
            connection.close()
        else:
            connection.write(_STREAM_HEAD)
            self.waiting.append(_Request(connection, arrival, fault))
            self._wake()

    def _wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._next_step_ns = time.monotonic_ns() + self.settings.step_ns
            self._schedule()

    def _schedule(self) -> None:
        if self.settings.step_ns == 0:
            self.loop.call_soon(self._step)
        else:
            delay_s = max(0, self._next_step_ns - time.monotonic_ns()) / 1e9
            self.loop.call_later(delay_s, self._step)

    def _step(self) -> None:
        """One token for every running request."""
        submit_ns = time.monotonic_ns()
        new: list[_Request] = []
        while self.waiting and len(self.running) + len(new) < self.settings.slots:
            new.append(self.waiting.popleft())
        decoding = len(self.running)
        self.running = [request for request in self.running + new if self._emit(request)]
        if self._stream is not None:
            self._stream.step(
                submit_ns, decoding, [r.arrival.prompt_tokens for r in new], len(self.waiting)
            )
        if self.running or self.waiting:
            self._next_step_ns = max(
                self._next_step_ns + self.settings.step_ns, time.monotonic_ns() - 10**9
            )
            self._schedule()
        else:
            self._stepping = False

    def _emit(self, request: _Request) -> bool:
        connection, fault, arrival = request.connection, request.fault, request.arrival
        if connection.closed:
            arrival.aborted = True
            return False
        if fault == "stall" and request.left == 1:
            return True
        request.left -= 1
        if request.left > 0:
            connection.write(self._token)
            half = request.left <= arrival.max_tokens // 2
            if fault == "cut" and half:
                arrival.aborted = True
                connection.close()
                return False
            return True
        connection.write(self._ending(arrival, fault))
        arrival.ended_ns = time.monotonic_ns()
        connection.finished()
        return False

    def _ending(self, arrival: Arrival, fault: str | None) -> bytes:
        output = arrival.max_tokens - (fault == "wrong_output")
        prompt = arrival.prompt_tokens + (fault == "wrong_input")
        if fault == "stream_error":
            return _chunk(_event({"error": {"message": "injected"}})) + _DONE + _END
        parts = [self._last]
        if arrival.usage_asked and fault != "no_usage":
            usage = {
                "prompt_tokens": prompt,
                "total_tokens": prompt + output,
                "completion_tokens": output,
            }
            parts.append(_chunk(_event({**self._base, "choices": [], "usage": usage})))
        if fault != "no_done":
            parts.append(_DONE)
        return b"".join([*parts, _END])

    def profile(self, connection: _Connection, path: str) -> None:
        """Answer a profile call after the configured delay."""
        call = {"path": path, "before_ns": time.monotonic_ns()}
        self.calls.append(call)

        def answer() -> None:
            call["after_ns"] = time.monotonic_ns()
            connection.answer(200, b"{}")

        self.loop.call_later(self.settings.profile_delay_s, answer)

    def report(self) -> bytes:
        """Return the log as JSON."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return msgspec.json.encode(
            {
                "arrivals": self.log,
                "calls": self.calls,
                "connections": self.connections,
                "cpu_s": usage.ru_utime + usage.ru_stime,
            }
        )

    def clear(self) -> None:
        """Forget the log (indices of faults start again)."""
        self.log, self.calls = [], []

    def flush(self) -> None:
        """Flush the step stream, as the engine does once a second."""
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Close the step stream."""
        if self._stream is not None:
            self._stream.close()


_decode_body = msgspec.json.Decoder(_Body).decode
_POST_ROUTES = ("/v1/completions", "/start_profile", "/stop_profile")


class _Connection(asyncio.Protocol):
    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._need = -1
        self._head = ("", "", b"")
        self._first_ns = 0
        self._idle: asyncio.TimerHandle | None = None
        server.connections += 1
        self.number = server.connections

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._not_idle()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def finished(self) -> None:
        self._idle = self._server.loop.call_later(self._server.settings.keep_alive_s, self.close)

    def _not_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._first_ns = time.monotonic_ns()
            self._not_idle()
        self._buffer = self._buffer + data if self._buffer else data
        while self._take_message():
            continue

    def _take_message(self) -> bool:
        if self._need < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return False
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            self._head = (method, path, head.lower())
            at = self._head[2].find(b"content-length:")
            self._need = int(self._head[2][at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < self._need:
            return False
        body, self._buffer = self._buffer[: self._need], self._buffer[self._need :]
        self._need = -1
        self._route(*self._head, body)
        return bool(self._buffer)

    def _route(self, method: str, path: str, head: bytes, body: bytes) -> None:
        server, settings = self._server, self._server.settings
        if settings.require_key and f"bearer {settings.require_key}".lower().encode() not in head:
            self.answer(401, b'{"error":{"message":"unauthorized"}}')
        elif path.startswith("/_mock/"):
            self._mock(path)
        elif path in ("/start_profile", "/stop_profile") and not settings.profile:
            self.answer(404, b'{"detail":"Not Found"}')
        elif path in _POST_ROUTES and method != "POST":
            self.answer(405, b'{"detail":"Method Not Allowed"}')
        elif path == "/v1/completions":
            try:
                server.accept(self, _decode_body(body), self._first_ns)
            except msgspec.MsgspecError:
                self.answer(400, b'{"error":{"message":"bad request"}}')
        elif path in ("/start_profile", "/stop_profile"):
            server.profile(self, path)
        elif path == "/v1/models":
            models = {"object": "list", "data": [{"id": settings.model, "object": "model"}]}
            self.answer(200, msgspec.json.encode(models))
        elif path in ("/health", "/version"):
            self.answer(200, b'{"version":"mock"}')
        else:
            self.answer(404, b'{"detail":"Not Found"}')

    def _mock(self, path: str) -> None:
        if path == "/_mock/die":
            os._exit(9)
        if path == "/_mock/clear":
            self._server.clear()
        self.answer(200, self._server.report() if path == "/_mock/log" else b"{}")
        if path == "/_mock/stop":
            self._server.loop.call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)

    def answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Mock\r\ncontent-type: application/json\r\n"
        self.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)


async def serve(settings: Settings, port: int) -> None:
    """Serve until cancelled; prints the port it listens on."""
    loop = asyncio.get_running_loop()
    server = MockServer(settings, loop)
    listener = await loop.create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=4096
    )
    bound = listener.sockets[0].getsockname()[1]
    sys.stdout.write(f"listening on {bound}\n")
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with listener:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            server.flush()
    server.close()


def main(arguments: list[str] | None = None) -> None:
    """Run the mock from the command line."""
    parser = argparse.ArgumentParser(description="Mock of vLLM's completions endpoint.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=0.0, help="0: as fast as the loop turns")
    parser.add_argument("--slots", type=int, default=1024, help="requests that run at once")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--token-text", default=" the", help="text of every token")
    parser.add_argument("--profile-delay-ms", type=float, default=0.0)
    parser.add_argument("--no-profile", action="store_true", help="404 on the profile endpoints")
    parser.add_argument("--keep-alive-s", type=float, default=5.0)
    parser.add_argument("--faults", default="{}", help="JSON, arrival index to fault")
    parser.add_argument("--opprof-dir", help="write a Layer-1 stream here")
    parser.add_argument("--require-key", help="answer 401 without this bearer token")
    options = parser.parse_args(arguments)
    settings = Settings(
        step_ns=round(options.step_ms * 1e6),
        slots=options.slots,
        model=options.model,
        token_text=options.token_text,
        profile_delay_s=options.profile_delay_ms / 1e3,
        profile=not options.no_profile,
        keep_alive_s=options.keep_alive_s,
        faults=msgspec.json.decode(options.faults, type=dict[int, str]),
        opprof_dir=options.opprof_dir,
        require_key=options.require_key,
    )
    unknown = sorted(set(settings.faults.values()) - set(FAULTS))
    if unknown:
        parser.error(f"unknown faults: {', '.join(unknown)}")
    gc.freeze()
    _run(settings, options.port)


def _run(settings: Settings, port: int) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(settings, port))
    else:
        uvloop.run(serve(settings, port))


if __name__ == "__main__":
    main()
