"""The embedded engine in a process of its own, in lock step with a client on virtual time.

The other half of :mod:`opprof.client.lockstep`, where the messages are described. The engine and
its API server run on a clock whose events stand in the client's queue. A plain ``GET /health`` on
the same port is answered as vLLM answers it, so whoever starts a server can wait for it as usual.
"""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import msgspec

from opprof.artifacts.run import VIRTUAL_CLOCK
from opprof.client.lockstep import Hello, Wire
from opprof.client.ports import ControlReply, Outcome, Prepared, RequestSpec
from opprof.engines.sim.engine import SimEngine
from opprof.engines.sim.layer1 import StepRecorder
from opprof.engines.sim.server import prompt_blocks
from opprof.errors import EnvironmentFailure
from opprof.rehearsal.run import START_NS, WALL_NS
from opprof.rehearsal.source import PlannedSpec
from opprof.rehearsal.transport import EngineTransport

_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_DEAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_REQUEST_TIMEOUT_S = 60.0
"""For the rest of a message whose first bytes are there."""


class _RemoteTimer:
    __slots__ = ("_clock", "number")

    def __init__(self, clock: RemoteClock, number: int) -> None:
        self._clock = clock
        self.number = number

    def cancel(self) -> None:
        """Make sure that the callback is not called any more."""
        if self._clock.waiting.pop(self.number, None) is not None:
            self._clock.effects.append(["cancel", self.number])


