"""Each device record to the active step whose CPU interval holds its launch (contract, section 3).

Never by GPU time: a kernel often runs while the next step is already being launched. A kernel
without a launch is prologue when it precedes every launched kernel of its stream, and lost data
otherwise. On a stream without any launched kernel it is prologue when it begins before the first
launched kernel of any stream, or when its correlation id is smaller than every call's (ids grow
with time).

The horizon judges where a record begins, never where it ends: a record with an impossible duration
is an overrun (FIELD-CASES 8) and is counted as one, not dropped.

A graph launch with no activity under its correlation id is an opaque replay. Its device time is
what a graph-level device record says (``GRAPH_RECORD``); without one it is unknown, and never
guessed from gaps: a gap also holds idle time.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import lt

from opprof.trace.columns import NO_CORRELATION, Spans, TraceColumns
from opprof.trace.model import TraceLimits
from opprof.trace.scopes import NO_LAYER, CallScopes

OUTSIDE = -1
"""Index of no active step."""

LAUNCH = re.compile(r"(?:cuda|cu)(?:Launch(?!HostFunc)|GraphLaunch)")
GRAPH_LAUNCH = re.compile(r"(?:cuda|cu)GraphLaunch")
GRAPH_RECORD = re.compile(r"(?i)(?:cuda[ _]?)?graph[ _]?(?:trace|launch|replay|exec)?\b")
"""Whole names of device records that stand for a replay; no trace seen so far has any."""

DROPPED = -2
"""Place of a record with an impossible begin."""
_UNLAUNCHED = -3


class StepClock:
    """From a CPU time to the index of the active step that holds it."""

    def __init__(self, intervals: Sequence[tuple[int, int]]) -> None:
        """``intervals``: ``[start_ns, end_ns)`` of the active steps, by start, not overlapping."""
        self._starts = [start for start, _ in intervals]
        self._ends = [end for _, end in intervals]

    def __call__(self, at: int) -> int:
        index = bisect_right(self._starts, at) - 1
        return index if index >= 0 and at < self._ends[index] else OUTSIDE


class Sum:
    """A tally that grows."""

    __slots__ = ("events", "ns")

    def __init__(self) -> None:
        self.events = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        """Count one event of ``ns`` nanoseconds."""
        self.events += 1
        self.ns += ns


class StepSums:
    """What one active step launched."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[int, int], Sum] = {}
        self.layers: dict[tuple[int, int, int], int] = {}
        self.kernel = Sum()
        self.last_end_ns: int | None = None
        self.launch = Sum()
        self.runtime = Sum()
        self.memcpy = Sum()
        self.memset = Sum()
        self.opaque = Sum()
        self.opaque_untimed = 0


class Calls:
    """The CUDA calls by correlation id, with the step that each was made in."""

    def __init__(self, calls: Spans, clock: StepClock) -> None:
        self.start_ns = calls.start_ns
        self.step = array("h", map(clock, calls.start_ns))
        self.key = calls.key
        self.is_launch = [bool(LAUNCH.match(name)) for name, _ in calls.keys]
        self.is_graph = [bool(GRAPH_LAUNCH.match(name)) for name, _ in calls.keys]
        self.has_activity = bytearray(len(calls))
        self.ids = calls.correlation.values
        self.ambiguous: set[int] = set()
        self._index: dict[int, int] | None = None
        # Ids that grow, as CUPTI writes them, are searched in place; a table of millions is not.
        if not all(map(lt, self.ids, islice(self.ids, 1, None))):
            self._index = dict(zip(self.ids, range(len(self.ids)), strict=True))
            self._index.pop(NO_CORRELATION, None)
            self._find_ambiguous(self._index)
        self.min_id = min((number for number in self.ids if number != NO_CORRELATION), default=0)

    def find(self, correlation: int) -> int | None:
        """Return the index of the call with this id; None where there is none."""
        if self._index is not None:
            return self._index.get(correlation)
        place = bisect_left(self.ids, correlation)
        found = place < len(self.ids) and self.ids[place] == correlation != NO_CORRELATION
        return place if found else None

    def _find_ambiguous(self, index: dict[int, int]) -> None:
        """An id whose calls lie in different steps has no step."""
        for place, number in enumerate(self.ids):
            if number != NO_CORRELATION and self.step[index[number]] != self.step[place]:
                self.ambiguous.add(number)


