"""The co-location decision of A-P3-1, 4 and 5: facts in, :class:`ColocationGate` out.

A regime passes only if ``abs(T_coloc / T_solo - 1)`` and, for each of the solo window's three
largest families, ``abs(share_coloc - share_solo)`` stay below their limits, strictly, in exact
decimal arithmetic. Prerequisites come first: accepted runs, one sound and classifiable window on
each side, the regime's own calibration behind its rate, backgrounds active throughout. Where one is
missing nothing was compared: the regime is ``not_evaluable``, and the check stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from opprof.artifacts.campaign import EngineKind
from opprof.artifacts.common import Gate, Outcome, SanityBlock, Value
from opprof.artifacts.environment import Topology
from opprof.artifacts.plan import ColocationGate, FamilyDifference, Regime, RegimeVerdict
from opprof.artifacts.run import LoadPoint
from opprof.campaign.colocation import TARGET_WINDOWS, backgrounds_of, placeable, regime_width
from opprof.errors import InputError
from opprof.protocol.model import Colocation, ProtocolFile
from opprof.rules.sanity import block, family

_MEANING = "The two placements cannot be compared."
_ACTION = "Look at the run's own artefacts; the check needs a review before anything else runs."


@dataclass(frozen=True)
class TargetRun:
    """What a target's calibration or moderate run said."""

    accepted: bool
    reasons: tuple[str, ...]
    completed_rps: float | None
    manifest_sha256: str
    result_sha256: str
    rate_source_sha256: str | None = None
    """Moderate: SHA-256 of the result that its rate was derived from."""
    needed_ns: tuple[int, int] | None = None
    """Warm-up's start to the end of the last clean or recovery interval, CLOCK_MONOTONIC."""


@dataclass(frozen=True)
class TargetWindow:
    """The moderate target's only profile window under the deciding mapping, one rank."""

    accepted: bool
    reasons: tuple[str, ...]
    classified_fraction: float
    shares: Mapping[str, float]
    """Family to share; a family without kernels may be absent."""


@dataclass(frozen=True)
class BackgroundFact:
    """What ran beside the target in one round."""

    pattern: str
    load_point: LoadPoint
    """The target's, which names the round."""
    active_ns: tuple[int, int] | None
    """Admission from start to stop, CLOCK_MONOTONIC; None where nothing was recorded."""
    problem: str = ""
    """Why its load cannot be relied on (not accepted, requests failed); empty where it can."""


@dataclass(frozen=True)
class RegimeFacts:
    """Everything measured under one regime; None for what is not there."""

    regime: Regime
    saturation: TargetRun | None
    moderate: TargetRun | None
    windows: tuple[TargetWindow, ...]
    backgrounds: tuple[BackgroundFact, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True)
class GateContext:
    """What the gate is bound to."""

    protocol_sha256: str
    host: Topology
    engine: EngineKind
    engine_version: str
    time_scale: float
    mapping_version: str
    mapping_sha256: str | None
    code_version: str
    code_sha256: str
    wall_ns: int


