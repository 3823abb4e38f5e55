"""Kernels on their streams: impossible overlaps, and the union of device-busy time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import le
from typing import NamedTuple

from opprof.trace.columns import Spans

_FLOOR_NS = 1000
"""A next kernel shorter than this counts as this long, so that a few ns never decide."""


class Overruns(NamedTuple):
    """Kernels whose duration cannot be true."""

    kernels: int
    worst_ns: int
    worst_name: str


def overruns(kernels: Spans, kept: Sequence[int], factor: float, *, latest_ns: int) -> Overruns:
    """Find kernels that run far into the next launch's kernel on their stream (FIELD-CASES 8).

    Work of one stream runs launch after launch; with programmatic dependent launch a kernel starts
    while its predecessor ends (seen: at most 2.4 µs and 0.4 of its own duration). Kernels of one
    correlation id are branches of one graph replay and may overlap freely.

    ``kept``: indices of the kernels to look at. ``factor``: see ``TraceLimits.overrun_factor``.
    ``latest_ns``: a kernel that ends after it overruns whatever follows it, be it nothing.
    """
    starts, durations = kernels.start_ns, kernels.duration_ns.values
    ids, keys = kernels.correlation.values, list(kernels.keys)
    found, worst, worst_name = 0, 0, ""
    for order in _by_stream(kernels, kept):
        for place, index in enumerate(order):
            end = starts[index] + durations[index]
            if end > latest_ns:
                found += 1
                if end - latest_ns > worst:
                    worst, worst_name = end - latest_ns, keys[kernels.key[index]][0]
                continue
            after = order[min(place + 1, len(order) - 1)]
            if end <= starts[after]:
                continue
            for following in range(place + 1, len(order)):
                after = order[following]
                if end <= starts[after] or ids[after] != ids[index]:
                    break
            over = end - starts[after]
            if ids[after] != ids[index] and over > factor * max(durations[after], _FLOOR_NS):
                found += 1
                if over > worst:
                    worst, worst_name = over, keys[kernels.key[index]][0]
    return Overruns(found, worst, worst_name)


def busy_ns(parts: Iterable[tuple[Spans, Sequence[int]]]) -> int:
    """Return the length of the union of the records' intervals, over all streams and kinds.

    ``parts``: records of one kind, each with the indices of those that count.
    """
    busy, until = 0, -(1 << 63)
    for start, end in merge(*(_intervals(spans, kept) for spans, kept in parts)):
        if end > until:
            busy += end - max(start, until)
            until = end
    return busy


def _intervals(spans: Spans, kept: Sequence[int]) -> Iterator[tuple[int, int]]:
    starts, durations = spans.start_ns, spans.duration_ns.values
    for index in _in_time_order(spans, kept):
        yield starts[index], starts[index] + durations[index]


def streams_of(kernels: Spans, kept: Iterable[int]) -> int:
    """Return how many streams the kernels ran on."""
    keys = list(kernels.keys)
    return len({keys[key][1] for key in {kernels.key[index] for index in kept}})


def _by_stream(kernels: Spans, kept: Sequence[int]) -> list[Sequence[int]]:
    stream_of = [stream for _, stream in kernels.keys]
    if len(set(stream_of)) <= 1:
        return [_in_time_order(kernels, kept)]
    indices: dict[object, array[int]] = {stream: array("I") for stream in set(stream_of)}
    for index in kept:
        indices[stream_of[kernels.key[index]]].append(index)
    return [_in_time_order(kernels, part) for part in indices.values()]


def _in_time_order(kernels: Spans, indices: Sequence[int]) -> Sequence[int]:
    starts = kernels.start_ns
    at = starts.__getitem__
    if all(map(le, map(at, indices), map(at, islice(indices, 1, None)))):
        return indices
    return sorted(indices, key=at)
