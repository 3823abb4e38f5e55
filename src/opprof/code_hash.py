"""SHA-256 of this package's own sources: the whole, the client, the plugin's hooks (invariant F3).

Every hash here is over the same bytes: a line ``<name> <bytes>`` and the content of each file,
sorted by name below the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
HOOK_TABLES = ("engines/vllm/seams.py", "engines/vllm/tested.json")
"""The hooked functions of the engine, and their hashes in every tested version."""

_SOURCE_SUFFIXES = frozenset({".py", ".toml", ".json", ".html", ".js", ".css"})
_PROTOCOL_COPY = "protocol/data/"
"""Only in a wheel, where it is a copy of ``protocols/``; a protocol has its own hash."""


def source_files(under: str = "") -> dict[str, Path]:
    """Return name below the package to path of every source, sorted; ``under`` is a prefix."""
    found = {
        path.relative_to(PACKAGE).as_posix(): path
        for path in PACKAGE.rglob("*")
        if path.suffix in _SOURCE_SUFFIXES
    }
    return {
        name: found[name]
        for name in sorted(found)
        if name.startswith(under) and not name.startswith(_PROTOCOL_COPY)
    }


@cache
def code_sha256() -> str:
    """Return the SHA-256 over name and content of the package's sources, sorted by name."""
    return hash_sources((name, path.read_bytes()) for name, path in source_files().items())


@cache
def client_sha256() -> str:
    """Return the SHA-256 over the sources of ``opprof.client`` (the specification's helper)."""
    files = source_files("client/").items()
    return hash_sources((name, path.read_bytes()) for name, path in files)


@cache
def plugin_sha256() -> str:
    """Return the SHA-256 over the sources of the plugin that records inside the engine."""
    files = source_files("engines/vllm/").items()
    return hash_sources((name, path.read_bytes()) for name, path in files)


@cache
def hooks_sha256() -> str:
    """Return the SHA-256 over the plugin's hook tables; it stands for the patch hashes."""
    return hash_sources((name, (PACKAGE / name).read_bytes()) for name in HOOK_TABLES)


def hash_sources(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 over (name, content) of files that are sorted by name."""
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
