"""A trace's wanted events as compact columns: what stays in memory while and after reading.

Bytes kept an event: 14 for a CPU op or annotation, 18 for a CUDA call, a kernel or a copy, plus
each distinct name once; ``python_function``, flow and metadata events keep nothing. Attribution
adds about 12 for a call and 14 for a kernel. The memory bound is therefore 25 MB (interpreter,
pieces of text) plus some 75 bytes for a launch with its op and its kernel: 100 MB are reached at
about a million launches, where real windows have thousands.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opprof.errors import SchemaError
from opprof.trace.elements import offset_of
from opprof.trace.events import (
    CpuOp,
    DriverCall,
    GpuAnnotation,
    Kernel,
    Memcpy,
    Memset,
    RuntimeCall,
    Thread,
    UserAnnotation,
)
from opprof.trace.nanoseconds import NotATime, all_ns
from opprof.trace.scan import Chunk, EventScanner

NO_CORRELATION = -1
"""Stands for a missing ``args.correlation``."""


class Ids(dict[Any, int]):
    """Numbers its keys 0, 1, 2 … at first sight."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class Column:
    """Integers in the smaller of two widths that holds all so far."""

    __slots__ = ("_wide", "values")

    def __init__(self, narrow: str = "i", wide: str = "q") -> None:
        self.values: array[int] = array(narrow)
        self._wide = wide

    def extend(self, values: list[int]) -> None:
        """Append; values must fit in 64 bits."""
        size = len(self.values)
        try:
            self.values.extend(values)
        except OverflowError:
            self.values = array(self._wide, self.values[:size])
            self.values.extend(values)


class Spans:
    """Timed events of one kind in file order."""

    def __init__(self) -> None:
        self.start_ns = array("q")
        self.duration_ns = Column()
        self.keys_of = Column("H", "I")
        self.keys = Ids()
        """``(name, thread)`` on a CPU, ``(name, (device, stream))`` on a GPU."""
        self.correlation = Column()
        """Empty for CPU ops; ``NO_CORRELATION`` where an event has none."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def key(self) -> array[int]:
        """Number of each event's identity in ``keys``."""
        return self.keys_of.values


class Annotation(NamedTuple):
    """One step-level ``user_annotation``, ``[start_ns, end_ns)`` on the trace's clock."""

    name: str
    thread: Thread
    start_ns: int
    end_ns: int


class TraceColumns:
    """Everything that is kept of one trace."""

    def __init__(self) -> None:
        self.ops = Spans()
        """CPU ops and annotations that can be scopes."""
        self.annotations: list[Annotation] = []
        """The step-level annotations, in file order."""
        self.calls = Spans()
        """CUDA runtime and driver calls."""
        self.kernels = Spans()
        self.memcpys = Spans()
        self.memsets = Spans()
        self.gpu_annotations = 0
        self.inflated_bytes = 0
        self.gzip_members = 0
        self.searched_bytes = 0
        """``python_function`` text that was searched and not parsed (see ``scan``)."""
        self.base_wall_ns: int | None = None
        """Kineto's ``baseTimeNanoseconds``: wall clock of the trace's zero."""
        self.rank: int | None = None
        """``distributedInfo.rank``, where the trace says it."""


def read_columns(
    path: Path, *, is_step_annotation: Callable[[str], object], json_budget_bytes: int | None
) -> TraceColumns:
    """Read a gzipped Kineto trace.

    ``is_step_annotation``: true for the names of ``user_annotation`` events that speak of whole
    steps; these go to ``annotations``, all others are op scopes. ``json_budget_bytes``: see
    :mod:`opprof.trace.scan`.

    Raises:
        InputError: damaged gzip or JSON, with file and byte of the inflated text.
        SchemaError: an event that does not fit its category, or has an impossible time.
    """
    scanner = EventScanner(path, json_budget_bytes=json_budget_bytes)
    columns = TraceColumns()
    for chunk in scanner.chunks():
        _ChunkReader(path, chunk, columns).add(is_step_annotation)
    columns.inflated_bytes = scanner.text.inflated_bytes
    columns.gzip_members = scanner.text.members
    columns.searched_bytes = scanner.searched_bytes
    if scanner.document is not None:
        columns.base_wall_ns = scanner.document.base_wall_ns
        columns.rank = scanner.document.rank
    return columns


