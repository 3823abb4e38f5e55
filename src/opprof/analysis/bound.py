"""Which protocol judges runs that lie somewhere: one rule for every command and the Python API.

1. the protocol that is named (``none`` binds none);
2. for anything inside a campaign's folder, the campaign's own: its ``protocol.toml``, which is the
   frozen one that it was started with, with the amendments that are in force;
3. ``$OPPROF_PROTOCOL``, else the packaged ``phase3``.

What lies outside of every campaign has no protocol of its own and follows those beside it.

A finished analysis keeps the verdicts of the protocol that it names, and no other one judges it:
:func:`other_protocol` says where that is not the one that is bound.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from opprof.artifacts.common import Provenance
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes
from opprof.protocol import Protocol, load_protocol

_CAMPAIGN = "campaign.json"
_PROTOCOL = "protocol.toml"
_ATTEMPTS = "attempts"
_LIMIT_BYTES = 64 << 20


class _Bound(msgspec.Struct):
    """The part of ``campaign.json`` that names its protocol."""

    protocol_id: str


def is_campaign(path: Path) -> bool:
    """Whether a folder is a campaign."""
    return (path / _CAMPAIGN).is_file()


def protocol_for(named: str | os.PathLike[str] | None, paths: Sequence[Path]) -> Protocol | None:
    """Return the protocol that judges what lies at ``paths``; None where ``none`` is named.

    Raises:
        InputError: it cannot be read, is not the campaign's, or the paths lie in campaigns of
            different protocols.
        SchemaError: it, or a ``campaign.json``, does not fit its schema.
    """
    if named is not None:
        return load_protocol(named)
    roots = dict.fromkeys(root for path in paths if (root := campaign_around(path)) is not None)
    found = {root: campaign_protocol(root) for root in roots}
    if len({protocol.sha256 for protocol in found.values()}) > 1:
        first, second = list(found)[:2]
        raise InputError(
            f"is another campaign's run than those of {first}: name the protocol that judges both "
            "with --protocol",
            path=second,
        )
    return next(iter(found.values())) if found else load_protocol()


def campaign_protocol(root: Path) -> Protocol:
    """Return the protocol in force in the campaign at ``root``.

    Raises:
        InputError: it cannot be read, or is not the campaign's.
        SchemaError: it, or ``campaign.json``, does not fit its schema.
    """
    path = root / _CAMPAIGN
    try:
        bound = msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=_Bound)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
    protocol = load_protocol(root / _PROTOCOL)
    if protocol is None or protocol.file.id != bound.protocol_id:
        raise InputError(
            f"is not the campaign's protocol {bound.protocol_id}", path=root / _PROTOCOL
        )
    return protocol


def other_protocol(origin: Provenance, protocol: Protocol | None, *, required: bool = False) -> str:
    """Say that an analysis was made under another protocol than the bound one; else empty.

    ``none`` binds nothing that could differ. An analysis that was made without a protocol has no
    verdict that contradicts: it differs only where one is ``required`` (a decision).
    """
    if protocol is None or origin.protocol_sha256 == protocol.sha256:
        return ""
    if origin.protocol_sha256 is None and not required:
        return ""
    return (
        f"was analysed under {protocol_named(origin)}, and "
        f"{protocol_named(protocol)} is bound: name its own with --protocol, or analyse it again"
    )


def kept_as(run: Path) -> str:
    """Say where a campaign keeps the attempts at a run that is not in its folder; else empty.

    A failed or broken-off attempt is moved whole to ``attempts/RUN.N``.
    """
    root = run.absolute().parent.parent
    if run.exists() or not is_campaign(root):
        return ""
    kept = [path for path in (root / _ATTEMPTS).glob("*.*") if _attempt_at(path, run.name)]
    if not kept:
        return ""
    last = max(kept, key=lambda path: int(path.suffix[1:]))
    return f"; its last attempt was moved to {last}"


def _attempt_at(path: Path, run: str) -> bool:
    return path.stem == run and path.suffix[1:].isdecimal()


def protocol_named(origin: Provenance | Protocol) -> str:
    """Return ``protocol phase3 5b21da9384c8``, or ``no protocol``."""
    if isinstance(origin, Protocol):
        name, digest = origin.file.id, origin.sha256
    elif origin.protocol_sha256 is not None:
        name, digest = str(origin.protocol_id), origin.protocol_sha256
    else:
        return "no protocol"
    return f"protocol {name} {digest[:12]}"


def campaign_around(path: Path) -> Path | None:
    """Return the innermost campaign that a path is or lies in, wherever links lead."""
    place = path.resolve()
    return next((each for each in (place, *place.parents) if is_campaign(each)), None)
