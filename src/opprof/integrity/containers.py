"""Streams inside files: gzip (all members), bzip2, xz and tar, in any nesting, in bounded memory.

What cannot be looked into (Zstandard and zip here, a damaged or cut stream, one that inflates
beyond the limit) is said so: "could not look" is never "found nothing".
"""

from __future__ import annotations

import bz2
import codecs
import errno
import importlib
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from opprof.errors import InputError

MAX_NESTING = 6
INFLATED_LIMIT_BYTES = 16 << 30
"""Of one file; the largest trace known is 2 GB."""
_READ = 1 << 16
_TAR_NAMES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_PIECE = 1 << 20
_MOST_HEADERS = 1 << 17
"""More than extra fields take; of a name and a comment, far more than any."""
_SNIFF = 512
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_ZSTD = b"\x28\xb5\x2f\xfd"
_CLOSED = {
    _ZSTD: "Zstandard data (Python 3.14 opens it)",
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "a zip archive",
    b"PK\x07\x08": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x04\x22\x4d\x18": "LZ4 data",
    b"\x1f\x9d": "data of compress",
    b"%PDF-": "a PDF",
    b"SQLite format 3\x00": "a data base",
    b"\x89PNG": "an image",
}
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
_BZIP2_BEGINS = (bytes.fromhex("314159265359"), bytes.fromhex("177245385090"))
"""A block, or the end of an empty stream: three letters alone may begin any text."""
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Longest first: a UTF-32 mark begins with a UTF-16 one."""


class Readable(Protocol):
    """``read(n)`` gives up to n bytes, none at the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of plain bytes inside a file."""

    name: str
    """Path inside the file, ``""`` for the file's own bytes."""
    reader: Readable
    whole: bool = True
    """A file's or member's own bytes as they are: no header, no rest, nothing decoded."""


@dataclass(frozen=True, slots=True)
class Unlooked:
    """A part that could not be looked into, with the reason."""

    name: str
    reason: str


class Damaged(Exception):
    """A compressed stream cannot be read on."""


class _Budget:
    def __init__(self, limit_bytes: int) -> None:
        self.left = limit_bytes

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Damaged("inflates beyond the limit; the rest was not looked at")


def streams(reader: Readable, *, name: str, limit_bytes: int) -> Iterator[Stream | Unlooked]:
    """Yield every stream of plain bytes in a file; each must be read before the next is asked for.

    ``name`` is the file's own; a ``.gz`` that holds none is looked at as it is, and told.
    """
    yield from _streams(_Peeked(reader), "", name, _Budget(limit_bytes), 0)


def _streams(
    reader: _Peeked, inside: str, name: str, budget: _Budget, depth: int
) -> Iterator[Stream | Unlooked]:
    head = reader.peek(_SNIFF)
    if depth > MAX_NESTING:
        yield Unlooked(inside, f"is packed more than {MAX_NESTING} times")
        return
    opened = _decompressor(head)
    if opened is not None:
        yield from _compressed(reader, opened, inside, name, budget, depth)
    elif what := next((what for mark, what in _CLOSED.items() if head.startswith(mark)), None):
        yield Unlooked(inside, f"is {what}, which this scan cannot open: unpack it or leave it out")
        yield Stream(inside, reader, whole=False)
    elif head[257:262] == b"ustar":
        yield from _tar(reader, inside, budget, depth)
    else:
        if name.endswith((*_SUFFIXES, ".tgz", ".zip")):
            yield Unlooked(inside, "is named like a compressed file and is none")
        encoding = next((code for mark, code in _BOMS.items() if head.startswith(mark)), None)
        if encoding is None:
            yield Stream(inside, reader)
        else:
            yield Stream(inside, _Decoded(reader, encoding), whole=False)


def _decompressor(head: bytes) -> Callable[[], Any] | None:
    if head.startswith(_GZIP):
        from isal import isal_zlib

        # 31: zlib's window bits for a gzip member with header, CRC and length.
        return lambda: isal_zlib.decompressobj(31)
    if head.startswith(_BZIP2) and head[4:10] in _BZIP2_BEGINS:
        return bz2.BZ2Decompressor
    if head.startswith(_ZSTD):
        try:
            # Python 3.14 brings it; before, such a file is told as one that cannot be opened.
            kind: Callable[[], Any] = importlib.import_module("compression.zstd").ZstdDecompressor
        except ImportError:
            return None
        return kind
    return lzma.LZMADecompressor if head.startswith(_XZ) else None


