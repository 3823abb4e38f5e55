"""``<campaign>/provenance/``: what a campaign ran with, and the hashes of what it produced.

Sources: protocol, A-P3-2 ("immutable copies and SHA-256 hashes of the client, controller, operator
mapping, and launch configuration"); "Artifact, privacy, and reproducibility contract".

Format history
    schema 1    ``provenance.json``; ``runs/<run>.json`` and ``attempts/<run>.<n>.json``;
                ``closing.json``, added later, with ``.`` as its folder.

Paths are POSIX and relative: in ``provenance.json`` to ``provenance/``, in a folder's record to
that folder. Every file below ``provenance/`` has mode 0444 and is never replaced, but for
``provenance.json``, which an amendment extends, and ``closing.json``: what a controller that has
ended left beside the finished folders.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Sha256

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]

CopyKind = Literal["client", "controller", "mapping", "protocol", "launch", "hooks"]


class FileHash(Struct, frozen=True, forbid_unknown_fields=True):
    """One file as it was when it was recorded."""

    path: str
    sha256: Sha256
    bytes: Count


class RecordedCopy(Struct, frozen=True, forbid_unknown_fields=True):
    """One immutable copy below ``provenance/``."""

    kind: CopyKind
    path: str
    sha256: Sha256
    bytes: Count
    label: str = ""
    """Version of a mapping, hash prefix of a protocol, identifier of a configuration."""


class CampaignProvenance(Struct, frozen=True, forbid_unknown_fields=True):
    """``provenance.json``: the copies, and the hashes that every run of the campaign must name."""

    schema: Literal[1]
    campaign: str
    """``campaign.json``'s ``id``."""
    created_wall_ns: Count
    code_version: str
    code_sha256: Sha256
    """Of the controller: the whole package, as :func:`opprof.code_hash.code_sha256`."""
    client_sha256: Sha256
    hooks_sha256: Sha256
    """Of the plugin's hook tables; stands where the specification names patch hashes."""
    protocols: list[Sha256]
    """Every protocol that was in force, the first one first."""
    mappings: dict[str, Sha256]
    """Version to hash of the table's bytes."""
    launches: dict[str, Sha256]
    """Configuration to hash of its launch configuration."""
    copies: list[RecordedCopy]


class OriginalTrace(Struct, frozen=True, forbid_unknown_fields=True):
    """A collected trace and the name that the engine had given it."""

    path: str
    original_name: str
    sha256: Sha256


class FolderProvenance(Struct, frozen=True, forbid_unknown_fields=True):
    """Every file of one finished folder: a run, an attempt, a part of the co-location gate.

    ``closing.json`` is one of what an ended controller left beside all of them.
    """

    schema: Literal[1]
    campaign: str
    folder: str
    """Relative to the campaign, such as ``runs/P01-C00-moderate``."""
    attempt: Count
    """0 for what has no attempts."""
    recorded_wall_ns: Count
    code_sha256: Sha256
    protocol_sha256: Sha256 | None
    """Protocol in force when the folder was finished."""
    files: list[FileHash]
    traces: list[OriginalTrace]
