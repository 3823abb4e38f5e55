"""What the client needs from outside: clock, transport, requests, the engine's step stream.

The core sees only these Protocols, so the same code runs against a server in real time and
against an embedded engine in virtual time. Fakes stand in :mod:`opprof.client.virtual`.
All times are integer nanoseconds of the passed clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Make sure that the callback is not called any more."""


class Clock(Protocol):
    """Time and timers of one single-threaded event loop."""

    @property
    def name(self) -> str:
        """Name for the timeline: ``CLOCK_MONOTONIC``, or ``virtual``."""

    def now_ns(self) -> int:
        """Current time."""

    def call_at(self, due_ns: int, callback: Callable[[], None], *, exact: bool = False) -> Timer:
        """Call back at or after ``due_ns``; ``exact`` may spend CPU to be less late."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the loop's next turn."""


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request of the manifest, its prompt left as the bytes that the file holds."""

    request_id: int | str
    prompt_json: bytes = field(repr=False)
    """A complete JSON value: an array of token ids, or a string."""
    input_tokens: int
    output_tokens: int


class RequestSource(Protocol):
    """A manifest in arrival order, read lazily."""

    def __len__(self) -> int:
        """Number of requests; the run never wraps past it."""

    def __getitem__(self, index: int) -> RequestSpec:
        """The request at ``index`` in arrival order."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with everything that can be done before its time is due."""

    spec: RequestSpec
    wire: bytes = field(repr=False)
    """What the transport sends; empty where a transport needs no bytes."""


@dataclass(slots=True)
class Outcome:
    """How one request ended, as the transport saw it; no text of request or answer."""

    ended_ns: int
    """When it ended, in whatever way."""
    first_token_ns: int | None = None
    http_status: int | None = None
    prompt_tokens: int | None = None
    """By the server's ``usage``."""
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    """Reason code; None when the whole answer was there."""
    resent: bool = False
    """True when a stale keep-alive connection ate the first attempt (no byte had been answered)."""


@dataclass(frozen=True, slots=True)
class ControlReply:
    """The answer to a control call; ``status`` is None where no answer came."""

    before_ns: int
    after_ns: int
    status: int | None
    error: str | None = None


class Transport(Protocol):
    """Sends requests; calls back on the clock's loop, exactly once a request."""

    def prepare(self, spec: RequestSpec) -> Prepared:
        """Build what will be sent."""

    def ready(self, count: int) -> None:
        """Ask for ``count`` connections that can take a request at once."""

    def send(self, request: Prepared, done: Callable[[Outcome], None]) -> None:
        """Send now; ``done`` is called once, from the loop and never from inside this call."""

    def control(self, path: str, done: Callable[[ControlReply], None]) -> None:
        """POST to a control endpoint beside the load (``/start_profile``)."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """What is known of a profile window that has been started."""

    complete: bool
    steps: int | None
    """Engine steps seen inside the window; None where none can be seen."""


class WindowWatch(Protocol):
    """Tells when a profile window's active iterations are over, without guessing."""

    source: str
    """``layer1``, ``profiler_events`` or ``fixed`` (timeline: ``profile_window_source``)."""

    def begin(self, started_ns: int) -> None:
        """The start call has returned at ``started_ns``; an OpprofError ends the run."""

    def poll(self, now_ns: int) -> WindowState:
        """Look again; an OpprofError ends the run."""
