"""``client/segments.jsonl``: one line a clean segment (protocol, "End-to-end and composition
metrics").

Format history
    schema 1    first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Series

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(ge=0)]


class SegmentResult(Struct, frozen=True, forbid_unknown_fields=True):
    """End-to-end figures of one clean segment, or of the clean union.

    A request belongs to the segment in which its answer was complete, wherever it was admitted;
    admissions are counted by their own time (protocol, stationary-window rule).
    """

    schema: Literal[1]
    segment: str
    """``A``, ``B``, ``C`` …, or ``clean`` for the union."""
    start_mono_ns: Count
    end_mono_ns: Count
    seconds: Rate
    admitted: Count
    completed: Count
    failed: Count
    """Requests that failed inside the segment."""
    offered_rps: Rate | None
    completed_rps: Rate | None
    input_tokens: Count
    output_tokens: Count
    input_tokens_per_s: Rate | None
    output_tokens_per_s: Rate | None
    total_tokens_per_s: Rate | None
    outstanding_mean: Rate | None
    """Requests in flight, averaged over time."""
    ttft_ms: Series
    """First token minus admission."""
    ttft_from_schedule_ms: Series
    """First token minus scheduled time: holds the client's own queue."""
    tpot_ms: Series
    """(Completion - first token) / (output tokens - 1), of requests with two or more."""
    e2e_ms: Series
    """Completion minus admission."""
    e2e_from_schedule_ms: Series
    lag_ms: Series
    """Admission minus scheduled time, of requests admitted in the segment."""
