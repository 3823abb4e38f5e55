"""The load client's transport in process: the engine itself instead of sockets.

Tokens are coalesced below it: a request reports its first token and its end, nothing between.
"""

from __future__ import annotations

from collections.abc import Callable

from opprof.client.ports import Clock, ControlReply, Outcome, Prepared, RequestSpec
from opprof.engines.sim.batch import Batch, Delivered, SimRequest
from opprof.engines.sim.engine import SimEngine
from opprof.rehearsal.frontend import Frontend

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

    def first(self, _at_ns: int) -> None:
        self._transport.first.append(self._hear)

    def finished(self, _at_ns: int) -> None:
        self._transport.last.append(self._finish)

    def failed(self, at_ns: int) -> None:
        self._transport.clock.call_at(at_ns, self._fail)

    def _hear(self, at_ns: int) -> None:
        # The first and the last token of an answer may be one.
        self._first_ns = at_ns if self._first_ns is None else min(at_ns, self._first_ns)

    def _finish(self) -> None:
        spec, now_ns = self._spec, self._transport.clock.now_ns()
        self._hear(now_ns)
        self._done(
            Outcome(
                ended_ns=now_ns,
                first_token_ns=self._first_ns,
                http_status=200,
                prompt_tokens=spec.input_tokens,
                output_tokens=spec.output_tokens,
                finish_reason="length",
            )
        )

    def _fail(self) -> None:
        now_ns = self._transport.clock.now_ns()
        heard = self._first_ns is not None and self._first_ns <= now_ns
        self._done(
            Outcome(
                ended_ns=now_ns,
                first_token_ns=self._first_ns if heard else None,
                http_status=200,
                error="disconnected",
            )
        )


class EngineTransport:
    """Sends requests to an engine on the same clock, through a modelled API server."""

    def __init__(self, clock: Clock, engine: SimEngine) -> None:
        self.clock = clock
        self.engine = engine
        self.first: list[Callable[[int], None]] = []
        """Who waits for a first token of the step that is being completed."""
        self.last: list[Callable[[], None]] = []
        """Whose last token the step that is being completed has made."""
        self._frontend = Frontend(clock, engine.cost.frontend)
        engine.on_step = self._stepped

    def prepare(self, spec: RequestSpec) -> Prepared:
        """Nothing is encoded: the engine takes lengths and block contents."""
        return Prepared(spec, b"")

    def ready(self, count: int) -> None:
        """There are no connections."""

    def send(self, request: Prepared, done: Callable[[Outcome], None]) -> None:
        """Pass the request through the API server to the engine."""
        if self.engine.dead:
            self.clock.call_soon(lambda: done(Outcome(self.clock.now_ns(), error="connect")))
            return
        spec = request.spec
        queued = SimRequest(
            spec.request_id,
            spec.input_tokens,
            spec.output_tokens,
            getattr(spec, "contents", ()),
            _Flight(self, spec, done),
        )
        self._frontend.add(spec.input_tokens, lambda: self._arrive(queued))

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """Start or stop a profile window; the answer comes when the engine has handled it."""
        before_ns = self.clock.now_ns()

        def answer(good: bool) -> None:
            failed = 404 if self.engine.config.profiler is None else 500
            status = 200 if good else failed
            done(ControlReply(before_ns, self.clock.now_ns(), status))

        if self.engine.dead:
            self.clock.call_soon(
                lambda: done(ControlReply(before_ns, self.clock.now_ns(), None, "connect"))
            )
            return
        self.engine.control(_CALLS[path], answer)

    def _stepped(self, batch: Batch, delivered: Delivered, _now_ns: int) -> None:
        first, self.first = self.first, []
        last, self.last = self.last, []
        self._frontend.step(batch.decodes + len(delivered.first), first, last)

    def _arrive(self, request: SimRequest) -> None:
        if self.engine.dead:
            request.sink.failed(self.clock.now_ns())  # type: ignore[attr-defined]
        else:
            self.engine.add(request)
