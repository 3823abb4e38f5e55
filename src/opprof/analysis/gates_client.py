"""Gates over the timeline, the request records and the client's result."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.analysis.gates import NO_PROTOCOL, make_gate, skipped, verdict
from opprof.artifacts.common import Gate, Value
from opprof.artifacts.composition import EndToEnd
from opprof.artifacts.run import Interval, ManifestSummary, Result, Timeline
from opprof.protocol.model import Gates, Load, Pattern, TimelinePlan
from opprof.rules.durations import NS_PER_S, scaled_ns, seconds_to_ns
from opprof.rules.lag import lag_passes
from opprof.rules.rate import judge_offered_rate
from opprof.rules.recovery import Limits, Recovery, scope_of
from opprof.rules.stabilization import Stabilization
from opprof.telemetry.requests import ABSENT, RequestColumns
from opprof.telemetry.timeline import intervals_of, union_pieces

_NOT_MEASURED = "a burn-in is not measured: it has no clean time"
"""Its length is the protocol's for burn-ins, which the client's flags are checked against."""


def warmup_recorded(timeline: Timeline, plan: TimelinePlan | None) -> Gate:
    """The timeline shows one warm-up of exactly the protocol's length."""
    if timeline.role == "burnin":
        return skipped("warmup_recorded", _NOT_MEASURED)
    if plan is None:
        return skipped("warmup_recorded", NO_PROTOCOL)
    found = intervals_of(timeline, "warmup")
    expected_ns = scaled_ns(plan.warmup_s, timeline.time_scale)
    lengths_ns = [_length_ns(interval) for interval in found]
    numbers: dict[str, Value] = {
        "intervals": len(found),
        "seconds": [ns / NS_PER_S for ns in lengths_ns],
        "expected_s": expected_ns / NS_PER_S,
    }
    if not found and expected_ns:
        return verdict("warmup_recorded", False, "no warm-up interval is recorded", numbers)
    good = sum(lengths_ns) == expected_ns
    reason = f"warm-up of {sum(lengths_ns) / NS_PER_S:g} s, {expected_ns / NS_PER_S:g} s asked for"
    return verdict("warmup_recorded", good, reason, numbers)


def warmup_completions(
    completed: int | None,
    gates: Gates | None,
    pattern: Pattern | None,
    stable: Stabilization | None,
) -> Gate:
    """Enough completions in the warm-up, or A-P3-6's second branch for the patterns that have it.

    ``completed`` is null where no warm-up interval or no request record exists.
    """
    name = "warmup_completions"
    if gates is None or pattern is None:
        return skipped(name, NO_PROTOCOL)
    if completed is None:
        return skipped(name, "no warm-up interval or no request records")
    least, fewer = gates.warmup_completions_min, gates.warmup_stabilized_completions_min
    numbers: dict[str, Value] = {"completed": completed, "completed_min": least}
    if completed >= least:
        return verdict(name, True, f"{completed} completions, at least {least}", numbers)
    reason = f"{completed} completions, fewer than {least}"
    if pattern.warmup_rule == "completions":
        return verdict(name, False, reason, numbers)
    numbers["stabilized_completed_min"] = fewer
    if completed < fewer:
        return verdict(name, False, f"{reason}, and fewer than {fewer}", numbers)
    if stable is None:
        return skipped(name, f"{reason}; the stabilization test has no Layer-1 stream", numbers)
    numbers |= stable.numbers()
    return verdict(name, stable.passed, f"{reason}; stabilization: {stable.reason}", numbers)


