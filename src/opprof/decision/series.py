"""One run's clean union as time bins: the sums that every interval is resampled from.

A step or request belongs to the bin that holds its completion; which steps belong to the union at
all is :func:`opprof.telemetry.union_members`. Sums over all bins are the artefacts' own figures.

Source: protocol, "Statistical summaries"; protocol file, ``statistics.bin_s``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opprof.artifacts.run import Timeline
from opprof.statistics.bootstrap import BlockPlan
from opprof.statistics.interference import StepTimes
from opprof.statistics.quantiles import Events
from opprof.telemetry import RequestColumns, StepColumns, intervals_of, union_members, union_pieces
from opprof.telemetry.requests import ABSENT
from opprof.telemetry.series import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opprof.protocol.model import Statistics

    Float64 = NDArray[np.float64]
    Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class CleanSeries:
    """Sums by bin, and the steps and latencies behind them."""

    bins: int
    block_bins: int
    sums: dict[str, Float64]
    """Column name to float64[bins]."""
    steps: StepTimes
    step_bins: Int64
    """Bin of each of ``steps``."""
    latencies: dict[str, Events] = field(default_factory=dict)
    """Milliseconds of the requests that completed in the union."""

    def plan(self, *, circular: bool) -> BlockPlan:
        """The bootstrap's plan for this run."""
        return BlockPlan(self.bins, self.block_bins, circular)

    def with_sums(self, more: dict[str, Float64]) -> CleanSeries:
        """The same series with further columns."""
        return replace(self, sums={**self.sums, **more})

    def binned(self, values: Float64) -> Float64:
        """Sum one value a step into bins, float64[bins]."""
        import numpy as np

        return np.bincount(self.step_bins, values, minlength=self.bins).astype(np.float64)


@dataclass(frozen=True)
class Missing:
    """Why a run has no series."""

    reason: str


def clean_series(
    timeline: Timeline,
    columns: StepColumns,
    requests: RequestColumns | None,
    capture_sizes: Sequence[int],
    rule: Statistics,
) -> CleanSeries | Missing:
    """Bin the clean union of one run."""
    pieces = union_pieces(intervals_of(timeline, "clean"))
    if len(pieces) != 1:
        return Missing(f"{len(pieces)} clean stretches, a moving block needs one")
    start, end = pieces[0]
    bin_ns = round(rule.bin_s * timeline.time_scale * NS_PER_S)
    block_bins = round(rule.block_s / rule.bin_s)
    bins = (end - start) // bin_ns
    if bins < rule.blocks_min * block_bins:
        blocks = bins / block_bins
        return Missing(f"{blocks:.1f} blocks of clean time, at least {rule.blocks_min} needed")
    grid = _Grid(start, end - start, bins)
    rows = union_members(columns, intervals_of(timeline, "clean")).rows
    step_sums = _step_sums(columns, rows[columns.counted[rows]], grid, capture_sizes)
    request_sums, latencies = _request_sums(requests, grid)
    kept = rows[columns.counted[rows] | (columns.scheduled_tokens[rows] == 0)]
    return CleanSeries(
        bins=bins,
        block_bins=block_bins,
        sums={"seconds": grid.seconds, **step_sums, **request_sums},
        steps=StepTimes(
            prefill_tokens=columns.prefill_tokens[kept],
            prefill_requests=columns.prefill_requests[kept],
            decode_tokens=columns.decode_tokens[kept],
            decode_requests=columns.decode_requests[kept],
            duration_ms=columns.duration_ns[kept] / NS_PER_MS,
        ),
        step_bins=grid.of(columns.complete_mono_ns[kept]),
        latencies=latencies,
    )


def read_series(
    root: Path, capture_sizes: Sequence[int], rule: Statistics
) -> CleanSeries | Missing:
    """Read a run directory's stream and request records again and bin them.

    Raises:
        InputError, SchemaError: a file cannot be used.
    """
    from opprof.telemetry import find_stream, read_requests, read_stream, read_timeline

    if not (root / "client" / "timeline.json").is_file():
        return Missing("only the analysis is here; intervals need the run directory")
    timeline = read_timeline(root / "client" / "timeline.json")
    path = root / "client" / "requests.jsonl"
    requests = read_requests(path) if path.is_file() else None
    columns = read_stream(find_stream(root)).columns
    return clean_series(timeline, columns, requests, capture_sizes, rule)


