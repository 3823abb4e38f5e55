"""From evidence to outcomes: H1a, H1b, the compound hypothesis; rules without own numbers.

Source: protocol, "Decision rule", A-P3-7.
"""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.decision import (
    CompoundEvidence,
    DecidedComparison,
    H1aEvidence,
    H1bEvidence,
    VerdictCompound,
    VerdictH1a,
    VerdictH1b,
    VerdictOutcome,
)
from opprof.decision.design import Matrix, run_name
from opprof.protocol.model import ProtocolFile
from opprof.words import plural

NULL: VerdictOutcome = "REFUTED / NULL SUPPORTED"
NO_WINDOWS = (
    "the protocol plans no profiler windows ([timeline].profile_windows = 0): no run has an"
    " operator breakdown, so this design cannot judge H1a"
)


def stop_conditions(matrix: Matrix) -> list[str]:
    """Return the matrix-wide conditions that forbid any conclusion."""
    measured = [
        (facts, matrix.statuses[key])
        for key, facts in matrix.facts.items()
        if key[3] in ("primary", "confirmation")
    ]
    if not measured:
        return ["no measured run"]
    gates = matrix.file.gates
    quarantined = sum(1 for facts, _ in measured if facts.run.drain_quarantined)
    failing = sum(
        1
        for facts, _ in measured
        if any(i.gate.name == "request_failures" and i.gate.outcome == "fail" for i in facts.gates)
    )
    found = []
    for count, limit, what in (
        (quarantined, gates.drain_quarantine_share_max, "are drain-quarantined"),
        (failing, gates.clean_failure_share_max, "had failures in their clean window"),
    ):
        if count / len(measured) > limit:
            share = count / len(measured)
            found.append(
                f"{count} of {len(measured)} measured runs ({share:.0%}) {what}, above {limit:.0%}"
            )
    return found


def invalid_parts(matrix: Matrix, patterns: Sequence[str], *, breakdown: bool) -> list[str]:
    """Return why no given run of the primary comparison may be used; empty when one may."""
    keys = [matrix.primary(pattern) for pattern in patterns]
    given = [key for key in keys if key in matrix.facts]
    reasons = matrix.breakdown_reasons if breakdown else matrix.run_reasons
    if not given or any(not reasons(key) for key in given):
        return []
    return [
        "no given run of the primary comparison may be used",
        *(f"{run_name(key)}: {_cause(reasons(key)[0])}" for key in given),
    ]


def _cause(reason: str) -> str:
    return reason.split(": ", 1)[-1]


def verdict_h1a(matrix: Matrix, evidence: H1aEvidence, stops: Sequence[str]) -> VerdictH1a:
    """H1a is existential: one accepted inversion confirms it, only a complete matrix refutes it.

    Runs without windows that the protocol does not plan either are not unusable: what they leave
    open is open by design.
    """
    windows = matrix.file.timeline.profile_windows
    invalid = [*stops, *invalid_parts(matrix, matrix.patterns, breakdown=windows > 0)]
    if invalid:
        return VerdictH1a("INVALID", invalid, evidence)
    if windows == 0:
        return VerdictH1a("INCONCLUSIVE", [NO_WINDOWS], evidence)
    if evidence.accepted:
        return VerdictH1a("CONFIRMED", [inversion_sentence(i) for i in evidence.accepted], evidence)
    null = evidence.null
    if null.supported and matrix.file.partial_matrix is None:
        families = ", ".join(null.common_top)
        return VerdictH1a(
            NULL,
            [
                f"{families} is top in every window of every pattern",
                f"the greatest simultaneous bound of an inversion is {points(null.greatest_bound)}",
            ],
            evidence,
        )
    reasons = [f"no inversion met all four criteria in {evidence.tested} tested comparisons"]
    if evidence.not_evaluable:
        names = ", ".join(evidence.not_evaluable)
        reasons.append(f"not evaluable: {names}; a refutation needs the complete matrix")
    elif left_out := evidence.registered - evidence.evaluable:
        reasons.append(f"{left_out} of {evidence.registered} comparisons are not evaluable")
    if null.same_top is False:
        reasons.append("no single family is top in every window of every pattern")
    if null.bounds_below is False:
        reasons.append(
            f"an inversion as deep as {points(null.greatest_bound)} cannot be excluded"
            f" ({null.bounds[0].pattern_p} and {null.bounds[0].pattern_q})"
        )
    return VerdictH1a("INCONCLUSIVE", reasons, evidence)


