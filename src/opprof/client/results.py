"""The client's artefacts as values: timeline, segments, sanity and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from opprof.artifacts.client import SegmentResult
from opprof.artifacts.common import (
    Gate,
    Provenance,
    RunIdentity,
    SanityBlock,
    SanityFamily,
)
from opprof.artifacts.run import Result, RunState, Timeline
from opprof.artifacts.sanity import Sanity
from opprof.client.facts import RunFacts
from opprof.client.gates import failed_reasons, run_gates
from opprof.client.summary import admitted_in, burst_spreads_ms, segment_result, series
from opprof.protocol.model import Gates
from opprof.rules.durations import NS_PER_S
from opprof.rules.sanity import family


@dataclass(frozen=True, slots=True)
class Binding:
    """What the run is bound to."""

    gates: Gates
    warmup_rule: str
    protocol_id: str
    protocol_sha256: str
    manifest_sha256: str
    code_version: str
    code_sha256: str
    extra: dict[str, Any]
    """Further entries of ``result.metrics``: rate derivation, transport counters, deviations."""


@dataclass(frozen=True, slots=True)
class Artefacts:
    """Everything that is written when a run has ended, in order; the result last."""

    timeline: Timeline
    segments: list[SegmentResult]
    gates: list[Gate]
    result: Result


def timeline_of(facts: RunFacts, clock: str, state: RunState, reason: str | None) -> Timeline:
    """Return ``timeline.json``."""
    plan = facts.plan
    return Timeline(
        schema=1,
        pattern=plan.pattern,
        config=plan.config,
        load_point=plan.load_point,
        max_concurrency=plan.load.max_concurrency,
        rate_rps=plan.load.rate_rps,
        clock=clock,
        intervals=list(facts.intervals),
        role=plan.role,
        time_scale=plan.time_scale,
        simulated=_simulated(facts),
        profile_window_source=facts.window_source,
        state=state,
        state_reason=reason,
    )


def artefacts_of(facts: RunFacts, clock: str, binding: Binding) -> Artefacts:
    """Judge a run that has ended (planned or aborted) and return its artefacts."""
    gates = run_gates(facts, binding.gates, warmup_rule=binding.warmup_rule)
    flags = _red_flags(facts)
    reasons = [*failed_reasons(gates), *(f"red flag: {flag}" for flag in flags)]
    abort = facts.ending.abort_reason
    clean = facts.clean
    union = None
    if clean is not None:
        union = segment_result("clean", *clean, facts.records, facts.failures)
    plan = facts.plan
    result = Result(
        schema=1,
        accepted=not reasons,
        reasons=reasons,
        completed_rps=None if union is None else union.completed_rps,
        offered_rps=None if union is None else union.offered_rps,
        manifest_sha256=binding.manifest_sha256,
        pattern=plan.pattern,
        config=plan.config,
        load_point=plan.load_point,
        role=plan.role,
        drain_quarantined=facts.ending.drain_over_budget,
        metrics=_metrics(facts, union, binding),
        simulated=_simulated(facts),
    )
    return Artefacts(
        timeline=timeline_of(facts, clock, "complete" if abort is None else "failed", abort),
        segments=_segments(facts),
        gates=gates,
        result=result,
    )


def sanity_of(
    artefacts: Artefacts, facts: RunFacts, binding: Binding, inputs: dict[str, str]
) -> Sanity:
    """Return ``client/sanity.json``; ``inputs`` maps file names to their SHA-256."""
    timeline, flags = artefacts.timeline, _red_flags(facts)
    failed = bool(flags) or any(gate.outcome == "fail" for gate in artefacts.gates)
    return Sanity(
        schema=1,
        run=RunIdentity(
            name=timeline.run_name,
            pattern=timeline.pattern,
            config=timeline.config,
            load_point=timeline.load_point,
            role=timeline.role,
            time_scale=timeline.time_scale,
            simulated=timeline.simulated,
            drain_quarantined=artefacts.result.drain_quarantined,
        ),
        outcome="fail" if failed else "pass",
        red_flags=flags,
        gates=artefacts.gates,
        sanity=SanityBlock(families=_families(facts), red_flags=flags),
        provenance=Provenance(
            inputs=inputs,
            protocol_id=binding.protocol_id,
            protocol_sha256=binding.protocol_sha256,
            mapping_version=None,
            mapping_sha256=None,
            code_version=binding.code_version,
            code_sha256=binding.code_sha256,
        ),
    )


def _simulated(facts: RunFacts) -> bool:
    return facts.simulated or (facts.stream is not None and facts.stream.simulated)


def _segments(facts: RunFacts) -> list[SegmentResult]:
    return [
        segment_result(
            chr(ord("A") + clean.index) if clean.index < 26 else f"S{clean.index}",
            clean.start_mono_ns,
            clean.end_mono_ns,
            facts.records,
            facts.failures,
        )
        for clean in facts.kind("clean")
    ]


def _metrics(facts: RunFacts, union: SegmentResult | None, binding: Binding) -> dict[str, Any]:
    plan, health = facts.plan, facts.health
    span = facts.clean or (facts.t0_ns, facts.plan.clean_start_ns(facts.t0_ns))
    spreads = burst_spreads_ms(admitted_in(facts.records, *span), plan.load.burst)
    bursty = plan.load.rate_rps is not None and plan.load.burst > 1
    return {
        "clean": msgspec.to_builtins(union),
        "burst_spread_ms": msgspec.to_builtins(series(spreads)) if bursty else None,
        "concurrency": {
            "cap": plan.load.max_concurrency,
            "mean": None if union is None else union.outstanding_mean,
            "max": facts.outstanding_max,
        },
        "drain_s": sum(i.end_mono_ns - i.start_mono_ns for i in facts.kind("drain")) / NS_PER_S,
        "drain_budget_s": plan.drain.budget_ns / NS_PER_S,
        "drain_timeout_requested_s": plan.drain.requested_ns / NS_PER_S,
        "client_cpu_share": None if health is None else health.cpu_share,
        "client_loop_delay_ms": None
        if health is None
        else msgspec.to_builtins(series(health.loop_delays_ms)),
        "finish_reasons": facts.finish_reasons,
        "never_admitted": facts.unsent,
        "profile_windows": [_window(window) for window in facts.windows],
        "time_scale": plan.time_scale,
        "pooled": plan.role != "burnin",
        "protocol_id": binding.protocol_id,
        "protocol_sha256": binding.protocol_sha256,
        "code_version": binding.code_version,
        "code_sha256": binding.code_sha256,
        **binding.extra,
    }


def _window(window: Any) -> dict[str, Any]:
    return {
        "index": window.index,
        "iterations_over_mono_ns": window.iterations_over_ns,
        "steps_seen": window.steps,
        "timed_out": window.timed_out,
    }


def _red_flags(facts: RunFacts) -> list[str]:
    flags = list(facts.faults)
    early = sum(
        record.admitted_mono_ns is not None and record.admitted_mono_ns < record.scheduled_mono_ns
        for record in facts.records
    )
    if early:
        flags.append(f"{early} requests were admitted before their scheduled time")
    clean = facts.clean
    if clean is not None and facts.ending.abort_reason is None:
        length_ns = clean[1] - clean[0]
        if length_ns != facts.plan.clean_ns:
            flags.append(f"the clean interval is {length_ns} ns long, not {facts.plan.clean_ns}")
    borders = [(i.start_mono_ns, i.end_mono_ns) for i in facts.intervals]
    if any(first[1] != second[0] for first, second in pairwise(borders)):
        flags.append("the timeline's intervals are not contiguous")
    return flags


def _families(facts: RunFacts) -> list[SanityFamily]:
    records = facts.records
    lags = [
        None if r.admitted_mono_ns is None else r.admitted_mono_ns - r.scheduled_mono_ns
        for r in records
    ]
    totals = [
        None
        if r.completed_mono_ns is None or r.admitted_mono_ns is None
        else r.completed_mono_ns - r.admitted_mono_ns
        for r in records
    ]
    return [
        family("requests.lag", lags, unit="ns"),
        family("requests.e2e", totals, unit="ns"),
        family("requests.prompt_tokens", [r.prompt_tokens for r in records], unit="tokens"),
        family(
            "requests.output_tokens",
            [r.output_tokens for r in records],
            unit="tokens",
            expected_constant=True,
        ),
        family("requests.http_status", [r.http_status for r in records], expected_constant=True),
    ]
