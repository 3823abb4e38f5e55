"""``analysis/kernels.json``: representativeness, gates and sanity of the profiler windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opprof.analysis import gates_profile
from opprof.analysis.gates import NO_PROTOCOL
from opprof.analysis.inputs import RunInputs
from opprof.analysis.layer1 import Layer1Side
from opprof.analysis.notes import mapping_notes
from opprof.analysis.representativeness import judge_window, null_rate
from opprof.analysis.window_tables import WindowTables
from opprof.analysis.windows import ReadWindow
from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityFamily
from opprof.artifacts.kernels import (
    SCHEMA,
    Alternative,
    Kernels,
    Representativeness,
    Window,
    WindowFamilies,
)
from opprof.mapping import MappingTable
from opprof.protocol import Protocol
from opprof.rules.sanity import block, family
from opprof.telemetry.membership import members
from opprof.telemetry.timeline import adjacent_clean_segment, intervals_of


@dataclass(frozen=True)
class JudgedWindows:
    """The representativeness of a load point, or why it was not judged."""

    found: Representativeness | None
    reason: str | None = None


def judge_representativeness(
    inputs: RunInputs, side: Layer1Side, read: Sequence[ReadWindow], protocol: Protocol | None
) -> JudgedWindows:
    """Judge every window once, by the steps that its first joined rank recorded."""
    import numpy as np

    intervals = intervals_of(inputs.timeline, "profile")
    if protocol is None or not intervals:
        return JudgedWindows(None, NO_PROTOCOL if protocol is None else "no profiler window")
    rule, columns = protocol.file.representativeness, side.columns
    windows, null = [], None
    null_reason: str | None = "no clean segment ends before a window"
    for interval in intervals:
        clean = adjacent_clean_segment(inputs.timeline, interval)
        rows = None
        if clean is not None:
            rows = members(columns, clean.start_mono_ns, clean.end_mono_ns).rows
        joined = next(
            (item.rows for item in read if item.window == interval.index and item.rows is not None),
            [],
        )
        windows.append(
            judge_window(
                columns,
                np.asarray(joined, dtype=np.int64),
                rows,
                rule,
                window=interval.index,
                clean_segment=None if clean is None else clean.index,
            )
        )
        if null is None and rows is not None:
            null, null_reason = null_rate(
                columns,
                rows,
                rule,
                steps_per_window=protocol.file.layer2.active_iterations,
                windows=len(intervals),
                seed=protocol.file.seeds.statistics,
            )
    return JudgedWindows(Representativeness(windows, null, null_reason))


def kernels_artefact(
    run: RunIdentity,
    origin: Provenance,
    tables: WindowTables,
    deciding: MappingTable,
    others: Sequence[MappingTable],
    judged: JudgedWindows,
    gates: Sequence[Gate],
) -> Kernels:
    """Return ``analysis/kernels.json``."""
    valid, reasons = _breakdown(judged)
    windows = tables.windows
    return Kernels(
        schema=SCHEMA,
        run=run,
        mapping_version=deciding.version,
        mapping_sha256=deciding.sha256,
        windows=windows,
        alternatives={
            table.version: Alternative(
                mapping_version=table.version,
                mapping_sha256=table.sha256,
                windows=[window.alternatives[table.version] for window in windows],
            )
            for table in others
        },
        breakdown_valid=valid,
        breakdown_reasons=reasons,
        representativeness=judged.found,
        gates=list(gates),
        sanity=block(_kernel_families(windows), _kernel_flags(windows)),
        provenance=origin,
        mapping_notes=mapping_notes(windows),
    )


def _breakdown(judged: JudgedWindows) -> tuple[bool | None, list[str]]:
    """The load point's breakdown is valid when every window is representative."""
    if judged.found is None:
        return None, [judged.reason or NO_PROTOCOL]
    outcomes = [window.outcome for window in judged.found.windows]
    reasons = [
        f"window {window.window}: {window.reason}"
        for window in judged.found.windows
        if window.outcome != "pass"
    ]
    if "fail" in outcomes:
        return False, reasons
    return (None if "not_evaluable" in outcomes else True), reasons


def profile_gates(
    inputs: RunInputs,
    windows: Sequence[Window],
    judged: JudgedWindows,
    ranks: int,
    protocol: Protocol | None,
) -> list[Gate]:
    """Return every gate of the windows; ``ranks`` is the tensor-parallel size."""
    file = None if protocol is None else protocol.file
    layer2 = None if file is None else file.layer2
    limits = None if file is None else file.gates
    by_window: dict[int, list[int]] = {
        interval.index: [] for interval in intervals_of(inputs.timeline, "profile")
    }
    for trace in inputs.traces:
        by_window.setdefault(trace.window, []).append(trace.rank)
    return [
        gates_profile.profile_windows(inputs.timeline, None if file is None else file.timeline),
        *gates_profile.rank_completeness(by_window, ranks),
        *(gates_profile.window_integrity(window, layer2) for window in windows),
        *(gates_profile.join(window, layer2) for window in windows),
        *(gates_profile.classifiable(window, limits) for window in windows),
        gates_profile.mode_segment_steps(_mode_steps(windows), limits),
        *gates_profile.representativeness(
            judged.found, None if file is None else file.representativeness
        ),
    ]


def _mode_steps(windows: Sequence[Window]) -> dict[str, int]:
    """Active steps of each mode over the windows of the first rank."""
    first_rank = min((window.rank for window in windows), default=0)
    steps: dict[str, int] = {}
    for window in windows:
        for mode, time in window.by_mode.items() if window.rank == first_rank else ():
            steps[mode] = steps.get(mode, 0) + time.active_steps
    return steps


def _kernel_families(windows: Sequence[WindowFamilies]) -> list[SanityFamily]:
    names = sorted({name for window in windows for name in window.families})
    families = [
        family("kernel_ns", [w.kernel_ns for w in windows], unit="ns"),
        family("kernel_events", [w.kernel_events for w in windows], unit="events"),
        family("prologue_ns", [w.prologue_ns for w in windows], unit="ns"),
        family("outside_ns", [w.outside_ns for w in windows], unit="ns"),
        family("classified_fraction", [w.classified_fraction for w in windows], unit="ratio"),
        family(
            "annotations", [w.annotations for w in windows], unit="events", expected_constant=True
        ),
    ]
    for name in names:
        shares = [w.families[name].share if name in w.families else None for w in windows]
        families.append(family(f"share.{name}", shares, unit="ratio"))
    return families


def _kernel_flags(windows: Sequence[WindowFamilies]) -> list[str]:
    flags = []
    for window in windows:
        total_ns = sum(time.ns for time in window.families.values())
        if total_ns != window.kernel_ns:
            flags.append(
                f"family_sum: window {window.window} rank {window.rank}: families sum to "
                f"{total_ns} ns, kernels to {window.kernel_ns} ns"
            )
    return flags
