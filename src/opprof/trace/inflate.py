"""Gzip to text, in pieces: the only module of this package that opens a file.

The whole stream is checked: deflate data, CRC-32 and length of every member (isal does that), the
trailer's presence, and that nothing but further members or zero padding follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from opprof.errors import InputError

GZIP = 31
"""zlib's window bits for a gzip member with header, CRC and length."""

COMPRESSED_PIECE_BYTES = 1 << 13
"""Read size. Deflate expands at most 1032 times, so a piece of text stays below 8.5 MB; Kineto's
text expands about 13 times, so its pieces (100 KB) stay in a core's cache."""

_IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # the stub says Exception
_MAGIC = b"\x1f\x8b"


class GzipText:
    """Iterate over the inflated bytes of a gzip file, once.

    ``inflated_bytes`` and ``members`` hold what has been read so far; both are final when the
    iteration has ended without an exception.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path; nothing is opened before the iteration starts."""
        self.path = path
        self.inflated_bytes = 0
        self.members = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield non-empty pieces of inflated text.

        Raises:
            InputError: the file cannot be read, is no gzip, is damaged or cut, or carries bytes
                after its last member.
        """
        try:
            with self.path.open("rb") as stream:
                yield from self._members(stream)
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", path=self.path) from error

    def _members(self, stream: BinaryIO) -> Iterator[bytes]:
        rest = stream.read(COMPRESSED_PIECE_BYTES)
        if not rest.startswith(_MAGIC):
            reason = "not a gzip file" if rest else "empty file, not a gzip"
            raise InputError(reason, path=self.path, offset=0)
        while rest:
            self.members += 1
            inflate = isal_zlib.decompressobj(GZIP)
            while rest:
                try:
                    text = inflate.decompress(rest)
                except _IsalError as error:
                    raise self._damaged(str(error)) from error
                if text:
                    self.inflated_bytes += len(text)
                    yield text
                if inflate.eof:
                    break
                rest = stream.read(COMPRESSED_PIECE_BYTES)
            if not inflate.eof:
                raise self._damaged("ends before its trailer: the file was cut short")
            rest = self._next_member(stream, bytes(inflate.unused_data))

    def _next_member(self, stream: BinaryIO, rest: bytes) -> bytes:
        """Return the first bytes of the next member; empty when only zero padding is left."""
        while True:
            rest = rest.lstrip(b"\x00")
            more = stream.read(COMPRESSED_PIECE_BYTES) if len(rest) < len(_MAGIC) else b""
            rest += more
            if rest.startswith(_MAGIC):
                return rest
            if not more:
                break
        if rest:
            raise self._damaged("is followed by bytes that are no gzip member")
        return b""

    def _damaged(self, what: str) -> InputError:
        return InputError(
            f"gzip stream {what} (after {self.inflated_bytes} inflated bytes)",
            path=self.path,
            offset=self.inflated_bytes,
        )
