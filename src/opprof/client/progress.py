"""Live progress on a terminal, drawn by a process of its own.

A redraw costs milliseconds, which would be lag in the load process. The load process only writes a
short line to a pipe twice a second; ``python -m opprof.client.progress`` draws it with rich. In a
pipe or file nothing is drawn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from opprof.client.session import Session


class Snapshot(msgspec.Struct):
    """What the display shows."""

    phase: str
    left_s: float | None
    rate_rps: float
    wanted_rps: float | None
    outstanding: int
    backlog: int
    lag_ms: float
    ok: int
    failed: int


class Display:
    """Feeds a drawing process while a session runs; does nothing without a terminal."""

    def __init__(self, session: Session, *, enabled: bool) -> None:
        self._session = session
        self._enabled = enabled and sys.stderr.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._last = (0, 0)

    def __enter__(self) -> Display:
        if self._enabled:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opprof.client.progress"], stdin=subprocess.PIPE
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()

    def feed(self) -> None:
        """Send the present state; a display that does not keep up misses some."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._process.stdin.fileno(), msgspec.json.encode(self._snapshot()) + b"\n")

    def _snapshot(self) -> Snapshot:
        session = self._session
        now_ns, progress, journal = (
            session.clock.now_ns(),
            session.machine.progress,
            session.journal,
        )
        last_ns, last_ok = self._last
        self._last = (now_ns, journal.ok)
        end_ns = progress.planned_end_ns
        recent = journal.records[-50:]
        lags = [
            r.admitted_mono_ns - r.scheduled_mono_ns
            for r in recent
            if r.admitted_mono_ns is not None
        ]
        return Snapshot(
            phase="done" if progress.kind is None else f"{progress.kind} {progress.index}",
            left_s=None if end_ns is None else max(0.0, (end_ns - now_ns) / 1e9),
            rate_rps=(journal.ok - last_ok) / ((now_ns - last_ns) / 1e9) if last_ns else 0.0,
            wanted_rps=session.plan.load.rate_rps,
            outstanding=len(session.admission.outstanding),
            backlog=session.admission.backlog,
            lag_ms=max(lags, default=0) / 1e6,
            ok=journal.ok,
            failed=len(journal.failures),
        )


def render(snapshot: Snapshot) -> str:
    """Return the display's line."""
    left = "" if snapshot.left_s is None else f"{snapshot.left_s:6.1f} s left  "
    wanted = "" if snapshot.wanted_rps is None else f" of {snapshot.wanted_rps:.2f}"
    backlog = f" (+{snapshot.backlog} waiting)" if snapshot.backlog else ""
    failed = f"  [bold red]{snapshot.failed} failed[/]" if snapshot.failed else ""
    return (
        f"[bold]{snapshot.phase:<12}[/]{left}{snapshot.rate_rps:8.2f}{wanted} req/s  "
        f"{snapshot.outstanding} outstanding{backlog}  lag {snapshot.lag_ms:.2f} ms  "
        f"{snapshot.ok} ok{failed}"
    )


def main() -> None:
    """Draw snapshots from standard input until it ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Ctrl-C goes to the whole group; the load process decides when the display ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    console = Console(stderr=True)
    with Live(Text(""), console=console, refresh_per_second=4, transient=True) as live:
        for line in sys.stdin.buffer:
            live.update(Text.from_markup(render(msgspec.json.decode(line, type=Snapshot))))


if __name__ == "__main__":
    main()