def _compressed(
    reader: _Peeked,
    opened: Callable[[], Any],
    inside: str,
    name: str,
    budget: _Budget,
    depth: int,
) -> Iterator[Stream | Unlooked]:
    start = reader.peek(_MOST_HEADERS)
    magic = start[:2]
    inflated = _Inflated(reader, opened, magic, budget)
    if magic == _GZIP:
        # A header may carry a name, a comment and extra fields.
        try:
            first = gzip_header(start)
        except Damaged as error:
            yield Unlooked(inside, str(error))
            yield Stream(_join(inside, "(as it is)"), reader, whole=False)
            return
        yield Stream(_join(inside, "(header)"), _Bytes(first), whole=False)
    inner = name.rsplit(".", 1)[0] if name.endswith(_SUFFIXES) else name
    try:
        yield from _streams(_Peeked(inflated), inside, inner, budget, depth + 1)
        yield Stream(_join(inside, "(headers)"), _Bytes(bytes(inflated.headers)), whole=False)
        if inflated.left_over:
            yield Unlooked(inside, "is followed by bytes that belong to no compressed member")
            yield Stream(_join(inside, "(rest)"), Chained(inflated.left_over, reader), whole=False)
    except Damaged as error:
        yield Unlooked(inside, str(error))
    if inflated.damaged:
        # Text may begin like a packed file: what was taken for one is looked at as it is, too.
        yield Stream(_join(inside, "(as it is)"), Chained(start, reader), whole=False)


def gzip_header(data: bytes) -> bytes:
    """Return what a gzip member's header carries: extra fields, a name and a comment (RFC 1952).

    Raises:
        Damaged: it does not end within ``data``.
    """
    at, flags = 10, data[3] if len(data) > 3 else 0
    if flags & 4:
        at += 2 + int.from_bytes(data[10:12], "little")
    for flag in (8, 16):
        if flags & flag:
            end = data.find(b"\x00", at)
            if end < 0:
                raise Damaged(f"has a header of more than {_MOST_HEADERS} bytes, or is cut")
            at = end + 1
    if at > len(data):
        raise Damaged(f"has a header of more than {_MOST_HEADERS} bytes, or is cut")
    return data[10:at]


class _BoundedTarInfo(tarfile.TarInfo):
    """A member whose long name or extended header is not read into memory whatever it says."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> tarfile.TarInfo:  # type: ignore[override]
        member = super().frombuf(buf, encoding, errors)
        if member.type in _TAR_NAMES and member.size > _PIECE:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


class _Outside:
    """A tar's bytes on their way to :mod:`tarfile`; holds those that belong to no member's data.

    Headers have room behind their fields, and members are filled up to whole blocks.
    """

    def __init__(self, reader: Readable) -> None:
        self._reader = reader
        self._at = 0
        self._data = range(0)
        self._held: list[tuple[int, bytes]] = []

    def read(self, size: int, /) -> bytes:
        part = self._reader.read(size)
        self._hold(self._at, part)
        self._at += len(part)
        return part

    def _hold(self, at: int, part: bytes) -> None:
        """Keep what lies before or behind the present member's data."""
        before = part[: max(0, self._data.start - at)] if self._data else part
        if before:
            self._held.append((at, before))
        behind = max(at, self._data.stop) if self._data else at + len(part)
        if behind < at + len(part):
            self._held.append((behind, part[behind - at :]))

    def member(self, data: range) -> bytes:
        """Note where the next member's data lie; return what was held before them."""
        held, self._held, self._data = self._held, [], data
        for at, part in held:
            self._hold(at, part)
        return self._taken(data.start)

    def rest(self, end: int) -> tuple[bytes, bytes]:
        """Return what was held before the archive's end, and what was read behind it."""
        return self._taken(end), self._taken(self._at)

    def _taken(self, end: int) -> bytes:
        said = b"".join(part[: max(0, end - at)] for at, part in self._held)
        later = [(max(at, end), part[max(0, end - at) :]) for at, part in self._held]
        self._held = [(at, part) for at, part in later if part]
        return said


def _tar(reader: _Peeked, inside: str, budget: _Budget, depth: int) -> Iterator[Stream | Unlooked]:
    head = reader.peek(_MOST_HEADERS)
    outside = _Outside(reader)
    try:
        with tarfile.open(  # type: ignore[call-overload]
            fileobj=outside, mode="r|", bufsize=_READ, tarinfo=_BoundedTarInfo
        ) as archive:
            for member in archive:
                name = member.name.encode("utf-8", "surrogateescape").decode(
                    "utf-8", "backslashreplace"
                )
                path = _join(inside, name)
                said = [member.name, member.linkname, member.uname, member.gname]
                said += [str(value) for pair in member.pax_headers.items() for value in pair]
                text = "\n".join(said).encode("utf-8", "surrogateescape")
                start = member.offset_data
                raw = outside.member(range(start, start + member.size * member.isreg()))
                yield Stream(f"{path} (header)", _Bytes(text + b"\x00" + raw), whole=False)
                if member.issparse():
                    yield Unlooked(path, "is a sparse member of a tar")
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    yield from _streams(_Peeked(content), path, name, budget, depth + 1)
        last, behind = outside.rest(archive.offset)
        yield Stream(_join(inside, "(end)"), _Bytes(last), whole=False)
        rest = _Zeros(Chained(behind, reader))
        yield Stream(_join(inside, "(rest)"), rest, whole=False)
        if rest.others:
            yield Unlooked(inside, "is a damaged tar, or followed by bytes that belong to none")
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        yield Unlooked(inside, f"is a damaged or cut tar: {error}")
        yield Stream(_join(inside, "(as it is)"), Chained(head, reader), whole=False)


