"""``commands.log``: exact commands with timestamps, one a line, as a shell would take them.

::

    2026-11-30T06:46:44.123456789Z server VLLM_OPPROF_DIR=... vllm serve ...
    2026-11-30T06:47:51.000000001Z profile POST http://127.0.0.1:8000/start_profile -> 200

The one kind of file in a campaign that may name a private path.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from opprof.errors import EnvironmentFailure, InputError
from opprof.files import read_bytes

_SHOWN = ("OPPROF_", "VLLM_", "CUDA_", "PYTHONPATH", "OMP_", "SPT_")
_SECRET = ("OPPROF_API_KEY", "OPPROF_HEADERS", "VLLM_API_KEY")


class CommandLog:
    """Appends and syncs one line a command."""

    def __init__(self, path: Path, wall_ns: Callable[[], int]) -> None:
        self._path = path
        self._wall_ns = wall_ns

    def add(self, kind: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Append a command with the variables that steer it; secrets are never written."""
        shown = {
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(_SHOWN) and name not in _SECRET
        }
        words = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        self.line(kind, " ".join([*words, shlex.join(command)]), self._wall_ns())

    def add_profile_calls(self, folder: Path, url: str, *, virtual: bool) -> None:
        """Append the profile calls that the client's timeline lists, at their wall times.

        ``virtual``: the timeline's clock is no clock of this machine; the time of writing stands.
        """
        now_ns = self._wall_ns()
        offset_ns = now_ns - time.monotonic_ns()
        for mono_ns, path, status in _profile_calls(folder):
            wall_ns = now_ns if virtual else mono_ns + offset_ns
            self.line("profile", f"POST {url}{path} -> {status}", wall_ns)

    def line(self, kind: str, text: str, wall_ns: int) -> None:
        """Append one line.

        Raises:
            EnvironmentFailure: it cannot be written.
        """
        data = f"{iso(wall_ns)} {kind} {text}\n".encode()
        try:
            with self._path.open("ab") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            reason = f"cannot write: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=self._path) from error


class _Profile(msgspec.Struct):
    """The part of an interval that says when the profiler was called."""

    kind: str
    start_call_mono_ns: tuple[int, int] | None = None
    stop_call_mono_ns: tuple[int, int] | None = None
    http_status: tuple[int | None, int | None] = (None, None)


class _Timeline(msgspec.Struct):
    intervals: list[_Profile] = []


def _profile_calls(folder: Path) -> list[tuple[int, str, int | None]]:
    """Return (time before, path, status) of each profile call that the client made."""
    try:
        data = read_bytes(folder / "client" / "timeline.json")
        timeline = msgspec.json.decode(data, type=_Timeline)
    except (InputError, msgspec.MsgspecError):
        return []
    calls = []
    for window in timeline.intervals:
        for name, call, status in (
            ("/start_profile", window.start_call_mono_ns, window.http_status[0]),
            ("/stop_profile", window.stop_call_mono_ns, window.http_status[1]),
        ):
            if call is not None:
                calls.append((call[0], name, status))
    return calls


def last_command(path: Path, kind: str) -> list[str] | None:
    """Return the words of the last command of a kind; None where there is none.

    A last line without its end was cut by a crash and does not count.

    Raises:
        InputError: that line is no command that a shell would take.
    """
    try:
        lines = read_bytes(path).decode(errors="replace").splitlines(keepends=True)
    except InputError:
        return None
    for number, line in reversed(list(enumerate(lines, start=1))):
        parts = line.split(" ", 2)
        if len(parts) == 3 and parts[1] == kind and line.endswith("\n"):
            try:
                return shlex.split(parts[2])
            except ValueError as error:
                raise InputError(f"is no command: {error}", path=path, line=number) from error
    return None


def iso(wall_ns: int) -> str:
    """Return a time as UTC text with all its nanoseconds."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