def verdict_h1b(matrix: Matrix, evidence: H1bEvidence, stops: Sequence[str]) -> VerdictH1b:
    """H1b is existential: one qualifying contrast confirms it, only all eight refute it."""
    named = sorted({p for pair in matrix.file.h1b.contrasts for p in pair})
    invalid = [*stops, *invalid_parts(matrix, named, breakdown=False)]
    if invalid:
        return VerdictH1b("INVALID", invalid, evidence)
    if evidence.passing:
        return VerdictH1b("CONFIRMED", passing_sentences(evidence), evidence)
    if evidence.all_below and matrix.file.partial_matrix is None:
        reason = f"all {len(evidence.contrasts)} contrasts are below every threshold"
        return VerdictH1b(NULL, [reason], evidence)
    usable = sum(1 for item in evidence.contrasts if item.evaluable)
    reasons = [
        f"none of {plural(usable, 'evaluable contrast')} qualifies"
        if usable
        else "no contrast is evaluable"
    ]
    if evidence.not_evaluable:
        names = ", ".join(evidence.not_evaluable)
        reasons.append(f"not evaluable: {names}; a refutation needs every contrast")
    reasons += _open_contrasts(evidence)
    return VerdictH1b("INCONCLUSIVE", reasons, evidence)


def _open_contrasts(evidence: H1bEvidence) -> list[str]:
    """Why evaluable contrasts neither qualify nor count as below every threshold."""
    found = []
    for item in evidence.contrasts:
        if not item.evaluable:
            continue
        name = f"{item.irregular} vs {item.control}"
        if item.passing_metrics:
            metrics = ", ".join(item.passing_metrics)
            verb = "is" if len(item.passing_metrics) == 1 else "are"
            state = "was not measured" if item.passes is None else "was not found"
            found.append(f"{name}: {metrics} {verb} material, and the association {state}")
        above = [m.metric for m in item.metrics if m.exceeds_threshold and not m.passes]
        if above:
            found.append(f"{name}: {', '.join(above)} above its threshold, zero not excluded")
        missing = [m.metric for m in item.metrics if m.difference is None]
        if missing:
            found.append(f"{name}: {', '.join(missing)} not available")
    return found


def verdict_compound(
    matrix: Matrix, h1a: VerdictH1a, h1b: VerdictH1b, stops: Sequence[str]
) -> VerdictCompound:
    """Confirmed only by both parts; supported as null only by both nulls."""
    missing = matrix.missing_cells
    evidence = CompoundEvidence(
        h1a=h1a.outcome,
        h1b=h1b.outcome,
        complete_matrix=not missing,
        missing_cells=missing,
        stop_conditions=list(stops),
    )
    outcomes = (h1a.outcome, h1b.outcome)
    if stops or outcomes == ("INVALID", "INVALID"):
        return VerdictCompound("INVALID", list(stops) or ["both parts are invalid"], evidence)
    if outcomes == ("CONFIRMED", "CONFIRMED"):
        return VerdictCompound("CONFIRMED", ["H1a and H1b are both confirmed"], evidence)
    if "CONFIRMED" in outcomes:
        one, other = ("H1a", "H1b") if h1a.outcome == "CONFIRMED" else ("H1b", "H1a")
        state = outcomes[1 if one == "H1a" else 0]
        reason = f"{one} is confirmed alone, {other} is {state}: no compound claim"
        return VerdictCompound("PARTIAL", [reason], evidence)
    if outcomes == (NULL, NULL):
        return VerdictCompound(NULL, ["both nulls are supported"], evidence)
    return VerdictCompound(
        "INCONCLUSIVE", [f"H1a is {h1a.outcome}, H1b is {h1b.outcome}"], evidence
    )


def inversion_sentence(item: DecidedComparison) -> str:
    """One accepted inversion in words."""
    first = "/".join(points(gap) for gap in item.gaps_p)
    second = "/".join(points(gap) for gap in item.gaps_q)
    corrected = "" if item.holm_p is None else f"; Holm p = {item.holm_p:.2g}"
    return (
        f"{item.family_a} leads {item.family_b} by {first} in {item.pattern_p} and trails by"
        f" {second} in {item.pattern_q}{corrected}"
    )


def passing_sentences(evidence: H1bEvidence) -> list[str]:
    """Every qualifying contrast in words."""
    sentences = []
    for item in evidence.contrasts:
        if not item.passes or item.association is None:
            continue
        by = []
        loss, residual = item.association.efficiency_loss, item.association.residual
        if item.association.efficiency_loss_met and loss.value is not None:
            by.append(f"useful-token efficiency is {loss.value:.1%} worse")
        if item.association.residual_met and residual.value is not None:
            by.append(f"the step-time residual is {residual.value:+.1%} higher")
        for metric in item.metrics:
            if metric.passes:
                sentences.append(
                    f"{item.irregular} vs {item.control}: {metric.metric} is"
                    f" {metric.difference:+.3f} (threshold {metric.threshold}), and"
                    f" {' and '.join(by)}"
                )
    return sentences


def decision_label(
    file: ProtocolFile, *, exploratory: bool, simulated: bool, rehearsed: bool = False
) -> str:
    """Say what kind of decision this is."""
    kind = "exploratory: a list of runs, no campaign" if exploratory else "registered campaign"
    if rehearsed:
        kind = f"rehearsal of a {file.status} protocol, nothing is registered"
    if simulated:
        kind += "; simulated runs, no measurement"
    if file.partial_matrix is not None:
        kind += "; frozen partial matrix (A-P3-7)"
    return kind


def points(gap: float | None) -> str:
    """A share gap in percentage points."""
    return "n/a" if gap is None else f"{100 * gap:.1f} points"
