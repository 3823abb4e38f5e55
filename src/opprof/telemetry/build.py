"""From decoded steps to columns, block by block: only one block of Structs is alive at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opprof.artifacts.layer1 import Graph, Step
from opprof.errors import SchemaError
from opprof.telemetry.columns import (
    MODE_ABSENT,
    MODE_NAMES,
    MODE_UNKNOWN,
    NULL_COUNT,
    Ragged,
    StepColumns,
    step_begins,
)
from opprof.telemetry.graph import graph_fault_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opprof.telemetry.columns import Bool, Int64

_INTEGERS = (
    "step",
    "submit_mono_ns",
    "complete_mono_ns",
    "model_executed",
    "scheduled_requests",
    "prefill_requests",
    "prefill_tokens",
    "decode_requests",
    "decode_tokens",
    "context_len_sum",
    "context_len_max",
    "waiting",
    "running",
    "deferred",
    "preemptions",
    "resumed_requests",
    "recomputed_tokens",
)
_TIMES = ("submit_mono_ns", "complete_mono_ns")
_COUNT_MAX = 1 << 40
"""Counts beyond it are no measurement; a million of them still sum without overflow."""
_TIME_MAX = 1 << 62
_integers: Callable[[Step], tuple[int, ...]] = attrgetter(*_INTEGERS)
_graph_numbers: Callable[[Graph], tuple[int, int, int]] = attrgetter(
    "hit", "unpadded_tokens", "bucket_tokens"
)
_MODE_CODE: dict[str | None, int] = {name: code for code, name in enumerate(MODE_NAMES)}
_BOUND_LOG2 = {str(1 << power): power for power in range(48)}


class ColumnBuilder:
    """Collects blocks of steps; :meth:`finish` returns them as one :class:`StepColumns`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = 0
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, steps: Sequence[Step], first_line: int) -> None:
        """Append the steps of one block; ``first_line`` is the line of ``steps[0]``.

        Raises:
            SchemaError: a number is out of range or a histogram bound is no power of two.
        """
        if not steps:
            return
        try:
            self._add_numbers(steps)
            self._add_graphs([step.graph for step in steps])
            self._add_chunks([step.prefill_chunks for step in steps])
            self._add_contexts([step.context_len_hist for step in steps])
        except _RowError as error:
            raise SchemaError(error.reason, path=self._path, line=first_line + error.row) from error
        self._rows += len(steps)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(values)

    def _add_numbers(self, steps: Sequence[Step]) -> None:
        import numpy as np

        rows = len(steps)
        flat = chain.from_iterable(map(_integers, steps))
        try:
            table = np.fromiter(flat, np.int64, rows * len(_INTEGERS))
        except OverflowError:
            raise _first_out_of_range(steps) from None
        table = table.reshape(rows, len(_INTEGERS))
        if (table.max(axis=0) > _limits()).any():
            raise _first_out_of_range(steps)
        self._append("integers", table)
        self._append("kv_usage", np.fromiter((step.kv_usage for step in steps), np.float64, rows))
        for name in ("prefix_queries", "prefix_hits"):
            values: list[int | None] = list(map(attrgetter(name), steps))
            self._append(name, _nullable(values, name))

    def _add_graphs(self, graphs: Sequence[Graph | None]) -> None:
        import numpy as np

        rows = len(graphs)
        present = [graph for graph in graphs if graph is not None]
        modes = np.fromiter(
            (_MODE_CODE.get(graph.mode, MODE_UNKNOWN) for graph in present), np.int8, len(present)
        )
        numbers = _int64(chain.from_iterable(map(_graph_numbers, present)), 3 * len(present))
        if numbers is None or (len(numbers) and int(numbers.max()) > _COUNT_MAX):
            raise _RowError(
                next(
                    row
                    for row, graph in enumerate(graphs)
                    if graph is not None
                    and max(graph.unpadded_tokens, graph.bucket_tokens) > _COUNT_MAX
                ),
                f"graph tokens are over {_COUNT_MAX}",
            )
        table = numbers.reshape(len(present), 3)
        if len(present) < rows:
            where = np.fromiter((graph is not None for graph in graphs), np.bool_, rows)
            all_modes = np.full(rows, MODE_ABSENT, np.int8)
            all_modes[where] = modes
            whole = np.zeros((rows, 3), np.int64)
            whole[where] = table
            modes, table = all_modes, whole
        self._append("mode", modes)
        self._append("graph", table)

    def _add_chunks(self, lists: Sequence[list[int]]) -> None:
        import numpy as np

        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        values = _int64(chain.from_iterable(lists), int(lengths.sum()))
        if values is None or (len(values) and int(values.max()) > _COUNT_MAX):
            raise _RowError(
                next(row for row, found in enumerate(lists) if found and max(found) > _COUNT_MAX),
                f"a prefill chunk is over {_COUNT_MAX} tokens",
            )
        self._append("chunk_lengths", lengths)
        self._append("chunk_values", values)

    def _add_contexts(self, hists: Sequence[dict[str, int] | None]) -> None:
        import numpy as np

        rows = len(hists)
        missing = np.fromiter((hist is None for hist in hists), np.bool_, rows)
        present = [hist for hist in hists if hist is not None]
        lengths = np.zeros(rows, np.int64)
        lengths[~missing] = np.fromiter(map(len, present), np.int64, len(present))
        total = int(lengths.sum())
        try:
            bounds = np.fromiter(
                (_BOUND_LOG2[key] for hist in present for key in hist), np.int64, total
            )
        except KeyError as error:
            row = next(row for row, hist in enumerate(hists) if hist and error.args[0] in hist)
            reason = f"context_len_hist: {error.args[0][:40]!r} is no power of two up to 2^47"
            raise _RowError(row, reason) from None
        counts = _int64((count for hist in present for count in hist.values()), total)
        if counts is None or (total and int(counts.max()) > _COUNT_MAX):
            raise _RowError(
                next(
                    row
                    for row, hist in enumerate(hists)
                    if hist and max(hist.values()) > _COUNT_MAX
                ),
                f"context_len_hist: a count is over {_COUNT_MAX}",
            )
        self._append("context_missing", missing)
        self._append("context_lengths", lengths)
        self._append("context_bounds", bounds)
        self._append("context_counts", counts)

    def finish(self) -> StepColumns:
        """Return the columns of everything added, derived columns included."""
        import numpy as np

        if not self._rows:
            self._add_numbers_of_nothing()
        # Transposed once, so that each column is contiguous.
        integers = np.ascontiguousarray(self._whole("integers").T)
        by_name: dict[str, Any] = dict(zip(_INTEGERS, integers, strict=True))
        executed: Bool = by_name.pop("model_executed").astype(np.bool_)
        graph = np.ascontiguousarray(self._whole("graph").T)
        hit: Bool = graph[0].astype(np.bool_)
        mode = self._whole("mode")
        faults = graph_fault_masks(executed, mode, hit, graph[1], graph[2])
        submit: Int64 = by_name["submit_mono_ns"]
        complete: Int64 = by_name["complete_mono_ns"]
        begins = step_begins(submit, complete)
        context_offsets = _offsets(self._whole("context_lengths"))
        return StepColumns(
            **by_name,
            model_executed=executed,
            kv_usage=self._whole("kv_usage"),
            prefix_queries=self._whole("prefix_queries"),
            prefix_hits=self._whole("prefix_hits"),
            mode=mode,
            hit=hit,
            unpadded_tokens=graph[1],
            bucket_tokens=graph[2],
            chunks=Ragged(self._whole("chunk_values"), _offsets(self._whole("chunk_lengths"))),
            context_bound_log2=Ragged(self._whole("context_bounds"), context_offsets),
            context_count=Ragged(self._whole("context_counts"), context_offsets),
            context_missing=self._whole("context_missing"),
            begin_mono_ns=begins,
            duration_ns=complete - begins,
            latency_ns=complete - submit,
            graph_valid=~np.logical_or.reduce(list(faults.values())),
        )

    def _add_numbers_of_nothing(self) -> None:
        """Give every part one empty block, so that an empty stream has columns too."""
        import numpy as np

        self._append("integers", np.zeros((0, len(_INTEGERS)), np.int64))
        self._append("kv_usage", np.zeros(0, np.float64))
        self._append("prefix_queries", np.zeros(0, np.int64))
        self._append("prefix_hits", np.zeros(0, np.int64))
        self._add_graphs([])
        self._add_chunks([])
        self._add_contexts([])

    def _whole(self, name: str) -> NDArray[Any]:
        """Join the blocks of one part and let go of them."""
        import numpy as np

        return np.concatenate(self._parts.pop(name))


