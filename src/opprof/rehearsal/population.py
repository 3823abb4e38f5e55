"""One cell's long rehearsed run with many windows: what the fast path draws from.

The run goes the whole ordinary way (client, engine, stream), with as many profile windows as are
asked for instead of the protocol's two, so windows carry everything a real window does: slowed
launches, the stall of the window before, the recovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opprof.artifacts.sanity import Sanity
from opprof.decision.series import CleanSeries, Missing, clean_series
from opprof.engines.sim.cost import StepShape
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.graphs import Dispatch
from opprof.protocol import Protocol
from opprof.telemetry import (
    find_stream,
    intervals_of,
    read_requests,
    read_stream,
    read_timeline,
)
from opprof.telemetry.membership import members

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opprof.telemetry import StepColumns

    Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    """A cell's steps, windows and clean series."""

    name: str
    columns: StepColumns
    shapes: dict[int, tuple[Dispatch, StepShape]]
    """By Layer-1 step, of the windows' active steps."""
    windows: list[list[int]]
    """Layer-1 steps of each window's active iterations."""
    recovery_failed: list[bool]
    """By window: the client's recovery gate failed."""
    clean_rows: Int64
    """Member rows of the last clean segment."""
    series: CleanSeries | Missing
    effects: Effects


class ShapeKeeper:
    """Collects shapes while a run goes."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[Dispatch, StepShape]] = {}

    def __call__(self, step: int, dispatch: Dispatch, shape: StepShape) -> None:
        """Keep one step."""
        self.shapes[step] = (dispatch, shape)


def read_population(
    folder: Path, keeper: ShapeKeeper, protocol: Protocol, sizes: Sequence[int], effects: Effects
) -> Population:
    """Read a population run's directory.

    Raises:
        InputError, SchemaError: a file cannot be used.
    """
    timeline = read_timeline(folder / "client" / "timeline.json")
    columns = read_stream(find_stream(folder)).columns
    requests = read_requests(folder / "client" / "requests.jsonl")
    layer2 = protocol.file.layer2
    windows = []
    for interval in intervals_of(timeline, "profile"):
        start = interval.start_call_mono_ns
        assert start is not None
        submits = columns.submit_mono_ns
        # The start call is step 0, the first submission after it step 1.
        first = int(submits.searchsorted(start[1])) + layer2.warmup_iterations - 1
        rows = range(first, first + layer2.active_iterations)
        steps = [int(columns.step[row]) for row in rows if row < len(submits)]
        if len(steps) == layer2.active_iterations and all(s in keeper.shapes for s in steps):
            windows.append((interval.index, steps))
    clean = intervals_of(timeline, "clean")[-1]
    failed = _recoveries(folder)
    kept = {step for _, steps in windows for step in steps}
    return Population(
        name=timeline.run_name,
        columns=columns,
        shapes={step: shape for step, shape in keeper.shapes.items() if step in kept},
        windows=[steps for _, steps in windows],
        recovery_failed=[failed.get(index, True) for index, _ in windows],
        clean_rows=members(columns, clean.start_mono_ns, clean.end_mono_ns).rows,
        series=clean_series(timeline, columns, requests, sizes, protocol.file.statistics),
        effects=effects,
    )


def _recoveries(folder: Path) -> dict[int, bool]:
    """Return window to whether its recovery gate failed, as the client judged it."""
    data = (folder / "client" / "sanity.json").read_bytes()
    sanity = msgspec.json.decode(data, type=Sanity)
    return {
        int(gate.scope.removeprefix("window")): gate.outcome == "fail"
        for gate in sanity.gates
        if gate.name == "recovery"
    }
