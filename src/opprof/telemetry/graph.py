"""CUDA-graph information of executed steps: which combinations contradict themselves.

Sources: protocol, "CUDA-graph mode segmentation" (an ambiguous mode invalidates the step);
contract, section 2 (``graph`` is null when nothing ran, ``bucket_tokens`` is 0 for NONE).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opprof.telemetry.columns import MODE_ABSENT, MODE_NAMES, MODE_UNKNOWN, StepColumns

if TYPE_CHECKING:
    from opprof.telemetry.columns import Bool, Int8, Int64

_NONE = MODE_NAMES.index("NONE")

GRAPH_FAULTS = (
    "graph_missing",
    "mode_unknown",
    "hit_contradicts_mode",
    "hit_without_bucket",
    "bucket_below_unpadded",
    "bucket_on_none",
    "graph_without_model",
)
"""Each fault makes its step invalid; a step may have several."""


def graph_fault_masks(
    model_executed: Bool, mode: Int8, hit: Bool, unpadded_tokens: Int64, bucket_tokens: Int64
) -> dict[str, Bool]:
    """Return one mask per fault of ``GRAPH_FAULTS``; shapes: bool[steps]."""
    present = mode != MODE_ABSENT
    known = present & (mode != MODE_UNKNOWN)
    graphed = known & (mode != _NONE)
    return {
        "graph_missing": model_executed & ~present,
        "mode_unknown": present & ~known,
        "hit_contradicts_mode": known & (hit != graphed),
        "hit_without_bucket": present & hit & (bucket_tokens == 0),
        "bucket_below_unpadded": present & hit & (bucket_tokens < unpadded_tokens),
        "bucket_on_none": (mode == _NONE) & (bucket_tokens != 0),
        "graph_without_model": ~model_executed & present,
    }


def graph_faults(columns: StepColumns, rows: Int64) -> dict[str, int]:
    """Count each fault among the given rows; every name of ``GRAPH_FAULTS`` is present."""
    masks = graph_fault_masks(
        columns.model_executed,
        columns.mode,
        columns.hit,
        columns.unpadded_tokens,
        columns.bucket_tokens,
    )
    return {name: int(masks[name][rows].sum()) for name in GRAPH_FAULTS}


def graph_observations(
    columns: StepColumns, rows: Int64, capture_sizes: Sequence[int]
) -> dict[str, int]:
    """Count what is unusual and no contradiction: it is shown, and invalidates nothing.

    ``unpadded_not_scheduled``: unpadded tokens differ from scheduled tokens (never seen on the
    real runs; a speculative or sequence-parallel engine may do it). ``bucket_not_captured``: a
    hit's bucket is not among the header's capture sizes. ``bucket_not_smallest``: a smaller
    captured one would do.
    """
    import numpy as np

    executed = columns.model_executed[rows] & (columns.mode[rows] != MODE_ABSENT)
    unpadded = columns.unpadded_tokens[rows]
    bucket = columns.bucket_tokens[rows]
    hit = executed & columns.hit[rows]
    sizes = np.unique(np.asarray(capture_sizes, dtype=np.int64))
    captured = np.isin(bucket, sizes)
    smallest = np.searchsorted(sizes, unpadded)
    best = np.append(sizes, np.iinfo(np.int64).max)[smallest]
    return {
        "unpadded_not_scheduled": int(
            (executed & (unpadded != columns.scheduled_tokens[rows])).sum()
        ),
        "bucket_not_captured": int((hit & ~captured).sum()),
        "bucket_not_smallest": int((hit & captured & (bucket > best)).sum()),
    }
