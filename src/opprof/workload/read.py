"""Reading a manifest for the load client: lengths at once, prompts one by one, nothing else held.

With the index beside it a manifest of 32,768 requests opens in milliseconds; without it the file
is scanned once, line by line, and every line is checked. Standard library and msgspec only: the
load client starts fast.
"""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from types import TracebackType

import msgspec

from opprof.artifacts.manifest import ManifestIndex
from opprof.artifacts.run import ManifestSummary
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes
from opprof.workload.scan import Scan, scan_manifest
from opprof.workload.write import index_path, summary_path

UNDECLARED = "undeclared"
"""Prefix class of a manifest that comes without a summary."""
_INDEX_LIMIT_BYTES = 1 << 30
_SUMMARY_LIMIT_BYTES = 1 << 20
_DIGEST_BYTES = 32


class ManifestRequest(msgspec.Struct, frozen=True):
    """One request as the client sends it."""

    id: str
    prompt_json: bytes
    """A complete JSON value: an array of token ids, or a string. Goes into the body as it is."""
    input_tokens: int
    """Prompt tokens that the server must report."""
    output_tokens: int
    """Output tokens to ask for."""

    def __repr__(self) -> str:
        # A log or a traceback that shows a request must not show its prompt.
        return f"ManifestRequest({self.id!r}, {self.input_tokens} to {self.output_tokens} tokens)"


class Manifest:
    """An open manifest; requests are read from the file when they are asked for.

    Attributes:
        path: the JSONL file.
        summary: hash and length summary (``manifest.sha256``); made from the lines where none lies
            beside the manifest.
        sha256: of the manifest's bytes.
        pattern: the pattern's name.
        arrival: ``steady`` or ``burst:N``.
        ids: ``str[n]``.
        input_tokens: ``uint32[n]``, prompt tokens.
        output_tokens: ``uint32[n]``, output tokens to ask for.
    """

    def __init__(
        self, path: Path, descriptor: int, index: ManifestIndex, summary: ManifestSummary
    ) -> None:
        """Use :func:`open_manifest`."""
        self.path = path
        self.summary = summary
        self.sha256 = index.manifest_sha256
        self.pattern = summary.pattern
        self.arrival = summary.arrival
        self.ids = index.ids
        self._descriptor = descriptor
        self._start = _column("Q", index.prompt_start)
        self._end = _column("Q", index.prompt_end)
        self.input_tokens = _column("I", index.input_tokens)
        self.output_tokens = _column("I", index.output_tokens)

    def __len__(self) -> int:
        return len(self.ids)

    def request(self, index: int) -> ManifestRequest:
        """Read request ``index`` (0 … n - 1, arrival order): one positioned read, no parsing.

        Raises:
            IndexError: there is no such request; a manifest never wraps.
            InputError: the file was changed or cut after it was opened.
        """
        if not 0 <= index < len(self.ids):
            raise IndexError(f"request {index} of {len(self.ids)}")
        start, end = self._start[index], self._end[index]
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start or data[:1] + data[-1:] not in (b"[]", b'""'):
            raise InputError(
                "the manifest was changed while it was in use", path=self.path, offset=start
            )
        return ManifestRequest(
            self.ids[index], data, self.input_tokens[index], self.output_tokens[index]
        )

    def close(self) -> None:
        """Close the file; further requests fail."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Manifest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_manifest(path: Path, *, verify: bool) -> Manifest:
    """Open a manifest for reading.

    Args:
        path: the JSONL file; its summary and index are looked for beside it.
        verify: read the whole file and compare its hash with the summary's. Without it only the
            size is compared, unless the index is missing: then everything is read and checked.

    Raises:
        InputError: no such file, a manifest changed since its hash, a cut or contradictory line.
        SchemaError: a line or the summary does not fit its schema.
    """
    if not path.is_file():
        reason = "is no regular file" if path.exists() else "file not found"
        raise InputError(reason, path=path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    with ExitStack() as on_failure:
        on_failure.callback(os.close, descriptor)
        manifest = _open(path, descriptor, verify)
        on_failure.pop_all()
    return manifest


def read_summary(manifest: Path) -> ManifestSummary | None:
    """Return the summary beside a manifest, or None when there is none.

    Raises:
        SchemaError: the file is no summary.
    """
    path = summary_path(manifest)
    if not path.exists():
        return None
    data = read_bytes(path, limit_bytes=_SUMMARY_LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=ManifestSummary)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"no manifest summary: {error}", path=path) from error


def _open(path: Path, descriptor: int, verify: bool) -> Manifest:
    summary = read_summary(path)
    index = None if summary is None else _read_index(path, summary.sha256)
    if summary is None or index is None:
        scan = _scan(path, descriptor)
        if summary is None:
            return Manifest(path, descriptor, scan.index, _summarize(scan))
        _compare(path, summary, scan.index.manifest_sha256)
        return Manifest(path, descriptor, scan.index, summary)
    size = os.fstat(descriptor).st_size
    if size != index.manifest_bytes:
        reason = f"the manifest has {size} bytes, but had {index.manifest_bytes} when it was hashed"
        raise InputError(reason, path=path)
    if verify:
        with _reader(descriptor) as stream:
            _compare(path, summary, hashlib.file_digest(stream, "sha256").hexdigest())
    return Manifest(path, descriptor, index, summary)


def _compare(path: Path, summary: ManifestSummary, sha256: str) -> None:
    if sha256 != summary.sha256:
        raise InputError(
            f"the manifest was changed since its hash was written: {summary.sha256[:16]}… is"
            f" expected, {sha256[:16]}… was read",
            path=path,
        )


def _scan(path: Path, descriptor: int) -> Scan:
    with _reader(descriptor) as stream:
        return scan_manifest(stream, path)


def _reader(descriptor: int) -> BufferedReader:
    # A copy of the descriptor, so that what is hashed is the very file that is read later.
    stream = os.fdopen(os.dup(descriptor), "rb")
    stream.seek(0)
    return stream


def _read_index(path: Path, sha256: str) -> ManifestIndex | None:
    """Return the index if it is whole and belongs to the manifest; it is a cache, never needed."""
    beside = index_path(path)
    if not beside.is_file():
        return None
    data = read_bytes(beside, limit_bytes=_INDEX_LIMIT_BYTES)
    body = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        return None
    try:
        index = msgspec.msgpack.decode(body, type=ManifestIndex)
    except (msgspec.DecodeError, RecursionError):
        return None
    return index if index.manifest_sha256 == sha256 else None


def _summarize(scan: Scan) -> ManifestSummary:
    # Imported late: with a summary beside the manifest the reader needs no numpy.
    from opprof.workload.summary import summarize

    return summarize(
        sha256=scan.index.manifest_sha256,
        pattern=scan.pattern,
        arrival=scan.arrival,
        prefix=UNDECLARED,
        input_tokens=_column("I", scan.index.input_tokens),
        output_tokens=_column("I", scan.index.output_tokens),
        generator={"kind": UNDECLARED},
        tokenizer_sha256=None,
        private=scan.text,
    )


def _column(typecode: str, data: bytes) -> array[int]:
    column: array[int] = array(typecode)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
