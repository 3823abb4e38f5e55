"""End-to-end figures of a run from its request records: segments, lag, bursts, concurrency.

Completions are counted where they completed, admissions where they were admitted (protocol,
stationary-window rule). Percentiles are linear between order statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from opprof.artifacts.client import SegmentResult
from opprof.artifacts.common import Series
from opprof.artifacts.run import RequestRecord
from opprof.client.journal import Failure
from opprof.rules.durations import NS_PER_S

_NS_PER_MS = 1e6


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the ``q`` quantile (0..1) of sorted values, linear between order statistics."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def series(values: Iterable[float]) -> Series:
    """Describe a distribution."""
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return Series(0, None, None, None, None, None, None, None, None)
    total = math.fsum(ordered)
    mean = total / n
    deviation = None
    if n > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (n - 1))
    return Series(
        n=n,
        mean=mean,
        sd=deviation,
        min=ordered[0],
        p50=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        max=ordered[-1],
        sum=total,
    )


def completed_in(
    records: Iterable[RequestRecord], start_ns: int, end_ns: int
) -> list[RequestRecord]:
    """Return the successful records whose answer was complete in ``[start_ns, end_ns)``."""
    return [
        record
        for record in records
        if record.error is None
        and record.completed_mono_ns is not None
        and start_ns <= record.completed_mono_ns < end_ns
    ]


def admitted_in(
    records: Iterable[RequestRecord], start_ns: int, end_ns: int
) -> list[RequestRecord]:
    """Return the records admitted in ``[start_ns, end_ns)``, whatever became of them."""
    return [
        record
        for record in records
        if record.admitted_mono_ns is not None and start_ns <= record.admitted_mono_ns < end_ns
    ]


def outstanding_mean(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> float | None:
    """Return the time average over ``[start_ns, end_ns)`` of the answered requests in flight."""
    if end_ns <= start_ns:
        return None
    busy_ns = 0
    for record in records:
        if record.admitted_mono_ns is not None and record.completed_mono_ns is not None:
            first_ns = max(record.admitted_mono_ns, start_ns)
            busy_ns += max(0, min(record.completed_mono_ns, end_ns) - first_ns)
    return busy_ns / (end_ns - start_ns)


def segment_result(
    name: str,
    start_ns: int,
    end_ns: int,
    records: Sequence[RequestRecord],
    failures: Sequence[Failure],
) -> SegmentResult:
    """Return the figures of one segment ``[start_ns, end_ns)``."""
    done = completed_in(records, start_ns, end_ns)
    admitted = admitted_in(records, start_ns, end_ns)
    seconds = (end_ns - start_ns) / NS_PER_S
    inputs = sum(record.prompt_tokens or 0 for record in done)
    outputs = sum(record.output_tokens or 0 for record in done)
    return SegmentResult(
        schema=1,
        segment=name,
        start_mono_ns=start_ns,
        end_mono_ns=end_ns,
        seconds=seconds,
        admitted=len(admitted),
        completed=len(done),
        failed=sum(start_ns <= failure.ended_ns < end_ns for failure in failures),
        offered_rps=_per(len(admitted), seconds),
        completed_rps=_per(len(done), seconds),
        input_tokens=inputs,
        output_tokens=outputs,
        input_tokens_per_s=_per(inputs, seconds),
        output_tokens_per_s=_per(outputs, seconds),
        total_tokens_per_s=_per(inputs + outputs, seconds),
        outstanding_mean=outstanding_mean(records, start_ns, end_ns),
        ttft_ms=series(_differences(done, "first_token_mono_ns", "admitted_mono_ns")),
        ttft_from_schedule_ms=series(
            _differences(done, "first_token_mono_ns", "scheduled_mono_ns")
        ),
        tpot_ms=series(_tpot(done)),
        e2e_ms=series(_differences(done, "completed_mono_ns", "admitted_mono_ns")),
        e2e_from_schedule_ms=series(_differences(done, "completed_mono_ns", "scheduled_mono_ns")),
        lag_ms=series(_differences(admitted, "admitted_mono_ns", "scheduled_mono_ns")),
    )


def burst_spreads_ms(records: Iterable[RequestRecord], burst: int) -> list[float]:
    """Return, for every whole burst, the time from its first to its last admission."""
    sent = sorted(
        (record.scheduled_mono_ns, record.admitted_mono_ns)
        for record in records
        if record.admitted_mono_ns is not None
    )
    spreads = []
    for _, group in groupby(sent, key=lambda pair: pair[0]):
        times = [admitted for _, admitted in group]
        if len(times) == burst:
            spreads.append((max(times) - min(times)) / _NS_PER_MS)
    return spreads


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _differences(records: Iterable[RequestRecord], end: str, start: str) -> list[float]:
    values = []
    for record in records:
        end_ns, start_ns = getattr(record, end), getattr(record, start)
        if end_ns is not None and start_ns is not None:
            values.append((end_ns - start_ns) / _NS_PER_MS)
    return values


def _tpot(records: Iterable[RequestRecord]) -> list[float]:
    return [
        (record.completed_mono_ns - record.first_token_mono_ns)
        / (record.output_tokens - 1)
        / _NS_PER_MS
        for record in records
        if record.completed_mono_ns is not None
        and record.first_token_mono_ns is not None
        and record.output_tokens is not None
        and record.output_tokens > 1
    ]
