"""Gates over the Layer-1 stream: accounting, configuration, leaks, graph modes, prefix cache."""

from __future__ import annotations

from collections.abc import Mapping

from opprof.analysis.gates import NO_PROTOCOL, make_gate, skipped, verdict
from opprof.artifacts.common import Gate, Value
from opprof.artifacts.composition import Composition, StreamAccounting
from opprof.artifacts.layer1 import Header
from opprof.artifacts.run import Timeline
from opprof.protocol.model import Config, Gates, Layer1, Pattern, Pinned, Server
from opprof.telemetry.accounting import UNPROVEN_CODES


def layer1_accounting(accounting: StreamAccounting) -> Gate:
    """Steps, footer and sidecar are whole and agree (A-P3-5)."""
    numbers: dict[str, Value] = {
        "step_lines": accounting.step_lines,
        "encoded": accounting.encoded_records,
        "written": accounting.written_records,
        "dropped": accounting.dropped_records,
        "last_step": accounting.last_step,
        "footer_in_stream": accounting.footer_in_stream,
        "sidecar_final": accounting.sidecar_final,
        "open_steps": accounting.open_steps,
    }
    if accounting.valid:
        return verdict(
            "layer1_accounting",
            True,
            f"{accounting.step_lines} steps, balanced, none dropped",
            numbers,
            scope="layer1",
        )
    proven = [reason for reason in accounting.reasons if reason.split(":")[0] not in UNPROVEN_CODES]
    return make_gate(
        "layer1_accounting",
        "fail" if proven else "not_evaluable",
        "; ".join(proven or accounting.reasons),
        numbers,
        scope="layer1",
    )


def sidecar_age(accounting: StreamAccounting, rule: Layer1 | None) -> Gate:
    """Without an in-stream footer: the checkpoint's age at the kill."""
    name = "sidecar_age"
    if accounting.footer_in_stream:
        return skipped(name, "the stream was closed cleanly: no checkpoint decides", scope="layer1")
    numbers: dict[str, Value] = {
        "age_ms": accounting.checkpoint_age_ms,
        "tolerance_used_ms": accounting.tolerance_used_ms,
    }
    if rule is None:
        return skipped(name, NO_PROTOCOL, numbers, scope="layer1")
    if accounting.checkpoint_age_ms is None:
        reason = "no usable checkpoint, or the time of the kill was not recorded"
        return skipped(name, reason, numbers, scope="layer1")
    limit_ms = rule.flush_interval_s * 1e3
    numbers |= {"limit_ms": limit_ms, "tolerance_ms": rule.checkpoint_tolerance_ms}
    good = accounting.checkpoint_age_ms <= limit_ms + rule.checkpoint_tolerance_ms
    reason = (
        f"checkpoint {accounting.checkpoint_age_ms:.3f} ms before the kill, {limit_ms:g} ms "
        f"and {rule.checkpoint_tolerance_ms:g} ms tolerance allowed"
    )
    return verdict(name, good, reason, numbers, scope="layer1")


def engine_config_effective(
    header: Header, config: Config | None, server: Server | None, pinned: Pinned | None
) -> Gate:
    """The stream's header shows the declared configuration.

    ``config`` is null when the timeline names a configuration that the protocol does not have.
    """
    name = "engine_config_effective"
    found = header.config
    numbers: dict[str, Value] = {
        "tensor_parallel_size": found.tensor_parallel_size,
        "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "chunked_prefill": found.chunked_prefill,
        "prefix_caching": found.prefix_caching,
        "dtype": found.dtype,
        "engine_version": header.engine_version,
        "moe_backend": found.moe_backend,
    }
    if server is None or pinned is None:
        return skipped(name, NO_PROTOCOL, numbers)
    if config is None:
        return skipped(name, "the protocol does not have this configuration", numbers)
    expected: dict[str, Value] = {
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "chunked_prefill": server.chunked_prefill,
        "prefix_caching": server.prefix_caching,
        "dtype": pinned.dtype,
        "engine_version": pinned.engine_version,
    }
    wrong = [
        f"{key} {numbers[key]}, declared {value}"
        for key, value in expected.items()
        if numbers[key] != value
    ]
    numbers |= {f"{key}_expected": value for key, value in expected.items()}
    # The back end is an expectation that every run records, not a condition (protocol, "Pinned").
    numbers["moe_backend_expected"] = pinned.moe_backend_expected
    return verdict(name, not wrong, "; ".join(wrong) or "as declared", numbers)


