"""The ten hard-stop conditions and the two shares, as functions of facts.

Source: protocol, "Budget and hard stop conditions", with A-P3-3, A-P3-4 and A-P3-5.

Each function returns the :class:`~opprof.artifacts.campaign.Stop` that its condition calls for, or
None. Thresholds are the protocol's, and a condition that its ``[[stops]]`` do not list stops
nothing. Where an amendment supersedes a clause, the amendment wins:

- condition 3 no longer holds the drain (A-P3-5, drain quarantine);
- condition 9's cap is A-P3-4's, through ``budget.gpu_hours_max``.

What the text leaves open is decided here:

- *twice* in condition 5 means in two complete attempts at the same load point, since the protocol
  allows "one complete run [to] be retried" after the first (``reruns.unrepresentative_max``); two
  windows of one run are one failure.
- The shares of A-P3-5 are of measured runs, the amended matrix's primary and confirmation runs.
  While runs are still to come the denominator is every planned one: the matrix stops as soon as the
  final share is certain to exceed the limit, and never because the first of 52 runs was slow to
  drain. When the matrix has ended it is the runs that were measured. Both shares are in the stop.
- "Reached" (condition 9) includes equality for bytes and hours; "below" (free space) does not.
- A burn-in is not measured: only conditions 1, 2, 8 and 9 speak of it.
- A-P3-2's checks of a run need its artefacts; one that is missing is no stop by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import msgspec

from opprof.artifacts.campaign import Stop
from opprof.artifacts.common import Gate, Value
from opprof.campaign.facts import MatrixFacts, RunFacts
from opprof.campaign.frozen import applies, frozen_of
from opprof.campaign.gate_rules import rule_of
from opprof.protocol.model import Budget, Gates, ProtocolFile

NAMES: Mapping[int, str] = {
    0: "share of measured runs",
    1: "source, helper, manifest or configuration differs from what was frozen",
    2: "GPU not idle, foreign process, out of memory, server error, or GPU memory not returned",
    3: "clean request failed, token count wrong, or offered rate missed",
    4: "Layer-1 schema, footer, step accounting, drops, or profile leakage",
    5: "trace missing, unusable, not joined, or twice not representative",
    6: "recovery criterion missed",
    7: "kernel time not classifiable, or too few active steps of a required mode",
    8: "prompt or generated text outside the private folder",
    9: "public disk, free space or GPU-hour cap",
    10: "data-sanity red flag",
}
"""The protocol's list, one line each."""

_UNMEASURED = frozenset({1, 2, 8, 9})
_SECONDS_PER_HOUR = 3600


def judge_run(
    facts: RunFacts, protocol: ProtocolFile, *, wall_ns: int, unrepresentative_before: int = 0
) -> list[Stop]:
    """Return every hard stop that one attempt calls for, by number.

    Args:
        facts: The attempt's (:func:`~opprof.campaign.facts.facts_of`).
        protocol: Lists the conditions that stop the matrix; no other one does.
        wall_ns: Time of the verdict.
        unrepresentative_before: Earlier complete attempts at the same run that failed
            representativeness.

    Raises:
        InputError: the protocol leaves out what a campaign takes from it.
    """
    retries = frozen_of(protocol).reruns.unrepresentative_max
    found = [
        condition_1(facts, wall_ns),
        condition_2(facts, wall_ns),
        condition_3(facts, wall_ns),
        condition_4(facts, wall_ns),
        condition_5(
            facts, wall_ns, unrepresentative_before=unrepresentative_before, retries=retries
        ),
        condition_6(facts, wall_ns),
        condition_7(facts, wall_ns),
        condition_8(facts, wall_ns),
        condition_10(facts, wall_ns),
    ]
    return [stop for stop in found if stop is not None and applies(protocol, stop.condition)]


def judge_matrix(
    matrix: MatrixFacts,
    protocol: ProtocolFile,
    *,
    wall_ns: int,
    released: Iterable[Stop] = (),
) -> list[Stop]:
    """Return every stop that the campaign as a whole calls for.

    The two shares are gates of every protocol and no numbered condition. A share that a review has
    released stops again when a further run joins it, or the limit is another one.
    """
    gates, budget = protocol.gates, protocol.budget
    found = [
        condition_9(matrix, budget, wall_ns) if applies(protocol, 9) else None,
        quarantine_share(matrix, gates, wall_ns),
        clean_failure_share(matrix, gates, wall_ns),
    ]
    seen = [_joined_by(stop) for stop in released if stop.condition == 0]
    return [
        stop
        for stop in found
        if stop is not None and not (stop.condition == 0 and _joined_by(stop) in seen)
    ]


