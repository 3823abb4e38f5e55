"""Free space and sizes of folders (protocol, "Budget and hard stop conditions", condition 9)."""

from __future__ import annotations

import os
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
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EnvironmentFailure(f"cannot list: {error.strerror}", path=folder) from error
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    continue
                if not entry.is_file(follow_symlinks=False):
                    continue
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if found.st_nlink > 1 and (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            total += found.st_size
    return total
