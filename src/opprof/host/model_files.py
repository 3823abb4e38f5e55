"""Hashes of the model's files, computed once a campaign and again only for files that changed.

A file is taken as unchanged while its size, modification time and inode are. 60 GB of shards take
minutes to read, so this is called before anything is measured, never beside a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from opprof.artifacts.environment import ModelFingerprint
from opprof.artifacts.provenance import FileHash
from opprof.errors import EnvironmentFailure, InputError
from opprof.files import read_bytes, sha256_bytes, sha256_file, write_atomic

_FILES_MAX = 10_000
_CACHE_BYTES = 64 << 20


class CachedHash(Struct, frozen=True, forbid_unknown_fields=True):
    """One file as it was when it was hashed."""

    bytes: int
    mtime_ns: int
    inode: int
    device: int
    sha256: str


def fingerprint(
    model: Path,
    cache: Path | None = None,
    *,
    hash_file: Callable[[Path], str] = sha256_file,
    advance: Callable[[str, int], None] = lambda _name, _bytes: None,
) -> ModelFingerprint:
    """Return the model folder's files with their hashes, and one hash over all of them.

    Hidden files and folders (``.git``, ``.cache``) are no part of a model. Links are followed, as a
    hub's cache folder consists of them.

    Args:
        model: The folder with weights, configuration and tokenizer.
        cache: File that keeps hashes between calls; a damaged one is made anew. It is written after
            every file, so an interrupted campaign does not read the shards again.
        hash_file: SHA-256 of a file.
        advance: Called with name and size after each file.

    Raises:
        InputError: no such folder, an empty or enormous one, or a file that cannot be read.
        EnvironmentFailure: a file changed while it was read, or the cache cannot be written.
    """
    known = _read_cache(cache)
    files: list[FileHash] = []
    for name, path in _model_files(model):
        state = _state(path)
        kept = known.get(name)
        if kept is None or msgspec.structs.replace(kept, sha256="") != state:
            kept = msgspec.structs.replace(state, sha256=hash_file(path))
            if _state(path) != state:
                raise EnvironmentFailure("changed while it was hashed", path=path)
            known[name] = kept
            if cache is not None:
                write_atomic(cache, msgspec.json.format(msgspec.json.encode(known), indent=1))
        files.append(FileHash(path=name, sha256=kept.sha256, bytes=kept.bytes))
        advance(name, kept.bytes)
    lines = "".join(f"{each.path} {each.bytes} {each.sha256}\n" for each in files)
    return ModelFingerprint(
        path=str(model), files=files, sha256=sha256_bytes(lines.encode("utf-8", "surrogateescape"))
    )


def _model_files(model: Path) -> list[tuple[str, Path]]:
    if not model.is_dir():
        raise InputError("no such model folder", path=model)
    found = sorted((path.relative_to(model).as_posix(), path) for path in _walk(model))
    if not found:
        raise InputError("the model folder holds no file", path=model)
    if len(found) > _FILES_MAX:
        raise InputError(f"more than {_FILES_MAX} files: no model folder", path=model)
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in names if not name.startswith("."))


def _state(path: Path) -> CachedHash:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
    return CachedHash(found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev, "")


def _read_cache(cache: Path | None) -> dict[str, CachedHash]:
    if cache is None or not cache.exists():
        return {}
    try:
        data = read_bytes(cache, limit_bytes=_CACHE_BYTES)
        return msgspec.json.decode(data, type=dict[str, CachedHash])
    except (InputError, msgspec.DecodeError, RecursionError):
        return {}
