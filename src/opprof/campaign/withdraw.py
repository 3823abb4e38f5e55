"""The folder of a refused start is taken back, so that the next start finds its place free.

Only what the start itself made, and only as long as nobody has done anything with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from opprof.artifacts.provenance import CopyKind
from opprof.campaign.store import Store, campaign_lock, machine_lock
from opprof.errors import OpprofError, StateConflict
from opprof.files import sync_folder
from opprof.integrity.closing import NAME as CLOSING
from opprof.integrity.ledger import NAME as LEDGER_NAME
from opprof.integrity.provenance import FOLDER, INDEX

_FILES = frozenset(
    {
        "campaign.json",
        "commands.log",
        "controller.json",
        "controller.lock",
        "controller.log",
        "protocol.toml",
        LEDGER_NAME,
    }
)
_FOLDERS = {"protocols": ".toml", "state": ".json"}
"""Folder of a new campaign to how the names of its files end."""
_PROVENANCE = frozenset({INDEX, CLOSING, *get_args(CopyKind)})
"""What its first controller has in its provenance, whole or not: copies, and no finished folder."""


@dataclass(frozen=True)
class Made:
    """A folder that a start has just made."""

    store: Store
    campaign: str
    device_and_inode: tuple[int, int]


def remember(store: Store) -> Made:
    """Return what :func:`withdraw` knows the folder by."""
    return Made(store, store.campaign().id, _identity(store.folder))


def withdraw(made: Made) -> str:
    """Remove the folder, or return why it stays: one sentence, empty when it is gone.

    It stays when it is another by now, a controller owns it, a run has begun, or it holds anything
    that a start does not make.
    """
    folder = made.store.folder
    try:
        with campaign_lock(folder), machine_lock(made.campaign, folder):
            own = _own_files(made)
            # Away from its place first: whoever looks there finds the whole campaign or none.
            away = folder.with_name(f".{folder.name}.{made.campaign}.tmp")
            folder.rename(away)
            for path in own:
                (away / path).unlink()
            for place, _, _ in os.walk(away, topdown=False):
                Path(place).rmdir()
            sync_folder(folder.parent)
    except (OpprofError, OSError) as error:
        reason = error.reason if isinstance(error, OpprofError) else error.strerror
        return f"{folder} stays: {reason}"
    return ""


def _own_files(made: Made) -> list[Path]:
    """Return the folder's files, relative to it.

    Raises:
        StateConflict: it is not, or not only, what the start made.
    """
    folder = made.store.folder
    if folder.is_symlink() or _identity(folder) != made.device_and_inode:
        raise StateConflict("another folder stands in its place")
    if made.store.campaign().id != made.campaign:
        raise StateConflict("it is another campaign's")
    if begun := [record.run for record in made.store.runs() if record.attempts]:
        raise StateConflict(f"{begun[0]} has begun")
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_dir() and not path.is_symlink() and _is_own_folder(inside):
            continue
        if path.is_symlink() or not path.is_file() or not _is_own_file(inside):
            raise StateConflict(f"it holds {inside}, which no start makes")
        found.append(inside)
    return found


def _is_own_folder(inside: Path) -> bool:
    return inside.as_posix() in (*_FOLDERS, FOLDER) or _is_provenance(inside)


def _is_own_file(inside: Path) -> bool:
    place = inside.parent.as_posix()
    if place == ".":
        return inside.name in _FILES
    return _FOLDERS.get(place) == inside.suffix or _is_provenance(inside)


def _is_provenance(inside: Path) -> bool:
    return len(inside.parts) > 1 and inside.parts[0] == FOLDER and inside.parts[1] in _PROVENANCE


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
