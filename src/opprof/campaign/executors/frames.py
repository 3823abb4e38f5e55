"""What an attempt's worker process and the controller tell each other, as length-prefixed frames.

Upwards: a greeting, the journal's calls, what a round of the co-location check is told, and how the
attempt ended. Every upward frame is answered by :class:`Ack` when it is on disk at the controller
(or the round has been told); the worker waits for that, so that no child runs unrecorded. Downwards
besides: :class:`Cancel`, and :class:`Go` as the late answer to :class:`Waits`.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec
from msgspec import Struct

from opprof import errors
from opprof.artifacts.campaign import Phase, ProcessRecord
from opprof.campaign.attempt import AttemptSpec, Outcome
from opprof.errors import EnvironmentFailure, OpprofError

Until = Literal["may_load", "over"]
_LENGTH_BYTES = 4
_FRAME_MAX = 16 << 20


class Hello(Struct, frozen=True, tag="hello"):
    """The worker stands ready and waits."""

    process: ProcessRecord


class PhaseEntered(Struct, frozen=True, tag="phase"):
    """``Journal.phase``."""

    phase: Phase
    reason: str


class Started(Struct, frozen=True, tag="started"):
    """``Journal.started``."""

    process: ProcessRecord


class Ended(Struct, frozen=True, tag="ended"):
    """``Journal.ended``."""

    process: ProcessRecord


class Signalled(Struct, frozen=True, tag="signalled"):
    """``Journal.signalled``."""

    wall_ns: int


class Waits(Struct, frozen=True, tag="waits"):
    """``Meeting.may_load`` or ``until_over``: :class:`Go` comes when the round is so far."""

    until: Until


class Tells(Struct, frozen=True, tag="tells"):
    """``Meeting.loads`` or ``Meeting.leave``."""

    what: Literal["loads", "leaves"]


class Finished(Struct, frozen=True, tag="finished"):
    """The attempt ran to its end."""

    outcome: Outcome


class Cancelled(Struct, frozen=True, tag="cancelled"):
    """The attempt was cancelled and its processes are ended."""


class Broke(Struct, frozen=True, tag="broke"):
    """The attempt raised."""

    error: str
    """Name of the class."""
    reason: str
    path: str | None = None

    def exception(self) -> OpprofError:
        """Return what was raised; an unforeseen exception as a fault of the place."""
        kind = getattr(errors, self.error, None)
        if isinstance(kind, type) and issubclass(kind, OpprofError):
            return kind(self.reason, path=self.path)
        return EnvironmentFailure(f"the worker broke off with {self.error}: {self.reason}")


class Gone(Struct, frozen=True, tag="gone"):
    """Said by the actor: the worker process ended without a word; its children are ended."""

    ended: list[str]
    log: str


Up = (
    Hello
    | PhaseEntered
    | Started
    | Ended
    | Signalled
    | Waits
    | Tells
    | Finished
    | Cancelled
    | Broke
    | Gone
)


class Start(Struct, frozen=True, tag="start"):
    """First frame downwards: what to run."""

    entry: str
    """``module:function`` with the signature of ``run_attempt``."""
    spec: AttemptSpec
    meets: bool = False
    """The attempt is one of a round of the co-location check."""


class Ack(Struct, frozen=True, tag="ack"):
    """The last upward frame is on disk."""


class Cancel(Struct, frozen=True, tag="cancel"):
    """End the attempt; ``now``: without the server's drain."""

    now: bool


class Go(Struct, frozen=True, tag="go"):
    """What :class:`Waits` waited for has come, or never will."""

    until: Until
    problem: str = ""
    """Why the round is broken off; empty when it is not."""


Down = Start | Ack | Cancel | Go


def encode(frame: Up | Down) -> bytes:
    """Return a frame's bytes without its length."""
    return msgspec.json.encode(frame)


def decode_up(data: bytes) -> Up:
    """Return an upward frame; ``msgspec.ValidationError`` for anything else."""
    return msgspec.json.decode(data, type=Up)


def decode_down(data: bytes) -> Down:
    """Return a downward frame; ``msgspec.ValidationError`` for anything else."""
    return msgspec.json.decode(data, type=Down)


def with_length(data: bytes) -> bytes:
    """Return the frame as it stands in a pipe."""
    if len(data) > _FRAME_MAX:
        raise EnvironmentFailure(f"a frame of {len(data)} bytes is over {_FRAME_MAX}")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def read_frame(descriptor: int) -> bytes | None:
    """Return the next frame of a pipe; None at its end, also in the middle of a frame."""
    head = _read_exactly(descriptor, _LENGTH_BYTES)
    if head is None or (size := int.from_bytes(head, "big")) > _FRAME_MAX:
        return None
    return _read_exactly(descriptor, size)


def write_frame(descriptor: int, data: bytes) -> None:
    """Write a frame whole.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    left = memoryview(with_length(data))
    while left:
        left = left[os.write(descriptor, left) :]


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(descriptor, count - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
