"""Files at the edge: atomic writes, hashes, bounded reads. The only module that renames anything.

Crash-first rule (invariant F1): an artefact appears under its final name whole or not at all. It is
written to a temporary file in the same folder, flushed to disk, renamed, and the folder is synced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from opprof.errors import EnvironmentFailure, InputError, StateConflict

_CHUNK_BYTES = 1 << 20


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes ``path`` only when the block ends without an exception.

    Raises:
        EnvironmentFailure: the folder cannot be written or the disk is full; ``path`` is untouched.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=path) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_file_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes ``path`` when the block ends without an exception.

    Nothing is ever overwritten, not even what appears meanwhile. Until it is whole the file has no
    name, so that even SIGKILL leaves nothing; on a file system without such files (NFS) a killed
    process leaves ``.<name>.….tmp``.

    Raises:
        StateConflict: ``path`` exists.
        EnvironmentFailure: the folder cannot be written or the disk is full.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = _without_name(path)
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            # A descriptor for the folder makes Python follow the link that the source is.
            here = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                source = temporary or Path(f"/proc/self/fd/{descriptor}")
                os.link(source, path, src_dir_fd=here)
                os.fsync(here)
            finally:
                os.close(here)
    except FileExistsError as error:
        raise StateConflict("exists already; nothing is overwritten", path=path) from error
    except OSError as error:
        raise EnvironmentFailure(f"cannot write: {error.strerror or error}", path=path) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _without_name(path: Path) -> tuple[int, Path | None]:
    """Open a file for ``path`` that has no name, or, where that cannot be, a temporary one."""
    if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir():
        with suppress(OSError):
            return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), None
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    return descriptor, Path(name)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` whole or not at all (see :func:`atomic_writer`)."""
    with atomic_writer(path, mode=mode) as stream:
        stream.write(data)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path, *, limit_bytes: int = 1 << 30) -> bytes:
    """Return the whole file.

    Raises:
        InputError: the file is missing, is no regular file, cannot be read, or exceeds the limit.
    """
    try:
        if not path.is_file():
            reason = "is a folder, not a file" if path.is_dir() else "file not found"
            raise InputError(reason, path=path)
        size = path.stat().st_size
        if size > limit_bytes:
            raise InputError(f"file of {size} bytes is over the limit of {limit_bytes}", path=path)
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, read in pieces of 1 MiB.

    Raises:
        InputError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    return digest.hexdigest()