class Attribution:
    """The sums of one trace."""

    def __init__(self, columns: TraceColumns, clock: StepClock, steps: int) -> None:
        self.steps = [StepSums() for _ in range(steps)]
        self.calls = Calls(columns.calls, clock)
        self.names: dict[str, int] = {}
        self.all_kernels = Sum()
        self.prologue = Sum()
        self.outside = Sum()
        self.unlaunched = Sum()
        self.uncorrelated = Sum()
        """Of ``unlaunched``: records without a correlation id."""
        self.dropped = Sum()
        self.copies_outside = Sum()
        self.dropped_copies = Sum()
        self.active_copies: list[tuple[Spans, array[int]]] = []
        """Copies and memsets, each with the indices of those that the active steps launched."""
        self.lost_launches = 0
        self.latest_ns = 0
        """Horizon: no record begins after it."""
        self.late_prologue = 0
        """Prologue kernels whose correlation id is no smaller than every call's."""
        self.place = array("h")
        """By kernel: index of its active step, or a negative number."""
        self.call = array("i")
        """By kernel: index of its launch, -1 where it has none."""


def attribute(
    columns: TraceColumns,
    clock: StepClock,
    steps: int,
    scopes: CallScopes,
    limits: TraceLimits,
) -> Attribution:
    """Return the sums of every active step and of what lies outside them.

    ``clock``: CPU time to index of the active step, of which there are ``steps``.
    """
    result = Attribution(columns, clock, steps)
    result.latest_ns = _cpu_span(columns)[1] + limits.horizon_ns
    _place_kernels(result, columns, limits)
    _sum_kernels(result, columns, scopes)
    for kind in ("memcpy", "memset"):
        sums = [getattr(step, kind) for step in result.steps]
        copies = getattr(columns, f"{kind}s")
        result.active_copies.append((copies, _sum_copies(result, copies, sums, limits)))
    _sum_calls(result, columns.calls)
    return result


def _place_kernels(result: Attribution, columns: TraceColumns, limits: TraceLimits) -> None:
    kernels, calls = columns.kernels, result.calls
    earliest, latest = _cpu_span(columns)[0] - limits.horizon_ns, result.latest_ns
    streams = [stream for _, stream in kernels.keys]
    first_launched: dict[object, int] = {}
    place, launches = result.place, result.call
    call_of, early_ns = calls.find, limits.early_ns
    for start, correlation, key in zip(
        kernels.start_ns, kernels.correlation.values, kernels.key, strict=True
    ):
        call = call_of(correlation)
        launches.append(-1 if call is None else call)
        if call is None:
            place.append(_UNLAUNCHED if earliest <= start <= latest else DROPPED)
        elif start < calls.start_ns[call] - early_ns or start > latest:
            calls.has_activity[call] = 1
            place.append(DROPPED)
        else:
            calls.has_activity[call] = 1
            place.append(calls.step[call])
            stream = streams[key]
            if start < first_launched.get(stream, latest + 1):
                first_launched[stream] = start
    _sum_unlaunched(result, kernels, streams, first_launched)


def _cpu_span(columns: TraceColumns) -> tuple[int, int]:
    """Return the first start and the last end of calls and step annotations; (0, 0) of none."""
    calls = columns.calls
    starts = [min(calls.start_ns)] if calls.start_ns else []
    ends = [max(map(int.__add__, calls.start_ns, calls.duration_ns.values))] if starts else []
    starts += [annotation.start_ns for annotation in columns.annotations]
    ends += [annotation.end_ns for annotation in columns.annotations]
    return (min(starts), max(ends)) if starts else (0, 0)