class _RowError(Exception):
    """A fault in one row of a block; becomes a SchemaError with the line."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(row, reason)


def _limits() -> Int64:
    import numpy as np

    return np.array([_TIME_MAX if name in _TIMES else _COUNT_MAX for name in _INTEGERS], np.int64)


def _first_out_of_range(steps: Sequence[Step]) -> _RowError:
    for row, step in enumerate(steps):
        for name, value in zip(_INTEGERS, _integers(step), strict=True):
            limit = _TIME_MAX if name in _TIMES else _COUNT_MAX
            if value > limit:
                return _RowError(row, f"{name} is over {limit}")
    raise AssertionError("no number of the block is out of range")


def _int64(values: Iterable[int], count: int) -> Int64 | None:
    """Return the values as int64[count]; null when one of them does not fit."""
    import numpy as np

    try:
        return np.fromiter(values, np.int64, count)
    except OverflowError:
        return None


def _nullable(values: list[int | None], name: str) -> Int64:
    filled = values if None not in values else [NULL_COUNT if v is None else v for v in values]
    found = _int64(filled, len(filled))  # type: ignore[arg-type]
    if found is None or (len(found) and int(found.max()) > _COUNT_MAX):
        row = next(row for row, value in enumerate(values) if (value or 0) > _COUNT_MAX)
        raise _RowError(row, f"{name} is over {_COUNT_MAX}")
    return found


def _offsets(lengths: Int64) -> Int64:
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