def _join(inside: str, name: str) -> str:
    return f"{inside}!{name}" if inside else name


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, /) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return part


class Chained:
    """A reader that first gives what was already read."""

    def __init__(self, first: bytes, then: Readable) -> None:
        self._first, self._then = _Bytes(first), then

    def read(self, size: int, /) -> bytes:
        return self._first.read(size) or self._then.read(size)


class _Zeros:
    """A reader that notes whether it gave anything but NUL bytes."""

    def __init__(self, reader: Readable) -> None:
        self._reader, self.others = reader, False

    def read(self, size: int, /) -> bytes:
        part = self._reader.read(size)
        self.others = self.others or bool(part.strip(b"\x00"))
        return part


class _Peeked:
    """A reader whose beginning can be looked at; reads are filled up where possible."""

    def __init__(self, reader: Readable) -> None:
        self._reader, self._head = reader, b""

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (more := self._reader.read(size - len(self._head))):
            self._head += more
        return self._head[:size]

    def read(self, size: int, /) -> bytes:
        part, self._head = self._head[:size], self._head[size:]
        return part or self._reader.read(size)


class _Inflated:
    """The bytes of all compressed members, one after another."""

    def __init__(
        self, reader: Readable, opened: Callable[[], Any], magic: bytes, budget: _Budget
    ) -> None:
        self._reader, self._opened, self._magic, self._budget = reader, opened, magic, budget
        from isal import isal_zlib

        self._engine: Any = opened()
        self._broken: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # stub
        self._pending = b""
        self.left_over = b""
        self.damaged = False
        self.headers = bytearray()
        """What the headers of further gzip members carry."""

    def read(self, size: int, /) -> bytes:
        while True:
            if self._engine is None:
                return b""
            try:
                part: bytes = self._engine.decompress(self._pending, min(size, _PIECE))
            except (OSError, EOFError, ValueError, lzma.LZMAError, self._broken) as error:
                self.damaged = True
                raise Damaged(f"is damaged: {error}") from error
            self._pending = bytes(getattr(self._engine, "unconsumed_tail", b""))
            if self._engine.eof:
                self._next_member()
            elif not part and not self._pending:
                self._pending = self._reader.read(_READ)
                if not self._pending:
                    self.damaged = True
                    raise Damaged("ends before its trailer: the file was cut short")
            if part:
                self._budget.take(len(part))
                return part

    def _next_member(self) -> None:
        rest = bytes(self._engine.unused_data)
        while True:
            # Zero padding may stand between members and after the last one.
            rest = rest.lstrip(b"\x00")
            more = self._reader.read(_READ) if len(rest) < len(self._magic) else b""
            rest += more
            if len(rest) >= len(self._magic) or not more:
                break
        if rest.startswith(self._magic):
            if self._magic == _GZIP:
                while len(rest) < _MOST_HEADERS and (more := self._reader.read(_READ)):
                    rest += more
                if carried := gzip_header(rest):
                    self.headers += carried + b"\x00"
                if len(self.headers) > _PIECE:
                    raise Damaged(f"has more than {_PIECE} bytes of headers")
            self._engine, self._pending = self._opened(), rest
        else:
            self._engine, self.left_over = None, rest


class _Decoded:
    """UTF-16 or UTF-32 with a byte order mark, as UTF-8; and its bytes as they are, beside.

    A mark is no proof, so both are given, in blocks that overlap.
    """

    def __init__(self, reader: Readable, encoding: str) -> None:
        self._reader = reader
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._tails = (b"", b"")
        self._block = b""

    def read(self, size: int, /) -> bytes:
        if not self._block and (raw := self._reader.read(_PIECE)):
            decoded = self._decoder.decode(raw).encode("utf-8", "surrogatepass")
            both = (self._tails[0] + decoded, self._tails[1] + raw)
            self._block = b"\x00".join((b"", *both, b""))
            self._tails = (both[0][-_READ:], both[1][-_READ:])
        part, self._block = self._block[:size], self._block[size:]
        return part


class PlainFile:
    """A regular file's data up to its size now; holes are passed over, as one NUL byte."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0
        self._end = os.fstat(stream.fileno()).st_size

    def read(self, size: int, /) -> bytes:
        hole = b""
        if self._at >= self._end:
            return b""
        try:
            data = os.lseek(self._stream.fileno(), self._at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return b""  # nothing but a hole is left
            data = self._at  # a file system that knows no holes
        if data > self._at:
            self._at, hole = data, b"\x00"
        try:
            part = os.pread(self._stream.fileno(), min(size, self._end - self._at), self._at)
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}") from error
        self._at += len(part)
        return hole + part if part else b""