def decide_colocation(
    protocol: ProtocolFile, facts: Sequence[RegimeFacts], context: GateContext
) -> ColocationGate:
    """Compare what was measured so far; ``next_regime`` tells whether the check goes on.

    Raises:
        InputError: the protocol has no check, there is no solo regime, or one is given twice.
    """
    rule = protocol.colocation
    if rule is None:
        raise InputError(f"{protocol.id} has no [colocation] table, so no check is defined")
    by_regime = {each.regime: each for each in facts}
    if len(by_regime) != len(facts) or "solo" not in by_regime:
        raise InputError("the co-location check needs its solo regime, and each regime once")
    solo = by_regime["solo"]
    solo_gates = prerequisites(protocol, solo, solo)
    sound = all(gate.outcome == "pass" for gate in solo_gates)
    top = top_families(protocol, solo.windows[0]) if sound else []
    verdicts = [
        _verdict(protocol, rule, solo, by_regime[regime], top if sound else None)
        for regime in placeable(protocol, context.host)
        if regime in by_regime
    ]
    sanity = _sanity(facts)
    outcome, reason = _outcome(protocol, context.host, solo_gates, verdicts)
    if sanity.red_flags:
        # Nothing is authorised by data that cannot be true ("Data sanity block contract").
        outcome, reason = "stop", f"red flag: {'; '.join(sanity.red_flags)}"
    width = 1 if outcome == "stop" else regime_width(rule, outcome)
    used = max((verdict.width for verdict in verdicts), default=1)
    gpus = context.host.gpus[:used]
    return ColocationGate(
        schema=1,
        outcome=outcome,
        reason=reason,
        authorised_width=width,
        protocol_id=protocol.id,
        protocol_sha256=context.protocol_sha256,
        host=context.host.host,
        gpus=[gpu.index for gpu in gpus],
        gpu_uuids=[gpu.uuid for gpu in gpus],
        engine=context.engine,
        engine_version=context.engine_version,
        time_scale=context.time_scale,
        target=f"{rule.pattern}/{rule.config}",
        solo_saturation_rps=_rps(solo.saturation),
        solo_throughput_rps=_rps(solo.moderate),
        top_families=top,
        solo_gates=solo_gates,
        regimes=verdicts,
        inputs={path: sha for each in facts for path, sha in sorted(each.inputs.items())},
        mapping_version=context.mapping_version,
        mapping_sha256=context.mapping_sha256,
        code_version=context.code_version,
        code_sha256=context.code_sha256,
        created_wall_ns=context.wall_ns,
        simulated=any(each.simulated for each in facts),
        sanity=sanity,
    )


def top_families(protocol: ProtocolFile, window: TargetWindow) -> list[str]:
    """Return F3: the families with the greatest shares, ties in the protocol's order."""
    rule = protocol.colocation
    assert rule is not None
    order = {name: index for index, name in enumerate(protocol.ranking.families)}
    known = sorted(order, key=lambda name: (-window.shares.get(name, 0.0), order[name]))
    return known[: rule.top_families]


def prerequisites(protocol: ProtocolFile, solo: RegimeFacts, facts: RegimeFacts) -> list[Gate]:
    """Return the gates that must pass before a regime is compared with the solo one."""
    gates = [
        _accepted("saturation", facts.saturation),
        _accepted("moderate", facts.moderate),
        _own_rate(facts),
        _window(protocol, facts),
    ]
    if facts.regime != "solo":
        gates += [_same_manifest(solo, facts), _same_kind(solo, facts)]
        gates += [_backgrounds(protocol, facts, load) for load in ("saturation", "moderate")]
    return gates


def _gate(name: str, problem: str, numbers: Mapping[str, Value], scope: str) -> Gate:
    outcome: Outcome = "fail" if problem else "pass"
    return Gate(
        name=name,
        outcome=outcome,
        reason=problem or "as the check needs it",
        numbers=dict(numbers),
        scope=scope,
        meaning=_MEANING,
        action=_ACTION,
    )


def _accepted(load_point: LoadPoint, run: TargetRun | None) -> Gate:
    name = f"{load_point}_accepted"
    if run is None:
        return _gate(name, "the run is missing", {}, load_point)
    rps = run.completed_rps
    problem = ""
    if not run.accepted:
        problem = f"the run was not accepted: {'; '.join(run.reasons) or 'no reason given'}"
    elif rps is None or rps <= 0:
        problem = "the run has no throughput"
    return _gate(name, problem, {"completed_rps": rps}, load_point)


def _own_rate(facts: RegimeFacts) -> Gate:
    """A-P3-1, 3: each moderate run takes its rate from its own regime's calibration."""
    source = facts.moderate.rate_source_sha256 if facts.moderate else None
    own = facts.saturation.result_sha256 if facts.saturation else None
    problem = ""
    if source is None or source != own:
        problem = "the moderate rate does not come from this regime's calibration"
    return _gate("own_calibration", problem, {"rate_source": source, "calibration": own}, "run")


