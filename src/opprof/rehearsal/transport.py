"""The load client's transport in process: the engine itself instead of sockets.

Tokens are coalesced below it: a request reports its first token and its end, nothing between.
"""

from __future__ import annotations

from collections.abc import Callable

from opprof.client.ports import Clock, ControlReply, Outcome, Prepared, RequestSpec
from opprof.engines.sim.batch import SimRequest
from opprof.engines.sim.engine import MS, SimEngine

_CALLS = {"/start_profile": "start", "/stop_profile": "stop"}


class _Flight:
    """Where one request's tokens go."""

    __slots__ = ("_done", "_first_ns", "_spec", "_transport")

    def __init__(
        self, transport: EngineTransport, spec: RequestSpec, done: Callable[[Outcome], None]
    ) -> None:
        self._transport = transport
        self._spec = spec
        self._done = done
        self._first_ns: int | None = None

    def first(self, at_ns: int) -> None:
        self._first_ns = at_ns + self._transport.frontend_ns

    def finished(self, at_ns: int) -> None:
        self._transport.clock.call_at(at_ns + self._transport.frontend_ns, self._finish)

    def failed(self, at_ns: int) -> None:
        self._transport.clock.call_at(at_ns, self._fail)

    def _finish(self) -> None:
        spec = self._spec
        self._done(
            Outcome(
                ended_ns=self._transport.clock.now_ns(),
                first_token_ns=self._first_ns,
                http_status=200,
                prompt_tokens=spec.input_tokens,
                output_tokens=spec.output_tokens,
                finish_reason="length",
            )
        )

    def _fail(self) -> None:
        self._done(
            Outcome(
                ended_ns=self._transport.clock.now_ns(),
                first_token_ns=self._first_ns,
                http_status=200,
                error="disconnected",
            )
        )


class EngineTransport:
    """Sends requests to an engine on the same clock, through a modelled API server."""

    def __init__(self, clock: Clock, engine: SimEngine) -> None:
        self.clock = clock
        self.engine = engine
        host = engine.cost.host
        self.frontend_ns = round(host.frontend_ms * MS)
        self._request_ns = round(host.frontend_request_ms * MS)
        self._free_ns = 0

    def prepare(self, spec: RequestSpec) -> Prepared:
        """Nothing is encoded: the engine takes lengths and block contents."""
        return Prepared(spec, b"")

    def ready(self, count: int) -> None:
        """There are no connections."""

    def send(self, request: Prepared, done: Callable[[Outcome], None]) -> None:
        """Pass the request through the API server, one after the other, to the engine."""
        now_ns = self.clock.now_ns()
        if self.engine.dead:
            self.clock.call_soon(lambda: done(Outcome(self.clock.now_ns(), error="connect")))
            return
        spec = request.spec
        self._free_ns = max(now_ns, self._free_ns) + self._request_ns
        queued = SimRequest(
            spec.request_id,
            spec.input_tokens,
            spec.output_tokens,
            getattr(spec, "contents", ()),
            _Flight(self, spec, done),
        )
        self.clock.call_at(self._free_ns + self.frontend_ns, lambda: self._arrive(queued))

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """Start or stop a profile window; the answer comes when the engine has handled it."""
        before_ns = self.clock.now_ns()

        def answer(good: bool) -> None:
            status = 200 if good else 404
            done(ControlReply(before_ns, self.clock.now_ns(), status))

        if self.engine.dead:
            self.clock.call_soon(
                lambda: done(ControlReply(before_ns, self.clock.now_ns(), None, "connect"))
            )
            return
        self.engine.control(_CALLS[path], answer)

    def _arrive(self, request: SimRequest) -> None:
        if self.engine.dead:
            request.sink.failed(self.clock.now_ns())  # type: ignore[attr-defined]
        else:
            self.engine.add(request)
