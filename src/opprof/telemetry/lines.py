"""Foreign JSONL in bounded blocks: one line, one record, every fault with file and line.

Used for the Layer-1 stream and for ``client/requests.jsonl``. The file is read forward once, in
blocks of a fixed size; a line longer than the bound is an error, never an allocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from opprof.errors import InputError, SchemaError

BLOCK_BYTES = 64 << 10
"""Some 120 step lines: decoded objects of one block stay in the processor's cache."""
LINE_BYTES_MAX = 8 << 20
"""A line beyond it is refused, one block later at most; the largest legal one (a prefill chunk for
each of 1,024 requests) has about 10 kB."""

T = TypeVar("T")


class ByteSource(Protocol):
    """What is read: any binary file."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines with their line ends; the file's last line may lack its own."""

    first_line: int
    """Number of the first line, from 1."""
    data: bytes
    lines: int
    """Number of lines, an unterminated last one included."""
    last: bool
    """True when nothing follows in the file."""


@dataclass(frozen=True, slots=True)
class DecodedBlock(Generic[T]):
    """The records of one block, in file order: ``records[i]`` is line ``first_line + i``."""

    first_line: int
    records: list[T]
    torn_line: int | None
    """Number of a last line that is no whole JSON text; null everywhere else."""
    size_bytes: int = 0
    """Of the block in the file."""


def line_blocks(stream: ByteSource, path: Path) -> Iterator[LineBlock]:
    """Yield the file's lines in blocks of about ``BLOCK_BYTES``.

    Raises:
        InputError: a line is longer than ``LINE_BYTES_MAX``.
    """
    first_line = 1
    carry = b""
    chunk = stream.read(BLOCK_BYTES)
    while chunk:
        following = stream.read(BLOCK_BYTES)
        last = not following
        cut = len(chunk) if last else chunk.rfind(b"\n") + 1
        if not cut and len(carry) + len(chunk) > LINE_BYTES_MAX:
            raise InputError(f"line longer than {LINE_BYTES_MAX} bytes", path=path, line=first_line)
        if cut:
            data = b"".join((carry, memoryview(chunk)[:cut]))
            lines = data.count(b"\n") + (not data.endswith(b"\n"))
            yield LineBlock(first_line, data, lines, last)
            first_line += lines
            carry = chunk[cut:]
        else:
            carry += chunk
        chunk = following


def decode_blocks(
    stream: ByteSource, path: Path, decoder: msgspec.json.Decoder[T]
) -> Iterator[DecodedBlock[T]]:
    """Decode every line of the file.

    A last line that is no whole JSON text is torn: it is reported in ``torn_line`` and left out,
    whether or not a line end follows it. Any other fault is an error.

    Raises:
        SchemaError: a line does not fit the schema, is blank or no JSON; names file and line.
    """
    for block in line_blocks(stream, path):
        records = _decode_fast(block, decoder)
        torn: int | None = None
        if records is None:
            records, torn = _decode_slowly(block, path, decoder)
        yield DecodedBlock(block.first_line, records, torn, len(block.data))


def _decode_fast(block: LineBlock, decoder: msgspec.json.Decoder[T]) -> list[T] | None:
    """Decode a block in one call; null where it must be looked at line by line.

    ``decode_lines`` takes any white space between records, so the lines are counted against the
    records: a blank line, a record over two lines or two on one line leave a difference.
    """
    try:
        records = decoder.decode_lines(block.data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return records if len(records) == block.lines else None


def _decode_slowly(
    block: LineBlock, path: Path, decoder: msgspec.json.Decoder[T]
) -> tuple[list[T], int | None]:
    """Find the faulty line of a block: raise, or name it as torn when it ends the file."""
    records: list[T] = []
    lines = block.data.removesuffix(b"\n").split(b"\n")
    for offset, line in enumerate(lines):
        number = block.first_line + offset
        try:
            records.append(decoder.decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            if not line.strip():
                raise SchemaError("blank line", path=path, line=number) from error
            if block.last and offset == len(lines) - 1 and not _is_json(line):
                return records, number
            raise SchemaError(_reason(error), path=path, line=number) from error
    return records, None


def _is_json(line: bytes) -> bool:
    """True when the bytes are one whole JSON text of any shape."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return f"does not fit the schema: {text}"
    return f"no valid JSON: {text}"
