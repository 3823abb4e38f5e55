"""The Python API: a run as typed objects and columnar tables.

::

    import opprof

    run = opprof.load("examples/h200-runs/P03-C00-saturation")
    run.kernels.windows[0].families["moe_gemm"].share  # typed artefacts
    run.steps()["duration_ns"]                         # numpy columns, one row a step
    run.kernel_table()["share"]                        # one row a window, rank, mapping and family
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opprof.analysis.results import RunAnalysis
from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.run import Timeline
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste
from opprof.protocol import Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = dict[str, NDArray[Any]]
    """Column name to values; all columns have one length."""


@dataclass(frozen=True)
class Run:
    """One analysed run directory."""

    path: Path
    timeline: Timeline
    analysis: RunAnalysis

    @property
    def layer1(self) -> Layer1Summary:
        """``analysis/layer1.json``."""
        return self.analysis.layer1

    @property
    def kernels(self) -> Kernels:
        """``analysis/kernels.json``."""
        return self.analysis.kernels

    @property
    def waste(self) -> Waste:
        """``analysis/waste.json``."""
        return self.analysis.waste

    @property
    def sanity(self) -> Sanity:
        """``analysis/sanity.json``."""
        return self.analysis.sanity

    def steps(self) -> Table:
        """Return the Layer-1 steps: one row a step, times in nanoseconds (CLOCK_MONOTONIC).

        ``mode`` holds FULL, PIECEWISE, NONE, or "" where nothing ran or the mode is unknown.
        """
        import numpy as np

        from opprof.telemetry.columns import MODE_NAMES, Ragged

        columns = self._columns
        table: Table = {}
        for field in fields(columns):
            values = getattr(columns, field.name)
            if not isinstance(values, Ragged):
                table[field.name] = values
        known = (columns.mode >= 0) & (columns.mode < len(MODE_NAMES))
        names = np.array([*MODE_NAMES, ""])
        table["mode"] = names[np.where(known, columns.mode, len(MODE_NAMES))]
        return table

    def requests(self) -> Table:
        """Return the request records: one row a request, absent times as the reader's marker."""
        from opprof.telemetry.requests import read_requests

        columns = read_requests(self.path / "client" / "requests.jsonl")
        found = {field.name: getattr(columns, field.name) for field in fields(columns)}
        return {name: values for name, values in found.items() if _is_column(values)}

    def kernel_table(self) -> Table:
        """Return family times: one row a window, rank, mapping version and family.

        Columns: ``window``, ``rank``, ``mapping``, ``family``, ``ns``, ``share``, ``events``.
        """
        rows: list[tuple[int, int, str, str, int, float, int]] = []
        for window in self.kernels.windows:
            for under in (window, *window.alternatives.values()):
                for name, time in under.families.items():
                    key = (under.window, under.rank, under.mapping_version, name)
                    rows.append((*key, time.ns, time.share, time.events))
        return _table(("window", "rank", "mapping", "family", "ns", "share", "events"), rows)

    def step_kernel_table(self) -> Table:
        """Return family times of the active steps: one row a window, rank, step and family.

        Columns: ``window``, ``rank``, ``profiler_step``, ``layer1_step`` (-1 without a join),
        ``mode``, ``family``, ``ns``.
        """
        rows: list[tuple[int, int, int, int, str, str, int]] = []
        for window in self.kernels.windows:
            for step in window.steps:
                joined = -1 if step.layer1_step is None else step.layer1_step
                key = (window.window, window.rank, step.profiler_step, joined, step.mode or "")
                rows += [(*key, name, ns) for name, ns in step.families.items()]
        names = ("window", "rank", "profiler_step", "layer1_step", "mode", "family", "ns")
        return _table(names, rows)

    @cached_property
    def _columns(self) -> Any:
        from opprof.telemetry.stream import find_stream, read_stream

        return read_stream(find_stream(self.path)).columns


def load(
    run: str | os.PathLike[str],
    *,
    protocol: str | os.PathLike[str] | Protocol | None = None,
    mapping: str | None = None,
) -> Run:
    """Analyse a run directory in memory; nothing is written.

    Args:
        run: the run directory (contract, section 1).
        protocol: a file, ``"phase3"``, ``"none"`` or a loaded protocol; None takes
            that of the campaign that the run lies in, else ``$OPPROF_PROTOCOL``, else the packaged
            ``phase3``.
        mapping: version or file of the table that decides; None takes the protocol's.

    Raises:
        InputError, SchemaError: the directory cannot be used (file, line or offset, reason).
    """
    from opprof.analysis.bound import protocol_for
    from opprof.analysis.run import analyze_run
    from opprof.telemetry.timeline import read_timeline

    path = Path(run)
    bound = protocol if isinstance(protocol, Protocol) else protocol_for(protocol, [path])
    analysis = analyze_run(path, bound, mapping=mapping)
    return Run(path, read_timeline(path / "client" / "timeline.json"), analysis)


def _is_column(values: object) -> bool:
    import numpy as np

    return isinstance(values, np.ndarray)


def _table(names: tuple[str, ...], rows: list[Any]) -> Table:
    import numpy as np

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}