class RemoteClock:
    """A clock whose events stand in another process' queue."""

    name = VIRTUAL_CLOCK

    def __init__(self) -> None:
        self._now_ns = START_NS
        self._timers = 0
        self.waiting: dict[int, Callable[[], None]] = {}
        self.effects: list[list[Any]] = []
        """What has happened since the last answer, in order."""

    def now_ns(self) -> int:
        """Current virtual time."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The virtual wall clock."""
        return WALL_NS + self._now_ns - START_NS

    def set(self, now_ns: int) -> None:
        """Follow the client's clock."""
        self._now_ns = max(self._now_ns, now_ns)

    def call_at(
        self,
        due_ns: int,
        callback: Callable[[], None],
        *,
        exact: bool = False,  # noqa: ARG002
    ) -> _RemoteTimer:
        """Call back at ``due_ns``, or now when it has passed."""
        self._timers += 1
        self.waiting[self._timers] = callback
        self.effects.append(["at", self._timers, max(due_ns, self._now_ns)])
        return _RemoteTimer(self, self._timers)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back at the current time, after what is already waiting for it."""
        self.call_at(self._now_ns, callback)

    def take(self) -> list[list[Any]]:
        """Return what has happened, and forget it."""
        effects, self.effects = self.effects, []
        return effects


class LockstepServer:
    """One engine behind one listening socket; one client at a time drives it."""

    def __init__(
        self,
        engine: SimEngine,
        clock: RemoteClock,
        recorder: StepRecorder | None,
        model: str,
        *,
        shutdown_timeout_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._recorder = recorder
        self._transport = EngineTransport(clock, engine)
        profile = engine.config.profiler is not None
        self._hello = Hello(model, profile, clock.now_ns())
        self._timeout_ns = round(shutdown_timeout_s * 1e9)
        self._open = 0
        self._clients = 0
        self._draining = False
        self.ended = False

    def serve(self, listener: socket.socket) -> None:
        """Answer until a signal (SIGTERM, SIGINT) arrives; it is looked at between two messages.

        With a shutdown timeout, requests that run are finished first, within so many virtual
        seconds and while a client drives the clock; a second signal ends at once.
        """
        wake, woken = socket.socketpair()
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        with selectors.DefaultSelector() as selector, wake, woken:
            selector.register(wake, selectors.EVENT_READ, None)
            selector.register(listener, selectors.EVENT_READ, None)
            while not self.ended:
                for key, _ in selector.select():
                    if key.fileobj is wake:
                        wake.recv(64)
                        self._signalled()
                    elif key.fileobj is listener:
                        # Who it is shows when it speaks; until then nobody waits for it.
                        selector.register(listener.accept()[0], selectors.EVENT_READ, None)
                    elif key.data is None:
                        self._meet(selector, key.fileobj)  # type: ignore[arg-type]
                    else:
                        self._serve_one(selector, key)
            signal.set_wakeup_fd(-1)
        self._stop()

    def _signalled(self) -> None:
        waits = self._open and self._timeout_ns and self._clients and not self._engine.dead
        if self._draining or not waits:
            self.ended = True
            return
        self._draining = True
        self._clock.call_at(self._clock.now_ns() + self._timeout_ns, self._give_up)

    def _give_up(self) -> None:
        self.ended = True

    def _meet(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        """Answer a look at the health, or take a client, by the first bytes of a connection."""
        selector.unregister(connection)
        connection.settimeout(_REQUEST_TIMEOUT_S)
        try:
            head = connection.recv(4, socket.MSG_PEEK)
            if head in (b"GET ", b""):
                if connection.recv(4096):
                    connection.sendall(_DEAD if self._engine.dead else _HEALTHY)
                connection.close()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            connection.close()
            return
        selector.register(connection, selectors.EVENT_READ, Wire(connection))
        self._clients += 1

    def _serve_one(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        wire: Wire = key.data
        try:
            name, *fields = wire.receive()
            wire.send(self._handle(name, fields))
        except OSError:
            # The client has left; what it had outstanding stays, as its process may have died.
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            self._clients -= 1
            self.ended = self.ended or (self._draining and not self._clients)
            return
        # The answer that tells of the last request's end goes out before the server does.
        if self._draining and not self._open and self._engine.is_idle:
            self.ended = True

    def _handle(self, name: str, fields: list[Any]) -> Any:
        if name == "hello":
            return self._hello
        now_ns, *values = fields
        self._clock.set(now_ns)
        if name == "fire":
            callback = self._clock.waiting.pop(values[0], None)
            if callback is not None:
                callback()
        elif name == "send":
            self._send(*values)
        elif name == "control":
            self._control(*values)
        elif name == "flush":
            if self._recorder is not None and not self._engine.dead:
                self._recorder.flush()
        else:
            raise EnvironmentFailure(f"a client sent an unknown call {name!r}")
        return self._clock.take()

    def _send(
        self, number: int, request_id: int | str, prompt: bytes, inputs: int, outputs: int
    ) -> None:
        tokens, contents = prompt_blocks(
            msgspec.json.decode(prompt, type=list[int] | str), self._engine.cost.block_tokens
        )
        if self._draining:
            refused = Outcome(self._clock.now_ns(), http_status=503, error="http_503")
            self._clock.call_soon(lambda: self._done(number, refused))
            return
        if tokens + outputs > self._engine.config.max_model_len or tokens < 1 or outputs < 1:
            now_ns = self._clock.now_ns()
            refused = Outcome(now_ns, http_status=400, error="http_400")
            self._clock.call_soon(lambda: self._done(number, refused))
            return
        # A text's tokens are guessed; the manifest's count is what the server of a model would see.
        spec: RequestSpec = PlannedSpec(request_id, b"", inputs, outputs, contents)
        self._open += 1
        self._transport.send(Prepared(spec, b""), lambda outcome: self._ended(number, outcome))

    def _ended(self, number: int, outcome: Outcome) -> None:
        self._open -= 1
        self._done(number, outcome)

    def _done(self, number: int, outcome: Outcome) -> None:
        self._clock.effects.append(["done", number, *astuple(outcome)])

    def _control(self, number: int, path: str) -> None:
        def answer(reply: ControlReply) -> None:
            self._clock.effects.append(["reply", number, *astuple(reply)])

        self._transport.control(path, answer)

    def _stop(self) -> None:
        """End as vLLM does at SIGTERM: cleanly when nothing is outstanding."""
        if self._engine.dead:
            return
        if self._open:
            self._engine.kill("killed: requests were still running")
        else:
            self._engine.stop()