@dataclass(frozen=True)
class _Grid:
    """Equal bins over ``[start, start + length)``."""

    start_ns: int
    length_ns: int
    bins: int

    @property
    def seconds(self) -> Float64:
        """Length of each bin."""
        import numpy as np

        return np.full(self.bins, self.length_ns / self.bins / NS_PER_S)

    def of(self, completed_ns: Int64) -> Int64:
        """Bin of a step's completion, the union's last nanosecond included in the last bin."""
        import numpy as np

        at = (completed_ns - self.start_ns) * self.bins // self.length_ns
        return np.clip(at, 0, self.bins - 1)

    def sum(self, bins: Int64, values: NDArray[Any] | None = None) -> Float64:
        """Sum values by bin, or count without values."""
        import numpy as np

        return np.bincount(bins, values, minlength=self.bins).astype(np.float64)


def _step_sums(
    columns: StepColumns, rows: Int64, grid: _Grid, capture_sizes: Sequence[int]
) -> dict[str, Float64]:
    """Numerators and denominators of the waste ratios (``analysis.waste``) by bin."""
    import numpy as np

    bins = grid.of(columns.complete_mono_ns[rows])
    unpadded, bucket, hit = (
        columns.unpadded_tokens[rows],
        columns.bucket_tokens[rows],
        columns.hit[rows],
    )
    padded = hit & (bucket > 0)
    sizes = np.unique(np.asarray(capture_sizes, np.int64))
    position = np.searchsorted(sizes, unpadded)
    fits = position < len(sizes)
    best = np.where(fits, sizes[np.minimum(position, len(sizes) - 1)] if len(sizes) else 0, 0)
    known = np.full(len(rows), len(sizes) > 0)
    return {
        "executed_steps": grid.sum(bins),
        "sized_steps": grid.sum(bins, known),
        "miss_steps": grid.sum(bins, ~hit),
        "eligible_miss_steps": grid.sum(bins, ~hit & fits & known),
        "overflow_steps": grid.sum(bins, ~hit & ~fits & known),
        "bucket_tokens": grid.sum(bins, bucket * padded),
        "unpadded_tokens": grid.sum(bins, unpadded * padded),
        "padded_tokens": grid.sum(bins, (bucket - unpadded) * padded),
        "slack_tokens": grid.sum(bins, (best - unpadded) * fits),
        "slack_bucket_tokens": grid.sum(bins, best),
        "scheduled_tokens": grid.sum(bins, columns.scheduled_tokens[rows]),
        "step_ms": grid.sum(bins, columns.duration_ns[rows]) / NS_PER_MS,
    }


def _request_sums(
    requests: RequestColumns | None, grid: _Grid
) -> tuple[dict[str, Float64], dict[str, Events]]:
    """Completions, admissions, tokens and latencies by bin (stationary-window rule)."""
    if requests is None:
        return {}, {}

    def within(times: Int64) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = (
            (times != ABSENT) & (times >= grid.start_ns) & (times < grid.start_ns + grid.length_ns)
        )
        return inside

    done = requests.completed & within(requests.completed_mono_ns)
    sent = within(requests.admitted_mono_ns)
    bins = grid.of(requests.completed_mono_ns[done])
    inputs = requests.prompt_tokens[done]
    outputs = requests.output_tokens[done]
    sums = {
        "completed": grid.sum(bins),
        "admitted": grid.sum(grid.of(requests.admitted_mono_ns[sent])),
        "input_tokens": grid.sum(bins, inputs * (inputs != ABSENT)),
        "output_tokens": grid.sum(bins, outputs * (outputs != ABSENT)),
    }
    latencies = _latencies(requests, grid, done)
    for name, events in latencies.items():
        sums[f"{name}_sum"] = grid.sum(events.bins, events.values)
        sums[f"{name}_count"] = grid.sum(events.bins)
    return sums, latencies


def _latencies(requests: RequestColumns, grid: _Grid, done: NDArray[np.bool_]) -> dict[str, Events]:
    """TTFT, TPOT and latency from the scheduled time, as ``analysis.end_to_end`` has them."""
    import numpy as np

    scheduled, first = requests.scheduled_mono_ns, requests.first_token_mono_ns
    completed, outputs = requests.completed_mono_ns, requests.output_tokens
    known = done & (scheduled != ABSENT)
    streamed = known & (first != ABSENT)
    several = done & (first != ABSENT) & (outputs >= 2)
    spans = {
        "latency_ms": (known, completed - scheduled),
        "ttft_ms": (streamed, first - scheduled),
        "tpot_ms": (several, (completed - first) / np.maximum(outputs - 1, 1)),
    }
    return {
        name: Events(values[chosen] / NS_PER_MS, grid.of(completed[chosen]))
        for name, (chosen, values) in spans.items()
    }
