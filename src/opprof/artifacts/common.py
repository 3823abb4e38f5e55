"""What every derived artefact carries: provenance, gates and the data sanity block.

Sources: contract sections 7 and 8; protocol, "Data sanity block contract".
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Outcome = Literal["pass", "fail", "not_evaluable"]
Number = int | float
Value = bool | int | float | str | None | list[int | float | str | None]
"""A number or short text that a gate used."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class RunIdentity(Struct, frozen=True, forbid_unknown_fields=True):
    """Which run an artefact speaks of, read from its timeline and never from its folder."""

    name: str
    pattern: str
    config: str
    load_point: str
    role: str
    time_scale: float = 1.0
    simulated: bool = False
    drain_quarantined: bool | None = None
    """null where ``client/result.json`` is absent."""


class Provenance(Struct, frozen=True, forbid_unknown_fields=True):
    """The hashes that tie a derived artefact to what it came from."""

    inputs: dict[str, Sha256]
    """Path inside the run directory to SHA-256."""
    protocol_id: str | None
    protocol_sha256: Sha256 | None
    """null when no protocol was bound."""
    mapping_version: str | None
    mapping_sha256: Sha256 | None
    code_version: str
    code_sha256: Sha256
    """Over the package's sources, sorted by name."""


class Gate(Struct, frozen=True, forbid_unknown_fields=True):
    """A verdict as a value: outcome, reason and every number used.

    ``not_evaluable`` (the input is absent, or no protocol is bound) is never a failure and never a
    pass.
    """

    name: str
    outcome: Outcome
    reason: str
    numbers: dict[str, Value] = {}
    scope: str = "run"
    """What the gate speaks of: ``run``, ``window0-rank1``, ``layer1`` …"""
    meaning: str = ""
    """One line: what a failure means."""
    action: str = ""
    """One line: what to do about it."""


class SanityFamily(Struct, frozen=True, forbid_unknown_fields=True):
    """n, finite, missing, minimum, maximum and distinct values of one numeric family."""

    name: str
    n: int
    finite: int
    missing: int
    min: Number | None
    max: Number | None
    distinct: int
    unit: str = ""
    signed: bool = False
    """True where negative values are legal (residuals, interference)."""
    expected_constant: bool = False
    """True where a single distinct value is declared and no reason for suspicion."""


class SanityBlock(Struct, frozen=True, forbid_unknown_fields=True):
    """Ends every artefact (protocol, "Data sanity block contract")."""

    families: list[SanityFamily]
    red_flags: list[str]
    """Reported first; a red flag stops the analysis that would build on the data."""


class Series(Struct, frozen=True, forbid_unknown_fields=True):
    """A distribution in one unit; all null when ``n`` is 0."""

    n: int
    mean: float | None
    sd: float | None
    """Sample standard deviation (n - 1); null for n < 2."""
    min: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    sum: float | None


INT_MAX = (1 << 62) - 1
"""Largest magnitude of any integer in a file: sums and differences of two stay within int64."""


def oversized_integer(value: object) -> str | None:
    """Return the path of the first integer beyond ``INT_MAX`` in a decoded file; null without one.

    JSON bounds no integer, and the decoder takes every length; a time or a count of 300 digits is
    damage, and must be told as such before anything divides by it.
    """
    return _oversized(msgspec.to_builtins(value), "$")


def _oversized(value: object, path: str) -> str | None:
    if isinstance(value, int):
        return path if abs(value) > INT_MAX else None
    inside: list[tuple[str, object]] = []
    if isinstance(value, dict):
        inside = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return next((found for at, item in inside if (found := _oversized(item, at))), None)
