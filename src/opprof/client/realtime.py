"""The real clock: CLOCK_MONOTONIC and timers of an asyncio (uvloop) event loop.

Loop timers have a resolution of one millisecond. An exact timer therefore sleeps until shortly
before its time and then goes round the loop until it is due: sockets are still served, and the
lateness is one turn of the loop instead of a millisecond. The spin is bounded by that margin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_SPIN_NS = 1_500_000
"""Timer resolution of 1 ms, rounded either way."""


class _LoopTimer:
    __slots__ = ("_callback", "_cancelled", "_due_ns", "_exact", "_handle", "_loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        due_ns: int,
        callback: Callable[[], None],
        exact: bool,
    ) -> None:
        self._loop = loop
        self._due_ns = due_ns
        self._callback = callback
        self._exact = exact
        self._cancelled = False
        self._handle: asyncio.Handle | None = None
        self._wait()

    def cancel(self) -> None:
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()

    def _wait(self) -> None:
        if self._cancelled:
            return
        remaining_ns = self._due_ns - time.monotonic_ns()
        if remaining_ns <= 0:
            # Never inside call_at: callbacks run from the loop alone.
            self._handle = self._loop.call_soon(self._fire)
        elif not self._exact:
            self._handle = self._loop.call_later(remaining_ns / 1e9 + 0.0005, self._wait)
        elif remaining_ns > _SPIN_NS:
            self._handle = self._loop.call_later((remaining_ns - _SPIN_NS) / 1e9, self._wait)
        else:
            self._handle = self._loop.call_soon(self._spin)

    def _spin(self) -> None:
        if self._cancelled:
            return
        if time.monotonic_ns() >= self._due_ns:
            self._callback()
        else:
            self._handle = self._loop.call_soon(self._spin)

    def _fire(self) -> None:
        if not self._cancelled:
            self._callback()


class LoopClock:
    """CLOCK_MONOTONIC over an event loop."""

    name = "CLOCK_MONOTONIC"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds, common to all processes of the host."""
        return time.monotonic_ns()

    def call_at(
        self, due_ns: int, callback: Callable[[], None], *, exact: bool = False
    ) -> _LoopTimer:
        """Call back at or after ``due_ns``; never before."""
        return _LoopTimer(self._loop, due_ns, callback, exact)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn of the loop."""
        self._loop.call_soon(callback)
