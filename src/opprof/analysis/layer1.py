"""The Layer-1 and client side of one run: accounting, composition, metrics and their gates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from opprof.analysis import gates_client, gates_layer1, sanity
from opprof.analysis.end_to_end import end_to_end, longest_sustained_lag_ns
from opprof.analysis.inputs import RunInputs
from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityFamily
from opprof.artifacts.composition import (
    SCHEMA,
    Composition,
    EndToEnd,
    Layer1Summary,
    StreamAccounting,
)
from opprof.artifacts.run import Interval, IntervalKind
from opprof.protocol import Protocol
from opprof.rules.durations import scaled_ns
from opprof.rules.recovery import Limits, Recovery
from opprof.rules.sanity import block
from opprof.rules.stabilization import Stabilization
from opprof.telemetry.accounting import account, signal_on_stream_clock
from opprof.telemetry.composition import compose
from opprof.telemetry.graph import graph_faults, graph_observations
from opprof.telemetry.membership import Members, leaked_rows, members, union_members
from opprof.telemetry.recovery import recovery_check
from opprof.telemetry.requests import RequestColumns, read_requests
from opprof.telemetry.series import NS_PER_S
from opprof.telemetry.stabilization import stabilization
from opprof.telemetry.stream import Stream, read_sidecar, read_stream
from opprof.telemetry.timeline import intervals_of, union_pieces

if TYPE_CHECKING:
    from opprof.telemetry.columns import Int64, StepColumns


@dataclass(frozen=True)
class Layer1Side:
    """What the step stream and the client's files say; the trace side builds on it."""

    stream: Stream
    accounting: StreamAccounting
    requests: RequestColumns | None
    union_members: Members | None
    """None without a clean interval."""
    union: Composition | None
    segments: tuple[Composition, ...]
    profile: tuple[Composition, ...]
    recovery: tuple[Composition, ...]
    warmup: tuple[Composition, ...]
    end_to_end: EndToEnd | None
    end_to_end_segments: tuple[EndToEnd, ...]
    gates: tuple[Gate, ...]
    families: tuple[SanityFamily, ...]
    red_flags: tuple[str, ...]

    @property
    def columns(self) -> StepColumns:
        """The stream's steps."""
        return self.stream.columns

    @property
    def clean_rows(self) -> Int64:
        """Rows of the clean union; empty without a clean interval."""
        import numpy as np

        if self.union_members is None:
            return np.zeros(0, np.int64)
        return self.union_members.rows


def read_layer1(inputs: RunInputs, protocol: Protocol | None) -> Layer1Side:
    """Read, check and summarise the stream and the client's records.

    Raises:
        InputError, SchemaError: a file cannot be used at all (file, line, reason).
    """
    stream = read_stream(inputs.stream)
    rule = None if protocol is None else protocol.file.layer1
    sidecar = read_sidecar(inputs.stream)
    signal_wall_ns = signal_on_stream_clock(inputs.signal_wall_ns, inputs.timeline, sidecar.sidecar)
    accounting = account(stream, sidecar, rule=rule, signal_wall_ns=signal_wall_ns)
    requests = None if inputs.requests is None else read_requests(inputs.requests)
    side = _summaries(inputs, stream, accounting, requests)
    # The gates judge the summaries, so they come last.
    return replace(side, gates=tuple(_gates(inputs, side, protocol)))


def _summaries(
    inputs: RunInputs,
    stream: Stream,
    accounting: StreamAccounting,
    requests: RequestColumns | None,
) -> Layer1Side:
    columns, timeline = stream.columns, inputs.timeline
    clean = intervals_of(timeline, "clean")
    pieces = union_pieces(clean)
    union = union_members(columns, clean) if clean else None
    summary = None
    if union is not None:
        summary = compose(
            columns,
            union,
            kind="clean_union",
            index=0,
            start_mono_ns=pieces[0][0],
            end_mono_ns=pieces[-1][1],
            seconds=sum(end - start for start, end in pieces) / NS_PER_S,
        )
    by_kind = {
        kind: tuple(_composition(columns, interval) for interval in intervals_of(timeline, kind))
        for kind in _COMPOSED
    }
    total = None
    segments: tuple[EndToEnd, ...] = ()
    if requests is not None and clean:
        total = end_to_end(requests, pieces, kind="clean_union", index=0)
        segments = tuple(
            end_to_end(
                requests,
                [(segment.start_mono_ns, segment.end_mono_ns)],
                kind="clean",
                index=segment.index,
            )
            for segment in clean
        )
    families = _families(columns, union, summary, requests, total)
    flags = sanity.accounting_flags(accounting)
    flags += sanity.step_flags(columns, stream.header.config.cudagraph_capture_sizes)
    flags += [] if requests is None else sanity.request_flags(requests)
    return Layer1Side(
        stream=stream,
        accounting=accounting,
        requests=requests,
        union_members=union,
        union=summary,
        segments=by_kind["clean"],
        profile=by_kind["profile"],
        recovery=by_kind["recovery"],
        warmup=by_kind["warmup"],
        end_to_end=total,
        end_to_end_segments=segments,
        gates=(),
        families=tuple(families),
        red_flags=tuple(flags),
    )


_COMPOSED: tuple[IntervalKind, ...] = ("clean", "profile", "recovery", "warmup")


def _composition(columns: StepColumns, interval: Interval) -> Composition:
    return compose(
        columns,
        members(columns, interval.start_mono_ns, interval.end_mono_ns),
        kind=interval.kind,
        index=interval.index,
        start_mono_ns=interval.start_mono_ns,
        end_mono_ns=interval.end_mono_ns,
    )


