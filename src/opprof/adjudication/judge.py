"""Both verdicts on a completed run: the gates of the client and of the analysis, run twice.

Source: protocol, A-P3-5 "drain quarantine" (the preserved P10/C01 saturation run is judged again
against 600 s; a run stays usable if clean window, requests, Layer-1 accounting and Layer-2
artefacts are otherwise valid) and A-P3-6 (retained telemetry is judged by the stabilization test).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from opprof.adjudication.kept import Kept, facts_of, read_kept
from opprof.analysis.gates import invalidates
from opprof.analysis.inputs import read_inputs
from opprof.analysis.provenance import identity, provenance
from opprof.analysis.run import analyze_run
from opprof.artifacts.adjudication import Adjudication, AmendmentName, ChangedGate, Verdict
from opprof.artifacts.common import Gate, SanityBlock
from opprof.artifacts.run import Result
from opprof.client.gates import failed_reasons, run_gates
from opprof.errors import InputError
from opprof.protocol import Protocol

_RED_FLAG = "red flag: "
_STORED_ONLY: dict[str, tuple[str, ...]] = {"client_loop_delay": ("max_ms", "samples")}
"""Numbers of which only the stored value is left."""


@dataclass(frozen=True)
class _Judged:
    """One protocol's verdict, and the client's part of it."""

    verdict: Verdict
    client_reasons: list[str]


def rejudge(root: Path, old: Protocol, new: Protocol) -> Adjudication:
    """Judge a completed run under two protocols.

    Args:
        root: the run directory; nothing in it is changed.
        old: the protocol that the run was measured under.
        new: the one that judges it again.

    Raises:
        InputError: the run is not complete, or was measured under another protocol than ``old``.
        SchemaError: a file does not fit its schema.
    """
    kept, inputs = read_kept(root), read_inputs(root)
    measured_under = kept.result.metrics.get("protocol_sha256")
    if measured_under != old.sha256:
        raise InputError(
            f"was measured under protocol {str(measured_under)[:12]}, not {old.sha256[:12]}",
            path=root / "client" / "result.json",
        )
    before = _judge(kept, root, old, [])
    missing = [f"{name} is not what the run's client left" for name in kept.changed]
    missing += _not_reproduced(kept.result, before)
    after = _judge(kept, root, new, missing)
    mapping = new.file.mapping.pinned
    run = msgspec.structs.replace(
        identity(inputs, new), drain_quarantined=after.verdict.drain_quarantined
    )
    return Adjudication(
        schema=1,
        run=run,
        amendments=_amendments(old, new),
        before=before.verdict,
        after=after.verdict,
        changed=_changed(before.verdict, after.verdict),
        stored_accepted=kept.result.accepted,
        stored_reasons=kept.result.reasons,
        reproduced=not missing,
        result=_result(kept.result, new, after, missing),
        sanity=SanityBlock(families=[], red_flags=missing),
        provenance=provenance(inputs, new, mapping, None),
    )


def _judge(kept: Kept, root: Path, protocol: Protocol, missing: list[str]) -> _Judged:
    row = protocol.pattern(kept.timeline.pattern)
    facts = facts_of(kept, root, protocol)
    rule = "completions" if row is None else row.warmup_rule
    client = [
        _with_stored(gate, kept) for gate in run_gates(facts, protocol.file.gates, warmup_rule=rule)
    ]
    flags = [reason for reason in kept.result.reasons if reason.startswith(_RED_FLAG)]
    client_reasons = [*failed_reasons(client), *flags, *missing]
    # A-P3-5: "otherwise valid" speaks of Layer 1 and of Layer 2, so the windows are read again too.
    found = analyze_run(root, protocol).sanity
    lost = [gate for gate in found.gates if invalidates(gate) != "nothing"]
    lines = [*failed_reasons(lost), *(f"{_RED_FLAG}{flag}" for flag in found.red_flags)]
    reasons = [*client_reasons, *(f"analysis: {line}" for line in lines)]
    return _Judged(
        Verdict(
            protocol_id=protocol.file.id,
            protocol_sha256=protocol.sha256,
            accepted=not reasons,
            reasons=reasons,
            drain_quarantined=facts.ending.drain_over_budget,
            client_gates=client,
            analysis_gates=found.gates,
        ),
        client_reasons,
    )


def _with_stored(gate: Gate, kept: Kept) -> Gate:
    """Put back the numbers that no raw file has."""
    names = _STORED_ONLY.get(gate.name, ())
    stored = next((g for g in kept.sanity.gates if g.name == gate.name), None)
    if stored is None or not names:
        return gate
    numbers = {name: stored.numbers[name] for name in names if name in stored.numbers}
    return msgspec.structs.replace(gate, numbers=gate.numbers | numbers)


def _not_reproduced(stored: Result, before: _Judged) -> list[str]:
    """Say where the kept data do not give the client's stored verdict again."""
    pairs = {
        "accepted": (stored.accepted, not before.client_reasons),
        "drain_quarantined": (stored.drain_quarantined, before.verdict.drain_quarantined),
        "reasons": (sorted(stored.reasons), sorted(before.client_reasons)),
    }
    return [
        f"the stored verdict is not reproduced from kept data: {name} {was!r} stored, {now!r} now"
        for name, (was, now) in pairs.items()
        if was != now
    ]


def _result(stored: Result, new: Protocol, after: _Judged, missing: list[str]) -> Result:
    """Return the client's result as the later protocol has it; every figure stays."""
    drain = next(gate for gate in after.verdict.client_gates if gate.name == "drain")
    return msgspec.structs.replace(
        stored,
        accepted=not after.client_reasons,
        reasons=after.client_reasons,
        drain_quarantined=after.verdict.drain_quarantined,
        metrics=stored.metrics
        | {
            "drain_budget_s": drain.numbers["budget_s"],
            "protocol_id": new.file.id,
            "protocol_sha256": new.sha256,
            "measured_under_protocol_sha256": stored.metrics.get("protocol_sha256"),
            "adjudicated": True,
            "reproduced": not missing,
        },
    )


def _amendments(old: Protocol, new: Protocol) -> list[AmendmentName]:
    known = {(row.id, row.title) for row in old.file.amendments}
    return [
        AmendmentName(row.id, row.title, row.date)
        for row in new.file.amendments
        if (row.id, row.title) not in known
    ]


def _changed(before: Verdict, after: Verdict) -> list[ChangedGate]:
    sides: list[tuple[Literal["client", "analysis"], list[Gate], list[Gate]]] = [
        ("client", before.client_gates, after.client_gates),
        ("analysis", before.analysis_gates, after.analysis_gates),
    ]
    return [
        ChangedGate(source, gate.name, gate.scope, was[gate.name, gate.scope], gate.outcome)
        for source, olds, news in sides
        for was in [{(g.name, g.scope): str(g.outcome) for g in olds}]
        for gate in news
        if was.get((gate.name, gate.scope), gate.outcome) != gate.outcome
    ]