def _sum_unlaunched(
    result: Attribution,
    kernels: Spans,
    streams: Sequence[object],
    first_launched: dict[object, int],
) -> None:
    """Tell prologue from lost data, and count both and what was dropped."""
    durations, ids = kernels.duration_ns.values, kernels.correlation.values
    first_of_all = min(first_launched.values(), default=None)
    for index, place in enumerate(result.place):
        if place >= OUTSIDE:
            continue
        duration, correlation = durations[index], ids[index]
        if place == DROPPED:
            result.dropped.add(duration)
            continue
        first = first_launched.get(streams[kernels.key[index]])
        older = correlation < result.calls.min_id
        if first is None and not older:
            first = first_of_all
        if correlation == NO_CORRELATION:
            result.uncorrelated.add(duration)
            result.unlaunched.add(duration)
        elif older if first is None else kernels.start_ns[index] < first:
            result.prologue.add(duration)
            result.late_prologue += not older
        else:
            result.unlaunched.add(duration)


def _sum_kernels(result: Attribution, columns: TraceColumns, scopes: CallScopes) -> None:
    kernels, calls, names = columns.kernels, result.calls, result.names
    name_ids = [names.setdefault(name, len(names)) for name, _ in kernels.keys]
    is_record = [GRAPH_RECORD.fullmatch(name) is not None for name, _ in kernels.keys]
    durations = kernels.duration_ns.values
    result.all_kernels.events, result.all_kernels.ns = len(durations), sum(durations)
    for place, call, start, duration, key in zip(
        result.place, result.call, kernels.start_ns, durations, kernels.key, strict=True
    ):
        if place < 0:
            if place == OUTSIDE:
                result.outside.add(duration)
            continue
        step = result.steps[place]
        chain, layer = 0, NO_LAYER
        if not calls.is_graph[calls.key[call]]:
            chain, layer = scopes.chain[call], scopes.layer[call]
        elif is_record[key]:
            step.opaque.add(duration)
            continue
        pair = (name_ids[key], chain)
        if pair not in step.kernels:
            step.kernels[pair] = Sum()
        step.kernels[pair].add(duration)
        step.kernel.add(duration)
        if step.last_end_ns is None or start + duration > step.last_end_ns:
            step.last_end_ns = start + duration
        if layer != NO_LAYER:
            triple = (*pair, layer)
            step.layers[triple] = step.layers.get(triple, 0) + duration


def _sum_copies(
    result: Attribution, copies: Spans, sums: Sequence[Sum], limits: TraceLimits
) -> array[int]:
    """Add the copies to their steps; return the indices of those that belong to one."""
    calls, active = result.calls, array("I")
    for index, (start, duration, correlation) in enumerate(
        zip(copies.start_ns, copies.duration_ns.values, copies.correlation.values, strict=True)
    ):
        call = calls.find(correlation)
        early = call is not None and start < calls.start_ns[call] - limits.early_ns
        if early or start > result.latest_ns:
            result.dropped_copies.add(duration)
        elif call is None or calls.step[call] == OUTSIDE:
            result.copies_outside.add(duration)
        else:
            sums[calls.step[call]].add(duration)
            active.append(index)
        if call is not None:
            calls.has_activity[call] = 1
    return active


def _sum_calls(result: Attribution, spans: Spans) -> None:
    calls = result.calls
    for place, duration, key, active in zip(
        calls.step, spans.duration_ns.values, spans.key, calls.has_activity, strict=True
    ):
        if place == OUTSIDE:
            continue
        step = result.steps[place]
        step.runtime.add(duration)
        if not calls.is_launch[key]:
            continue
        step.launch.add(duration)
        if active:
            continue
        if calls.is_graph[key]:
            step.opaque.add(0)
            step.opaque_untimed += 1
        else:
            result.lost_launches += 1
