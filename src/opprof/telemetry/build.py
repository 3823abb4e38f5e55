"""From decoded steps to columns, block by block: only one block of Structs is alive at a time.

The inner loops are comprehensions over named slots and iterators that run in C: a line costs little
more than its decoding. Numbers are checked for range once, over whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

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

_TABLE = (
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
    "profiled",
    "prefix_queries",
    "prefix_hits",
    "hit",
    "unpadded_tokens",
    "bucket_tokens",
)
"""Rows of the integer table, in order; null counts are ``NULL_COUNT``, an absent graph zeros."""
_TIMES = ("submit_mono_ns", "complete_mono_ns")
_COUNT_MAX = 1 << 40
"""Counts beyond it are no measurement; a million of them still sum without overflow."""
_TIME_MAX = 1 << 62
_BOUND_LOG2 = {str(1 << power): power for power in range(48)}
_MODE_CODE: dict[str | None, int] = {name: code for code, name in enumerate(MODE_NAMES)}
_NO_GRAPH = Graph(mode=None, hit=False, unpadded_tokens=0, bucket_tokens=0)


class ColumnBuilder:
    """Collects blocks of steps; :meth:`finish` returns them as one :class:`StepColumns`.

    ``first_line`` is the line of the first step in the file, for the messages. ``rows_expected``
    sizes the integer table, so that its memory is touched once; more rows only cost a copy.
    """

    def __init__(self, path: Path, first_line: int = 2, *, rows_expected: int = 0) -> None:
        self._path = path
        self._first_line = first_line
        self._rows = 0
        self._capacity = rows_expected
        self._integers: Int64 | None = None
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def add(self, steps: Sequence[Step]) -> None:
        """Append the steps of one block.

        Raises:
            SchemaError: a number fits no int64, or a histogram bound is no power of two.
        """
        try:
            self._add_numbers(steps)
            self._add_chunks([step.prefill_chunks for step in steps])
            self._add_contexts([step.context_len_hist for step in steps])
        except OverflowError:
            self._refuse_huge(steps)
        self._rows += len(steps)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(values)

    def _fault(self, row: int, reason: str) -> SchemaError:
        return SchemaError(reason, path=self._path, line=self._first_line + row)

    def _refuse_huge(self, steps: Sequence[Step]) -> None:
        """Find the step whose numbers fit no int64, with its line."""
        for row, step in enumerate(steps):
            numbers = [number or 0 for number in _whole_steps([_filled(step)])[0]]
            counts = (step.context_len_hist or {}).values()
            if max(*numbers, *step.prefill_chunks, *counts) > _TIME_MAX:
                raise self._fault(self._rows + row, f"a number is over {_TIME_MAX}")
        raise AssertionError("every number of the block fits")

    def _add_numbers(self, steps: Sequence[Step]) -> None:
        import numpy as np

        try:
            table = np.array(_whole_steps(steps), np.int64)
            modes = [_MODE_CODE[step.graph.mode] for step in steps]  # type: ignore[union-attr]
        except (AttributeError, TypeError, KeyError):
            # Some step of the block has no graph, a null counter or an unknown mode.
            table = np.array(_whole_steps([_filled(step) for step in steps]), np.int64)
            modes = [_mode_code(step.graph) for step in steps]
        # Transposed while the block is still in the cache: columns come out contiguous.
        rows = slice(self._rows, self._rows + len(steps))
        self._reserve(rows.stop)[:, rows] = table.reshape(len(steps), len(_TABLE)).T
        self._append("mode", np.array(modes, np.int8))
        self._append("kv_usage", np.array([step.kv_usage for step in steps], np.float64))

    def _reserve(self, rows: int) -> Int64:
        """Return the integer table, int64[len(_TABLE), at least ``rows``]."""
        import numpy as np

        if self._integers is None or rows > self._integers.shape[1]:
            self._capacity = max(self._capacity, rows + rows // 2)
            larger = np.empty((len(_TABLE), self._capacity), np.int64)
            if self._integers is not None:
                larger[:, : self._rows] = self._integers[:, : self._rows]
            self._integers = larger
        return self._integers

    def _add_chunks(self, lists: Sequence[list[int]]) -> None:
        import numpy as np

        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        values = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
        self._append("chunk_lengths", lengths)
        self._append("chunk_values", values)

    def _add_contexts(self, hists: Sequence[dict[str, int] | None]) -> None:
        import numpy as np

        rows = len(hists)
        present = [hist for hist in hists if hist is not None]
        lengths = np.fromiter(map(len, present), np.int32, len(present))
        total = int(lengths.sum())
        missing = np.zeros(rows, np.bool_)
        if len(present) < rows:
            missing = np.fromiter((hist is None for hist in hists), np.bool_, rows)
            all_lengths = np.zeros(rows, np.int32)
            all_lengths[~missing] = lengths
            lengths = all_lengths
        try:
            bounds = np.fromiter(
                map(_BOUND_LOG2.__getitem__, chain.from_iterable(present)), np.int8, total
            )
        except KeyError as error:
            bound = error.args[0]
            row = next(row for row, hist in enumerate(hists) if hist and bound in hist)
            reason = f"context_len_hist: {bound[:40]!r} is no power of two up to 2^47"
            raise self._fault(self._rows + row, reason) from None
        counts = np.fromiter(chain.from_iterable(map(dict.values, present)), np.int64, total)
        self._append("context_missing", missing)
        self._append("context_lengths", lengths)
        self._append("context_bounds", bounds)
        self._append("context_counts", counts)

    def finish(self) -> StepColumns:
        """Return the columns of everything added, derived columns included.

        Raises:
            SchemaError: a number is out of range; names the line.
        """
        import numpy as np

        if not self._parts:
            self.add([])
        table = self._reserve(self._rows)[:, : self._rows]
        by_name: dict[str, Any] = dict(zip(_TABLE, table, strict=True))
        for name, values in by_name.items():
            self._check_range(name, values, _TIME_MAX if name in _TIMES else _COUNT_MAX)
        executed: Bool = by_name.pop("model_executed").astype(np.bool_)
        hit: Bool = by_name.pop("hit").astype(np.bool_)
        profiled: Bool = by_name.pop("profiled").astype(np.bool_)
        mode = self._whole("mode")
        faults = graph_fault_masks(
            executed, mode, hit, by_name["unpadded_tokens"], by_name["bucket_tokens"]
        )
        complete: Int64 = by_name["complete_mono_ns"]
        begins = step_begins(by_name["submit_mono_ns"], complete)
        context_offsets = _offsets(self._whole("context_lengths"))
        return StepColumns(
            **by_name,
            model_executed=executed,
            profiled=profiled,
            kv_usage=self._whole("kv_usage"),
            mode=mode,
            hit=hit,
            chunks=self._ragged("chunk_values", _offsets(self._whole("chunk_lengths"))),
            context_bound_log2=Ragged(self._whole("context_bounds"), context_offsets),
            context_count=self._ragged("context_counts", context_offsets),
            context_missing=self._whole("context_missing"),
            begin_mono_ns=begins,
            duration_ns=complete - begins,
            latency_ns=complete - by_name["submit_mono_ns"],
            graph_valid=~np.logical_or.reduce(list(faults.values())),
        )

    def _ragged(self, name: str, offsets: Int64) -> Ragged:
        import numpy as np

        values = self._whole(name)
        if len(values) and int(values.max()) > _COUNT_MAX:
            row = int(np.searchsorted(offsets, int(values.argmax()), side="right")) - 1
            raise self._fault(row, f"{name.replace('_', ' ')} go over {_COUNT_MAX}")
        return Ragged(values, offsets)

    def _check_range(self, name: str, values: Int64, limit: int) -> None:
        if len(values) and int(values.max()) > limit:
            raise self._fault(int((values > limit).argmax()), f"{name} is over {limit}")

    def _whole(self, name: str) -> NDArray[Any]:
        """Join the blocks of one part and let go of them."""
        import numpy as np

        return np.concatenate(self._parts.pop(name))


def _whole_steps(steps: Sequence[Step]) -> list[tuple[int | None, ...]]:
    """All of ``_TABLE`` for steps that have a graph.

    Attributes are named one by one: the interpreter reads a named slot several times faster than
    ``attrgetter`` does.

    Raises:
        AttributeError: a step has no graph.
    """
    return [
        (
            step.step,
            step.submit_mono_ns,
            step.complete_mono_ns,
            step.model_executed,
            step.scheduled_requests,
            step.prefill_requests,
            step.prefill_tokens,
            step.decode_requests,
            step.decode_tokens,
            step.context_len_sum,
            step.context_len_max,
            step.waiting,
            step.running,
            step.deferred,
            step.preemptions,
            step.resumed_requests,
            step.recomputed_tokens,
            step.profiled,
            step.prefix_queries,
            step.prefix_hits,
            step.graph.hit,  # type: ignore[union-attr]
            step.graph.unpadded_tokens,  # type: ignore[union-attr]
            step.graph.bucket_tokens,  # type: ignore[union-attr]
        )
        for step in steps
    ]


def _filled(step: Step) -> Step:
    """The step with every null of ``_TABLE`` replaced by what stands for it."""
    queries, hits = step.prefix_queries, step.prefix_hits
    return replace(
        step,
        graph=step.graph or _NO_GRAPH,
        prefix_queries=NULL_COUNT if queries is None else queries,
        prefix_hits=NULL_COUNT if hits is None else hits,
    )


def _mode_code(graph: Graph | None) -> int:
    return MODE_ABSENT if graph is None else _MODE_CODE.get(graph.mode, MODE_UNKNOWN)


def _offsets(lengths: NDArray[Any]) -> Int64:
    import numpy as np

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
