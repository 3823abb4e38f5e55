"""Layer-1 steps in equal bins of time, each with minimum, mean and maximum.

A line through every n-th step would hide the slow ones; a bin keeps its extremes and its count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class StepSeries(Struct, frozen=True):
    """Executed steps of one stream in order, one array each (``[steps]``)."""

    complete_mono_ns: Any
    """int64."""
    duration_ns: Any
    """int64: ``complete - max(submit, earlier completions)`` (contract, section 2)."""
    prefill_tokens: Any
    decode_tokens: Any
    running: Any
    waiting: Any


class Bins(Struct, frozen=True):
    """Bins that hold at least one step; arrays of equal length."""

    width_ns: int
    steps: int
    """Steps over all bins."""
    start_ns: list[int]
    """Left border of each bin."""
    count: list[int]
    duration_min_ns: list[int]
    duration_mean_ns: list[float]
    duration_max_ns: list[int]
    prefill_mean: list[float]
    decode_mean: list[float]
    running_mean: list[float]
    waiting_mean: list[float]
    waiting_max: list[int]


def bin_steps(columns: StepSeries, bins_max: int, steps_per_bin: int = 1) -> Bins | None:
    """Sort steps by completion into at most ``bins_max`` equal bins.

    There are at least ``steps_per_bin`` steps to a bin on average over the whole stream. The bin
    width is a whole number of nanoseconds. Returns null where there is no step.
    """
    import numpy as np

    done: Ints = np.asarray(columns.complete_mono_ns, dtype=np.int64)
    if done.size == 0:
        return None
    first, last = int(done.min()), int(done.max())
    bins = max(1, min(bins_max, int(done.size) // steps_per_bin))
    width = max(1, -(-(last - first + 1) // bins))
    index = (done - first) // width
    order = np.argsort(index, kind="stable")
    used, starts, counts = np.unique(index[order], return_index=True, return_counts=True)
    durations: Ints = np.asarray(columns.duration_ns, dtype=np.int64)[order]
    waiting: Ints = np.asarray(columns.waiting, dtype=np.int64)[order]

    def mean(values: Any) -> list[float]:
        ordered: Ints = np.asarray(values, dtype=np.int64)[order]
        means: Floats = np.add.reduceat(ordered, starts) / counts
        return [float(value) for value in means]

    return Bins(
        width_ns=width,
        steps=int(done.size),
        start_ns=[int(first + number * width) for number in used],
        count=[int(value) for value in counts],
        duration_min_ns=[int(value) for value in np.minimum.reduceat(durations, starts)],
        duration_mean_ns=mean(columns.duration_ns),
        duration_max_ns=[int(value) for value in np.maximum.reduceat(durations, starts)],
        prefill_mean=mean(columns.prefill_tokens),
        decode_mean=mean(columns.decode_tokens),
        running_mean=mean(columns.running),
        waiting_mean=mean(columns.waiting),
        waiting_max=[int(value) for value in np.maximum.reduceat(waiting, starts)],
    )
