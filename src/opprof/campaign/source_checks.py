"""What an attempt is made from, hashed again around its load (hard stop 1, A-P3-2).

Before the load: protocol, code and client; the client itself compares the manifest as it opens it,
and the launch configuration is the command. After the checks: these and the manifest once more, and
what client and analysis recorded of themselves, so that a file that was another one only meanwhile
does not pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from opprof.artifacts.common import Gate
from opprof.campaign.attempt import AttemptSpec
from opprof.campaign.effective import hash_gate
from opprof.code_hash import client_sha256, code_sha256
from opprof.errors import InputError
from opprof.files import read_bytes, sha256_file

_ANALYSIS = ("layer1", "kernels", "waste", "sanity")


class _Origin(msgspec.Struct):
    """What a result says of what made it; a null stands for nothing bound."""

    protocol_sha256: str | None = None
    code_sha256: str | None = None


class _ClientResult(msgspec.Struct):
    manifest_sha256: str
    metrics: _Origin


class _Analysed(msgspec.Struct):
    provenance: _Origin


T = TypeVar("T", bound=msgspec.Struct)


def sources_before(spec: AttemptSpec) -> Gate:
    """Return ``hashes`` as they are before any load is offered."""
    return hash_gate(spec.source_hashes, {**spec.source_hashes, **_now(spec)})


def sources_after(spec: AttemptSpec, run: Path) -> list[Gate]:
    """Return ``hashes``, failed, where anything is or was another one during the attempt."""
    now = {**_now(spec), "manifest": _hash_or_none(Path(spec.manifest))}
    frozen = spec.source_hashes
    expected, seen = {name: frozen[name] for name in now}, dict(now)
    for place, name, found in _recorded(run):
        key = f"{name} of {place}"
        expected[key], seen[key] = frozen[name], found
    gate = hash_gate(expected, seen)
    return [gate] if gate.outcome == "fail" else []


def _now(spec: AttemptSpec) -> dict[str, str | None]:
    return {
        "protocol": _hash_or_none(Path(spec.protocol)),
        # Not the cached values: the sources may have been replaced under a running controller.
        "code": code_sha256.__wrapped__(),
        "client": client_sha256.__wrapped__(),
    }


def _recorded(run: Path) -> list[tuple[str, str, str | None]]:
    """What the attempt's artefacts name: artefact, what of, hash. Absent ones fail elsewhere."""
    found: list[tuple[str, str, str | None]] = []
    result = _read(run / "client" / "result.json", _ClientResult)
    if result is not None:
        found.append(("client/result.json", "manifest", result.manifest_sha256))
        found += _named("client/result.json", result.metrics)
    for name in _ANALYSIS:
        analysed = _read(run / "analysis" / f"{name}.json", _Analysed)
        if analysed is not None:
            found += _named(f"analysis/{name}.json", analysed.provenance)
    return found


def _named(place: str, origin: _Origin) -> list[tuple[str, str, str | None]]:
    return [(place, "protocol", origin.protocol_sha256), (place, "code", origin.code_sha256)]


def _hash_or_none(path: Path) -> str | None:
    try:
        return sha256_file(path)
    except InputError:
        return None


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except (InputError, msgspec.MsgspecError):
        return None
