"""Gates over profiler windows: count, ranks, integrity, join, classes, representativeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opprof.analysis.gates import NO_PROTOCOL, skipped, verdict
from opprof.artifacts.common import Gate, Value
from opprof.artifacts.kernels import Representativeness, Window
from opprof.artifacts.run import Timeline
from opprof.protocol.model import Gates, Layer2, RepresentativenessRule, TimelinePlan
from opprof.telemetry.timeline import intervals_of


def expected_windows(timeline: Timeline, plan: TimelinePlan) -> int:
    """Profiler windows of a run by its role.

    Source: protocol: two per load point; none in a confirmation or a burn-in; A-P3-1: "exactly one
    2+8 window per moderate target" in a co-location check.
    """
    if timeline.role in ("confirmation", "burnin"):
        return 0
    if timeline.role == "colocation":
        return int(timeline.load_point == "moderate")
    return plan.profile_windows


def profile_windows(timeline: Timeline, plan: TimelinePlan | None) -> Gate:
    """The timeline has the role's number of profiler windows."""
    found = len(intervals_of(timeline, "profile"))
    numbers: dict[str, Value] = {"windows": found, "role": timeline.role}
    if plan is None:
        return skipped("profile_windows", NO_PROTOCOL, numbers)
    expected = expected_windows(timeline, plan)
    numbers["expected"] = expected
    reason = f"{found} windows, {expected} expected of a {timeline.role} run"
    return verdict("profile_windows", found == expected, reason, numbers)


def rank_completeness(
    ranks_by_window: Mapping[int, Sequence[int]], tensor_parallel_size: int | None
) -> list[Gate]:
    """Every window has one trace of each rank.

    ``ranks_by_window``: every window of the timeline, with the ranks whose trace was found.
    """
    if tensor_parallel_size is None:
        return [skipped("rank_completeness", "the number of ranks is not known")]
    if not ranks_by_window:
        return [skipped("rank_completeness", "no profiler window")]
    expected = list(range(tensor_parallel_size))
    gates = []
    for window, ranks in sorted(ranks_by_window.items()):
        missing = sorted(set(expected) - set(ranks))
        surplus = sorted(set(ranks) - set(expected))
        repeated = len(ranks) - len(set(ranks))
        numbers: dict[str, Value] = {
            "ranks": [*sorted(ranks)],
            "expected": tensor_parallel_size,
            "repeated": repeated,
        }
        faults = []
        if missing:
            faults.append(f"no trace of rank {', '.join(map(str, missing))}")
        if surplus:
            faults.append(f"unexpected rank {', '.join(map(str, surplus))}")
        if repeated:
            faults.append(f"{repeated} repeated")
        reason = "; ".join(faults) or f"{len(expected)} of {len(expected)} ranks"
        gates.append(
            verdict("rank_completeness", not faults, reason, numbers, scope=f"window{window}")
        )
    return gates


def window_integrity(window: Window, layer2: Layer2 | None) -> Gate:
    """One rank's trace of one window, as the trace reader judged it."""
    numbers: dict[str, Value] = {
        "annotations": window.annotations,
        "profiler_steps": list(window.profiler_steps),
        "kernel_events": window.kernel_events,
        "prologue_events": window.prologue_events,
        "dropped_events": window.dropped_events,
    }
    if layer2 is not None:
        numbers["active_iterations"] = layer2.active_iterations
    reason = "; ".join(window.reasons) or "a whole window"
    return verdict("window_integrity", window.accepted, reason, numbers, scope=_scope(window))


def join(window: Window, layer2: Layer2 | None) -> Gate:
    """Every active step of the window is joined to one Layer-1 step."""
    joined = [step.layer1_step for step in window.steps if step.layer1_step is not None]
    expected = len(window.steps) if layer2 is None else layer2.active_iterations
    numbers: dict[str, Value] = {
        "method": window.join_method,
        "margin": window.join_margin,
        "joined": len(joined),
        "expected": expected,
        "first_step": joined[0] if joined else None,
    }
    if layer2 is not None:
        numbers["margin_min"] = layer2.join_margin_min
    good = bool(joined) and len(set(joined)) == len(joined) == expected
    reason = f"{len(joined)} of {expected} steps joined by {window.join_method or 'nothing'}"
    return verdict("join", good, reason, numbers, scope=_scope(window))


def classifiable(window: Window, gates: Gates | None) -> Gate:
    """Enough kernel time of the window belongs to a named family."""
    numbers: dict[str, Value] = {
        "classified_fraction": window.classified_fraction,
        "kernel_ns": window.kernel_ns,
        "mapping": window.mapping_version,
    }
    if gates is None:
        return skipped("classifiable", NO_PROTOCOL, numbers, scope=_scope(window))
    if not window.kernel_ns:
        return skipped("classifiable", "no kernel time", numbers, scope=_scope(window))
    numbers["limit"] = gates.classifiable_min
    reason = (
        f"{window.classified_fraction:.1%} of kernel time has a family, "
        f"at least {gates.classifiable_min:.0%} needed"
    )
    good = window.classified_fraction >= gates.classifiable_min
    return verdict("classifiable", good, reason, numbers, scope=_scope(window))


def mode_segment_steps(active_steps: Mapping[str, int], gates: Gates | None) -> Gate:
    """Every required graph mode has enough active steps over the load point's windows.

    ``active_steps``: mode to active steps over the windows of one rank. The protocol says which
    modes it needs apart (``gates.modes_required``).
    """
    name = "mode_segment_steps"
    numbers: dict[str, Value] = dict(active_steps)
    if gates is None:
        return skipped(name, NO_PROTOCOL, numbers)
    least = gates.mode_active_steps_min
    numbers["least"] = least
    apart = [mode for mode, count in active_steps.items() if count >= least]
    required = gates.modes_required
    if not required:
        reason = f"no mode is required; reported apart: {', '.join(apart) or 'none'}"
        return skipped(name, reason, numbers)
    few = [f"{mode} {active_steps.get(mode, 0)}" for mode in required if mode not in apart]
    reason = f"fewer than {least}: {', '.join(few)}" if few else f"at least {least} each"
    return verdict(name, not few, reason, numbers)


def representativeness(
    found: Representativeness | None, rule: RepresentativenessRule | None
) -> list[Gate]:
    """One gate per window, with the gate's own failure rate under no change."""
    name = "representativeness"
    if rule is None:
        return [skipped(name, NO_PROTOCOL)]
    if found is None or not found.windows:
        return [skipped(name, "no window to judge")]
    rate = found.null_rate
    gates = []
    for window in found.windows:
        numbers: dict[str, Value] = {
            "smd_max": rule.smd_max,
            "profile_steps": window.profile_steps,
            "clean_steps": window.clean_steps,
            "null_failure_rate": None if rate is None else rate.any_feature_failure_rate,
            "null_load_point_failure_rate": None if rate is None else rate.load_point_failure_rate,
            **{feature.feature: feature.smd for feature in window.features},
        }
        reason = window.reason
        if rate is not None and window.outcome != "not_evaluable":
            reason += (
                f" (drawn from unprofiled steps, {rate.any_feature_failure_rate:.0%} of windows "
                f"and {rate.load_point_failure_rate:.0%} of load points fail)"
            )
        scope = f"window{window.window}"
        if window.outcome == "not_evaluable":
            gates.append(skipped(name, reason, numbers, scope=scope))
        else:
            gates.append(verdict(name, window.outcome == "pass", reason, numbers, scope=scope))
    return gates


def _scope(window: Window) -> str:
    return f"window{window.window}-rank{window.rank}"
