"""The transport to an embedded engine in another process, in lock step on one virtual clock.

The client owns the clock. The engine's timers stand in the client's own queue of events, so the
two processes together handle the same events in the same order as one process would: results do
not depend on the speed of either. Each call (a request, a control call, an engine timer that is
due) is one message and one answer; the answer lists what the engine did, in order.

A message is four bytes of length (little endian) and one MessagePack array.

===========  ==========================================================  =======================
call         fields after its name                                       means
===========  ==========================================================  =======================
``hello``    –                                                           what the server is
``fire``     now, timer                                                  an engine timer is due
``send``     now, number, id, prompt (JSON), input and output tokens     a request leaves
``control``  now, number, path                                           start or stop a profile
``flush``    now                                                         write the step stream
===========  ==========================================================  =======================

Effects in an answer: ``["at", timer, due]``, ``["cancel", timer]``, ``["done", number, *outcome]``
and ``["reply", number, *reply]`` with the fields of :class:`~opprof.client.ports.Outcome` and
:class:`~opprof.client.ports.ControlReply`; times in nanoseconds of the virtual clock.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from opprof.client.ports import ControlReply, Outcome, Prepared, RequestSpec, Timer
from opprof.client.virtual import VirtualClock
from opprof.errors import EnvironmentFailure, InputError

SCHEME = "lockstep://"
MESSAGE_BYTES_MAX = 64 << 20
_CALL_TIMEOUT_S = 60.0
"""An engine that does not answer one event for so long hangs."""


class Hello(msgspec.Struct, frozen=True):
    """What a lock-step server says of itself."""

    model: str
    profile: bool
    now_ns: int


def parse_address(base_url: str) -> tuple[str, int]:
    """Return host and port of a ``lockstep://HOST:PORT`` address.

    Raises:
        InputError: it is none.
    """
    host, _, port = base_url.removeprefix(SCHEME).rstrip("/").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--base-url {base_url} is not {SCHEME}HOST:PORT")
    return host, int(port)


class Wire:
    """Framed messages over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode

    def send(self, message: Any) -> None:
        """Send one message."""
        data = self._encode(message)
        self._connection.sendall(len(data).to_bytes(4, "little") + data)

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            OSError: the other side has closed, or what comes is no message.
        """
        size = int.from_bytes(self._exactly(4), "little")
        if size > MESSAGE_BYTES_MAX:
            raise OSError("not a lock-step message")
        return self._decode(self._exactly(size))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._connection.recv(count - len(parts))
            if not part:
                raise OSError("the other side has closed the connection")
            parts += part
        return bytes(parts)


class LockstepTransport:
    """Sends requests to an engine in another process; a lost engine fails what is outstanding."""

    def __init__(self, clock: VirtualClock, address: tuple[str, int]) -> None:
        self._clock = clock
        self._timers: dict[int, Timer] = {}
        self._requests: dict[int, Callable[[Outcome], None]] = {}
        self._controls: dict[int, tuple[int, Callable[[ControlReply], None]]] = {}
        self._numbers = 0
        self.lost = False
        try:
            self._connection = socket.create_connection(address, timeout=_CALL_TIMEOUT_S)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._wire = Wire(self._connection)
            self._wire.send(["hello"])
            self.hello = msgspec.convert(self._wire.receive(), Hello)
        except (OSError, msgspec.MsgspecError) as error:
            raise EnvironmentFailure(
                f"no embedded engine answers at {SCHEME}{address[0]}:{address[1]}: {error}"
            ) from error

    def prepare(self, spec: RequestSpec) -> Prepared:
        """The prompt goes as the manifest holds it."""
        return Prepared(spec, b"")

    def ready(self, count: int) -> None:
        """There is one connection."""

    def send(self, request: Prepared, done: Callable[[Outcome], None]) -> None:
        """Pass the request to the engine's API server."""
        spec = request.spec
        number = self._number()
        self._requests[number] = done
        self._call(
            "send",
            number,
            spec.request_id,
            spec.prompt_json,
            spec.input_tokens,
            spec.output_tokens,
        )

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """Start or stop a profile window."""
        number = self._number()
        self._controls[number] = (self._clock.now_ns(), done)
        self._call("control", number, path)

    def flush(self) -> None:
        """Have the engine write its step stream."""
        self._call("flush")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _call(self, name: str, *fields: Any) -> None:
        if not self.lost:
            try:
                self._wire.send([name, self._clock.now_ns(), *fields])
                effects = self._wire.receive()
            except (OSError, msgspec.MsgspecError):
                self.lost = True
            else:
                for effect in effects:
                    self._apply(effect)
        if self.lost:
            self._give_up()

    def _apply(self, effect: list[Any]) -> None:
        kind, number, *rest = effect
        if kind == "at":
            self._timers[number] = self._clock.call_at(rest[0], lambda: self._fire(number))
        elif kind == "cancel":
            self._timers.pop(number).cancel()
        elif kind == "done":
            self._requests.pop(number)(Outcome(*rest))
        elif kind == "reply":
            self._controls.pop(number)[1](ControlReply(*rest))
        else:
            raise EnvironmentFailure(f"the embedded engine sent an unknown effect {kind!r}")

    def _fire(self, timer: int) -> None:
        del self._timers[timer]
        self._call("fire", timer)

    def _give_up(self) -> None:
        """Fail everything outstanding, as connections that break do."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        now_ns = self._clock.now_ns()
        requests, self._requests = self._requests, {}
        for done in requests.values():
            self._clock.call_soon(partial(done, Outcome(now_ns, error="connect")))
        controls, self._controls = self._controls, {}
        for before_ns, reply in controls.values():
            self._clock.call_soon(partial(reply, ControlReply(before_ns, now_ns, None, "connect")))
