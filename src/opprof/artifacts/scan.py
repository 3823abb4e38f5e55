"""What ``opprof scan --json`` says: where private text was found, and what could not be looked at.

Format history
    schema 1    first.

No field holds any part of a prompt, not even of a file's name that is one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Outcome, SanityBlock, Sha256

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]

FindingKind = Literal[
    "prompt_text",
    "prompt_token_ids",
    "forbidden_key",
    "private_path",
    "private_file",
    "not_looked_at",
    "link",
    "special_file",
]
"""``not_looked_at``: damaged, cut, unreadable, or packed in a way that the scan cannot open."""

UNSEEN_KINDS: frozenset[FindingKind] = frozenset({"not_looked_at", "link", "special_file"})
"""Findings that say "nobody could look" and not "private text is there"."""


class ScanFinding(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that may not leave the machine, or that nobody could look at."""

    file: str
    """Relative to the scanned folder; a name that is itself private stands as its hash."""
    inside: str
    """Path inside a packed file; empty for the file's own bytes."""
    kind: FindingKind
    detail: str
    """Key, manifest line and number of characters, or reason; never the text."""
    offset: Count | None = None
    """About where, in bytes of the decoded stream."""


class ScannedManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """A private manifest that was scanned against."""

    sha256: Sha256
    requests: Count
    text_prompts: Count
    id_prompts: Count
    too_short: Count
    """Prompts below 32 characters: no substring of theirs is looked for."""


class ScanReport(Struct, frozen=True, forbid_unknown_fields=True):
    """The report.

    ``outcome`` is ``fail`` where something private was found, ``not_evaluable`` where nothing was
    but not all could be looked at (only :data:`UNSEEN_KINDS`), which is no pass.
    """

    schema: Literal[1]
    outcome: Outcome
    findings: list[ScanFinding]
    """At most 20 of a file; ``more`` files had more."""
    more: list[str]
    manifests: list[ScannedManifest]
    private_dirs: Count
    """How many private folders' paths were looked for."""
    public_matches: Count
    """Matches that a text declared public holds too."""
    files: Count
    file_bytes: Count
    streams: Count
    """Plain byte streams, those inside packed files counted one by one."""
    stream_bytes: Count
    index_bytes: Count
    code_version: str
    code_sha256: Sha256
    sanity: SanityBlock
