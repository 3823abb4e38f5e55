"""The files of one Layer-1 stream: step lines, flushes, sidecar, footer (A-P3-5).

At every flush the lines are appended in one write and ``<stream>.footer.json`` is replaced through
a temporary file in the same folder. The temporary file is ready before the lines are written, so
the moment in which a kill could leave lines that the sidecar does not count is one rename long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from opprof.artifacts.layer1 import Footer, Header, Sidecar, Step

RESERVE_BYTES = 4096
"""Disk space held for the last sidecar, so that a full disk can still say why it ended."""


class StreamWriter:
    """Writes one stream; single-threaded, owned by whoever calls it.

    ``wall_ns`` and ``mono_ns`` are clocks (tests pass their own). An :class:`OSError` of any method
    means that the stream has ended: the file was cut back to its last whole flush, and
    :meth:`abandon` may still record the reason.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.sidecar_path = path.with_name(path.name + ".footer.json")
        self.written = 0
        self.dropped = 0
        self.last_step = -1
        self.pauses = 0
        self._engine_gone = False
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._interval_s = header.flush_interval_s
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._buffered = 0
        self._buffered_last = -1
        path.parent.mkdir(parents=True, exist_ok=True)
        set_aside(path)
        set_aside(self.sidecar_path)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._size = 0
        self._temporary = path.with_name(f".{self.sidecar_path.name}.tmp")
        self._reserve = path.with_name(f".{path.name}.footer.reserve")
        self._reserve.write_bytes(bytes(RESERVE_BYTES))
        self._buffer += self._encoder.encode(header) + b"\n"
        self._commit()

    def append(self, step: Step) -> None:
        """Encode one step into the buffer; nothing reaches the disk before :meth:`flush`."""
        self._buffer += self._encoder.encode(step)
        self._buffer += b"\n"
        self._buffered += 1
        self._buffered_last = step.step

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the next flush writes."""
        return len(self._buffer)

    def flush(self, *, dropped: int | None = None, open_steps: int = 0) -> None:
        """Write the buffered lines, then replace the sidecar that counts them.

        ``dropped`` is the total of records dropped so far, when the caller counts them.
        """
        if dropped is not None:
            self.dropped = dropped
        self._commit(open_steps=open_steps)

    def close(self, *, open_steps: int = 0) -> None:
        """End the stream cleanly: flush, in-stream footer, ``final: true``, all synced to disk."""
        self._commit(final=True, open_steps=open_steps)
        self._release()

    def abandon(self, reason: str | None, *, open_steps: int = 0) -> None:
        """End the stream early: no footer, and a sidecar with the reason and ``final: false``.

        ``reason`` None says that the engine is gone: nothing went wrong with the recording.

        Uses the reserved space when the disk has none left. Never raises :class:`OSError`: there is
        nobody left to tell.
        """
        self._engine_gone = reason is None
        try:
            try:
                self._commit(reason=reason, open_steps=open_steps)
            except OSError:
                # The lines found no room; now there are none, and only the sidecar is written.
                self._commit(reason=reason, open_steps=open_steps)
            self._release()
        except OSError:
            self._reserve.unlink(missing_ok=True)

    def _commit(
        self, *, final: bool = False, reason: str | None = None, open_steps: int = 0
    ) -> None:
        """Append the buffered lines (and the footer) in one write, and replace the sidecar."""
        count, last = self._buffered, self._buffered_last
        if not count:
            last = self.last_step
        sidecar = self._sidecar(self.written + count, last, final, reason, open_steps)
        data = bytes(self._buffer)
        if final:
            data += self._encoder.encode(_footer(sidecar)) + b"\n"
        self._buffer.clear()
        self._buffered = 0
        try:
            self._write_temporary(sidecar)
            self._append(data)
        except OSError:
            # What could not be written is lost, and stays counted. The file made for its sidecar
            # becomes the reserve again, so that the reason still finds room.
            self.dropped += count
            if self._temporary.exists():
                self._temporary.replace(self._reserve)
            raise
        self._temporary.replace(self.sidecar_path)
        self.written += count
        self.last_step = last

    def _sidecar(
        self, written: int, last: int, final: bool, reason: str | None, open_steps: int
    ) -> Sidecar:
        return Sidecar(
            schema=1,
            encoded_records=written + self.dropped,
            written_records=written,
            dropped_records=self.dropped,
            last_step_index=last,
            wall_time_ns=self._wall_ns(),
            flush_interval_s=self._interval_s,
            final=final,
            mono_time_ns=self._mono_ns(),
            reason=reason,
            open_steps=open_steps,
            pauses=self.pauses,
            engine_gone=self._engine_gone,
        )

    def _write_temporary(self, sidecar: Sidecar) -> None:
        data = self._encoder.encode(sidecar) + b"\n"
        try:
            self._temporary.write_bytes(data)
        except OSError:
            # No room for a new file: spend the reserve. Blocks that exist can be overwritten.
            self._temporary.unlink(missing_ok=True)
            with self._reserve.open("r+b") as stream:
                stream.write(data)
                stream.truncate()
            self._reserve.replace(self._temporary)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # Half a line would invalidate the whole stream.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _release(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)
        self._reserve.unlink(missing_ok=True)
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _footer(sidecar: Sidecar) -> Footer:
    return Footer(
        encoded_records=sidecar.encoded_records,
        written_records=sidecar.written_records,
        dropped_records=sidecar.dropped_records,
        last_step_index=sidecar.last_step_index,
        final=True,
        open_steps=sidecar.open_steps,
        pauses=sidecar.pauses,
    )


def set_aside(path: Path) -> Path | None:
    """Rename what an earlier server left under ``path``; two servers never share a stream."""
    if not path.exists():
        return None
    for number in range(1, 10_000):
        other = path.with_name(f"{path.name}.previous-{number}")
        if not other.exists():
            path.replace(other)
            return other
    raise FileExistsError(f"{path}: too many earlier streams")
