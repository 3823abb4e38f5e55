"""The trace side of one run: read every rank's window and join it to the step stream.

Source: protocol, "Layer 2: sampled Kineto windows"; contract, section 3.
A trace that cannot be read makes its window invalid with file and place; the other windows stand.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from opprof.analysis.inputs import RunInputs, TraceFile
from opprof.artifacts.run import Interval
from opprof.errors import InputError
from opprof.protocol import Protocol
from opprof.telemetry.stream import read_sidecar
from opprof.telemetry.timeline import intervals_of
from opprof.trace.join import Join, join_window
from opprof.trace.model import TraceLimits, WindowTrace
from opprof.trace.window import read_window

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns

_CONTRACT_STEPS = tuple(range(2, 10))
"""Contract, section 3: the active steps of every trace, protocol or none."""


@dataclass(frozen=True)
class ReadWindow:
    """One expected trace: what was read of it, and how its steps joined."""

    window: int
    rank: int
    file: str
    """Path inside the run directory."""
    trace: WindowTrace | None
    """None where the file is missing or unreadable."""
    join: Join | None
    reasons: tuple[str, ...]
    """Why the window must not be believed; empty for an accepted one."""
    unusable: bool = False
    """The file is missing or could not be read: unusable input (exit code 2)."""

    @property
    def rows(self) -> list[int] | None:
        """Layer-1 steps of the active steps; None where the join is invalid."""
        return None if self.join is None or self.join.steps is None else list(self.join.steps)


def read_windows(
    inputs: RunInputs, columns: StepColumns, ranks: int, protocol: Protocol | None
) -> list[ReadWindow]:
    """Read and join every window of the timeline on every rank, and any other trace that is there.

    ``ranks``: tensor-parallel size; each rank of each window is expected to have one trace.
    """
    profiles = {interval.index: interval for interval in intervals_of(inputs.timeline, "profile")}
    files = {(trace.window, trace.rank): trace for trace in inputs.traces}
    expected = {(window, rank) for window in profiles for rank in range(ranks)}
    found = []
    for window, rank in sorted(expected | set(files)):
        interval = profiles.get(window)
        file = files.get((window, rank))
        if file is None:
            found.append(_missing(window, rank))
        else:
            found.append(_read(inputs, file, interval, columns, protocol))
    return _ranks_agree(found)


def _missing(window: int, rank: int) -> ReadWindow:
    name = f"traces/window{window}-rank{rank}.pt.trace.json.gz"
    reason = f"trace_missing: {name}: no trace was written for this window"
    return ReadWindow(window, rank, name, None, None, (reason,), unusable=True)


def _read(
    inputs: RunInputs,
    file: TraceFile,
    interval: Interval | None,
    columns: StepColumns,
    protocol: Protocol | None,
) -> ReadWindow:
    name = file.path.relative_to(inputs.root).as_posix()
    reasons = _endpoint_reasons(interval)
    try:
        trace = read_window(
            file.path,
            expected_steps=_active_steps(protocol),
            limits=_limits(protocol),
            layer_scope=_layer_scope(protocol),
        )
    except InputError as error:
        reasons.append(f"trace_unreadable: {error}")
        return ReadWindow(file.window, file.rank, name, None, None, tuple(reasons), unusable=True)
    reasons += [str(reason) for reason in trace.reasons]
    if trace.rank is not None and trace.rank != file.rank:
        reasons.append(f"rank_mismatch: the trace says rank {trace.rank}, its name {file.rank}")
    join = None
    if interval is not None and len(trace.steps) == len(_active_steps(protocol)):
        join = join_window(
            trace,
            _interval_steps(columns, interval),
            start_mono_ns=interval.start_mono_ns,
            end_mono_ns=interval.end_mono_ns,
            margin_min=_margin(protocol),
            clock_offset_ns=_clock_offset_ns(inputs),
        )
        reasons += [str(reason) for reason in join.reasons]
    elif interval is not None:
        reasons.append(f"join_impossible: {len(trace.steps)} active steps cannot be joined")
    return ReadWindow(file.window, file.rank, name, trace, join, tuple(reasons))


def _clock_offset_ns(inputs: RunInputs) -> int | None:
    """Wall clock minus CLOCK_MONOTONIC as the sidecar ties them; None where it does not."""
    sidecar = read_sidecar(inputs.stream).sidecar
    if sidecar is None or sidecar.mono_time_ns is None:
        return None
    return sidecar.wall_time_ns - sidecar.mono_time_ns


class StepRecord(NamedTuple):
    """What the join reads of a Layer-1 step (see ``opprof.trace.join.JoinStep``)."""

    step: int
    submit_mono_ns: int
    complete_mono_ns: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int


def _interval_steps(columns: StepColumns, interval: Interval) -> list[StepRecord]:
    """Return the steps submitted inside the interval, in order."""
    import numpy as np

    submits = columns.submit_mono_ns
    inside = (submits >= interval.start_mono_ns) & (submits < interval.end_mono_ns)
    rows = np.flatnonzero(inside)
    fields = [getattr(columns, name)[rows].tolist() for name in StepRecord._fields]
    return [StepRecord(*values) for values in zip(*fields, strict=True)]


def _endpoint_reasons(interval: Interval | None) -> list[str]:
    if interval is None:
        return ["window_not_in_timeline: the timeline has no profile interval of this index"]
    status = interval.http_status
    if status is None:
        return ["endpoint_status: the timeline does not record the endpoints' HTTP status"]
    if status != (200, 200):
        text = f"start_profile answered {status[0]}, stop_profile {status[1]}; both must be 200"
        return [f"endpoint_status: {text}"]
    return []


def _ranks_agree(windows: list[ReadWindow]) -> list[ReadWindow]:
    """Every rank of a window runs the same engine steps; a rank that joined others is wrong."""
    checked = []
    for item in windows:
        others = {
            tuple(other.rows)
            for other in windows
            if other.window == item.window and other.rows is not None
        }
        if item.rows is not None and len(others) > 1:
            reason = "join_ranks_disagree: the ranks of this window joined different steps"
            item = replace(item, reasons=(*item.reasons, reason))
        checked.append(item)
    return checked


def _active_steps(protocol: Protocol | None) -> tuple[int, ...]:
    return _CONTRACT_STEPS if protocol is None else protocol.file.layer2.active_steps


def _limits(protocol: Protocol | None) -> TraceLimits:
    if protocol is None:
        # Nothing is judged impossible without a protocol.
        return TraceLimits(
            early_ns=sys.maxsize, horizon_ns=sys.maxsize, overrun_factor=float("inf")
        )
    layer2 = protocol.file.layer2
    return TraceLimits(
        early_ns=round(layer2.kernel_early_max_ms * 1e6),
        horizon_ns=round(layer2.kernel_horizon_s * 1e9),
        overrun_factor=layer2.kernel_overrun_factor_max,
    )


def _layer_scope(protocol: Protocol | None) -> re.Pattern[str] | None:
    return None if protocol is None else re.compile(protocol.file.layer2.moe_layer_scope)


def _margin(protocol: Protocol | None) -> float:
    # Without a protocol any best run is taken; its margin is shown.
    return 1.0 if protocol is None else protocol.file.layer2.join_margin_min