class _ChunkReader:
    """Adds one chunk's events to the columns."""

    def __init__(self, path: Path, chunk: Chunk, columns: TraceColumns) -> None:
        self.path = path
        self.chunk = chunk
        self.columns = columns

    def add(self, is_step_annotation: Callable[[str], object]) -> None:
        ops: list[Any] = []
        calls: list[Any] = []
        kernels: list[Any] = []
        memcpys: list[Any] = []
        memsets: list[Any] = []
        gpu_annotations: list[Any] = []
        put: dict[type, Callable[[Any], None]] = {
            CpuOp: ops.append,
            UserAnnotation: ops.append,
            RuntimeCall: calls.append,
            DriverCall: calls.append,
            Kernel: kernels.append,
            Memcpy: memcpys.append,
            Memset: memsets.append,
            GpuAnnotation: gpu_annotations.append,
        }
        for event in self.chunk.events:
            if (append := put.get(event.__class__)) is not None:
                append(event)
        columns = self.columns
        if ops:
            self._add_ops(ops, is_step_annotation)
        if calls:
            keys = columns.calls.keys
            self._add_spans(columns.calls, calls, [keys[e.name, e.tid] for e in calls])
            self._add_correlations(columns.calls, calls)
        for spans, events in (
            (columns.kernels, kernels),
            (columns.memcpys, memcpys),
            (columns.memsets, memsets),
        ):
            if events:
                keys = spans.keys
                streams = [keys[e.name, (e.args.device, e.args.stream)] for e in events]
                self._add_spans(spans, events, streams)
                self._add_correlations(spans, events)
        columns.gpu_annotations += len(gpu_annotations)

    def _add_ops(self, ops: list[Any], is_step_annotation: Callable[[str], object]) -> None:
        scopes, steps = [], []
        for op in ops:
            if op.__class__ is UserAnnotation and is_step_annotation(op.name):
                steps.append(op)
            else:
                scopes.append(op)
        if steps:
            starts, durations = self._times(steps)
            self.columns.annotations += [
                Annotation(op.name, op.tid, start, start + duration)
                for op, start, duration in zip(steps, starts, durations, strict=True)
            ]
        if scopes:
            keys = self.columns.ops.keys
            self._add_spans(self.columns.ops, scopes, [keys[e.name, e.tid] for e in scopes])

    def _add_spans(self, spans: Spans, events: list[Any], keys: list[int]) -> None:
        starts, durations = self._times(events)
        spans.start_ns.extend(starts)
        spans.duration_ns.extend(durations)
        spans.keys_of.extend(keys)

    def _add_correlations(self, spans: Spans, events: list[Any]) -> None:
        ids = [NO_CORRELATION if e.args.correlation is None else e.args.correlation for e in events]
        try:
            spans.correlation.extend(ids)
        except OverflowError:
            index = next(i for i, value in enumerate(ids) if abs(value) >> 63)
            raise self._error(events[index], "args.correlation is beyond 64 bits") from None

    def _times(self, events: Sequence[Any]) -> tuple[list[int], list[int]]:
        try:
            starts = all_ns([event.ts for event in events])
        except NotATime as error:
            raise self._error(events[error.index], f"ts {error.reason}") from error
        try:
            durations = all_ns([event.dur for event in events])
        except NotATime as error:
            raise self._error(events[error.index], f"dur {error.reason}") from error
        if min(durations) < 0:
            index = next(i for i, value in enumerate(durations) if value < 0)
            raise self._error(events[index], f"dur is negative ({durations[index]} ns)")
        return starts, durations

    def _error(self, event: Any, reason: str) -> SchemaError:
        index = next(i for i, other in enumerate(self.chunk.events) if other is event)
        offset = self.chunk.offset + offset_of(self.chunk.text, index)
        name = event.name if len(event.name) <= 80 else event.name[:77] + "..."
        return SchemaError(f"{name!r}: {reason}", path=self.path, offset=offset)
