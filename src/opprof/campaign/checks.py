"""The seven checks of A-P3-2 over what an attempt left, as gates; ``complete`` needs all of them.

``not_evaluable`` stands only where the check has no object: a burn-in is not measured, a run
without profile windows has no Layer 2, a host without GPUs no GPU memory. Missing input fails.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from opprof.artifacts.campaign import Campaign, CheckName
from opprof.artifacts.common import Gate, Value
from opprof.artifacts.run import Result
from opprof.artifacts.scan import UNSEEN_KINDS, ScanReport
from opprof.campaign.attempt import AttemptSpec, Facts, Fault, Outcome
from opprof.campaign.client import profile_windows
from opprof.campaign.facts import RunFacts, facts_of
from opprof.campaign.gate_rules import fault_of
from opprof.campaign.reruns import UNREPRESENTATIVE
from opprof.campaign.server import tail
from opprof.campaign.stops import judge_run
from opprof.errors import InputError
from opprof.files import read_bytes
from opprof.protocol import Protocol
from opprof.words import plural

REFUSED = 2
"""Exit status of a client or an analysis that cannot use its arguments or inputs."""
QUARANTINE = frozenset({"drain_quarantine"})
"""Marks a run that stays usable (A-P3-5): flagged in every table, counted over the matrix."""
_UNSEEN = "not_evaluable"
_REFUSED_BY = "not accepted: "
CLEAN_FAILURE = "clean_failure"
"""Number of the check ``client`` that the campaign counts over its runs."""

T = TypeVar("T")


class _Gates(msgspec.Struct):
    """The part of an analysis artefact that the checks read."""

    gates: list[Gate] = []


class _Flags(msgspec.Struct):
    red_flags: list[str] = []


class _ClientSanity(msgspec.Struct):
    sanity: _Flags


def outcome_of(
    spec: AttemptSpec, protocol: Protocol, facts: Facts, folder: Path, around: Sequence[Gate]
) -> Outcome:
    """Judge a finished attempt by its files and by what was seen of its processes.

    ``around``: the gates of its surroundings, by the names of :mod:`opprof.campaign.gate_rules`.
    """
    result = _read(folder / "client" / "result.json", Result)
    own = list(around)
    log = Path(f"{spec.logs}.client.log")
    told = _facts(spec, folder, own)
    by_name = {gate.name: gate for gate in own}
    found: dict[str, Gate] = {
        "client": _client(facts, result, log, clean_failure=told.clean_failure),
        "layer1": _analysis_gates("layer1", spec, facts, folder / "analysis" / "layer1.json"),
        "layer2": _layer2(spec, protocol, facts, folder, unrepresentative=told.unrepresentative),
        "sanity": _sanity(spec, facts, folder),
        "command": _command(spec, protocol, folder),
        "clock_load": by_name["clock_load"],
        "gpu_memory": by_name["gpu_memory"],
    }
    # Beside the seven, whatever else failed: a later verdict must know of it.
    found |= {gate.name: gate for gate in own if gate.outcome == "fail" and gate.name not in found}
    reason = facts.fault or "; ".join(_told_once(found))
    stops = judge_run(
        told,
        protocol.file,
        wall_ns=time.time_ns(),
        unrepresentative_before=spec.unrepresentative_before,
    )
    return Outcome(
        checks=found,
        reason=reason,
        fault=_fault(facts, told) if reason else "",
        accepted=None if result is None else result.accepted,
        drain_quarantined=None if result is None else result.drain_quarantined,
        gpu_seconds=_gpu_seconds(spec, facts),
        signal_wall_ns=facts.signal_wall_ns,
        stops=stops if reason else [],
        clean_failure=told.clean_failure,
        unrepresentative=told.unrepresentative,
    )


def privacy_gate(scan_exit: int | None, log: Path) -> Gate:
    """No prompt, answer or private path in what the attempt wrote, by ``opprof scan --json``.

    ``log`` holds its report. Only a report says that private text is there: a scan that died, or
    could not look at everything, is no verdict and fails as ``privacy_scan``.
    """
    numbers: dict[str, Value] = {"exit_status": scan_exit}
    report = _read(log, ScanReport)
    verdict = None if report is None else report.outcome
    if report is not None and (scan_exit, verdict) in ((0, "pass"), (1, "fail"), (2, _UNSEEN)):
        if verdict == "pass":
            return Gate("privacy", "pass", "nothing of the manifest is in the run", numbers)
        finding = next(f for f in report.findings if (f.kind in UNSEEN_KINDS) == (scan_exit == 2))
        first = (
            f"{plural(len(report.findings), 'finding')}, one is {finding.kind} in {finding.file}"
        )
        if verdict == "fail":
            return Gate("privacy", "fail", f"private text in the run: {first}", numbers)
        reason = f"the scan could not look at everything: {first} ({finding.detail})"
        return Gate("privacy_scan", "fail", reason, numbers)
    reason = f"the scan did not run to its end (exit status {scan_exit}), see {log.name}"
    return Gate("privacy_scan", "fail", reason, numbers)


def refused_input(facts: Facts) -> list[Gate]:
    """Return ``layer1_accounting``, failed, for an analysis that refused what the run left.

    Of a run's files only those that cannot be read at all are refused (a trace is not: it makes its
    window invalid): hard stop 4, "Layer-1 schema/footer/step accounting fails".
    """
    if not facts.analysis_refusal:
        return []
    numbers: dict[str, Value] = {"exit_status": facts.analysis_exit}
    return [Gate("layer1_accounting", "fail", facts.analysis_refusal, numbers, scope="layer1")]


def _fault(facts: Facts, told: RunFacts) -> Fault:
    """Tell what may have the one exact rerun from what needs a reviewed amendment.

    A client that refuses its arguments or inputs would refuse them again.
    """
    if facts.client_exit == REFUSED:
        return "semantic"
    # Whatever gates fail after a server has died tell of its death, which stops the matrix.
    if facts.server_died:
        return "infrastructure"
    # What left no gate behind is machinery: an analysis that died, a log that is incomplete.
    return fault_of(told.gates) or "infrastructure"


def is_measured(spec: AttemptSpec) -> bool:
    """Whether the attempt has clean segments to analyse."""
    return spec.role != "burnin" and not spec.background


def _facts(spec: AttemptSpec, folder: Path, own: Sequence[Gate]) -> RunFacts:
    """Gather the run's facts; where the client left nothing, only what the controller saw."""
    try:
        return facts_of(folder, gates=own)
    except InputError:
        return RunFacts(
            run=spec.run,
            pattern=spec.pattern,
            config=spec.config,
            load_point=spec.load_point,
            role=spec.role,
            time_scale=spec.campaign.time_scale,
            simulated=spec.campaign.simulated,
            gates=list(own),
            red_flags=[],
            accepted=None,
            drain_quarantined=None,
            missing=["client/timeline.json"],
        )


