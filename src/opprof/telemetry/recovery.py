"""Recovery on the columns of a run: series are ordered here, the rule is in ``opprof.rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opprof.artifacts.run import Interval
from opprof.rules.recovery import Depths, Limits, Recovery, judge_recovery

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns
    from opprof.telemetry.requests import RequestColumns


def recovery_check(
    columns: StepColumns,
    requests: RequestColumns,
    *,
    recovery: Interval,
    clean: Interval,
    limits: Limits,
) -> Recovery:
    """Judge one recovery interval against the last clean segment."""
    import numpy as np

    order = np.argsort(columns.submit_mono_ns, kind="stable")
    return judge_recovery(
        np.sort(requests.completed_mono_ns[requests.completed]).tolist(),
        Depths(columns.submit_mono_ns[order].tolist(), columns.waiting[order].tolist()),
        recovery=(recovery.start_mono_ns, recovery.end_mono_ns),
        clean=(clean.start_mono_ns, clean.end_mono_ns),
        limits=limits,
    )