def clean_interval(timeline: Timeline, plan: TimelinePlan | None) -> list[Gate]:
    """Exactly the protocol's clean seconds, in its segments, without a gap."""
    segments = intervals_of(timeline, "clean")
    if timeline.role == "burnin" and not segments:
        names = ("clean_duration", "clean_segments", "clean_contiguous")
        return [skipped(name, _NOT_MEASURED) for name in names]
    pieces = union_pieces(segments)
    numbers: dict[str, Value] = {
        "segments_s": [_length_ns(segment) / NS_PER_S for segment in segments],
        "total_s": sum(end - start for start, end in pieces) / NS_PER_S,
        "pieces": len(pieces),
    }
    if segments:
        contiguous = verdict(
            "clean_contiguous",
            len(pieces) == 1,
            "clean segments touch" if len(pieces) == 1 else f"{len(pieces)} separate pieces",
            numbers,
        )
    else:
        contiguous = verdict("clean_contiguous", False, "no clean segment is recorded", numbers)
    if plan is None:
        return [
            skipped("clean_duration", NO_PROTOCOL, numbers),
            skipped("clean_segments", NO_PROTOCOL, numbers),
            contiguous,
        ]
    segment_ns = scaled_ns(plan.clean_segment_s, timeline.time_scale)
    total_ns = sum(_length_ns(segment) for segment in segments)
    expected_ns = segment_ns * plan.clean_segments
    numbers |= {"expected_segments": plan.clean_segments, "expected_s": expected_ns / NS_PER_S}
    cut = len(segments) == plan.clean_segments and all(
        _length_ns(segment) == segment_ns for segment in segments
    )
    return [
        verdict(
            "clean_duration",
            total_ns == expected_ns,
            f"{total_ns / NS_PER_S:.9g} clean seconds, {expected_ns / NS_PER_S:g} asked for",
            numbers,
        ),
        verdict(
            "clean_segments",
            cut,
            f"{len(segments)} segments, {plan.clean_segments} of {segment_ns / NS_PER_S:g} s "
            "asked for",
            numbers,
        ),
        contiguous,
    ]


def load_point(timeline: Timeline, load: Load | None, accepted_saturation: Result | None) -> Gate:
    """The declared load point, its rate and its concurrency agree with the protocol.

    ``accepted_saturation`` is the cell's saturation result where it is at hand: the moderate rate
    is then checked against its fraction exactly.
    """
    name = "load_point"
    numbers: dict[str, Value] = {
        "rate_rps": timeline.rate_rps,
        "max_concurrency": timeline.max_concurrency,
    }
    closed = timeline.rate_rps is None
    if closed != (timeline.load_point == "saturation"):
        kind = "a closed loop" if closed else "a finite rate"
        return verdict(name, False, f"{timeline.load_point} with {kind}", numbers)
    if load is None:
        return skipped(name, NO_PROTOCOL, numbers)
    cap = load.saturation_max_concurrency
    numbers["max_concurrency_expected"] = cap
    if timeline.max_concurrency != cap:
        reason = f"at most {timeline.max_concurrency} outstanding, the protocol says {cap}"
        return verdict(name, False, reason, numbers)
    if timeline.rate_rps is None:
        return verdict(name, True, f"closed loop of at most {cap} outstanding", numbers)
    if accepted_saturation is None or accepted_saturation.completed_rps is None:
        reason = "the cell's saturation result is not at hand to derive the rate from"
        return skipped(name, reason, numbers)
    target = load.moderate_rate_fraction * accepted_saturation.completed_rps
    numbers |= {"T_sat_rps": accepted_saturation.completed_rps, "target_rps": target}
    # The client computes the same product, so only the decimal text may differ.
    good = abs(timeline.rate_rps - target) <= 1e-9 * target
    reason = f"rate {timeline.rate_rps:.6g}/s, {load.moderate_rate_fraction:g} T_sat = {target:.6g}"
    return verdict(name, good, reason, numbers)


def request_accounting(requests: RequestColumns | None) -> Gate:
    """The request records are whole, unique and in order."""
    if requests is None:
        return skipped("request_accounting", "no request records")
    reasons = requests.reasons()
    disorder = requests.disorder()
    if disorder:
        reasons.append(f"disorder: {disorder} requests have times that go backwards")
    numbers: dict[str, Value] = {
        "lines": len(requests),
        "duplicates": requests.duplicate_ids,
        "torn_line": requests.torn_line,
        "disorder": disorder,
        "open": int(requests.open.sum()),
    }
    reason = "; ".join(reasons) or f"{len(requests)} whole, unique records"
    return verdict("request_accounting", not reasons, reason, numbers)