def _joined_by(stop: Stop) -> tuple[Value, ...]:
    """What a stop by a share speaks of: which share, how many runs, what limit."""
    return tuple(stop.numbers.get(name) for name in ("what", "count", "limit"))


def condition_1(facts: RunFacts, wall_ns: int) -> Stop | None:
    """Hash mismatch, effective configuration, or a changed compile-cache key."""
    return _by_gates(1, facts, wall_ns)


def condition_2(facts: RunFacts, wall_ns: int) -> Stop | None:
    """GPU not idle, another's process, out of memory, server error, memory not returned."""
    return _by_gates(2, facts, wall_ns)


def condition_3(facts: RunFacts, wall_ns: int) -> Stop | None:
    """A clean request failed, a token count differs, the offered rate missed its target."""
    return _by_gates(3, facts, wall_ns)


def condition_4(facts: RunFacts, wall_ns: int) -> Stop | None:
    """Layer-1 accounting, or a profiled step in a clean summary."""
    return _by_gates(4, facts, wall_ns)


def condition_5(
    facts: RunFacts, wall_ns: int, *, unrepresentative_before: int, retries: int
) -> Stop | None:
    """A trace that cannot be used; composition off in more complete attempts than have a retry."""
    smd = [gate for gate in facts.failed if gate.name == "representativeness"]
    if smd and unrepresentative_before < retries:
        return _by_gates(5, facts, wall_ns, leave_out=frozenset({"representativeness"}))
    numbers: dict[str, Value] = {}
    if smd:
        numbers["unrepresentative_attempts"] = unrepresentative_before + 1
    return _by_gates(5, facts, wall_ns, numbers=numbers)


def condition_6(facts: RunFacts, wall_ns: int) -> Stop | None:
    """Recovery after a profile window."""
    return _by_gates(6, facts, wall_ns)


def condition_7(facts: RunFacts, wall_ns: int) -> Stop | None:
    """Unclassifiable kernel time in a primary window, or a required mode without enough steps."""
    return _by_gates(7, facts, wall_ns) if facts.role == "primary" else None


def condition_8(facts: RunFacts, wall_ns: int) -> Stop | None:
    """Private text in a public artefact, by the scan's gate ``privacy``."""
    return _by_gates(8, facts, wall_ns)


def condition_9(matrix: MatrixFacts, budget: Budget, wall_ns: int) -> Stop | None:
    """Public bytes or GPU hours at their cap, free space below its floor, private bytes too many.

    What was not looked at (null) stops nothing.
    """
    reasons = []
    numbers: dict[str, Value] = {
        "public_bytes": matrix.public_bytes,
        "public_bytes_max": budget.public_bytes_max,
        "private_bytes": matrix.private_bytes,
        "private_bytes_max": budget.private_bytes_max,
        "free_bytes": matrix.free_bytes,
        "free_bytes_min": budget.free_space_bytes_min,
        "gpu_hours": None if matrix.gpu_seconds is None else matrix.gpu_seconds / _SECONDS_PER_HOUR,
        "gpu_hours_max": budget.gpu_hours_max,
    }
    if matrix.public_bytes is not None and matrix.public_bytes >= budget.public_bytes_max:
        reasons.append(f"{matrix.public_bytes} public bytes, cap {budget.public_bytes_max}")
    if matrix.private_bytes is not None and matrix.private_bytes >= budget.private_bytes_max:
        reasons.append(f"{matrix.private_bytes} private bytes, cap {budget.private_bytes_max}")
    if matrix.free_bytes is not None and matrix.free_bytes < budget.free_space_bytes_min:
        reasons.append(f"{matrix.free_bytes} bytes free, at least {budget.free_space_bytes_min}")
    if matrix.gpu_seconds is not None and _hours_reached(matrix.gpu_seconds, budget):
        hours = matrix.gpu_seconds / _SECONDS_PER_HOUR
        reasons.append(f"{hours:.3f} GPU hours, cap {budget.gpu_hours_max:g}")
    return _stop(9, "", reasons, numbers, wall_ns) if reasons else None


def condition_10(facts: RunFacts, wall_ns: int) -> Stop | None:
    """A red flag of a sanity block, or a failed check of the block's list."""
    if facts.role == "burnin":
        return None
    numbers: dict[str, Value] = {"red_flags": len(facts.red_flags)}
    return _by_gates(10, facts, wall_ns, reasons=facts.red_flags, numbers=numbers)


