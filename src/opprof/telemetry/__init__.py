"""Layer 1 and the client's records as checked columns."""

from opprof.telemetry.accounting import account
from opprof.telemetry.columns import StepColumns
from opprof.telemetry.composition import compose
from opprof.telemetry.membership import Members, leaked_rows, members, union_members
from opprof.telemetry.requests import RequestColumns, read_requests
from opprof.telemetry.stream import Stream, find_stream, read_sidecar, read_stream
from opprof.telemetry.timeline import (
    adjacent_clean_segment,
    check_intervals,
    intervals_of,
    read_timeline,
    union_pieces,
)

__all__ = [
    "Members",
    "RequestColumns",
    "StepColumns",
    "Stream",
    "account",
    "adjacent_clean_segment",
    "check_intervals",
    "compose",
    "find_stream",
    "intervals_of",
    "leaked_rows",
    "members",
    "read_requests",
    "read_sidecar",
    "read_stream",
    "read_timeline",
    "union_members",
    "union_pieces",
]
