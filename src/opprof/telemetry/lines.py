"""Foreign JSONL in bounded blocks: one line, one record, every fault with file and line.

Used for the Layer-1 stream and for ``client/requests.jsonl``. The file is read forward once, in
blocks of a fixed size; a line longer than the bound is an error, never an allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

from opprof.errors import InputError, SchemaError

BLOCK_BYTES = 128 << 10
"""Some 250 step lines: decoded objects of one block stay in the processor's cache."""
LINE_BYTES_MAX = 8 << 20
"""A line beyond it is refused; the largest legal one (1,024 chunks) has about 10 kB."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines without their line ends; the last block may hold an unterminated one."""

    first_line: int
    """Number of ``lines[0]``, from 1."""
    lines: list[bytes]
    last: bool
    """True when nothing follows in the file."""
    terminated: bool
    """False when the last line of the file has no line end."""


@dataclass(frozen=True, slots=True)
class DecodedBlock(Generic[T]):
    """The records of one block, in file order: ``records[i]`` is line ``first_line + i``."""

    first_line: int
    records: list[T]
    torn_line: int | None
    """Number of a last line that is no whole JSON text; null everywhere else."""


def line_blocks(stream: BinaryIO, path: Path) -> Iterator[LineBlock]:
    """Yield the file's lines in blocks of about ``BLOCK_BYTES``.

    Raises:
        InputError: a line is longer than ``LINE_BYTES_MAX``.
    """
    first_line = 1
    carry = b""
    chunk = stream.read(BLOCK_BYTES)
    while chunk:
        following = stream.read(BLOCK_BYTES)
        lines = (carry + chunk).split(b"\n")
        carry = lines.pop()
        if len(carry) > LINE_BYTES_MAX:
            raise InputError(
                f"line longer than {LINE_BYTES_MAX} bytes", path=path, line=first_line + len(lines)
            )
        last = not following
        terminated = not carry
        if last and not terminated:
            lines.append(carry)
        if lines:
            yield LineBlock(first_line, lines, last, terminated or not last)
            first_line += len(lines)
        chunk = following


def decode_blocks(
    stream: BinaryIO, path: Path, decode: Callable[[bytes], T]
) -> Iterator[DecodedBlock[T]]:
    """Decode every line with ``decode`` (a msgspec decoder's method).

    A last line that is no whole JSON text is torn: it is reported in ``torn_line`` and left out,
    whether or not a line end follows it. Any other fault is an error.

    Raises:
        SchemaError: a line does not fit the schema, is blank or no JSON; names file and line.
    """
    for block in line_blocks(stream, path):
        torn: int | None = None
        try:
            records = list(map(decode, block.lines))
        except (msgspec.DecodeError, RecursionError):
            records, torn = _decode_slowly(block, path, decode)
        yield DecodedBlock(block.first_line, records, torn)


def _decode_slowly(
    block: LineBlock, path: Path, decode: Callable[[bytes], T]
) -> tuple[list[T], int | None]:
    """Find the faulty line of a block: raise, or name it as torn when it ends the file."""
    records: list[T] = []
    for offset, line in enumerate(block.lines):
        number = block.first_line + offset
        try:
            records.append(decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            if not line.strip():
                raise SchemaError("blank line", path=path, line=number) from error
            if block.last and offset == len(block.lines) - 1 and not _is_json(line):
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