def _window(protocol: ProtocolFile, facts: RegimeFacts) -> Gate:
    limit = protocol.gates.classifiable_min
    numbers: dict[str, Value] = {"windows": len(facts.windows), "classifiable_min": limit}
    if len(facts.windows) != TARGET_WINDOWS:
        text = f"{len(facts.windows)} profile windows, exactly {TARGET_WINDOWS} is needed"
        return _gate("window", text, numbers, "moderate")
    window = facts.windows[0]
    numbers["classified_fraction"] = window.classified_fraction
    problem = ""
    if not window.accepted:
        problem = f"the window was not accepted: {'; '.join(window.reasons) or 'no reason given'}"
    elif window.classified_fraction < limit:
        problem = f"only {window.classified_fraction:.1%} of kernel time is classifiable"
    return _gate("window", problem, numbers, "moderate")


def _same_manifest(solo: RegimeFacts, facts: RegimeFacts) -> Gate:
    runs = (solo.saturation, solo.moderate, facts.saturation, facts.moderate)
    hashes = sorted({run.manifest_sha256 for run in runs if run is not None})
    problem = "" if len(hashes) == 1 else "the target's manifests differ"
    return _gate("same_manifest", problem, {"manifests": len(hashes)}, "run")


def _same_kind(solo: RegimeFacts, facts: RegimeFacts) -> Gate:
    problem = "" if solo.simulated == facts.simulated else "a simulated run beside a real one"
    return _gate("same_kind", problem, {"simulated": facts.simulated}, "run")


def _backgrounds(protocol: ProtocolFile, facts: RegimeFacts, load_point: LoadPoint) -> Gate:
    rule = protocol.colocation
    assert rule is not None
    wanted = backgrounds_of(rule, facts.regime)
    found = {each.pattern: each for each in facts.backgrounds if each.load_point == load_point}
    run = facts.moderate if load_point == "moderate" else facts.saturation
    needed = run.needed_ns if run else None
    problems, slack = [], []
    for pattern in wanted:
        active = found[pattern].active_ns if pattern in found else None
        if active is None or needed is None:
            problems.append(f"{pattern} was not seen")
            continue
        slack.append(min(needed[0] - active[0], active[1] - needed[1]))
        if slack[-1] < 0:
            problems.append(f"{pattern} was not active throughout")
        elif found[pattern].problem:
            problems.append(f"{pattern}: {found[pattern].problem}")
    problems += [f"{pattern} ran beside it" for pattern in sorted(found.keys() - set(wanted))]
    numbers: dict[str, Value] = {"backgrounds": len(found), "wanted": len(wanted)}
    numbers["margin_min_s"] = min(slack) / 1e9 if slack else None
    return _gate("backgrounds_active", "; ".join(problems), numbers, load_point)


def _verdict(
    protocol: ProtocolFile,
    rule: Colocation,
    solo: RegimeFacts,
    facts: RegimeFacts,
    top: Sequence[str] | None,
) -> RegimeVerdict:
    """Compare one regime; ``top`` is None where the solo run itself cannot be used."""
    assert facts.regime != "solo"
    gates = prerequisites(protocol, solo, facts)
    reasons = [f"{gate.name} ({gate.scope}): {gate.reason}" for gate in gates if _failed(gate)]
    t_solo, t_here = _rps(solo.moderate), _rps(facts.moderate)
    ratio, families = None, []
    outcome: Literal["pass", "fail", "not_evaluable"] = "not_evaluable"
    if top is None:
        reasons.insert(0, "the solo run cannot be compared with anything")
    elif not reasons:
        assert t_solo is not None and t_here is not None
        ratio = t_here / t_solo
        families = _families(rule, top, solo.windows[0], facts.windows[0])
        reasons = _violations(rule, t_solo, t_here, families)
        outcome = "fail" if reasons else "pass"
    return RegimeVerdict(
        regime=facts.regime,
        width=regime_width(rule, facts.regime),
        backgrounds=list(backgrounds_of(rule, facts.regime)),
        outcome=outcome,
        reasons=reasons,
        saturation_rps=_rps(facts.saturation),
        throughput_rps=t_here,
        ratio=ratio,
        limit=rule.throughput_error_max,
        families=families,
        gates=gates,
    )


