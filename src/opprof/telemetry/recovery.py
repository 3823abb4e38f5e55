"""Recovery on the columns of a run: series are ordered here, the rule is in ``opprof.rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opprof.artifacts.run import Interval
from opprof.protocol.model import Gates
from opprof.rules.recovery import Depths, Limits, Recovery, judge_recovery
from opprof.telemetry.series import NS_PER_S

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns
    from opprof.telemetry.requests import RequestColumns


def recovery_check(
    columns: StepColumns,
    requests: RequestColumns,
    *,
    recovery: Interval,
    clean: Interval,
    gates: Gates,
    time_scale: float,
) -> Recovery:
    """Judge one recovery interval against the last clean segment.

    ``time_scale`` is the timeline's declared factor on durations.
    """
    import numpy as np

    order = np.argsort(columns.submit_mono_ns, kind="stable")
    return judge_recovery(
        np.sort(requests.completed_mono_ns[requests.completed]).tolist(),
        Depths(columns.submit_mono_ns[order].tolist(), columns.waiting[order].tolist()),
        recovery=(recovery.start_mono_ns, recovery.end_mono_ns),
        clean=(clean.start_mono_ns, clean.end_mono_ns),
        limits=Limits(
            rolling_ns=round(gates.recovery_rolling_s * time_scale * NS_PER_S),
            tolerance=gates.recovery_tolerance,
            zero_median_waiting_max=gates.recovery_zero_median_waiting_max,
        ),
    )
