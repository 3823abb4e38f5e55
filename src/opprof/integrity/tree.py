"""Walking foreign folders: sorted, never through a link, nothing opened that may block."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal

from opprof.errors import InputError

Kind = Literal["file", "folder", "link", "special"]
CHUNK_BYTES = 1 << 20
MAX_ENTRIES = 1_000_000
"""Folders and files of one tree; more is no campaign."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below the root."""

    name: str
    """POSIX, relative to the root; bytes that are no UTF-8 stand as ``\\xNN``."""
    path: Path
    kind: Kind
    bytes: int
    """Apparent size of a file; 0 for anything else."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder that cannot be listed or a name whose kind cannot be read."""

    name: str
    reason: str


def walk(root: Path) -> Iterator[Entry | Unreadable]:
    """Yield everything below ``root``, sorted by name within each folder; links are not followed.

    Raises:
        InputError: ``root`` is no folder (or a link to one), or holds too many entries.
    """
    if root.is_symlink() or not root.is_dir():
        reason = "no such folder" if not os.path.lexists(root) else "is no folder"
        raise InputError(reason, path=root)
    pending, count = [(root, "")], 0
    while pending:
        folder, prefix = pending.pop()
        try:
            with os.scandir(folder) as listing:
                found = sorted(listing, key=lambda item: os.fsencode(item.name))
        except OSError as error:
            yield Unreadable(prefix.rstrip("/") or ".", f"cannot list: {error.strerror or error}")
            continue
        inner: list[tuple[Path, str]] = []
        for item in found:
            count += 1
            if count > MAX_ENTRIES:
                raise InputError(f"holds more than {MAX_ENTRIES} entries", path=root)
            entry = _entry(item, prefix)
            yield entry
            if isinstance(entry, Entry) and entry.kind == "folder":
                inner.append((entry.path, f"{entry.name}/"))
        pending.extend(reversed(inner))


def single(path: Path) -> Entry | Unreadable:
    """Return one path as an entry, by its own name; a link is one, not what it leads to."""
    return _looked_at(path, printable_name(path.name))


def _entry(item: os.DirEntry[str], prefix: str) -> Entry | Unreadable:
    return _looked_at(item, prefix + printable_name(item.name))


def _looked_at(item: os.DirEntry[str] | Path, name: str) -> Entry | Unreadable:
    try:
        status = item.stat(follow_symlinks=False)
    except OSError as error:
        return Unreadable(name, f"cannot look at: {error.strerror or error}")
    mode = status.st_mode
    kind: Kind = "special"
    if stat.S_ISREG(mode):
        kind = "file"
    elif stat.S_ISDIR(mode):
        kind = "folder"
    elif stat.S_ISLNK(mode):
        kind = "link"
    return Entry(name, Path(item), kind, status.st_size if kind == "file" else 0)


def printable_name(name: str) -> str:
    """Return a file name that can be encoded: undecodable bytes stand as ``\\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file and nothing else: a link or a pipe put there meanwhile is refused.

    Raises:
        InputError: it cannot be opened, or is no regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("is no regular file", path=path)
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def hash_plain(path: Path) -> tuple[str, int]:
    """Return (SHA-256, bytes) of a regular file.

    Raises:
        InputError: it cannot be read, or is no regular file.
    """
    digest, size = sha256(), 0
    with open_plain(path) as stream:
        try:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    return digest.hexdigest(), size