def _families(
    columns: StepColumns,
    union: Members | None,
    summary: Composition | None,
    requests: RequestColumns | None,
    total: EndToEnd | None,
) -> list[SanityFamily]:
    families = [] if union is None else sanity.step_families(columns, union.rows, prefix="clean.")
    families += [] if summary is None else sanity.composition_families(summary)
    families += [] if requests is None else sanity.request_families(requests, prefix="requests.")
    families += [] if total is None else sanity.end_to_end_families(total)
    return families


def _gates(inputs: RunInputs, side: Layer1Side, protocol: Protocol | None) -> list[Gate]:
    timeline, requests = inputs.timeline, side.requests
    pattern = config = plan = limits = server = pinned = load = layer1 = None
    if protocol is not None:
        file = protocol.file
        pattern, config = protocol.pattern(timeline.pattern), protocol.config(timeline.config)
        plan, limits, load, layer1 = file.timeline, file.gates, file.load, file.layer1
        server, pinned = file.server, file.pinned
    completed = _warmup_completions(inputs, requests)
    leaked = {}
    if side.union_members is not None:
        found = leaked_rows(side.columns, side.union_members, timeline.intervals)
        leaked = {name: len(rows) for name, rows in found.items()}
    header, rows = side.stream.header, side.clean_rows
    sizes = header.config.cudagraph_capture_sizes
    union_steps = None if side.union is None else side.union.steps
    return [
        gates_client.load_point(timeline, load, None),
        gates_layer1.engine_config_effective(header, config, server, pinned),
        gates_layer1.engine_tested(header),
        gates_layer1.simulated(header, timeline),
        gates_client.time_scale(timeline),
        gates_client.manifest_hash(inputs.manifest, inputs.result),
        gates_client.manifest_lengths(inputs.manifest, requests),
        gates_client.warmup_recorded(timeline, plan),
        gates_client.warmup_completions(
            completed, limits, pattern, _stabilization(inputs, side, protocol)
        ),
        *gates_client.clean_interval(timeline, plan),
        gates_client.request_accounting(requests),
        gates_client.request_failures(side.end_to_end, requests),
        gates_client.output_tokens_exact(requests),
        gates_client.offered_rate(timeline, side.end_to_end, limits),
        gates_client.client_lag(timeline, _sustained_lag(inputs, side, protocol), limits),
        *gates_client.recovery(_recovery_checks(inputs, side, protocol), timeline, limits),
        gates_client.drain_quarantine(timeline, pattern, inputs.result),
        gates_layer1.layer1_accounting(side.accounting),
        gates_layer1.sidecar_age(side.accounting, layer1),
        gates_layer1.profile_leak(leaked, union_steps),
        gates_layer1.graph_mode_valid(
            graph_faults(side.columns, rows),
            graph_observations(side.columns, rows, sizes),
            side.union,
        ),
        gates_layer1.prefix_sharing(side.union, pattern, limits),
    ]


def _warmup_completions(inputs: RunInputs, requests: RequestColumns | None) -> int | None:
    warmups = intervals_of(inputs.timeline, "warmup")
    if requests is None or not warmups:
        return None
    pieces = [(interval.start_mono_ns, interval.end_mono_ns) for interval in warmups]
    return end_to_end(requests, pieces, kind="warmup", index=0).completed


def _stabilization(
    inputs: RunInputs, side: Layer1Side, protocol: Protocol | None
) -> Stabilization | None:
    warmups = intervals_of(inputs.timeline, "warmup")
    if protocol is None or len(warmups) != 1:
        return None
    return stabilization(
        side.columns,
        start_mono_ns=warmups[0].start_mono_ns,
        end_mono_ns=warmups[0].end_mono_ns,
        accounting_valid=side.accounting.valid,
        gates=protocol.file.gates,
    )


def _sustained_lag(inputs: RunInputs, side: Layer1Side, protocol: Protocol | None) -> int | None:
    if protocol is None or side.requests is None:
        return None
    window_s = protocol.file.gates.client_lag_sustained_window_s
    window_ns = scaled_ns(window_s, inputs.timeline.time_scale)
    pieces = union_pieces(intervals_of(inputs.timeline, "clean"))
    return longest_sustained_lag_ns(side.requests, pieces, window_ns=window_ns)


def _recovery_checks(
    inputs: RunInputs, side: Layer1Side, protocol: Protocol | None
) -> list[tuple[Interval, Recovery]]:
    clean = intervals_of(inputs.timeline, "clean")
    if protocol is None or side.requests is None or not clean:
        return []
    limits = Limits.of(protocol.file.gates, inputs.timeline.time_scale)
    return [
        (
            interval,
            recovery_check(
                side.columns,
                side.requests,
                recovery=interval,
                clean=clean[-1],
                limits=limits,
            ),
        )
        for interval in intervals_of(inputs.timeline, "recovery")
    ]


def layer1_artefact(side: Layer1Side, run: RunIdentity, provenance: Provenance) -> Layer1Summary:
    """Return ``analysis/layer1.json``."""
    header = side.stream.header
    return Layer1Summary(
        schema=SCHEMA,
        run=run,
        engine=header.engine,
        engine_version=header.engine_version,
        engine_config=msgspec.to_builtins(header.config),
        accounting=side.accounting,
        clean_union=side.union,
        segments=list(side.segments),
        profile=list(side.profile),
        recovery=list(side.recovery),
        warmup=list(side.warmup),
        end_to_end=side.end_to_end,
        end_to_end_segments=list(side.end_to_end_segments),
        gates=list(side.gates),
        sanity=block(side.families, side.red_flags),
        provenance=provenance,
    )
