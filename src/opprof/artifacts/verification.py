"""What ``opprof verify --json`` says: every recorded hash, recomputed.

Format history
    schema 1    first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Outcome, SanityBlock, Sha256

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]


class VerifyCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """One comparison: what was recorded, and what is there."""

    name: str
    """``copy``, ``sources``, ``frozen``, ``state``, ``recorded_file``, ``input``, ``trace``,
    ``protocol``, ``mapping``, ``code``, ``page`` …"""
    subject: str
    """File or folder, relative to the verified one."""
    outcome: Outcome
    reason: str
    expected: str | None = None
    seen: str | None = None


class VerifyReport(Struct, frozen=True, forbid_unknown_fields=True):
    """The report. ``fail`` with any failed check; ``pass`` only when every check passed."""

    schema: Literal[1]
    kind: Literal["campaign", "run", "analyses"]
    outcome: Outcome
    checks: list[VerifyCheck]
    """Those that did not pass; the others are counted in ``passed``."""
    passed: dict[str, Count]
    """Name of a check to how often it passed."""
    root_sha256: Sha256 | None
    """Over path and SHA-256 of every file below ``provenance/``: who notes it elsewhere can tell
    later that records and files were not changed together. null outside of a campaign."""
    code_version: str
    code_sha256: Sha256
    sanity: SanityBlock
