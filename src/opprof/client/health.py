"""The client watches itself: processor time and the event loop's lateness in the clean interval."""

from __future__ import annotations

import asyncio
import resource
import time

from opprof.client.facts import Health

_BEAT_NS = 50_000_000


class HealthProbe:
    """Wakes up twenty times a second and notes how late it was."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_ns = 0
        self._delays_ms: list[float] = []
        self._began: tuple[int, int] | None = None
        self._ended: tuple[int, int] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The clean interval begins."""
        self._began = (time.process_time_ns(), time.monotonic_ns())
        self._next()

    def end(self) -> None:
        """The clean interval ends; further calls change nothing."""
        if self._began is not None and self._ended is None:
            self._ended = (time.process_time_ns(), time.monotonic_ns())
            if self._handle is not None:
                self._handle.cancel()

    def health(self) -> Health | None:
        """Return what was measured; None when there was no clean interval."""
        if self._began is None or self._ended is None:
            return None
        return Health(
            cpu_s=(self._ended[0] - self._began[0]) / 1e9,
            wall_s=(self._ended[1] - self._began[1]) / 1e9,
            loop_delays_ms=self._delays_ms,
        )

    def _next(self) -> None:
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._handle = self._loop.call_later(_BEAT_NS / 1e9, self._beat)

    def _beat(self) -> None:
        # Loop timers are rounded to milliseconds either way, so a beat can be early.
        self._delays_ms.append(max(0, time.monotonic_ns() - self._due_ns) / 1e6)
        self._next()


def peak_rss_mb() -> float:
    """Return the process's peak resident memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
