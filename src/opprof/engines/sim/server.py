"""The OpenAI-compatible server around the engine: routes, streams, drain.

Real time on CLOCK_MONOTONIC. A time factor makes the engine that much faster (its costs are
divided), so that Layer-1 times stay those of the machine and a client can declare the same scale.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from opprof.engines.sim.batch import Batch, Delivered, SimRequest
from opprof.engines.sim.config import block_contents, text_contents
from opprof.engines.sim.cost import CostFile, FrontendTimes
from opprof.engines.sim.engine import SimEngine
from opprof.engines.sim.http import HttpConnection, HttpRequest
from opprof.engines.sim.metrics import Metrics

TOKEN_TEXT = " sim"
_BYTES_PER_TOKEN = 4
"""Of a prompt that is text: the embedded engine has no tokenizer."""
_DEFAULT_MAX_TOKENS = 16
_PROFILE = {"/start_profile": "start", "/stop_profile": "stop"}


class RealClock:
    """The engine's clock on an asyncio loop, CLOCK_MONOTONIC."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        """Current time."""
        return time.monotonic_ns()

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> asyncio.Handle:
        """Call back at or after ``due_ns``."""
        delay_ns = due_ns - time.monotonic_ns()
        if delay_ns <= 0:
            return self._loop.call_soon(callback)
        return self._loop.call_later(delay_ns / 1e9, callback)


def faster(cost: CostFile, factor: float) -> CostFile:
    """Return the costs divided by ``factor``; every form is linear in its coefficients."""
    parts = {name: tuple(v / factor for v in values) for name, values in cost.parts.items()}
    host, profiler = cost.host, cost.profiler

    def each(values: dict[str, float]) -> dict[str, float]:
        return {name: value / factor for name, value in values.items()}

    return msgspec.structs.replace(
        cost,
        parts=parts,
        host=msgspec.structs.replace(
            host,
            between_ms=host.between_ms / factor,
            between_request_ms=host.between_request_ms / factor,
            launch_ms=each(host.launch_ms),
            launch_worker_ms=each(host.launch_worker_ms),
            launch_request_ms=host.launch_request_ms / factor,
            first_kernel_ms=host.first_kernel_ms / factor,
            gap_ms=each(host.gap_ms),
        ),
        frontend=FrontendTimes(
            rounds=cost.frontend.rounds,
            **{
                name: getattr(cost.frontend, name) / factor
                for name in FrontendTimes.__struct_fields__
                if name != "rounds"
            },
        ),
        profiler=msgspec.structs.replace(
            profiler,
            start_ms=profiler.start_ms / factor,
            save_step_ms=profiler.save_step_ms / factor,
            save_request_ms=profiler.save_request_ms / factor,
            save_eager_ms=profiler.save_eager_ms / factor,
            stop_ms=profiler.stop_ms / factor,
        ),
    )


class CompletionBody(msgspec.Struct):
    """What is read of a completions request; vLLM ignores unknown fields too."""

    prompt: list[int | str | list[int]] | str
    """Token ids, a text, or a list with one of either."""
    model: str = ""
    max_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = 1
    echo: bool = False
    logprobs: int | None = None


_decode = msgspec.json.Decoder(CompletionBody).decode


