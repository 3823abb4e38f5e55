"""The engine's side of the recorder: a few stores into shared memory on the step path.

``submit`` and ``complete`` copy what a step was into the ring and return. They raise nothing on
purpose; the adapter that calls them turns any exception into :meth:`Recorder.fail`, so that a fault
of the recorder ends the recording and never the serving.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec

from opprof.artifacts.layer1 import Header
from opprof.engines.recorder.records import (
    CHECK,
    CHECK_BODY,
    CLOSE,
    COMPLETE,
    COMPLETE_RECORD,
    FAIL,
    FORM_DECODE,
    FORM_MIXED,
    PROFILE,
    PROFILE_BODY,
    SUBMIT,
    SUBMIT_HEAD,
)
from opprof.engines.recorder.ring import (
    DROPPED,
    FLAG,
    FLAG_ON,
    HEAD,
    LOST,
    TAIL,
    Ring,
)
from opprof.engines.recorder.writer import Settings
from opprof.errors import EnvironmentFailure

CAPACITY_BYTES = 8 << 20
"""Ring size: at 256 decodes and 100 steps/s about a minute of a writer that stands still."""
SPARE_BYTES = 64 << 10
"""Kept free for completions when a submission is refused."""
START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 15.0

_HEAD_SIZE = SUBMIT_HEAD.size
_COMPLETE_SIZE = COMPLETE_RECORD.size
_pack_submit = SUBMIT_HEAD.pack_into
_pack_complete = COMPLETE_RECORD.pack_into


class Recorder:
    """One recording: the ring, and the process that writes it.

    Not thread-safe: every method is called by the engine's scheduler thread.
    """

    __slots__ = (
        "_capacity",
        "_connection",
        "_data",
        "_dropped",
        "_ended",
        "_head",
        "_header",
        "_items",
        "_limit",
        "_next",
        "_process",
        "_ring",
        "_words",
        "failure",
        "path",
    )

    def __init__(self, path: Path, header: Header, *, capacity: int = CAPACITY_BYTES) -> None:
        self.path = path
        self._header = header
        self._ring = Ring.create(capacity)
        self._words = self._ring.words
        self._data = self._ring.data
        self._items = self._ring.data.cast("I")
        self._capacity = capacity
        self._head = 0
        self._limit = capacity - SPARE_BYTES
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._next = 0
        self._dropped: set[int] = set()
        self._ended = True
        self.failure: str | None = None

    def start(self) -> None:
        """Start the writer process and wait until it has made the stream.

        Raises:
            EnvironmentFailure: no process, or the stream cannot be made.
        """
        ours, theirs = socket.socketpair()
        package_root = Path(__file__).parents[3]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(package_root), *filter(None, [environment.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-P", "-m", "opprof.engines.recorder.writer"]
        command += [str(self._ring.descriptor), str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(self._ring.descriptor, theirs.fileno()),
                start_new_session=True,
            )
            settings = Settings(str(self.path), self._header, self._ring.capacity, os.getpid())
            theirs.close()
            ours.settimeout(START_TIMEOUT_S)
            ours.sendall(msgspec.json.encode(settings) + b"\n")
            answer = ours.recv(4096).decode("utf-8", "replace").strip()
        except OSError as error:
            theirs.close()
            self._abort_start(ours)
            raise EnvironmentFailure(f"no writer process: {error}", path=self.path) from error
        if answer != "ok":
            self._abort_start(ours)
            raise EnvironmentFailure(f"no stream: {answer or 'the writer died'}", path=self.path)
        self._ring.close_descriptor()
        self._connection = ours
        self._ended = False

    def _abort_start(self, ours: socket.socket) -> None:
        ours.close()
        self._ring.close_descriptor()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_on(self) -> bool:
        """Whether new steps are recorded: neither before the start nor after the end, nor off."""
        return not self._ended and self._words[FLAG] == FLAG_ON

    def submit(
        self,
        submit_ns: int,
        total_tokens: int,
        computed: list[int],
        outputs: list[int],
        scheduled: list[int] | None,
        new_computed: list[int],
        new_scheduled: list[int],
        kv_usage: float,
        prefix_queries: int,
        prefix_hits: int,
        waiting: int,
        running: int,
        deferred: int,
        preemptions: int,
        resumed: int,
        recomputed: int,
    ) -> int:
        """Record one schedule and return its step index; a full ring counts the step as dropped.

        ``computed``, ``outputs``: int[cached requests], tokens computed and output tokens before
        the step. ``scheduled`` None says that every cached request runs one token, has output,
        and that there is no new request. ``prefix_*`` are -1 where the engine hides them.
        """
        step = self._next
        self._next = step + 1
        cached = len(computed)
        new = len(new_computed)
        if scheduled is None:
            form = FORM_DECODE
            payload = array("I", computed)
        else:
            form = FORM_MIXED
            payload = array("I", computed)
            payload.fromlist(outputs)
            payload.fromlist(scheduled)
            payload.fromlist(new_computed)
            payload.fromlist(new_scheduled)
        items = len(payload)
        size = (_HEAD_SIZE + 4 * items + 7) & ~7
        # The ring's own check and publication, inlined: this is the engine's hot path.
        head = self._head
        offset = head % self._capacity
        if head + size > self._limit or offset + size > self._capacity:
            offset = self._find_room(size, SPARE_BYTES)
            if offset < 0:
                self._words[DROPPED] += 1
                self._dropped.add(step)
                return step
            head = self._head
        _pack_submit(
            self._data,
            offset,
            SUBMIT,
            size,
            step,
            submit_ns,
            kv_usage,
            prefix_queries,
            prefix_hits,
            form,
            total_tokens,
            cached,
            new,
            waiting,
            running,
            deferred,
            preemptions,
            resumed,
            recomputed,
        )
        start = (offset + _HEAD_SIZE) >> 2
        self._items[start : start + items] = payload
        self._words[HEAD] = self._head = head + size
        return step

    def _find_room(self, size: int, spare: int) -> int:
        """The slow path of finding room: wrap, or look how far the writer is; -1 when full."""
        offset = self._ring.room(size, spare)
        self._head = self._words[HEAD]
        # Steps use the fast path only while a completion of each still finds room.
        self._limit = self._words[TAIL] + self._capacity - SPARE_BYTES
        return offset

    def complete(
        self, step: int, complete_ns: int, mode: str | None, unpadded: int, padded: int
    ) -> None:
        """Record that a step's output came back; ``mode`` None: nothing was said of graphs."""
        if self._dropped and step in self._dropped:
            self._dropped.discard(step)
            return
        head = self._head
        offset = head % self._capacity
        if head + _COMPLETE_SIZE > self._limit or offset + _COMPLETE_SIZE > self._capacity:
            offset = self._find_room(_COMPLETE_SIZE, 0)
            if offset < 0:
                self._words[LOST] += 1
                return
            head = self._head
        _pack_complete(
            self._data,
            offset,
            COMPLETE,
            _COMPLETE_SIZE,
            step,
            complete_ns,
            mode is not None,
            unpadded,
            padded,
            mode.encode() if mode else b"",
        )
        self._words[HEAD] = self._head = head + _COMPLETE_SIZE

    def check(self, step: int, prefill: tuple[int, int], decode: tuple[int, int]) -> None:
        """Record the engine's own split (requests, tokens) of a submitted step, to be compared."""
        self._put(CHECK, CHECK_BODY.pack(step, *prefill, *decode))

    def profile(self, *, started: bool, at_ns: int) -> None:
        """Record that a profiler window begins or has ended."""
        self._put(PROFILE, PROFILE_BODY.pack(started, at_ns))

    def _put(self, kind: int, payload: bytes) -> None:
        self._ring.put(kind, payload)
        self._head = self._words[HEAD]

    def fail(self, reason: str) -> None:
        """End the recording with a reason; the sidecar will carry it. Safe to call twice."""
        if self.failure is not None:
            return
        self.failure = reason
        self._ended = True
        self._put(FAIL, reason.encode())

    def close(self, reason: str = "") -> bool:
        """End the stream and wait for the writer; True when it confirmed.

        ``reason`` empty is a clean close (footer, ``final: true``); otherwise why the engine ended.
        """
        connection, process = self._connection, self._process
        self._ended = True
        if connection is None or process is None:
            return False
        self._connection = None
        self._put(CLOSE, reason.encode() + b"\0")
        try:
            connection.settimeout(CLOSE_TIMEOUT_S)
            connection.sendall(b"x")
            confirmed = connection.recv(64) == b"closed\n"
            process.wait(CLOSE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            confirmed = False
        connection.close()
        return confirmed

    def died(self) -> bool:
        """Whether the writer process is gone although nobody closed it (asked rarely)."""
        return self._process is not None and self._process.poll() is not None