def _families(
    rule: Colocation, top: Sequence[str], solo: TargetWindow, here: TargetWindow
) -> list[FamilyDifference]:
    found = []
    for name in top:
        before, after = solo.shares.get(name, 0.0), here.shares.get(name, 0.0)
        difference = _exact(after) - _exact(before)
        found.append(
            FamilyDifference(
                family=name,
                share_solo=before,
                share_colocated=after,
                difference=float(difference),
                limit=rule.share_error_max,
                passed=abs(difference) < _exact(rule.share_error_max),
            )
        )
    return found


def _violations(
    rule: Colocation, t_solo: float, t_here: float, families: Sequence[FamilyDifference]
) -> list[str]:
    reasons = []
    error = abs(_exact(t_here) / _exact(t_solo) - 1)
    if not error < _exact(rule.throughput_error_max):
        reasons.append(
            f"throughput differs by {float(error):.2%}, less than {rule.throughput_error_max:.2%}"
            " is allowed"
        )
    reasons += [
        f"{row.family} differs by {row.difference * 100:+.2f} points of share, less than"
        f" {row.limit * 100:g} is allowed"
        for row in families
        if not row.passed
    ]
    return reasons


def _outcome(
    protocol: ProtocolFile,
    host: Topology,
    solo_gates: Sequence[Gate],
    verdicts: Sequence[RegimeVerdict],
) -> tuple[Literal["eight", "four", "stop"], str]:
    failed = [gate for gate in solo_gates if _failed(gate)]
    if failed:
        return "stop", f"solo: {failed[0].name}: {failed[0].reason}"
    for verdict in verdicts:
        if verdict.outcome == "pass":
            return verdict.regime, f"{verdict.regime}-way agrees with solo within the limits"
        if verdict.outcome == "not_evaluable":
            return "stop", f"{verdict.regime}-way could not be compared: {verdict.reasons[0]}"
    regimes = placeable(protocol, host)
    if not regimes:
        return "stop", f"{host.host} has too few GPUs for any regime of the check"
    missing = [name for name in regimes if name not in {each.regime for each in verdicts}]
    if missing:
        return "stop", f"{missing[0]}-way has not been compared yet"
    last = verdicts[-1]
    return "stop", f"{last.regime}-way failed and no smaller regime is authorised: " + "; ".join(
        last.reasons
    )


def _sanity(facts: Sequence[RegimeFacts]) -> SanityBlock:
    runs = [run for each in facts for run in (each.saturation, each.moderate)]
    shares = [share for each in facts for w in each.windows for share in w.shares.values()]
    families = [
        family("completed_rps", [_rps(run) for run in runs], unit="1/s"),
        family("family_share", shares, unit="ratio"),
        family(
            "classified_fraction",
            [w.classified_fraction for each in facts for w in each.windows],
            unit="ratio",
        ),
    ]
    return block(families, _copies(facts))


def _copies(facts: Sequence[RegimeFacts]) -> list[str]:
    """Flag one result under two names; a simulated engine may give the very same one twice."""
    seen: dict[str, str] = {}
    flags = []
    for each in facts:
        for name, run in (("saturation", each.saturation), ("moderate", each.moderate)):
            if run is None or each.simulated:
                continue
            label = f"{each.regime} {name}"
            other = seen.setdefault(run.result_sha256, label)
            if other != label:
                flags.append(f"identical: the results of {other} and {label} are one file")
    return flags


def _rps(run: TargetRun | None) -> float | None:
    return None if run is None else run.completed_rps


def _failed(gate: Gate) -> bool:
    return gate.outcome != "pass"


def _exact(value: float) -> Fraction:
    """The decimal that was written, so that a difference of just the limit does not pass."""
    return Fraction(repr(value))