def request_failures(union: EndToEnd | None, requests: RequestColumns | None) -> Gate:
    """No request failed inside the clean union."""
    if union is None or requests is None:
        return skipped("request_failures", "no request records or no clean interval")
    anywhere = int(requests.failed.sum())
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(requests.errors.items())[:5])
    numbers: dict[str, Value] = {
        "failed_clean": union.failed,
        "failed_anywhere": anywhere,
        "completed_clean": union.completed,
        "error_codes": codes or None,
    }
    if not union.completed and not union.failed:
        return verdict(
            "request_failures", False, "no request completed in the clean interval", numbers
        )
    reason = f"{union.failed} failed in the clean interval, {anywhere} in the whole run"
    return verdict("request_failures", union.failed == 0, reason, numbers)


def output_tokens_exact(requests: RequestColumns | None) -> Gate:
    """Every whole answer of the run has exactly the requested number of output tokens."""
    if requests is None:
        return skipped("output_tokens_exact", "no request records")
    answered = requests.completed_mono_ns != ABSENT
    wrong = int((answered & (requests.output_tokens != requests.requested_output_tokens)).sum())
    numbers: dict[str, Value] = {"answered": int(answered.sum()), "wrong": wrong}
    if not answered.any():
        return skipped("output_tokens_exact", "no request has an answer", numbers)
    reason = f"{wrong} of {int(answered.sum())} answers have another number of output tokens"
    return verdict("output_tokens_exact", wrong == 0, reason, numbers)


def offered_rate(timeline: Timeline, union: EndToEnd | None, gates: Gates | None) -> Gate:
    """At a finite rate the achieved offered rate is within the protocol's bound of its target."""
    name = "offered_rate"
    if timeline.rate_rps is None:
        return skipped(name, "a closed loop has no offered rate to hold")
    if union is None or union.seconds <= 0:
        return skipped(name, "no request records or no clean interval")
    numbers: dict[str, Value] = {
        "target_rps": timeline.rate_rps,
        "admitted_rps": union.admitted_rps,
    }
    if gates is None:
        return skipped(name, NO_PROTOCOL, numbers)
    found = judge_offered_rate(
        union.admitted,
        clean_ns=seconds_to_ns(union.seconds),
        rate_rps=timeline.rate_rps,
        error_max=gates.offered_rate_error_max,
    )
    numbers |= {"error": found.error, "error_max": gates.offered_rate_error_max}
    reason = (
        f"{found.offered_rps:.4g}/s admitted, {timeline.rate_rps:.4g}/s asked for: "
        f"{found.error:+.2%}"
    )
    return verdict(name, found.passed, reason, numbers)


def client_lag(timeline: Timeline, sustained_ns: int | None, gates: Gates | None) -> Gate:
    """No sustained client lag at a finite rate (see ``longest_sustained_lag_ns``)."""
    name = "client_lag"
    if timeline.rate_rps is None:
        return skipped(name, "a closed loop has no schedule to fall behind")
    if sustained_ns is None:
        return skipped(name, "no admissions in the clean interval")
    numbers: dict[str, Value] = {"sustained_lag_s": sustained_ns / NS_PER_S}
    if gates is None:
        return skipped(name, NO_PROTOCOL, numbers)
    limit = gates.client_lag_sustained_max_s
    numbers |= {"limit_s": limit, "window_s": gates.client_lag_sustained_window_s}
    reason = (
        f"lag of {sustained_ns / NS_PER_S:.3g} s held for "
        f"{gates.client_lag_sustained_window_s:g} s, at most {limit:g} s allowed"
    )
    return verdict(name, lag_passes(sustained_ns, limit), reason, numbers)


def recovery(
    checks: Sequence[tuple[Interval, Recovery]], timeline: Timeline, gates: Gates | None
) -> list[Gate]:
    """One gate per recovery interval."""
    if gates is None:
        return [skipped("recovery", NO_PROTOCOL)]
    if not checks:
        recorded = bool(intervals_of(timeline, "recovery"))
        missing = "request records or no clean segment" if recorded else "recovery interval"
        return [skipped("recovery", f"no {missing}")]
    limits = Limits.of(gates, timeline.time_scale)
    return [
        make_gate(
            "recovery",
            check.outcome,
            check.reason,
            check.numbers(limits),
            scope=scope_of(interval.index),
        )
        for interval, check in checks
    ]


