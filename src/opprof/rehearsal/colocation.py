"""A-P3-1's comparison where a neighbour is planted: the run alone against the run beside it.

The campaign without the planted effects is the solo regime, the one with them the co-located one;
each regime's moderate rate comes from its own saturation, as the amendment wants. Throughput and
the shares of the solo window's top families must stay within the protocol's limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opprof.analysis.load import LoadedRun
from opprof.artifacts.common import Gate, Value
from opprof.artifacts.run import Result
from opprof.files import read_bytes
from opprof.protocol import Protocol
from opprof.rehearsal.truth import COLOCATION, SlowNeighbour, Truth

_LIMIT_BYTES = 64 << 20
_MEANING = "Runs beside a neighbour are not the runs alone."
_ACTION = "Place fewer cells together, or stop for review."


def colocation_gates(
    protocol: Protocol, truth: Truth, solo: Sequence[LoadedRun], beside: Sequence[LoadedRun]
) -> list[Gate]:
    """Return the gate ``colocation`` where a neighbour is planted and the protocol has the check.

    Raises:
        InputError: a run's ``result.json`` cannot be read.
    """
    rule = protocol.file.colocation
    if rule is None or not any(isinstance(each, SlowNeighbour) for each in truth.file.effects):
        return []
    name = f"{rule.pattern}-{rule.config}-moderate"
    pair = [next((run for run in runs if run.source.name == name), None) for runs in (solo, beside)]
    alone, near = pair
    if alone is None or near is None:
        return [_gate("not_evaluable", f"{name} was not made in both regimes", {})]
    rates = [_rate(run) for run in (alone, near)]
    if rates[0] is None or rates[1] is None or not all(_windows(run) for run in (alone, near)):
        return [_gate("not_evaluable", f"{name} has no rate or no window in one regime", {})]
    ratio = rates[1] / rates[0]
    numbers: dict[str, Value] = {"ratio": ratio, "limit": rule.throughput_error_max}
    problems = []
    if not abs(ratio - 1) < rule.throughput_error_max:
        problems.append(f"throughput beside the neighbour is {ratio:.1%} of that alone")
    before, after = (_shares(run) for run in (alone, near))
    top = sorted(before, key=lambda family: -before[family])[: rule.top_families]
    for family in top:
        difference = after.get(family, 0.0) - before[family]
        numbers[family] = difference
        if not abs(difference) < rule.share_error_max:
            problems.append(f"{family} differs by {100 * difference:+.1f} points")
    outcome = "fail" if problems else "pass"
    return [_gate(outcome, "; ".join(problems) or "both regimes agree", numbers)]


def _rate(run: LoadedRun) -> float | None:
    data = read_bytes(run.source / "client" / "result.json", limit_bytes=_LIMIT_BYTES)
    return msgspec.json.decode(data, type=Result).completed_rps


def _windows(run: LoadedRun) -> bool:
    return bool(run.analysis.kernels.windows)


def _shares(run: LoadedRun) -> dict[str, float]:
    """Shares of the first window: the check samples exactly one."""
    families = run.analysis.kernels.windows[0].families
    return {name: found.share for name, found in families.items()}


def _gate(outcome: str, reason: str, numbers: dict[str, Value]) -> Gate:
    return Gate(
        name=COLOCATION,
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        numbers=numbers,
        meaning=_MEANING,
        action=_ACTION,
    )
