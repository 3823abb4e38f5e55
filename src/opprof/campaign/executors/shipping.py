"""Folders between hosts without a common file system: listed, hashed, whole or not at all.

Nothing here knows what carries the bytes: a sender lists and reads pieces, a receiver asks for them
in order, checks size and SHA-256 of every file, and renames the finished folder into its place. At
no time is more than one piece in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from msgspec import Struct

from opprof.errors import EnvironmentFailure, InputError, IntegrityError, StateConflict
from opprof.files import sha256_file, sync_folder

PIECE_BYTES = 4 << 20
"""At most as many bytes travel at once."""

ReadPiece = Callable[[str, int], Awaitable[bytes]]
"""(name, offset) to at most :data:`PIECE_BYTES` bytes; fewer only at the file's end."""


class FileEntry(Struct, frozen=True):
    """One regular file below a folder."""

    name: str
    """POSIX path relative to the folder."""
    size: int
    sha256: str


class Listing(Struct, frozen=True):
    """A folder's content; both lists sorted by name."""

    folders: list[str]
    files: list[FileEntry]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


def list_folder(root: Path) -> Listing:
    """Return everything below ``root`` with sizes and hashes.

    Raises:
        InputError: there is no such folder, or something below it is neither file nor folder (a
            link could lead out of it).
    """
    if not root.is_dir():
        raise InputError("folder not found", path=root)
    folders, files = [], []
    for path in sorted(root.rglob("*")):
        name, mode = path.relative_to(root).as_posix(), path.lstat().st_mode
        if stat.S_ISDIR(mode):
            folders.append(name)
        elif stat.S_ISREG(mode):
            files.append(FileEntry(name, path.stat().st_size, sha256_file(path)))
        else:
            raise InputError("is neither a file nor a folder and cannot be sent", path=path)
    return Listing(folders, files)


def read_piece(root: Path, name: str, offset: int) -> bytes:
    """Return the piece of ``root/name`` that begins at ``offset``.

    Raises:
        InputError: the name leads out of the folder, or the file cannot be read.
    """
    path = root / checked_name(name)
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(PIECE_BYTES)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error


def checked_name(name: str) -> str:
    """Return the name if it stays below the folder that it is relative to.

    Raises:
        InputError: it is absolute, empty, or has a part that leads upwards.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in name:
        raise InputError(f"{name!r} is no name below a folder")
    return name


async def fetch_folder(listing: Listing, read: ReadPiece, target: Path) -> None:
    """Bring a listed folder to ``target``: all of it with the listed hashes, or nothing.

    Raises:
        StateConflict: ``target`` exists; nothing is ever overwritten.
        IntegrityError: a file arrived with other bytes than listed.
        EnvironmentFailure: it cannot be written (disk full).
    """
    if target.exists():
        raise StateConflict("exists already; what was brought home before is kept", path=target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        incoming = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=target) from error
    try:
        for name in listing.folders:
            (incoming / checked_name(name)).mkdir(parents=True, exist_ok=True)
        for entry in listing.files:
            await fetch_file(entry, read, incoming / checked_name(entry.name))
        incoming.chmod(0o755)
        for folder in sorted({incoming, *(incoming / name for name in listing.folders)}):
            sync_folder(folder)
        incoming.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=target) from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


async def fetch_file(entry: FileEntry, read: ReadPiece, path: Path) -> None:
    """Write one listed file to ``path`` and check it.

    Raises:
        IntegrityError: other bytes arrived than listed.
        OSError: it cannot be written.
    """
    digest, offset = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        while offset < entry.size:
            piece = await read(entry.name, offset)
            if not piece:
                break
            stream.write(piece)
            digest.update(piece)
            offset += len(piece)
        stream.flush()
        os.fsync(stream.fileno())
    if offset != entry.size or digest.hexdigest() != entry.sha256:
        reason = f"{entry.name} arrived with {offset} bytes, {digest.hexdigest()[:12]}"
        raise IntegrityError(f"{reason}; listed {entry.size}, {entry.sha256[:12]}", path=path)


def private_folder(path: Path) -> Path:
    """Make a folder that only this user can enter, or check that it is one.

    Raises:
        EnvironmentFailure: it is a link, another user's, or open to others.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise EnvironmentFailure(f"cannot make: {error.strerror or error}", path=path) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EnvironmentFailure("is not a private folder of this user (mode 0700)", path=path)
    return path


def append_piece(path: Path, offset: int, piece: bytes) -> None:
    """Add a piece to a file under construction; the first one (offset 0) makes it anew.

    Raises:
        EnvironmentFailure: it cannot be written, or pieces are missing.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("wb" if offset == 0 else "ab") as stream:
            if stream.tell() != offset:
                raise EnvironmentFailure(f"piece {offset} follows {stream.tell()}", path=path)
            stream.write(piece)
        path.chmod(0o600)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=path) from error


def finish_file(part: Path, path: Path, sha256: str) -> None:
    """Give a file under construction its name once its bytes are right.

    Raises:
        IntegrityError: other bytes arrived than were sent.
    """
    if sha256_file(part) != sha256:
        part.unlink()
        raise IntegrityError("arrived with other bytes than were sent", path=path)
    part.replace(path)