def red_flag_stop(
    run: str, flags: list[str], protocol: ProtocolFile, *, wall_ns: int
) -> list[Stop]:
    """Condition 10 for a sanity block that is no part of the run's own artefacts."""
    if not flags or not applies(protocol, 10):
        return []
    return [_stop(10, run, flags, {"red_flags": len(flags)}, wall_ns)]


def joined(first: Stop, further: Stop) -> Stop:
    """Return the first stop with a further one told beside it, so that one review sees both."""
    run = f" at {further.run}" if further.run else ""
    also = f"also hard stop {further.condition} ({further.name}){run}: {further.reason}"
    numbers = dict(further.numbers) | dict(first.numbers)
    attempts = list(dict.fromkeys([*first.attempts, *further.attempts]))
    return msgspec.structs.replace(
        first, reason=f"{first.reason}; {also}", numbers=numbers, attempts=attempts
    )


def quarantine_share(matrix: MatrixFacts, gates: Gates, wall_ns: int) -> Stop | None:
    """More than the protocol's share of measured runs are drain-quarantined (A-P3-5)."""
    return _share(
        "are drain-quarantined",
        matrix.quarantined,
        matrix,
        gates.drain_quarantine_share_max,
        wall_ns,
    )


def clean_failure_share(matrix: MatrixFacts, gates: Gates, wall_ns: int) -> Stop | None:
    """More than the protocol's share of measured runs failed in their clean window.

    Condition 3 stops the matrix for each of them; this one stands after their reviews.
    """
    return _share(
        "failed in the clean window",
        matrix.clean_failed,
        matrix,
        gates.clean_failure_share_max,
        wall_ns,
    )


def share_exceeded(count: int, of: int, limit: float) -> bool:
    """Whether ``count / of`` is more than ``limit``, in exact arithmetic: 10 of 50 is not over 0.2.

    The limit is taken as it is written (0.2, not the nearest binary fraction).
    """
    return count > Fraction(str(limit)) * of


def _share(what: str, count: int, matrix: MatrixFacts, limit: float, wall_ns: int) -> Stop | None:
    of = matrix.measured if matrix.finished else max(matrix.planned, matrix.measured)
    if not share_exceeded(count, of, limit):
        return None
    basis = "measured" if matrix.finished else "planned"
    reason = f"{count} of {of} {basis} runs {what}, more than {limit:.0%}"
    numbers: dict[str, Value] = {
        "what": what,
        "count": count,
        "measured": matrix.measured,
        "planned": matrix.planned,
        "share_of_measured": count / matrix.measured if matrix.measured else None,
        "share_of_planned": count / matrix.planned if matrix.planned else None,
        "limit": limit,
    }
    return _stop(0, "", [reason], numbers, wall_ns)


def _hours_reached(gpu_seconds: float, budget: Budget) -> bool:
    cap_s = Fraction(str(budget.gpu_hours_max)) * _SECONDS_PER_HOUR
    return Fraction(str(gpu_seconds)) >= cap_s


def _by_gates(
    condition: int,
    facts: RunFacts,
    wall_ns: int,
    *,
    leave_out: frozenset[str] = frozenset(),
    reasons: Iterable[str] = (),
    numbers: Mapping[str, Value] | None = None,
) -> Stop | None:
    """The stop that the condition's failed gates, and further reasons, call for."""
    if facts.role == "burnin" and condition not in _UNMEASURED:
        return None
    bad = [
        gate
        for gate in facts.failed
        if gate.name not in leave_out and _condition(gate) == condition
    ]
    lines = [*reasons, *(_line(gate) for gate in bad)]
    if not lines:
        return None
    found = dict(numbers or {})
    for gate in bad:
        found |= {f"{_name(gate)}.{key}": value for key, value in gate.numbers.items()}
    return _stop(condition, facts.run, list(dict.fromkeys(lines)), found, wall_ns)


def _condition(gate: Gate) -> int | None:
    """A gate's condition; contamination seen by the clock and load check is condition 2's."""
    if gate.name == "clock_load" and gate.numbers.get("foreign_processes"):
        return 2
    return rule_of(gate).condition


def _line(gate: Gate) -> str:
    return f"{_name(gate)}: {gate.reason}"


def _name(gate: Gate) -> str:
    """A gate with its scope: two windows of one run have numbers of their own."""
    return gate.name if gate.scope == "run" else f"{gate.name} ({gate.scope})"


def _stop(
    condition: int, run: str, reasons: list[str], numbers: Mapping[str, Value], wall_ns: int
) -> Stop:
    return Stop(
        schema=1,
        condition=condition,
        name=NAMES[condition],
        reason="; ".join(reasons),
        run=run,
        wall_ns=wall_ns,
        numbers=dict(numbers),
    )
