"""The load client's transport in process: the engine itself instead of sockets.

Tokens are coalesced below it: a request reports its first token and its end, nothing between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from opprof.client.ports import Clock, ControlReply, Outcome, Prepared, RequestSpec, Timer
from opprof.engines.sim.batch import Batch, Delivered, SimRequest
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


class Frontend:
    """The API server in front of the engine: one processor that new requests share.

    vLLM's API server takes requests as asyncio tasks, so those that come together also arrive at
    the engine together, late (seen: 256 of them after 0.6 to 0.75 s, almost none before). Requests
    share the processor evenly; the tokens of a step come first and hold them up.
    """

    def __init__(self, clock: Clock, request_ns: int, token_ns: int) -> None:
        self._clock = clock
        self._request_ns = request_ns
        self._token_ns = token_ns
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._served = 0
        """Nanoseconds of processor that every waiting request has had since the start."""
        self._at_ns = clock.now_ns()
        self._held_ns = 0
        self._timer: Timer | None = None

    def add(self, then: Callable[[], None]) -> None:
        """Take a request; ``then`` is called when it reaches the engine."""
        self._advance()
        self._queue.append((self._served + self._request_ns, then))
        self._plan()

    def tokens(self, count: int) -> None:
        """A step's tokens have to be sent before anything else."""
        if self._queue:
            self._advance()
            self._held_ns += count * self._token_ns
            self._plan()

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        free_ns = now_ns - self._at_ns
        self._at_ns = now_ns
        if not self._queue:
            self._held_ns = 0
            return
        held_ns = min(self._held_ns, free_ns)
        self._held_ns -= held_ns
        self._served += (free_ns - held_ns) // len(self._queue)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue:
            left_ns = max(0, self._queue[0][0] - self._served) * len(self._queue)
            due_ns = self._at_ns + self._held_ns + left_ns
            # Integer shares round down: a nanosecond a request makes up for it.
            self._timer = self._clock.call_at(due_ns + len(self._queue), self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        self._advance()
        while self._queue and self._queue[0][0] <= self._served:
            self._queue.popleft()[1]()
        self._plan()


class EngineTransport:
    """Sends requests to an engine on the same clock, through a modelled API server."""

    def __init__(self, clock: Clock, engine: SimEngine) -> None:
        self.clock = clock
        self.engine = engine
        host = engine.cost.host
        self.frontend_ns = round(host.frontend_ms * MS)
        self._frontend = Frontend(
            clock, round(host.frontend_request_ms * MS), round(host.frontend_token_ms * MS)
        )
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
        self._frontend.add(lambda: self._arrive(queued))

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
        self._frontend.tokens(batch.decodes + len(delivered.first))

    def _arrive(self, request: SimRequest) -> None:
        if self.engine.dead:
            request.sink.failed(self.clock.now_ns())  # type: ignore[attr-defined]
        else:
            self.engine.add(request)