def engine_tested(header: Header) -> Gate:
    """The recorder was tested with this engine version."""
    numbers: dict[str, Value] = {
        "engine_version": header.engine_version,
        "differences": list(header.untested),
    }
    reason = "; ".join(header.untested[:5]) or f"{header.engine} {header.engine_version}"
    return verdict("engine_tested", not header.untested, reason, numbers)


def simulated(header: Header | None, timeline: Timeline) -> Gate:
    """Neither the engine nor the client was simulated."""
    engine = None if header is None else header.simulated
    numbers: dict[str, Value] = {"engine": engine, "client": timeline.simulated}
    which = [name for name, value in numbers.items() if value]
    reason = f"simulated: {', '.join(which)}" if which else "a measurement"
    return verdict("simulated", not which, reason, numbers)


def profile_leak(leaked: Mapping[str, int], union_steps: int | None) -> Gate:
    """No step of the clean union overlaps a profile or recovery interval, or was recorded in one.

    ``leaked``: interval name to the number of such steps (see ``telemetry.leaked_rows``).
    """
    if union_steps is None:
        return skipped("profile_leak", "no clean interval")
    total = sum(leaked.values())
    numbers: dict[str, Value] = {"clean_steps": union_steps, "leaked": total, **leaked}
    where = ", ".join(f"{name}: {count}" for name, count in leaked.items() if count)
    reason = f"steps in the clean union: {where}" if total else "no profiled step is clean"
    return verdict("profile_leak", total == 0, reason, numbers)


def graph_mode_valid(
    faults: Mapping[str, int], observations: Mapping[str, int], union: Composition | None
) -> Gate:
    """Every executed clean step has one graph mode without contradiction.

    ``faults`` and ``observations`` come from :mod:`opprof.telemetry.graph` over the clean union.
    """
    if union is None or not union.steps + union.steps_invalid_graph:
        return skipped("graph_mode_valid", "no executed step in the clean interval")
    numbers: dict[str, Value] = {
        "steps": union.steps,
        "invalid": union.steps_invalid_graph,
        **faults,
        **observations,
    }
    named = ", ".join(f"{name}: {count}" for name, count in faults.items() if count)
    reason = f"{union.steps_invalid_graph} invalid steps ({named})" if named else "all consistent"
    return verdict("graph_mode_valid", union.steps_invalid_graph == 0, reason, numbers)


def prefix_sharing(union: Composition | None, pattern: Pattern | None, gates: Gates | None) -> Gate:
    """A pattern without shared prefixes stays below the protocol's clean hit ratio."""
    name = "prefix_sharing"
    if union is None:
        return skipped(name, "no clean interval")
    numbers: dict[str, Value] = {
        "prefix": None if pattern is None else pattern.prefix,
        "hits": union.prefix_hits,
        "queries": union.prefix_queries,
        "hit_ratio": union.prefix_hit_ratio,
    }
    if pattern is None or gates is None:
        return skipped(name, NO_PROTOCOL, numbers)
    limit = gates.prefix_none_hit_ratio_max
    numbers["limit"] = limit
    if pattern.prefix != "none":
        return skipped(name, f"prefix sharing is {pattern.prefix}: reported, not limited", numbers)
    if union.prefix_queries is None:
        return skipped(name, "the engine recorded no prefix-cache counters", numbers)
    if union.prefix_hit_ratio is None:
        return skipped(name, "no prefix-cache query in the clean interval", numbers)
    reason = f"clean hit ratio {union.prefix_hit_ratio:.2%}, must be below {limit:.0%}"
    return verdict(name, union.prefix_hit_ratio < limit, reason, numbers)
