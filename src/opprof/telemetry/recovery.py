"""Did service return to clean segment C's level by the end of a recovery interval?

The completion rate of the recovery's last ``recovery_rolling_s`` seconds against the median rolling
rate of the last clean segment, and the median waiting depth of those seconds against the segment's.

Source: protocol, "Warm-up, clean measurement, and profiler placement"; protocol file, ``[gates]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opprof.artifacts.common import Value
from opprof.artifacts.run import Interval
from opprof.protocol.model import Gates
from opprof.telemetry.series import NS_PER_S

if TYPE_CHECKING:
    from opprof.telemetry.columns import Int64, StepColumns
    from opprof.telemetry.requests import RequestColumns

_GRID_NS = NS_PER_S
"""The rolling rate of the clean segment is read once a second."""


@dataclass(frozen=True, slots=True)
class RecoveryCheck:
    """The numbers of one recovery interval; null where they could not be computed."""

    rolling_s: float
    rate_rps: float | None
    clean_median_rate_rps: float | None
    waiting_median: float | None
    clean_median_waiting: float | None
    passed: bool | None
    """Null when it cannot be judged."""
    reason: str

    def numbers(self) -> dict[str, Value]:
        """The numbers as a gate lists them."""
        return {
            "rolling_s": self.rolling_s,
            "rate_rps": self.rate_rps,
            "clean_median_rate_rps": self.clean_median_rate_rps,
            "waiting_median": self.waiting_median,
            "clean_median_waiting": self.clean_median_waiting,
        }


def recovery_check(
    columns: StepColumns,
    requests: RequestColumns,
    *,
    recovery: Interval,
    clean: Interval,
    gates: Gates,
    time_scale: float,
) -> RecoveryCheck:
    """Judge one recovery interval against the last clean segment.

    ``time_scale`` is the timeline's declared factor on durations. Against a median waiting depth of
    zero no relative error exists; the depth must then be at most
    ``gates.recovery_zero_median_waiting_max``.
    """
    rolling_ns = round(gates.recovery_rolling_s * time_scale * NS_PER_S)
    end = recovery.end_mono_ns
    begin = end - rolling_ns
    short = [
        interval.kind
        for interval in (recovery, clean)
        if interval.end_mono_ns - interval.start_mono_ns < rolling_ns
    ]
    if short:
        reason = f"the {short[0]} interval is shorter than the rolling window"
        return RecoveryCheck(rolling_ns / NS_PER_S, None, None, None, None, None, reason)
    completed = requests.completed_mono_ns[requests.completed]
    rate = _rolling_rates(completed, [begin], rolling_ns)[0]
    starts = range(clean.start_mono_ns, clean.end_mono_ns - rolling_ns + 1, _GRID_NS)
    clean_rate = _median(_rolling_rates(completed, list(starts), rolling_ns))
    waiting = _waiting_median(columns, begin, end)
    clean_waiting = _waiting_median(columns, clean.start_mono_ns, clean.end_mono_ns)
    faults = _faults(rate, clean_rate, waiting, clean_waiting, gates)
    passed: bool | None = not faults
    if clean_rate == 0 or waiting is None or clean_waiting is None:
        passed = None
        faults = ["no completions in the clean segment, or an interval without steps"]
    return RecoveryCheck(
        rolling_s=rolling_ns / NS_PER_S,
        rate_rps=rate,
        clean_median_rate_rps=clean_rate,
        waiting_median=waiting,
        clean_median_waiting=clean_waiting,
        passed=passed,
        reason="; ".join(faults) or f"within {gates.recovery_tolerance:.0%} of clean medians",
    )


def _faults(
    rate: float,
    clean_rate: float,
    waiting: float | None,
    clean_waiting: float | None,
    gates: Gates,
) -> list[str]:
    tolerance = gates.recovery_tolerance
    faults = []
    if abs(rate - clean_rate) > tolerance * clean_rate:
        faults.append(f"completion rate {rate:.3g}/s against {clean_rate:.3g}/s")
    if waiting is None or clean_waiting is None:
        return faults
    allowed = tolerance * clean_waiting
    if clean_waiting == 0:
        allowed = float(gates.recovery_zero_median_waiting_max)
    if abs(waiting - clean_waiting) > allowed:
        faults.append(f"waiting depth {waiting:g} against {clean_waiting:g}")
    return faults


def _rolling_rates(completed: Int64, starts: list[int], length_ns: int) -> list[float]:
    """Completions per second of each ``[start, start + length)``."""
    import numpy as np

    times = np.sort(completed)
    low = np.searchsorted(times, np.array(starts, np.int64), side="left")
    high = np.searchsorted(times, np.array(starts, np.int64) + length_ns, side="left")
    return [count * NS_PER_S / length_ns for count in (high - low).tolist()]


def _waiting_median(columns: StepColumns, start: int, end: int) -> float | None:
    inside = (columns.submit_mono_ns >= start) & (columns.submit_mono_ns < end)
    depths = columns.waiting[inside].tolist()
    return _median([float(depth) for depth in depths]) if depths else None


def _median(values: list[float]) -> float:
    from statistics import median

    return float(median(values))
