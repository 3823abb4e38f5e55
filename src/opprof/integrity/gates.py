"""The co-location gates: what each was computed from, and with what (A-P3-1).

A gate authorises a width, so it is held to what every derived artefact is held to: its inputs,
protocol, mapping and code are compared; that it is the one which the campaign was left with is
told by ``closing.json``.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from opprof.artifacts.plan import ColocationGate
from opprof.integrity.checks import Checks
from opprof.integrity.derived import Known, check_made_with

_GATES = "colocation/*/gate.json"


def check_gates(checks: Checks, known: Known) -> None:
    """Compare every gate with its host, its inputs, and the campaign's protocols and code."""
    for path in sorted(checks.root.glob(_GATES)):
        gate = checks.read("gate", path, ColocationGate)
        if gate is None:
            continue
        subject = checks.subject(path)
        reason = "is the gate of another host"
        checks.equal("gate", subject, path.parent.name, gate.host, reason=reason)
        for name, expected in gate.inputs.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                reason = f"names an input outside of its campaign: {name}"
                checks.add("input", subject, "fail", reason)
            else:
                checks.file("input", checks.root / name, expected)
        if gate.authorised_width > 1 and not gate.inputs:
            checks.add("input", subject, "fail", "authorises a width that nothing was measured for")
        mapping = None
        if gate.mapping_sha256 is not None:
            mapping = gate.mapping_version, gate.mapping_sha256
        check_made_with(checks, subject, gate.protocol_sha256, mapping, gate.code_sha256, known)
