"""Layer-1 steps as columns: the one in-memory form that every later stage reads.

Step ``i`` of a stream is row ``i`` in file order; row ``i`` is line ``i + 2`` of the file.
Times are int64 nanoseconds, counts int64, ratios float64. Ragged fields are flat values with
offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]
    Int8 = NDArray[np.int8]
    Float64 = NDArray[np.float64]
    Bool = NDArray[np.bool_]

MODE_NAMES = ("FULL", "PIECEWISE", "NONE")
"""Graph modes by code; the code is the position."""
MODE_UNKNOWN = 3
"""A mode that is null or none of the three: the step is invalid."""
MODE_ABSENT = -1
"""The step carries no ``graph`` at all."""
NULL_COUNT = -1
"""Stands for null in ``prefix_queries`` and ``prefix_hits``."""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Lists of integers, one per step: ``values[offsets[i]:offsets[i + 1]]``.

    Shapes: ``values`` int64[m] (int8 for logarithms), ``offsets`` int64[steps + 1].
    """

    values: Int64 | Int8
    offsets: Int64

    def of(self, row: int) -> list[int]:
        """The list of one step."""
        found: list[int] = self.values[self.offsets[row] : self.offsets[row + 1]].tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """All steps of one stream; every array has one entry per step unless it says otherwise."""

    step: Int64
    submit_mono_ns: Int64
    complete_mono_ns: Int64
    model_executed: Bool
    scheduled_requests: Int64
    prefill_requests: Int64
    prefill_tokens: Int64
    decode_requests: Int64
    decode_tokens: Int64
    context_len_sum: Int64
    context_len_max: Int64
    waiting: Int64
    running: Int64
    deferred: Int64
    preemptions: Int64
    resumed_requests: Int64
    recomputed_tokens: Int64
    profiled: Bool
    """By the recorder's own word a profiler window was open during the step."""
    kv_usage: Float64
    prefix_queries: Int64
    """``NULL_COUNT`` for null."""
    prefix_hits: Int64
    mode: Int8
    """Position in ``MODE_NAMES``, ``MODE_UNKNOWN`` or ``MODE_ABSENT``."""
    hit: Bool
    unpadded_tokens: Int64
    bucket_tokens: Int64
    chunks: Ragged
    """Tokens of each prefill chunk."""
    context_bound_log2: Ragged
    """Base-2 logarithm of each context histogram's upper bounds."""
    context_count: Ragged
    """Counts beside ``context_bound_log2``."""
    context_missing: Bool
    """True where the step's context histogram is null."""
    begin_mono_ns: Int64
    """``max(submit, running maximum of earlier completions)``: where the step's span begins."""
    duration_ns: Int64
    """``complete - begin`` (contract, section 2); negative values are a red flag."""
    latency_ns: Int64
    """``complete - submit``, kept beside the duration; enters no efficiency."""
    graph_valid: Bool
    """Graph information present and free of contradictions (see :mod:`opprof.telemetry.graph`)."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def scheduled_tokens(self) -> Int64:
        """Prefill plus decode tokens of each step."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def counted(self) -> Bool:
        """Steps that enter summaries and efficiencies: model executed and graph mode valid."""
        return self.model_executed & self.graph_valid


def step_begins(submit_mono_ns: Int64, complete_mono_ns: Int64) -> Int64:
    """Return where each step's span begins: ``max(submit_n, max(complete_0 .. complete_{n-1}))``.

    Source: contract, section 2. With asynchronous scheduling step n is submitted while step n-1
    still runs; the device works on n only from then on. The first step has its own submit only.
    """
    import numpy as np

    begins = submit_mono_ns.copy()
    if len(begins) > 1:
        earlier = np.maximum.accumulate(complete_mono_ns[:-1])
        np.maximum(begins[1:], earlier, out=begins[1:])
    return begins
