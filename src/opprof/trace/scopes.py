"""Op scopes of launches: the chain of CPU ops and annotations that enclose each of them.

One sweep a thread over ops and calls in time order. The scopes of a call are what encloses its
start on the same thread; python functions never are (contract, section 3).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import lt

from opprof.trace.columns import Ids, Spans

NO_LAYER = -1
MAX_DEPTH = 64
"""Scopes below this many others are not told apart (seen: 5)."""

_FOREVER = 1 << 63


class Chains:
    """Interned scope chains: number 0 is the empty chain, any other a parent and a name."""

    def __init__(self) -> None:
        self._ids = Ids()
        self._ids[None] = 0

    def child(self, parent: int, name: str) -> int:
        """Return the number of the chain ``parent`` followed by ``name``."""
        return self._ids[parent, name]

    def names(self) -> list[tuple[str, ...]]:
        """Return every chain, outermost first, indexed by number."""
        chains: list[tuple[str, ...]] = []
        for key in self._ids:
            chains.append(() if key is None else (*chains[key[0]], key[1]))
        return chains


class CallScopes:
    """The scope chain and the layer of every call, by the call's index."""

    def __init__(self, calls: int) -> None:
        self.chains = Chains()
        self.chain = array("I", bytes(4 * calls))
        self.layer = array("i", [NO_LAYER]) * calls


def call_scopes(
    ops: Spans,
    calls: Spans,
    *,
    layer_scope: re.Pattern[str] | None,
    step_of: Callable[[int], int],
) -> CallScopes:
    """Return the scopes of every call.

    ``layer_scope``: the outermost scope whose name it finds is the call's layer, numbered from 0
    within its step (``step_of`` an op's start) among the occurrences of the same name that enclose
    a call. None: no layers.
    """
    result = CallScopes(len(calls))
    op_keys = list(ops.keys)
    is_layer = [layer_scope is not None and bool(layer_scope.search(name)) for name, _ in op_keys]
    threads = _by_thread(ops)
    for thread, call_indices in _by_thread(calls).items():
        if thread not in threads:
            continue
        order = _in_time_order(calls, call_indices)
        sweep = _Sweep(result, calls, order, op_keys, is_layer, step_of)
        sweep.run(ops, _in_time_order(ops, threads[thread]))
    return result


class _Sweep:
    """One thread's calls, taken in time order below the stack of open ops."""

    def __init__(
        self,
        result: CallScopes,
        calls: Spans,
        order: Sequence[int],
        op_keys: list[tuple[str, object]],
        is_layer: list[bool],
        step_of: Callable[[int], int],
    ) -> None:
        self.result = result
        self.order = iter(order)
        self.starts = calls.start_ns
        self.op_keys = op_keys
        self.is_layer = is_layer
        self.step_of = step_of
        self.ordinals: dict[tuple[int, int], int] = {}
        self.stack: list[tuple[int, int, int]] = []
        """End, chain and layer of every open op, outermost first."""

    def run(self, ops: Spans, order: Sequence[int]) -> None:
        call = next(self.order, None)
        if call is None:
            return
        at = self.starts[call]
        starts, durations, keys = ops.start_ns, ops.duration_ns.values, ops.key
        for op in order:
            start = starts[op]
            while at < start:
                self._assign(call, at)
                call = next(self.order, None)
                if call is None:
                    return
                at = self.starts[call]
            end = start + durations[op]
            if at < end:
                self._open(start, end, keys[op])
        while call is not None:
            self._assign(call, self.starts[call])
            call = next(self.order, None)

    def _open(self, start: int, end: int, key: int) -> None:
        self._close_until(start)
        # An op ends with the one around it at the latest, so the innermost always ends first.
        around, chain, layer = self.stack[-1] if self.stack else (end, 0, NO_LAYER)
        if layer == NO_LAYER and self.is_layer[key]:
            place = (self.step_of(start), key)
            layer = self.ordinals.get(place, 0)
            self.ordinals[place] = layer + 1
        if len(self.stack) < MAX_DEPTH:
            chain = self.result.chains.child(chain, self.op_keys[key][0])
        self.stack.append((min(end, around), chain, layer))

    def _assign(self, call: int, at: int) -> None:
        self._close_until(at)
        if self.stack:
            _, self.result.chain[call], self.result.layer[call] = self.stack[-1]

    def _close_until(self, at: int) -> None:
        """Close what has ended, and with an op everything that was opened inside it."""
        stack = self.stack
        while stack and stack[-1][0] <= at:
            stack.pop()


def _by_thread(spans: Spans) -> dict[object, Sequence[int]]:
    """Return the events' indices by thread, in file order; a range where there is one thread."""
    thread_of = [thread for _, thread in spans.keys]
    threads = set(thread_of)
    if len(threads) <= 1:
        return {thread: range(len(spans)) for thread in threads}
    indices: dict[object, array[int]] = {thread: array("I") for thread in threads}
    for index, key in enumerate(spans.key):
        indices[thread_of[key]].append(index)
    return dict(indices)


def _in_time_order(spans: Spans, indices: Sequence[int]) -> Sequence[int]:
    """Return the indices by start, the longer of two equal starts first."""
    starts, durations = spans.start_ns, spans.duration_ns.values
    if len(indices) == len(starts) and all(map(lt, starts, islice(starts, 1, None))):
        return indices
    if _is_ordered((starts[i], -durations[i]) for i in indices):
        return indices
    return sorted(indices, key=lambda i: (starts[i], -durations[i]))


def _is_ordered(places: Iterator[tuple[int, int]]) -> bool:
    last = (-_FOREVER, 0)
    for place in places:
        if place < last:
            return False
        last = place
    return True
