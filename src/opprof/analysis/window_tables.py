"""Read windows to families: each window under the deciding mapping table and all others.

Source: protocol, "Kernel-to-operator-family mapping", "CUDA-graph mode segmentation" and
"MoE/ragged proxy"; contract, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from opprof.analysis.families import (
    StepFamilies,
    attention_split,
    classified_fraction,
    family_times,
    layer_nanoseconds,
    mode_times,
    step_families,
    unmatched_kernels,
)
from opprof.analysis.waste import MoeStep, layer_variation
from opprof.analysis.windows import ReadWindow
from opprof.artifacts.kernels import (
    ActiveStep,
    AttentionSplit,
    DeviceTime,
    Window,
    WindowFamilies,
)
from opprof.mapping import MappingTable
from opprof.protocol import Protocol
from opprof.telemetry.columns import MODE_NAMES
from opprof.trace.model import Tally, WindowTrace, total

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns

_MOE_GEMM = "moe_gemm"
_UNBOUND_TOP = 20
"""Rows of the unmatched list where no protocol fixes them; the list decides nothing."""


@dataclass(frozen=True)
class WindowTables:
    """All windows of a run under the deciding table, with the other tables' results inside."""

    windows: list[Window]
    moe_steps: list[MoeStep]
    """MoE GEMM time by layer of the accepted windows' active steps."""


def build_windows(
    read: Sequence[ReadWindow],
    columns: StepColumns,
    deciding: MappingTable,
    others: Sequence[MappingTable],
    protocol: Protocol | None,
) -> WindowTables:
    """Split every window into families under each table."""
    kinds = [_step_kinds(item, columns) for item in read]
    mode_steps = _mode_steps(read, kinds)
    windows, moe_steps = [], []
    for item, kind in zip(read, kinds, strict=True):
        on_rank = mode_steps.get(item.rank, Counter())
        alternatives = {
            table.version: _under_table(item, kind, table, on_rank, protocol) for table in others
        }
        steps, layers = _active(item, kind, deciding, protocol)
        windows.append(
            Window(
                **msgspec.structs.asdict(_under_table(item, kind, deciding, on_rank, protocol)),
                steps=steps,
                alternatives=alternatives,
            )
        )
        moe_steps += layers if not item.reasons else []
    return WindowTables(windows, moe_steps)


@dataclass(frozen=True)
class _Kind:
    """What the joined record says of one active step."""

    row: int | None
    mode: str | None
    attention: str | None


def _step_kinds(item: ReadWindow, columns: StepColumns) -> list[_Kind]:
    count = 0 if item.trace is None else len(item.trace.steps)
    rows = item.rows
    if rows is None:
        return [_Kind(None, None, None)] * count
    return [_kind(columns, row) for row in rows]


def _kind(columns: StepColumns, row: int) -> _Kind:
    prefill, decode = int(columns.prefill_tokens[row]), int(columns.decode_tokens[row])
    attention = None
    if prefill or decode:
        attention = "mixed" if prefill and decode else ("prefill" if prefill else "decode")
    mode = MODE_NAMES[columns.mode[row]] if columns.counted[row] else None
    return _Kind(row, mode, attention)


def _mode_steps(
    read: Sequence[ReadWindow], kinds: Sequence[Sequence[_Kind]]
) -> dict[int, Counter[str]]:
    """Active steps of each mode over the load point's windows, by rank."""
    counts: dict[int, Counter[str]] = {}
    for item, steps in zip(read, kinds, strict=True):
        counter = counts.setdefault(item.rank, Counter())
        counter.update(kind.mode for kind in steps if kind.mode is not None)
    return counts


