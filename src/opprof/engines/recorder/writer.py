"""The writer process: drains the ring, encodes, writes, and outlives the engine by one poll.

Started by :mod:`opprof.engines.recorder.handle` as ``python -P -m opprof.engines.recorder.writer``
with the ring's and a socket's descriptor. It owns the files, so a killed engine loses nothing that
it had published, and neither encoding nor the disk ever holds the engine's interpreter lock.

Protocol on the socket: one JSON line with the settings in; ``ok`` or an error out; after a CLOSE
record and one byte in, ``closed`` out. End of file means that the engine is gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from opprof.artifacts.layer1 import Header
from opprof.engines.recorder.assemble import Assembler
from opprof.engines.recorder.records import CLOSE, FAIL
from opprof.engines.recorder.ring import (
    DROPPED,
    FLAG,
    FLAG_DEAD,
    FLAG_OFF,
    FLAG_ON,
    LOST,
    Ring,
)
from opprof.engines.recorder.stream import StreamWriter
from opprof.errors import IntegrityError

POLL_S = 0.05
FLUSH_FRACTION = 0.8
"""Of the flush interval: flushes start early, so that a checkpoint is never older than it."""
FLUSH_BYTES = 4 << 20
"""Buffered bytes that force a flush before its time."""
MAX_SETTINGS_BYTES = 1 << 20


class Settings(msgspec.Struct, frozen=True):
    """What the engine tells its writer at the start."""

    path: str
    header: Header
    capacity: int
    engine_pid: int


class Writer:
    """One stream from ring to disk."""

    def __init__(self, ring: Ring, stream: StreamWriter, settings: Settings) -> None:
        self._ring = ring
        self._stream = stream
        self._engine_pid = settings.engine_pid
        self._interval_s = settings.header.flush_interval_s * FLUSH_FRACTION
        self._control = Path(settings.path + ".control")
        self._assembler = Assembler()
        self._last_flush = time.monotonic()
        self._closing: str | None = None
        self._failure: str | None = None
        self._paused = False

    def run(self, connection: socket.socket) -> bool:
        """Poll until the engine closes, fails or dies; True after an orderly close."""
        while True:
            readable, _, _ = select.select([connection], [], [], POLL_S)
            gone = os.getppid() != self._engine_pid
            asked = False
            if readable:
                asked = bool(connection.recv(64))
                gone = gone or not asked
            reason = self._turn(everything=asked or gone)
            is_killed = gone and self._closing is None
            if reason is not None or is_killed:
                self._ring.words[FLAG] = FLAG_DEAD
                self._stream.abandon(reason, open_steps=self._assembler.open_steps)
                return False
            if self._closing is not None and (asked or gone):
                return self._close()

    def _turn(self, *, everything: bool) -> str | None:
        """Drain, watch the switch, flush when due; a text says why the recording must end."""
        try:
            self._drain(everything=everything)
            if self._failure is not None:
                return self._failure
            if self._ring.words[LOST]:
                return "the ring had no room for a completion"
            self._watch_switch()
            now = time.monotonic()
            is_due = now - self._last_flush >= self._interval_s
            if is_due or self._stream.buffered_bytes > FLUSH_BYTES:
                self._last_flush = now
                self._flush()
        except IntegrityError as error:
            return error.reason
        except OSError as error:
            return f"cannot write the stream: {error.strerror or error}"
        return None

    def _drain(self, *, everything: bool) -> None:
        for kind, payload in self._ring.drain(everything=everything):
            if kind == CLOSE:
                self._closing = payload.rstrip(b"\0").decode("utf-8", "replace")
            elif kind == FAIL:
                self._failure = payload.rstrip(b"\0").decode("utf-8", "replace")
            else:
                for step in self._assembler.feed(kind, payload):
                    self._stream.append(step)

    def _flush(self) -> None:
        self._stream.flush(dropped=self._ring.words[DROPPED], open_steps=self._assembler.open_steps)

    def _watch_switch(self) -> None:
        """Follow the run-time switch: a file ``<stream>.control`` that says ``off`` or ``on``."""
        try:
            off = self._control.read_text().strip() == "off"
        except (FileNotFoundError, NotADirectoryError):
            off = False
        if off and not self._paused:
            self._stream.pauses += 1
        self._paused = off
        self._ring.words[FLAG] = FLAG_OFF if off else FLAG_ON

    def _close(self) -> bool:
        open_steps = self._assembler.open_steps
        self._stream.dropped = self._ring.words[DROPPED]
        if self._closing:
            self._stream.abandon(self._closing, open_steps=open_steps)
            return True
        try:
            self._stream.close(open_steps=open_steps)
        except OSError as error:
            reason = f"cannot write the stream: {error.strerror or error}"
            self._stream.abandon(reason, open_steps=open_steps)
        return True


def main(arguments: list[str]) -> int:
    """Run the writer process on the descriptors of the ring and of the socket."""
    # Signals to the whole process group are for the engine; the writer ends when the engine does.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ring_descriptor, socket_descriptor = map(int, arguments)
    connection = socket.socket(fileno=socket_descriptor)
    with connection, connection.makefile("rb") as lines:
        settings = msgspec.json.decode(lines.readline(MAX_SETTINGS_BYTES), type=Settings)
        ring = Ring(ring_descriptor, settings.capacity)
        try:
            stream = StreamWriter(Path(settings.path), settings.header)
        except OSError as error:
            connection.sendall(f"{error.strerror or error}: {settings.path}\n".encode())
            return 1
        ring.words[FLAG] = FLAG_ON
        connection.sendall(b"ok\n")
        if Writer(ring, stream, settings).run(connection):
            connection.sendall(b"closed\n")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
