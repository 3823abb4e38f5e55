"""Writing a manifest: lines, hash and index in one pass, nothing half-written under a final name.

Order on disk: manifest, index, summary. The summary comes last and names the manifest's hash, so
that its presence means that all is there. A manifest is immutable: the same bytes may be written
again, other bytes under the same name are a :class:`StateConflict`.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from opprof.artifacts.manifest import ManifestIndex
from opprof.artifacts.run import ManifestSummary
from opprof.errors import StateConflict
from opprof.files import atomic_writer, sha256_file, write_atomic

PUBLIC_MODE = 0o644
PRIVATE_MODE = 0o600


def summary_path(manifest: Path) -> Path:
    """Return ``P03.manifest.sha256`` for ``P03.jsonl``: the summary beside a manifest."""
    return manifest.with_name(f"{_stem(manifest)}.manifest.sha256")


def index_path(manifest: Path) -> Path:
    """Return ``P03.manifest.index`` for ``P03.jsonl``: the index beside a manifest."""
    return manifest.with_name(f"{_stem(manifest)}.manifest.index")


def _stem(manifest: Path) -> str:
    # Only this suffix is cut: P03.json and P03.jsonl must not share their companions.
    return manifest.name.removesuffix(".jsonl")


@dataclass(frozen=True)
class Written:
    """What the bytes of a manifest came to."""

    sha256: str
    index: ManifestIndex
    input_tokens: array[int]
    output_tokens: array[int]


class LineWriter:
    """Appends manifest lines to a stream and keeps their hash and places."""

    def __init__(self, stream: BinaryIO, *, key: str, pattern: str, arrival: str) -> None:
        """Start a manifest.

        Args:
            stream: where the bytes go.
            key: ``prompt_token_ids`` or ``prompt``.
            pattern: written on every line; already checked.
            arrival: written on every line; already checked.
        """
        self._stream = stream
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._middle = f'","{key}":'.encode()
        self._tail = f',"arrival":"{arrival}","pattern":"{pattern}"}}\n'.encode()
        self._pattern = pattern
        self._ids: list[str] = []
        self._start = array("Q")
        self._end = array("Q")
        self._input = array("I")
        self._output = array("I")

    def append(
        self, prompts: Sequence[bytes], input_tokens: Sequence[int], output_tokens: Sequence[int]
    ) -> None:
        """Write one line for each prompt, which is a complete JSON value."""
        pieces: list[bytes] = []
        at = self._bytes
        for prompt, inputs, outputs in zip(prompts, input_tokens, output_tokens, strict=True):
            request_id = f"{self._pattern}-{len(self._ids):06d}"
            head = b'{"id":"' + request_id.encode() + self._middle
            tail = f',"input_tokens":{inputs},"output_tokens":{outputs}'.encode() + self._tail
            self._ids.append(request_id)
            self._start.append(at + len(head))
            self._end.append(at + len(head) + len(prompt))
            self._input.append(inputs)
            self._output.append(outputs)
            at += len(head) + len(prompt) + len(tail)
            pieces += (head, prompt, tail)
        data = b"".join(pieces)
        self._digest.update(data)
        self._stream.write(data)
        self._bytes = at

    def finish(self) -> Written:
        """Return hash, index and lengths of what was written."""
        sha256 = self._digest.hexdigest()
        index = ManifestIndex(
            schema=1,
            manifest_sha256=sha256,
            manifest_bytes=self._bytes,
            ids=self._ids,
            prompt_start=little_endian(self._start),
            prompt_end=little_endian(self._end),
            input_tokens=little_endian(self._input),
            output_tokens=little_endian(self._output),
        )
        return Written(sha256, index, self._input, self._output)


def little_endian(column: array[int]) -> bytes:
    """Return the bytes of a column as the index file holds them."""
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def write_manifest(
    out: Path,
    *,
    key: str,
    pattern: str,
    arrival: str,
    private: bool,
    fill: Callable[[LineWriter], None],
    describe: Callable[[Written], ManifestSummary],
) -> ManifestSummary:
    """Write manifest, index and summary.

    Args:
        out: the manifest's final name.
        key: ``prompt_token_ids`` or ``prompt``.
        pattern: its name on every line.
        arrival: its class on every line.
        private: files of mode 0600 instead of 0644.
        fill: appends all lines; an exception from it leaves ``out`` untouched.
        describe: makes the summary; called before ``out`` appears.

    Raises:
        StateConflict: ``out`` exists with other contents.
        EnvironmentFailure: the folder cannot be written or the disk is full.
    """
    mode = PRIVATE_MODE if private else PUBLIC_MODE
    with _immutable(out, mode) as (stream, keep):
        writer = LineWriter(stream, key=key, pattern=pattern, arrival=arrival)
        fill(writer)
        written = writer.finish()
        summary = describe(written)
        keep(written.sha256)
    body = msgspec.msgpack.encode(written.index)
    write_atomic(index_path(out), body + hashlib.sha256(body).digest(), mode=mode)
    text = msgspec.json.format(msgspec.json.encode(summary), indent=1)
    write_atomic(summary_path(out), text + b"\n", mode=mode)
    return summary


@contextmanager
def _immutable(out: Path, mode: int) -> Iterator[tuple[BinaryIO, Callable[[str], None]]]:
    """Open ``out`` for atomic writing, with a check that refuses to replace other contents."""

    def keep(sha256: str) -> None:
        if out.exists() and sha256_file(out) != sha256:
            raise StateConflict(
                "a manifest with other contents is there already; manifests are immutable,"
                " so give another --out or remove it yourself",
                path=out,
            )

    with atomic_writer(out, mode=mode) as stream:
        yield stream, keep
