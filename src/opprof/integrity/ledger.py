"""The prior use in a campaign's ledger, against the protocols that declare it (A-P3-4).

A ledger opens with what the first protocol declares (``budget.gpu_hours_used``). An amendment that
declares another use appends the difference, and its line names the amended protocol; no line is
ever changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import Charge
from opprof.errors import OpprofError
from opprof.files import read_bytes
from opprof.integrity.checks import Checks
from opprof.protocol.load import load_protocol

NAME = "ledger.jsonl"
_LIMIT_BYTES = 256 << 20
_NS = 1_000_000_000
_SECONDS_PER_HOUR = 3600
_TOLERANCE_NS = 1_000_000


def declared_hours(campaign: Path) -> dict[str, float]:
    """Return the prior GPU hours that each protocol of a campaign declares, by its SHA-256.

    Raises:
        OpprofError: a copy in ``protocols/`` is no protocol.
    """
    found = {}
    for path in sorted((campaign / "protocols").glob("*.toml")):
        protocol = load_protocol(path)
        if protocol is not None:
            found[protocol.sha256] = protocol.file.budget.gpu_hours_used
    return found


def prior_problems(
    charges: Iterable[Charge], declared: Mapping[str, float], first: str, last: str
) -> list[str]:
    """Return one sentence for each prior use that is not what a protocol declares.

    Args:
        charges: the ledger, in order.
        declared: as :func:`declared_hours`.
        first: SHA-256 of the protocol that the campaign was started with.
        last: of the one in force.
    """
    problems, sum_ns, named = [], 0, first
    for charge in charges:
        if charge.kind == "prior":
            sum_ns += round(charge.gpu_seconds * _NS)
            named = charge.protocol_sha256 or first
            problems += _difference(sum_ns, declared, named, f"protocol {named[:12]}")
    if not problems and named != last:
        problems += _difference(sum_ns, declared, last, f"the protocol in force, {last[:12]},")
    return problems


def _difference(sum_ns: int, declared: Mapping[str, float], sha256: str, subject: str) -> list[str]:
    if sha256 not in declared:
        return [f"its prior use is {subject}'s, which the campaign does not keep"]
    wanted = declared[sha256]
    if abs(sum_ns - round(wanted * _SECONDS_PER_HOUR * _NS)) <= _TOLERANCE_NS:
        return []
    found = sum_ns / _NS / _SECONDS_PER_HOUR
    return [
        f"its prior use is {found:.6g} GPU hours, {subject} declares {wanted:.6g} "
        "(budget.gpu_hours_used)"
    ]


def check_ledger(checks: Checks, first: str, last: str) -> None:
    """Note whether the ledger can be read and declares the prior use of the protocols."""
    path = checks.root / NAME
    try:
        lines = read_bytes(path, limit_bytes=_LIMIT_BYTES).splitlines()
        charges = [msgspec.json.decode(line, type=Charge) for line in lines]
        problems = prior_problems(charges, declared_hours(checks.root), first, last)
    except OpprofError as error:
        problems = [error.reason]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        problems = [f"holds a line that is no charge: {error}"]
    else:
        if not charges or charges[0].kind != "prior":
            problems.append("does not open with the declared prior use")
    for problem in problems:
        checks.add("ledger", NAME, "fail", problem)
    if not problems:
        checks.add("ledger", NAME, "pass", "")
