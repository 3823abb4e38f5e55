"""``pack.json`` inside a packed folder: what was packed, and what it was scanned against.

Format history
    schema 1    first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Outcome, SanityBlock, Sha256
from opprof.artifacts.provenance import FileHash
from opprof.artifacts.scan import ScannedManifest

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]


class Pack(Struct, frozen=True, forbid_unknown_fields=True):
    """The first member of the archive; holds no time, so that the same folder packs alike."""

    schema: Literal[1]
    folder: str
    """Name of the packed folder and of the archive's only top folder."""
    kind: str
    """What `opprof verify` took it for."""
    verified: Outcome
    not_evaluable: list[str]
    """Checks that could not be made, accepted by whoever packed."""
    root_sha256: Sha256 | None
    """Of the campaign's provenance (see :class:`opprof.artifacts.verification.VerifyReport`)."""
    scanned: Outcome
    manifests: list[ScannedManifest]
    """What the folder was scanned against."""
    public_matches: Count
    protocol_sha256: Sha256
    """Whose size limit held."""
    public_bytes: Count
    public_bytes_max: Count
    files: list[FileHash]
    """Every packed file, sorted by path."""
    code_version: str
    code_sha256: Sha256
    sanity: SanityBlock
