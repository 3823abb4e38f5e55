"""The engine's Layer-1 stream as the client reads it: to see profile windows end, and for gates.

Only the fields that the client needs are decoded. During a run nothing but the lines written since
a window's start is read; the whole stream is read once, after the drain.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from opprof.artifacts.layer1 import Sidecar
from opprof.client.ports import WindowState
from opprof.errors import EnvironmentFailure

STREAM_NAME = "engine-0.jsonl"
_READ_BACK_BYTES = 1 << 20


class _Header(msgspec.Struct, tag_field="type", tag="header"):
    simulated: bool = False


class StepLine(msgspec.Struct, tag_field="type", tag="step", gc=False):
    """The client's part of a step line."""

    step: int
    submit_mono_ns: int
    complete_mono_ns: int
    model_executed: bool
    prefill_tokens: int
    decode_tokens: int
    waiting: int


class _Footer(msgspec.Struct, tag_field="type", tag="footer"):
    written_records: int
    dropped_records: int


_decode_line = msgspec.json.Decoder(_Header | StepLine | _Footer).decode


@dataclass(slots=True)
class StepStream:
    """A stream read as far as it has been written."""

    steps: list[StepLine] = field(default_factory=list)
    simulated: bool = False
    problems: list[str] = field(default_factory=list)
    """Faults of the stream's accounting; empty when it is sound so far."""


def stream_path(opprof_dir: Path) -> Path:
    """Return the engine's stream in ``--opprof-dir``.

    Raises:
        EnvironmentFailure: it is not there, so the recorder is not loaded in the server.
    """
    path = opprof_dir / STREAM_NAME
    if not path.is_file():
        raise EnvironmentFailure(
            "no Layer-1 stream: the server does not record (is the opprof plugin loaded, and is"
            " VLLM_OPPROF_DIR this folder?)",
            path=path,
        )
    return path


def read_stream(path: Path) -> StepStream:
    """Read every whole line; a last line that is still being written is left out.

    Raises:
        EnvironmentFailure: the file cannot be read.
    """
    # Counters first: lines are on disk before the counters that speak of them.
    sidecar = _read_sidecar(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EnvironmentFailure(f"cannot read: {error.strerror or error}", path=path) from error
    stream = StepStream()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            value = _decode_line(line)
        except msgspec.MsgspecError:
            stream.problems.append(f"line {number} is no Layer-1 line")
            break
        if isinstance(value, StepLine):
            if value.step != len(stream.steps):
                stream.problems.append(f"line {number}: step {value.step} is not the next one")
                break
            stream.steps.append(value)
        elif isinstance(value, _Header):
            stream.simulated = value.simulated
        elif value.dropped_records:
            stream.problems.append(f"{value.dropped_records} records were dropped")
    if isinstance(sidecar, str):
        stream.problems.append(sidecar)
    else:
        stream.problems += _sidecar_problems(sidecar, len(stream.steps))
    return stream


def _read_sidecar(path: Path) -> Sidecar | str:
    """Return the sidecar, or why there is none."""
    try:
        data = path.with_name(path.name + ".footer.json").read_bytes()
        return msgspec.json.decode(data, type=Sidecar)
    except OSError:
        return "the stream has no sidecar"
    except msgspec.MsgspecError:
        return "the sidecar does not fit its schema"


def _sidecar_problems(sidecar: Sidecar, steps: int) -> list[str]:
    """A-P3-5: the counters balance, nothing was dropped and what was written is there."""
    problems = []
    if steps < sidecar.written_records:
        problems.append(f"{sidecar.written_records} records were written, {steps} lines are there")
    if sidecar.encoded_records != sidecar.written_records + sidecar.dropped_records:
        problems.append("the sidecar's counters do not balance")
    if sidecar.dropped_records:
        problems.append(f"{sidecar.dropped_records} records were dropped")
    return problems


class StepWindow:
    """Ends a profile window when its iterations are over, by counting executed steps.

    Steps are counted from the first that was submitted after the start call had returned. The
    schedule's last call, which writes the trace, is the one after its last active step.
    """

    source = "layer1"

    def __init__(self, path: Path, steps: int) -> None:
        self._path = path
        self._wanted = steps
        self._started_ns = 0
        self._offset = 0
        self._carry = b""
        self._seen = 0

    def begin(self, started_ns: int) -> None:
        """Look at what is written from now on; earlier lines are earlier steps."""
        self._started_ns = started_ns
        self._seen = 0
        self._carry = b""
        with self._open() as stream:
            size = stream.seek(0, os.SEEK_END)
            back = max(0, size - _READ_BACK_BYTES)
            stream.seek(back)
            self._offset = back + stream.read(size - back).rfind(b"\n") + 1

    def poll(self, now_ns: int) -> WindowState:  # noqa: ARG002
        """Count the steps written since the last look."""
        with self._open() as stream:
            stream.seek(self._offset)
            data = stream.read()
        self._offset += len(data)
        lines = (self._carry + data).split(b"\n")
        self._carry = lines.pop()
        for line in lines:
            try:
                value = _decode_line(line)
            except msgspec.MsgspecError:
                # The whole stream is judged after the run; here an unreadable line is no step.
                continue
            if isinstance(value, StepLine) and value.submit_mono_ns >= self._started_ns:
                self._seen += value.model_executed
        return WindowState(self._seen >= self._wanted, self._seen)

    def _open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot read: {error.strerror or error}", path=self._path
            ) from error
