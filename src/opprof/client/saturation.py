"""The moderate rate from an accepted saturation result: ``lambda = fraction * T_sat``.

There is no other way to a finite rate (protocol, "Load and execution protocol").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.artifacts.run import Result, Role
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes

_LIMIT_BYTES = 16 << 20
_RATE_MIN, _RATE_MAX = 1e-6, 1e6
"""Requests a second beyond which no run could have measured anything."""


@dataclass(frozen=True, slots=True)
class DerivedRate:
    """A rate and where it came from."""

    rate_rps: float
    fraction: float
    saturation_rps: float
    saturation_sha256: str
    """Of the saturation run's ``result.json``."""
    simulated: bool = False
    """The saturation run was no measurement."""


def derive_rate(
    path: Path, fraction: float, *, manifest_sha256: str, pattern: str, config: str, role: Role
) -> DerivedRate:
    """Read a saturation ``result.json`` and return the moderate rate.

    Raises:
        InputError: the file is missing, or its result is not accepted, no saturation, or of
            another manifest, pattern, configuration or placement.
        SchemaError: the file is no result.
    """
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        result = msgspec.json.decode(data, type=Result)
    except msgspec.MsgspecError as error:
        raise SchemaError(f"is no client result: {error}", path=path) from error
    expected_role: Role = "colocation" if role == "colocation" else "primary"
    checks = [
        (result.load_point == "saturation", f"is a {result.load_point} result, no saturation"),
        (result.accepted, "the saturation run was not accepted: " + "; ".join(result.reasons)),
        (result.pattern == pattern, f"is of pattern {result.pattern}, not {pattern}"),
        (result.config == config, f"is of config {result.config}, not {config}"),
        (result.manifest_sha256 == manifest_sha256, "is of another manifest (its hash differs)"),
        (result.role == expected_role, f"is a {result.role} run; {expected_role} is needed"),
    ]
    for good, reason in checks:
        if not good:
            raise InputError(reason, path=path)
    rate = result.completed_rps
    if rate is None or not math.isfinite(rate) or rate <= 0:
        raise InputError("holds no positive completed_rps", path=path)
    if not _RATE_MIN <= rate <= _RATE_MAX:
        raise InputError(f"completed_rps {rate:g} is no rate that a run measures", path=path)
    return DerivedRate(fraction * rate, fraction, rate, sha256_bytes(data), result.simulated)
