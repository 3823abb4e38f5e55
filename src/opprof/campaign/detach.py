"""A process that survives its terminal: own session, no input, output to a log (A-P3-2)."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from opprof.errors import (
    EnvironmentFailure,
    InputError,
    IntegrityError,
    OpprofError,
    SchemaError,
    StateConflict,
)

_MESSAGE_BYTES = 8192
_ERRORS: dict[str, type[OpprofError]] = {
    kind.code: kind
    for kind in (InputError, SchemaError, StateConflict, EnvironmentFailure, IntegrityError)
}


class ControllerLost(EnvironmentFailure):
    """The started process ended, or stays silent, without a word: what it left tells why."""


def start_detached(command: Sequence[str], log: Path, *, ready_s: float) -> str:
    """Start a command in a session of its own and wait until it reports over descriptor ``$FD``.

    The command gets ``--ready-fd N`` appended and writes one line there: ``ok TEXT`` when it owns
    what it came for, else ``E-CODE REASON`` (:mod:`opprof.errors`).

    Returns:
        the text after ``ok``.

    Raises:
        ControllerLost: it ended, or said nothing within ``ready_s``.
        OpprofError: what it gave up for.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _become(command, log, writer)
    os.close(writer)
    os.waitpid(child, 0)
    try:
        return _answer(reader, log, ready_s)
    finally:
        os.close(reader)


def _become(command: Sequence[str], log: Path, writer: int) -> None:
    """In the child: leave session and terminal by a second fork, then become the command."""
    try:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(writer, True)
        # What a nohup in between or the test harness ignored is not ignored by the controller.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], [*command, "--ready-fd", str(writer)])
    except OSError as error:
        os.write(writer, f"cannot detach: {error.strerror or error}\n".encode())
    finally:
        os._exit(1)


def _answer(reader: int, log: Path, ready_s: float) -> str:
    give_up, data = time.monotonic() + ready_s, b""
    while not data.endswith(b"\n"):
        left = give_up - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            raise ControllerLost(f"the controller said nothing in {ready_s:g} s", path=log)
        piece = os.read(reader, _MESSAGE_BYTES)
        if not piece:
            raise ControllerLost("the controller ended at its start; see its log", path=log)
        data += piece
    text = data.decode(errors="replace").strip()
    word, _, rest = text.partition(" ")
    if word == "ok":
        return rest
    raise _ERRORS.get(word, EnvironmentFailure)(rest or text)


class Starter:
    """Who waits for this process to take over; told once, and let go by that."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.let_go = False
        """Whether this process has taken over, or (False) was refused or has not come so far."""

    def tell(self, text: str) -> None:
        """Say ``ok TEXT`` or ``E-CODE REASON``; nothing once the starter has its answer."""
        self.let_go = self.let_go or text.startswith("ok ")
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.write(descriptor, f"{' '.join(text.splitlines())}\n".encode(errors="replace"))
        except OSError as error:
            print(f"the starter is gone: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        finally:
            os.close(descriptor)
