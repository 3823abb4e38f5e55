"""The SHA-256 of this package's own sources, which every derived artefact names (invariant F3)."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_SOURCE_SUFFIXES = frozenset({".py", ".toml", ".html", ".js", ".css"})


@cache
def code_sha256() -> str:
    """Return the SHA-256 over name and content of the package's sources, sorted by name."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in _SOURCE_SUFFIXES):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
