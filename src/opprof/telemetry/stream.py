"""Read one Layer-1 stream and its sidecar: schema 1, line by line, into columns.

What makes the file unusable raises :class:`~opprof.errors.SchemaError` with file and line: no
header on line 1, a second header, a line after the footer, an unknown field or record type, a value
of a wrong type, a blank line, NaN, bad UTF-8, an endless line. What makes the run invalid is kept
for :mod:`opprof.telemetry.accounting`: a torn last line, a gap, a duplicate, a drop, a sidecar that
is missing, unreadable or disagrees.

Source: contract, section 2; protocol, "Layer 1: always on" and A-P3-5.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import msgspec

from opprof.artifacts.common import oversized_integer
from opprof.artifacts.layer1 import Footer, Header, Sidecar, Step
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes
from opprof.telemetry.build import ColumnBuilder
from opprof.telemetry.columns import StepColumns
from opprof.telemetry.lines import DecodedBlock, decode_blocks

SIDECAR_BYTES_MAX = 1 << 20
SIDECAR_SUFFIX = ".footer.json"


class _UncollectedStep(
    Step, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="step", gc=False
):
    """A step that the garbage collector need not track: it holds no reference to itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One stream as it lies on disk."""

    path: Path
    header: Header
    columns: StepColumns
    footer: Footer | None
    torn_line: int | None
    """Number of a last line that is no whole JSON text; null when every line is whole."""
    lines: int
    """Whole lines, header and footer included."""


@dataclass(frozen=True, slots=True)
class SidecarFile:
    """The sidecar, or why there is none to use: exactly one field is null."""

    sidecar: Sidecar | None
    fault: str | None
    """``sidecar_missing: …`` or ``sidecar_invalid: …``."""


def find_stream(run: Path) -> Path:
    """Return the run's only Layer-1 stream, ``opprof/*.jsonl``.

    Raises:
        InputError: there is none, or more than one (protocol: exactly one per run, also under TP).
    """
    folder = run / "opprof"
    found = sorted(path for path in folder.glob("*.jsonl") if path.is_file())
    if not found:
        raise InputError("no Layer-1 stream (*.jsonl) in this folder", path=folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise InputError(
            f"{len(found)} Layer-1 streams, expected exactly one: {names}", path=folder
        )
    return found[0]


def read_stream(path: Path) -> Stream:
    """Read and decode the whole stream; memory beside the columns is bounded by one block.

    Raises:
        InputError: the file cannot be read.
        SchemaError: the file is no schema-1 stream; names file and line.
    """
    try:
        # Unbuffered: whole blocks are read, and a buffer would only copy them once more.
        with path.open("rb", buffering=0) as stream:
            return _read(stream, path)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error


def _read(stream: FileIO, path: Path) -> Stream:
    decoder = msgspec.json.Decoder(Header | _UncollectedStep | Footer)
    reader = _Reader(path, os.fstat(stream.fileno()).st_size)
    for block in decode_blocks(stream, path, decoder):
        reader.add(block)
    return reader.finish()


class _Reader:
    """Keeps the order of a stream: header, steps, footer, nothing."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._builder = ColumnBuilder(path)
        self._header: Header | None = None
        self._footer: Footer | None = None
        self._torn_line: int | None = None
        self._lines = 0

    def add(self, block: DecodedBlock[Header | _UncollectedStep | Footer]) -> None:
        records = block.records
        first_line = block.first_line
        if records and self._header is None:
            header = records[0]
            if not isinstance(header, Header):
                raise SchemaError(
                    "the stream does not begin with a header line", path=self._path, line=1
                )
            self._check_integers(header, 1)
            self._header = header
            # Later lines are about as long as those of the first block.
            rows = self._size_bytes * len(records) // max(block.size_bytes, 1)
            self._builder = ColumnBuilder(self._path, rows_expected=rows + rows // 16)
            records = records[1:]
            first_line += 1
        if set(map(type, records)) - {_UncollectedStep}:
            records = self._without_footer(records, first_line)
        elif records and self._footer is not None:
            raise SchemaError("a line after the footer", path=self._path, line=first_line)
        self._builder.add(records)  # type: ignore[arg-type]
        self._lines = block.first_line - 1 + len(block.records)
        self._torn_line = block.torn_line

    def _without_footer(
        self, records: list[Header | _UncollectedStep | Footer], first_line: int
    ) -> list[Header | _UncollectedStep | Footer]:
        """Take the footer off the block's end; anything else that is no step is a fault."""
        for offset, record in enumerate(records):
            if self._footer is not None:
                raise SchemaError(
                    "a line after the footer", path=self._path, line=first_line + offset
                )
            if isinstance(record, Header):
                raise SchemaError("a second header", path=self._path, line=first_line + offset)
            if isinstance(record, Footer):
                self._check_integers(record, first_line + offset)
                self._footer = record
        return records[:-1]

    def _check_integers(self, record: Header | Footer, line: int) -> None:
        if (at := oversized_integer(record)) is not None:
            reason = f"does not fit the schema: integer beyond 62 bits - at `{at}`"
            raise SchemaError(reason, path=self._path, line=line)

    def finish(self) -> Stream:
        if self._header is None:
            raise SchemaError("the stream has no header line", path=self._path, line=1)
        return Stream(
            path=self._path,
            header=self._header,
            columns=self._builder.finish(),
            footer=self._footer,
            torn_line=self._torn_line,
            lines=self._lines,
        )


def sidecar_path(stream: Path) -> Path:
    """``<stream>.footer.json`` beside the stream."""
    return stream.with_name(stream.name + SIDECAR_SUFFIX)


def read_sidecar(stream: Path) -> SidecarFile:
    """Read the sidecar of ``stream``; a missing or unreadable one is a fault, not an error.

    Source: A-P3-5, "a missing/invalid sidecar … invalidates the run".
    """
    path = sidecar_path(stream)
    if not path.exists():
        return SidecarFile(None, f"sidecar_missing: {path.name} not found")
    try:
        data = read_bytes(path, limit_bytes=SIDECAR_BYTES_MAX)
    except InputError as error:
        return SidecarFile(None, f"sidecar_invalid: {path.name}: {error.reason}")
    try:
        sidecar = msgspec.json.decode(data, type=Sidecar)
    except (msgspec.DecodeError, RecursionError) as error:
        return SidecarFile(None, f"sidecar_invalid: {path.name}: {error}")
    if (at := oversized_integer(sidecar)) is not None:
        return SidecarFile(
            None, f"sidecar_invalid: {path.name}: integer beyond 62 bits - at `{at}`"
        )
    return SidecarFile(sidecar, None)
