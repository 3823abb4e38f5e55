"""Where private data may be written (protocol, "Private real-trace anchor").

A private manifest never enters a git checkout, a run directory or a folder that others can read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opprof.errors import EnvironmentFailure, InputError

PRIVATE_FOLDER_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_RUN_FILES = (
    "manifest.sha256",
    "commands.log",
    "environment.json",
    "server.log",
    "client/timeline.json",
    "client/requests.jsonl",
    "client/segments.jsonl",
    "client/result.json",
    "client/sanity.json",
    "opprof/engine-0.jsonl",
    "opprof/engine-config.json",
)
_RUN_FOLDERS = ("client", "opprof", "traces", "analysis")


def private_folder(folder: Path) -> Path:
    """Return the resolved folder, made with mode 0700 where it is missing.

    Raises:
        InputError: it lies in a git checkout or a run directory, is no folder, belongs to someone
            else, or is open to group or others.
        EnvironmentFailure: it cannot be made.
    """
    resolved = folder.resolve()
    _refuse_public_place(resolved)
    if not resolved.exists():
        _make(resolved)
    status = resolved.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise InputError("private data need a folder; this is none", path=resolved)
    if status.st_uid != os.geteuid():
        raise InputError("the private folder belongs to another user", path=resolved)
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        reason = f"the private folder has mode {mode:04o}; it must be 0700 (chmod 700)"
        raise InputError(reason, path=resolved)
    return resolved


def readable_by_others(path: Path) -> bool:
    """Tell whether group or others may read or change an existing file or folder."""
    return bool(path.stat().st_mode & _OTHERS)


def _refuse_public_place(folder: Path) -> None:
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            raise InputError(f"private data never go into a git checkout ({place})", path=folder)
        if _is_run(place, named=place == folder):
            raise InputError(f"private data never go into a run directory ({place})", path=folder)
    if folder.name in _RUN_FOLDERS and _is_run(folder.parent, named=True):
        raise InputError(f"private data never go into a run directory ({folder.parent})")


def _is_run(place: Path, *, named: bool) -> bool:
    """Tell a run directory by its files, by two of its folders, or for ``named`` places by one.

    Far ancestors need the stronger sign: a home folder may well hold a checkout called opprof.
    """
    if any((place / name).is_file() for name in _RUN_FILES):
        return True
    folders = sum((place / name).is_dir() for name in _RUN_FOLDERS)
    return folders >= (1 if named else 2)


def _make(folder: Path) -> None:
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir(mode=PRIVATE_FOLDER_MODE)
            # The umask can only take permissions away; it must not take the owner's.
            place.chmod(PRIVATE_FOLDER_MODE)
    except OSError as error:
        raise EnvironmentFailure(f"cannot make: {error.strerror or error}", path=folder) from error
