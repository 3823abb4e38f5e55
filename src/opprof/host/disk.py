"""Free space and sizes of folders (protocol, "Budget and hard stop conditions", condition 9)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opprof.errors import EnvironmentFailure


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write to the file system of ``path``.

    A path that does not exist yet is judged by its nearest existing parent.

    Raises:
        EnvironmentFailure: the file system cannot be asked.
    """
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        found = os.statvfs(existing)
    except OSError as error:
        raise EnvironmentFailure(f"cannot read free space: {error.strerror}", path=path) from error
    return found.f_bavail * found.f_frsize


def tree_bytes(path: Path) -> int:
    """Return the bytes of all regular files below ``path``; 0 when it does not exist.

    Links are not followed and hard links count once. A file that vanishes meanwhile (a temporary
    one of a running campaign) counts as nothing.

    Raises:
        EnvironmentFailure: a folder cannot be listed, so the sum would be too small.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        for entry in _entries(folder):
            found = _state(entry)
            if found is None:
                continue
            if stat.S_ISDIR(found.st_mode):
                waiting.append(Path(entry.path))
            elif stat.S_ISREG(found.st_mode):
                if found.st_nlink > 1 and (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
                total += found.st_size
    return total


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentFailure(f"cannot list: {error.strerror}", path=folder) from error


def _state(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentFailure(f"cannot read: {error.strerror}", path=entry.path) from error