def single_prompt(prompt: Sequence[int | str | list[int]] | str) -> list[int] | str | None:
    """Return the request's one prompt; None when there are several or none can be told."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        return prompt[0]
    ids = [token for token in prompt if isinstance(token, int)]
    return ids if len(ids) == len(prompt) else None


def prompt_blocks(prompt: list[int] | str, block_tokens: int) -> tuple[int, Sequence[object]]:
    """Return a prompt's tokens and the contents of its whole blocks; 0 for impossible ids."""
    if isinstance(prompt, str):
        data = prompt.encode()
        tokens = -(-len(data) // _BYTES_PER_TOKEN)
        return tokens, text_contents(data, tokens, block_tokens)
    if not all(0 <= token < 1 << 31 for token in prompt):
        return 0, ()
    return len(prompt), block_contents(array("i", prompt).tobytes(), block_tokens)


@dataclass(frozen=True, slots=True)
class _Text:
    """The constant parts of every answer."""

    base: dict[str, object]
    token: bytes
    last: bytes


class _Stream:
    """One request's way back to its client."""

    def __init__(self, server: SimServer, connection: HttpConnection, body: CompletionBody) -> None:
        self._server = server
        self._connection = connection
        self._body = body
        self._start_ns = time.monotonic_ns()
        self.request: SimRequest | None = None
        self.sent = 0
        options = body.stream_options or {}
        self._continuous = bool(
            options.get("include_usage") and options.get("continuous_usage_stats")
        )
        if body.stream:
            connection.start_stream()

    def first(self, at_ns: int) -> None:
        self._server.metrics.first_token.observe((at_ns - self._start_ns) / 1e9)
        self.upto(1)

    def upto(self, outputs: int) -> None:
        """Send tokens until ``outputs`` are sent; the last one goes with the end."""
        request = self.request
        assert request is not None
        outputs = min(outputs, request.max_tokens - 1)
        if self._body.stream:
            token = self._server.text.token
            while self.sent < outputs:
                self.sent += 1
                self._connection.stream(self._with_usage() if self._continuous else token)
        self.sent = max(self.sent, outputs)

    def _with_usage(self) -> bytes:
        """A token with the counts so far (``continuous_usage_stats``)."""
        request, text = self.request, self._server.text
        assert request is not None
        choice = {"index": 0, "text": TOKEN_TEXT, "logprobs": None, "finish_reason": None}
        return _event({**text.base, "choices": [choice], "usage": _usage(request, self.sent)})

    def finished(self, at_ns: int) -> None:
        request, server, connection = self.request, self._server, self._connection
        assert request is not None
        self.upto(request.max_tokens - 1)
        server.metrics.latency.observe((at_ns - self._start_ns) / 1e9)
        usage = _usage(request, request.max_tokens)
        server.ended(self)
        if not self._body.stream:
            text = TOKEN_TEXT * request.max_tokens
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
            answer = {**server.text.base, "choices": [choice], "usage": usage}
            connection.answer(HTTPStatus.OK, msgspec.json.encode(answer))
            return
        connection.stream(server.text.last)
        if (self._body.stream_options or {}).get("include_usage"):
            connection.stream(_event({**server.text.base, "choices": [], "usage": usage}))
        connection.stream(b"data: [DONE]\n\n")
        connection.end_stream()

    def failed(self, at_ns: int) -> None:  # noqa: ARG002
        self._server.ended(self)
        if self._body.stream:
            self._connection.abort()
        else:
            self._connection.fail(HTTPStatus.INTERNAL_SERVER_ERROR, "EngineDeadError")


class SimServer:
    """Routes of one engine."""

    def __init__(self, engine: SimEngine, model: str) -> None:
        self.engine = engine
        self.model = model
        self.metrics = Metrics(model)
        base: dict[str, object] = {
            "id": "cmpl-simulated",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        choice = {"index": 0, "text": TOKEN_TEXT, "logprobs": None, "finish_reason": None}
        self.text = _Text(
            base,
            _event({**base, "choices": [choice], "usage": None}),
            _event({**base, "choices": [{**choice, "finish_reason": "length"}], "usage": None}),
        )
        self.draining = False
        self.on_idle: Callable[[], None] = _nothing
        self._open: set[_Stream] = set()
        engine.on_step = self._stepped

    @property
    def outstanding(self) -> int:
        """Requests that have not been answered."""
        return len(self._open)

    def connection(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self.handle)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Route one request."""
        routes: dict[str, tuple[str, Callable[[HttpConnection, HttpRequest], None]]] = {
            "/v1/completions": ("POST", self._completions),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
        }
        if self.engine.config.profiler is not None:
            routes |= dict.fromkeys(_PROFILE, ("POST", self._profile))
        if request.path not in routes:
            connection.answer(HTTPStatus.NOT_FOUND, b'{"detail":"Not Found"}')
            return
        method, handler = routes[request.path]
        if request.method != method:
            connection.answer(HTTPStatus.METHOD_NOT_ALLOWED, b'{"detail":"Method Not Allowed"}')
            return
        handler(connection, request)

    def ended(self, stream: _Stream) -> None:
        """A stream has been answered or its client has left."""
        self._open.discard(stream)
        if self.draining and not self._open:
            self.on_idle()

    # ------------------------------------------------------------------ completions

    def _completions(self, connection: HttpConnection, request: HttpRequest) -> None:
        try:
            body = _decode(request.body)
        except msgspec.MsgspecError as error:
            connection.fail(HTTPStatus.BAD_REQUEST, str(error))
            return
        if self.draining or self.engine.dead:
            connection.fail(HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down")
            return
        if body.model not in ("", self.model):
            connection.fail(HTTPStatus.NOT_FOUND, f"The model `{body.model}` does not exist.")
            return
        prompt = single_prompt(body.prompt)
        if prompt is None:
            message = "the embedded engine takes one prompt a request"
            connection.fail(HTTPStatus.BAD_REQUEST, message)
            return
        prompt_tokens, contents = prompt_blocks(prompt, self.engine.cost.block_tokens)
        most = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        reason = self._refusal(body, prompt_tokens, most)
        if reason is not None:
            connection.fail(HTTPStatus.BAD_REQUEST, reason)
            return
        stream = _Stream(self, connection, body)
        stream.request = SimRequest(None, prompt_tokens, most, contents, stream)
        self._open.add(stream)
        connection.on_lost = lambda: self._lost(stream)
        self.engine.add(stream.request)

    def _refusal(self, body: CompletionBody, prompt_tokens: int, most: int) -> str | None:
        limit = self.engine.config.max_model_len
        if prompt_tokens < 1:
            return "the prompt is empty or holds an impossible token id"
        if most < 1:
            return f"max_tokens must be at least 1, got {most}"
        if body.n != 1:
            return "the embedded engine answers with n = 1 only"
        if body.echo or body.logprobs is not None:
            return "the embedded engine makes no text: it has neither echo nor logprobs"
        if prompt_tokens + most > limit:
            return (
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{prompt_tokens + most} tokens ({prompt_tokens} in the prompt, {most} in the "
                "completion)."
            )
        return None

    def _lost(self, stream: _Stream) -> None:
        """The client has left: vLLM aborts the request."""
        if stream in self._open:
            assert stream.request is not None
            self.engine.abort(stream.request)
            self.ended(stream)

    def _stepped(self, batch: Batch, _delivered: Delivered, _now_ns: int) -> None:
        """Send each decoding request's token."""
        tick = batch.tick
        for request in self.engine.scheduler.running:
            if request.decode_tick and request.decode_tick <= tick <= request.last_tick:
                stream: Any = request.sink
                stream.upto(request.outputs + 2 + tick - request.decode_tick)

    # ------------------------------------------------------------------ other routes

    def _models(self, connection: HttpConnection, _request: HttpRequest) -> None:
        limit = self.engine.config.max_model_len
        model = {
            "id": self.model,
            "object": "model",
            "created": self.text.base["created"],
            "owned_by": "opprof-sim",
            "root": self.engine.config.model,
            "max_model_len": limit,
        }
        body = msgspec.json.encode({"object": "list", "data": [model]})
        connection.answer(HTTPStatus.OK, body)

    def _health(self, connection: HttpConnection, _request: HttpRequest) -> None:
        dead = self.engine.dead
        connection.answer(HTTPStatus.SERVICE_UNAVAILABLE if dead else HTTPStatus.OK, b"")

    def _version(self, connection: HttpConnection, _request: HttpRequest) -> None:
        header = self.engine.config.header()
        body = {"version": f"{header.engine} {header.engine_version}", "simulated": True}
        connection.answer(HTTPStatus.OK, msgspec.json.encode(body))

    def _metrics(self, connection: HttpConnection, _request: HttpRequest) -> None:
        text = self.metrics.text(self.engine)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        connection.answer(HTTPStatus.OK, text, content_type=kind)

    def _openapi(self, connection: HttpConnection, _request: HttpRequest) -> None:
        paths = ["/v1/completions", "/v1/models", "/health", "/version", "/metrics"]
        if self.engine.config.profiler is not None:
            paths += _PROFILE
        document = {
            "openapi": "3.1.0",
            "info": {"title": "opprof serve-sim", "version": "simulated"},
            "paths": {path: {} for path in paths},
        }
        connection.answer(HTTPStatus.OK, msgspec.json.encode(document))

    def _profile(self, connection: HttpConnection, request: HttpRequest) -> None:
        def answer(good: bool) -> None:
            status = HTTPStatus.OK if good else HTTPStatus.INTERNAL_SERVER_ERROR
            connection.answer(status, b"")

        if self.engine.dead:
            connection.fail(HTTPStatus.INTERNAL_SERVER_ERROR, "EngineDeadError")
        else:
            self.engine.control(_PROFILE[request.path], answer)


def _usage(request: SimRequest, outputs: int) -> dict[str, int]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + outputs,
        "completion_tokens": outputs,
    }


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _nothing() -> None:
    """Default hook: nobody waits."""