def _under_table(
    item: ReadWindow,
    kinds: Sequence[_Kind],
    table: MappingTable,
    mode_steps: Mapping[str, int],
    protocol: Protocol | None,
) -> WindowFamilies:
    """Return the window under one mapping table."""
    trace = item.trace
    if trace is None:
        return _without_trace(item, table)
    families = step_families(trace, table)
    steps = [
        StepFamilies(found, kind.mode, kind.attention)
        for found, kind in zip(families, kinds, strict=True)
    ]
    times = family_times(families)
    fraction = classified_fraction(times)
    gates = None if protocol is None else protocol.file.gates
    top = _UNBOUND_TOP if protocol is None else protocol.file.mapping.top_unmatched
    join = item.join
    return WindowFamilies(
        window=item.window,
        rank=item.rank,
        mapping_version=table.version,
        trace=item.file,
        profiler_steps=list(trace.profiler_steps),
        annotations=trace.annotations,
        kernel_events=trace.kernel.events,
        kernel_ns=trace.kernel.ns,
        prologue_events=trace.prologue.events,
        prologue_ns=trace.prologue.ns,
        classified_fraction=fraction,
        families=times,
        attention=attention_split(steps),
        by_mode=mode_times(
            steps, mode_steps, None if gates is None else gates.mode_active_steps_min
        ),
        top_unmatched=unmatched_kernels(trace, table, top),
        accepted=not item.reasons,
        reasons=list(item.reasons),
        classifiable=None if gates is None else fraction >= gates.classifiable_min,
        outside_events=trace.outside.events,
        outside_ns=trace.outside.ns,
        dropped_events=trace.dropped.events,
        join_method=None if join is None or join.steps is None else join.method,
        join_margin=None if join is None else join.margin,
        device=_device(trace),
        step_family_ns=[{name: tally.ns for name, tally in step.items()} for step in families],
    )


def _without_trace(item: ReadWindow, table: MappingTable) -> WindowFamilies:
    """A window whose trace is missing or unreadable: invalid with its reason, and no families."""
    return WindowFamilies(
        window=item.window,
        rank=item.rank,
        mapping_version=table.version,
        trace=item.file,
        profiler_steps=[],
        annotations=0,
        kernel_events=0,
        kernel_ns=0,
        prologue_events=0,
        prologue_ns=0,
        classified_fraction=0.0,
        families={},
        attention=AttentionSplit(0, 0, 0),
        by_mode={},
        top_unmatched=[],
        accepted=False,
        reasons=list(item.reasons),
    )


def _device(trace: WindowTrace) -> DeviceTime:
    def over_steps(name: str) -> Tally:
        return total(getattr(step, name) for step in trace.steps)

    launch, runtime = over_steps("launch"), over_steps("runtime")
    memcpy, memset = over_steps("memcpy"), over_steps("memset")
    return DeviceTime(
        launch_cpu_ns=launch.ns,
        launch_events=launch.events,
        cuda_runtime_ns=runtime.ns,
        cuda_runtime_events=runtime.events,
        memcpy_ns=memcpy.ns,
        memcpy_events=memcpy.events,
        memset_ns=memset.ns,
        memset_events=memset.events,
        busy_union_ns=trace.busy_ns,
        streams=trace.streams,
        kernel_union_ns=trace.kernel_busy_ns,
    )


def _active(
    item: ReadWindow, kinds: Sequence[_Kind], table: MappingTable, protocol: Protocol | None
) -> tuple[list[ActiveStep], list[MoeStep]]:
    """The window's steps, and their MoE GEMM time by layer, under the deciding table."""
    trace = item.trace
    if trace is None:
        return [], []
    steps, moe = [], []
    families = step_families(trace, table)
    for position, (step, kind) in enumerate(zip(trace.steps, kinds, strict=True)):
        layers, unscoped_ns = layer_nanoseconds(trace, table, position, _MOE_GEMM)
        moe.append(MoeStep(item.rank, kind.mode, layers, unscoped_ns))
        ddof = None if protocol is None else protocol.file.waste.moe_cv_ddof
        steps.append(
            ActiveStep(
                profiler_step=step.number,
                layer1_step=kind.row,
                mode=kind.mode,
                kernel_ns=step.kernel.ns + step.opaque.ns,
                families={name: tally.ns for name, tally in families[position].items()},
                kernel_events=step.kernel.events + step.opaque.events,
                attention_kind=kind.attention,
                moe_layer_cv=None if ddof is None else layer_variation(layers, ddof=ddof),
                moe_layers=len(layers),
            )
        )
    return steps, moe
