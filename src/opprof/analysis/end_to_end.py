"""Client-side metrics of a clean segment or the clean union, by the stationary-window rule.

Completions inside the interval count whenever they were admitted, and latency summarises those same
completions; admissions count by admission time, the schedule by scheduled time.

Source: protocol, "Warm-up, clean measurement, and profiler placement" and "End-to-end and
composition metrics"; FIELD-CASES 13 and 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opprof.artifacts.composition import EndToEnd, LatencySummary
from opprof.rules.lag import sustained_lag_ns
from opprof.telemetry.requests import ABSENT, RequestColumns
from opprof.telemetry.series import NS_PER_MS, NS_PER_S, series

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opprof.telemetry.columns import Bool, Int64

Piece = tuple[int, int]
"""``(start_mono_ns, end_mono_ns)``, half open."""


def end_to_end(
    requests: RequestColumns, pieces: Sequence[Piece], *, kind: str, index: int
) -> EndToEnd:
    """Summarise the requests of one interval, or of the pieces of a union.

    Times are nanoseconds of CLOCK_MONOTONIC. A failed request counts where it ended; where the
    client did not know, at the last moment it was seen. Rates are per second of the pieces; they
    are 0.0 over no time at all.
    """
    seconds = sum(end - start for start, end in pieces) / NS_PER_S
    completed = requests.completed & within(requests.completed_mono_ns, pieces)
    failed = requests.failed & within(requests.last_known_mono_ns, pieces)
    admitted = within(requests.admitted_mono_ns, pieces)
    scheduled = within(requests.scheduled_mono_ns, pieces)
    input_tokens = _sum_known(requests.prompt_tokens[completed])
    output_tokens = _sum_known(requests.output_tokens[completed])
    lag = (requests.admitted_mono_ns - requests.scheduled_mono_ns)[admitted]
    return EndToEnd(
        kind=kind,
        index=index,
        seconds=seconds,
        completed=int(completed.sum()),
        failed=int(failed.sum()),
        admitted=int(admitted.sum()),
        scheduled=int(scheduled.sum()),
        completed_rps=_rate(int(completed.sum()), seconds),
        admitted_rps=_rate(int(admitted.sum()), seconds),
        scheduled_rps=_rate(int(scheduled.sum()), seconds),
        input_tokens_per_s=_rate(input_tokens, seconds),
        output_tokens_per_s=_rate(output_tokens, seconds),
        total_tokens_per_s=_rate(input_tokens + output_tokens, seconds),
        from_scheduled=latencies(requests, completed, requests.scheduled_mono_ns),
        from_admitted=latencies(requests, completed, requests.admitted_mono_ns),
        client_lag_ms=series(lag, NS_PER_MS),
    )


def latencies(requests: RequestColumns, chosen: Bool, origin_mono_ns: Int64) -> LatencySummary:
    """TTFT, TPOT and latency in milliseconds of the chosen completed requests.

    ``TPOT = (completed - first_token) / (output_tokens - 1)``, undefined and left out for fewer
    than two output tokens. A completion whose origin or first token was not recorded is left out of
    what needs it, so ``n`` may differ between the three.
    """
    first = requests.first_token_mono_ns
    completed = requests.completed_mono_ns
    known_origin = chosen & (origin_mono_ns != ABSENT)
    known_first = known_origin & (first != ABSENT)
    several = chosen & (first != ABSENT) & (requests.output_tokens >= 2)
    between: NDArray[np.float64] = (completed - first)[several] / (
        requests.output_tokens[several] - 1
    )
    return LatencySummary(
        ttft_ms=series((first - origin_mono_ns)[known_first], NS_PER_MS),
        tpot_ms=series(between, NS_PER_MS),
        latency_ms=series((completed - origin_mono_ns)[known_origin], NS_PER_MS),
    )


def within(times_mono_ns: Int64, pieces: Sequence[Piece]) -> Bool:
    """Mask of the known times inside any of the half-open pieces."""
    import numpy as np

    inside = np.zeros(len(times_mono_ns), np.bool_)
    for start, end in pieces:
        inside |= (times_mono_ns >= start) & (times_mono_ns < end)
    found: Bool = inside & (times_mono_ns != ABSENT)
    return found


def longest_sustained_lag_ns(
    requests: RequestColumns, pieces: Sequence[Piece], *, window_ns: int
) -> int | None:
    """Largest lag that a whole stretch of ``window_ns`` never fell below; null without admissions.

    The rule is :func:`opprof.rules.lag.sustained_lag_ns`, applied to each piece.
    """
    import numpy as np

    longest: int | None = None
    for start, end in pieces:
        inside = within(requests.admitted_mono_ns, [(start, end)])
        times = requests.admitted_mono_ns[inside]
        order = np.argsort(times, kind="stable")
        times = times[order]
        lags = (requests.admitted_mono_ns - requests.scheduled_mono_ns)[inside][order]
        found = sustained_lag_ns(times.tolist(), lags.tolist(), end_ns=end, window_ns=window_ns)
        if found is not None:
            longest = found if longest is None else max(longest, found)
    return longest


def _sum_known(values: Int64) -> int:
    return int(values[values != ABSENT].sum())


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