def _client(facts: Facts, result: Result | None, log: Path, *, clean_failure: bool) -> Gate:
    numbers: dict[str, Value] = {
        "exit_status": facts.client_exit,
        CLEAN_FAILURE: clean_failure,
    }
    if facts.fault:
        return _gate("client", False, facts.fault, numbers)
    if facts.client_timed_out:
        return _gate("client", False, "the client did not end in its time and was stopped", numbers)
    if result is None:
        died = " (the server ended during the load)" if facts.server_died else ""
        reason = f"the client left no result, exit status {facts.client_exit}{died}"
        return _gate("client", False, f"{reason}: {tail(log)}", numbers)
    if not result.accepted:
        return _gate("client", False, _REFUSED_BY + "; ".join(result.reasons), numbers)
    good = facts.client_exit == 0 and not facts.server_died
    reason = "accepted" if good else f"accepted, but exit status {facts.client_exit}"
    if facts.server_died:
        reason = "the server ended before it was told to"
    return _gate("client", good, reason, numbers)


def _told_once(found: Mapping[str, Gate]) -> list[str]:
    """Return the failed checks with their reasons; client and analysis judge some things alike."""
    told: set[str] = set()
    lines = []
    for name, gate in found.items():
        if gate.outcome != "fail":
            continue
        parts = gate.reason.split("; ")
        new = [part for part in parts if part.removeprefix(_REFUSED_BY) not in told]
        told |= {part.removeprefix(_REFUSED_BY) for part in parts}
        lines.append(f"{name}: {'; '.join(new) or 'for the same reason'}")
    return lines


def _analysis_gates(name: CheckName, spec: AttemptSpec, facts: Facts, path: Path) -> Gate:
    if not is_measured(spec):
        return _absent(name, "a burn-in or background is not measured")
    artefact = _read(path, _Gates)
    if artefact is None:
        return _gate(name, False, f"no {path.name}: {_analysis_ended(facts)}")
    counts: dict[str, Value] = {
        outcome: sum(gate.outcome == outcome for gate in artefact.gates)
        for outcome in ("pass", "fail", "not_evaluable")
    }
    declared = declared_gates(spec)
    failed = [
        f"{gate.name}{'' if gate.scope == 'run' else f' ({gate.scope})'}: {gate.reason}"
        for gate in artefact.gates
        if gate.outcome == "fail" and gate.name not in declared | QUARANTINE
    ]
    return _gate(name, not failed, "; ".join(failed) or "every gate that applies passes", counts)