def drain_quarantine(timeline: Timeline, pattern: Pattern | None, result: Result | None) -> Gate:
    """The drain kept its class's budget; a failure marks the run and takes nothing from it.

    A mark of the client under another budget does not bind: an amendment judges again (A-P3-5).
    """
    name = "drain_quarantine"
    drains = intervals_of(timeline, "drain")
    numbers: dict[str, Value] = {
        "marked_by_client": None if result is None else result.drain_quarantined
    }
    if not drains:
        if result is not None and result.drain_quarantined:
            return verdict(name, False, "the client marked the run as quarantined", numbers)
        return skipped(name, "no drain interval is recorded", numbers)
    drain_ns = sum(_length_ns(interval) for interval in drains)
    numbers["drain_s"] = drain_ns / NS_PER_S
    if pattern is None:
        return skipped(name, NO_PROTOCOL, numbers)
    budget_ns = scaled_ns(pattern.drain_budget_s, timeline.time_scale)
    budget = budget_ns / NS_PER_S
    numbers["budget_s"] = budget
    marked = result is not None and result.drain_quarantined
    if result is not None and result.metrics.get("drain_budget_s", budget) != budget:
        numbers["marked_under_budget_s"] = result.metrics["drain_budget_s"]
        marked = False
    reason = f"drain of {drain_ns / NS_PER_S:.3f} s, {budget:g} s allowed"
    return verdict(name, drain_ns <= budget_ns and not marked, reason, numbers)


def manifest_hash(manifest: ManifestSummary | None, result: Result | None) -> Gate:
    """The hash the client used is the frozen manifest's."""
    if manifest is None or result is None:
        absent = "manifest.sha256" if manifest is None else "client/result.json"
        return skipped("manifest_hash", f"{absent} is absent")
    good = manifest.sha256 == result.manifest_sha256
    numbers: dict[str, Value] = {"manifest": manifest.sha256, "client": result.manifest_sha256}
    reason = "the client's manifest hash equals" if good else "the client's manifest hash is not"
    return verdict("manifest_hash", good, f"{reason} manifest.sha256", numbers)


def manifest_lengths(manifest: ManifestSummary | None, requests: RequestColumns | None) -> Gate:
    """Lengths lie within the manifest's, and no more requests were scheduled than it holds."""
    name = "manifest_lengths"
    if manifest is None or requests is None:
        absent = "manifest.sha256" if manifest is None else "client/requests.jsonl"
        return skipped(name, f"{absent} is absent")
    if not len(requests):
        return skipped(name, "no request was scheduled")
    prompts = requests.prompt_tokens[requests.prompt_tokens != ABSENT]
    outputs = requests.requested_output_tokens
    faults = []
    numbers: dict[str, Value] = {"requests": len(requests), "manifest": manifest.input_tokens.n}
    if len(requests) > manifest.input_tokens.n:
        faults.append(f"{len(requests)} requests from a manifest of {manifest.input_tokens.n}")
    for label, values, bound in (
        ("prompt", prompts, manifest.input_tokens),
        ("output", outputs, manifest.output_tokens),
    ):
        if not len(values):
            continue
        low, high = int(values.min()), int(values.max())
        numbers |= {f"{label}_min": low, f"{label}_max": high}
        if low < bound.min or high > bound.max:
            faults.append(f"{label} tokens {low} to {high}, manifest {bound.min} to {bound.max}")
    reason = "; ".join(faults) or "lengths lie within the manifest's and nothing wrapped"
    return verdict(name, not faults, reason, numbers)


def time_scale(timeline: Timeline) -> Gate:
    """Durations are the protocol's to the letter."""
    numbers: dict[str, Value] = {"time_scale": timeline.time_scale}
    good = timeline.time_scale == 1.0
    return verdict("time_scale", good, f"durations are scaled by {timeline.time_scale:g}", numbers)


def _length_ns(interval: Interval) -> int:
    return interval.end_mono_ns - interval.start_mono_ns
