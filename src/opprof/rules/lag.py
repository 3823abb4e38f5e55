"""Was the client late for so long that latencies describe its own queue?

Source: protocol, "Unit of analysis and load points": "no sustained client lag exceeds one second";
the protocol file pins "sustained" as ``gates.client_lag_sustained_window_s``: the smallest lag
within some stretch of that length. One late wake-up does not raise it, a client that never catches
up does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction

from opprof.rules.durations import NS_PER_S


def sustained_lag_ns(
    times_ns: Sequence[int], lags_ns: Sequence[int], *, end_ns: int, window_ns: int
) -> int | None:
    """Return the largest lag that a whole stretch of ``window_ns`` never fell below.

    ``times_ns``, ``lags_ns``: admission times in ascending order, and admission minus schedule, of
    the requests admitted in one piece of clean time that ends at ``end_ns``. For every stretch
    ``[t, t + window)`` that begins at an admission and ends within the piece, the smallest lag of
    its admissions; the largest of these over all stretches. A piece shorter than the window is one
    stretch. None without admissions.
    """
    return max(_minima(times_ns, lags_ns, end_ns, window_ns), default=None)


def lag_passes(sustained_ns: int, limit_s: float) -> bool:
    """Whether a sustained lag is at most ``gates.client_lag_sustained_max_s``, exactly."""
    return Fraction(sustained_ns, NS_PER_S) <= Fraction(str(limit_s))


def _minima(
    times_ns: Sequence[int], lags_ns: Sequence[int], end_ns: int, window_ns: int
) -> Iterator[int]:
    """Minimum lag of each stretch that starts at an admission, by a monotone queue."""
    waiting: deque[int] = deque()
    upto = 0
    for first, begin in enumerate(times_ns):
        if first and begin + window_ns > end_ns:
            return
        while upto < len(times_ns) and times_ns[upto] < begin + window_ns:
            while waiting and lags_ns[waiting[-1]] >= lags_ns[upto]:
                waiting.pop()
            waiting.append(upto)
            upto += 1
        while waiting[0] < first:
            waiting.popleft()
        yield lags_ns[waiting[0]]