def declared_by(campaign: Campaign) -> list[str]:
    """Return the gates that fail because the campaign declared so at its start."""
    names = ["simulated"] if campaign.simulated else []
    return [*names, "time_scale"] if campaign.time_scale != 1.0 else names


def declared_gates(spec: AttemptSpec) -> frozenset[str]:
    """Return the gates that fail by what the campaign itself declares, and so decide nothing here.

    The run's own artefacts keep them failed, and the decision stays marked by them.
    """
    names = set(declared_by(spec.campaign))
    if spec.role == "colocation":
        # A-P3-1, 4: trace and classifiability gates only; the check itself judges its window.
        names.add("representativeness")
    return frozenset(names)


def _layer2(
    spec: AttemptSpec, protocol: Protocol, facts: Facts, folder: Path, *, unrepresentative: bool
) -> Gate:
    if profile_windows(spec, protocol) == 0:
        return _absent("layer2", f"a {spec.role} {spec.load_point} run has no profile windows")
    gate = _analysis_gates("layer2", spec, facts, folder / "analysis" / "kernels.json")
    numbers = gate.numbers | {UNREPRESENTATIVE: unrepresentative}
    return msgspec.structs.replace(gate, numbers=numbers)


def _sanity(spec: AttemptSpec, facts: Facts, folder: Path) -> Gate:
    client = _read(folder / "client" / "sanity.json", _ClientSanity)
    if client is None:
        return _gate("sanity", False, "the client left no sanity block")
    flags = [f"client: {flag}" for flag in client.sanity.red_flags]
    if is_measured(spec):
        analysis = _read(folder / "analysis" / "sanity.json", _Flags)
        if analysis is None:
            return _gate("sanity", False, f"no sanity.json: {_analysis_ended(facts)}")
        flags += analysis.red_flags
    return _gate("sanity", not flags, "; ".join(flags) or "no red flag", {"red_flags": len(flags)})


def _analysis_ended(facts: Facts) -> str:
    if facts.analysis_exit is None:
        return "the analysis did not run to its end"
    return f"the analysis ended with {facts.analysis_exit}"


def _command(spec: AttemptSpec, protocol: Protocol, folder: Path) -> Gate:
    """The exact commands of server and client, and each profile call, stand in the log."""
    try:
        lines = read_bytes(folder / "commands.log").decode(errors="replace").splitlines()
    except InputError as error:
        return _gate("command", False, str(error))
    kinds = [line.split(" ", 2)[1] for line in lines if line.count(" ") >= 2]
    numbers: dict[str, Value] = {
        kind: kinds.count(kind) for kind in ("server", "client", "profile")
    }
    good = kinds.count("server") == 1 and kinds.count("client") == 1
    wanted = 2 * profile_windows(spec, protocol)
    reason = f"{numbers['server']} server, {numbers['client']} client, {numbers['profile']} profile"
    if kinds.count("profile") != wanted:
        good, reason = False, f"{reason} ({wanted} expected)"
    return _gate("command", good, f"{spec.run}: {reason}", numbers)


def _gpu_seconds(spec: AttemptSpec, facts: Facts) -> float:
    if facts.launched_mono_ns is None or facts.freed_mono_ns is None:
        return 0.0
    return (facts.freed_mono_ns - facts.launched_mono_ns) / 1e9 * max(1, len(spec.slot.gpus))


def _gate(
    name: CheckName, good: bool, reason: str, numbers: dict[str, Value] | None = None
) -> Gate:
    return Gate(name=name, outcome="pass" if good else "fail", reason=reason, numbers=numbers or {})


def _absent(name: CheckName, reason: str, numbers: dict[str, Value] | None = None) -> Gate:
    return Gate(name=name, outcome="not_evaluable", reason=reason, numbers=numbers or {})


def _read(path: Path, kind: type[T]) -> T | None:
    """Read an artefact; None where there is none or it cannot be decoded."""
    try:
        return msgspec.json.decode(read_bytes(path), type=kind)
    except (InputError, msgspec.MsgspecError, RecursionError):
        return None
