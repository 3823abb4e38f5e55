"""The raw records that cross from the engine to the writer, and what they mean.

One step makes two records: SUBMIT when the schedule is known, COMPLETE when its output came
back. The engine copies what it must and computes nothing; sums, the histogram and the split into
prefill and decode are the writer's work (:mod:`opprof.engines.recorder.assemble`).
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

SUBMIT, COMPLETE, CHECK, PROFILE, CLOSE, FAIL = range(1, 7)

SUBMIT_HEAD = struct.Struct("@IIQQdqqIIIIIIIIII")
"""kind, size, step, submit_mono_ns, kv_usage, prefix_queries, prefix_hits (-1: hidden), form,
total_tokens, cached requests, new requests, waiting, running, deferred, preemptions, resumed
requests, recomputed tokens."""

FORM_DECODE, FORM_MIXED = 0, 1
"""DECODE: every request is cached, has output, and runs one token; the payload is
``computed[cached]``. MIXED: ``computed[cached], outputs[cached], scheduled[cached],
new_computed[new], new_scheduled[new]``. All u32."""

COMPLETE_RECORD = struct.Struct("@IIQQIII12s")
"""kind, size, step, complete_mono_ns, has_graph (0/1), unpadded_tokens, padded_tokens, mode."""

CHECK_BODY = struct.Struct("@QIIII")
"""step, then the engine's own prefill requests and tokens, decode requests and tokens."""

PROFILE_BODY = struct.Struct("@QQ")
"""1 at a profiler start and 0 at a stop, CLOCK_MONOTONIC of the moment in ns."""

_PREFIX_BYTES = 8
_ITEM = array("I").itemsize


class Submitted(NamedTuple):
    """A SUBMIT record, decoded. Lists are per request: cached requests first, then new ones."""

    step: int
    submit_mono_ns: int
    kv_usage: float
    prefix_queries: int | None
    prefix_hits: int | None
    total_tokens: int
    waiting: int
    running: int
    deferred: int
    preemptions: int
    resumed_requests: int
    recomputed_tokens: int
    computed: list[int]
    """Tokens computed before this step."""
    scheduled: list[int]
    """Tokens of this step."""
    context: list[bool]
    """True for a request without an output token yet (prefill)."""


class Completed(NamedTuple):
    """A COMPLETE record, decoded; ``mode`` is None when the engine said nothing of graphs."""

    step: int
    complete_mono_ns: int
    mode: str | None
    unpadded_tokens: int
    padded_tokens: int


def decode_submitted(payload: bytes) -> Submitted:
    """Decode the payload of a SUBMIT record."""
    head = SUBMIT_HEAD.unpack(bytes(_PREFIX_BYTES) + payload[: SUBMIT_HEAD.size - _PREFIX_BYTES])
    _, _, step, submit_ns, kv_usage, queries, hits, form, total, cached, new, *counts = head
    waiting, running, deferred, preemptions, resumed, recomputed = counts
    start = SUBMIT_HEAD.size - _PREFIX_BYTES
    items = cached if form == FORM_DECODE else 3 * cached + 2 * new
    values = array("I")
    values.frombytes(payload[start : start + items * _ITEM])
    numbers = values.tolist()
    if form == FORM_DECODE:
        computed, scheduled, context = numbers, [1] * cached, [False] * cached
    else:
        outputs = numbers[cached : 2 * cached]
        at = 3 * cached
        computed = numbers[:cached] + numbers[at : at + new]
        scheduled = numbers[2 * cached : at] + numbers[at + new :]
        context = [count == 0 for count in outputs] + [True] * new
    return Submitted(
        step=step,
        submit_mono_ns=submit_ns,
        kv_usage=kv_usage,
        prefix_queries=None if queries < 0 else queries,
        prefix_hits=None if hits < 0 else hits,
        total_tokens=total,
        waiting=waiting,
        running=running,
        deferred=deferred,
        preemptions=preemptions,
        resumed_requests=resumed,
        recomputed_tokens=recomputed,
        computed=computed,
        scheduled=scheduled,
        context=context,
    )


def decode_completed(payload: bytes) -> Completed:
    """Decode the payload of a COMPLETE record."""
    _, _, step, complete_ns, has_graph, unpadded, padded, mode = COMPLETE_RECORD.unpack(
        bytes(_PREFIX_BYTES) + payload[: COMPLETE_RECORD.size - _PREFIX_BYTES]
    )
    name = mode.rstrip(b"\0").decode("utf-8", "replace") if has_graph else None
    return Completed(step, complete_ns, name, unpadded, padded)
