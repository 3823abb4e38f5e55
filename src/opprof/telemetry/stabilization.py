"""A-P3-6 on the columns of a stream: the bins are counted here, the rule is in ``opprof.rules``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from opprof.protocol.model import Gates
from opprof.rules.stabilization import Stabilization, bin_edges, judge_stabilization

if TYPE_CHECKING:
    from opprof.telemetry.columns import StepColumns


def stabilization(
    columns: StepColumns,
    *,
    start_mono_ns: int,
    end_mono_ns: int,
    accounting_valid: bool,
    gates: Gates,
) -> Stabilization:
    """Run the test on the warm-up ``[start, end)``.

    ``accounting_valid`` includes that step indices are continuous.
    """
    edges = bin_edges(start_mono_ns, end_mono_ns)
    submits = columns.submit_mono_ns
    bins = [
        columns.model_executed & (submits >= low) & (submits < high)
        for low, high in pairwise(edges)
    ]
    return judge_stabilization(
        [int(inside.sum()) for inside in bins],
        [int(columns.scheduled_tokens[inside].sum()) for inside in bins],
        quartile_ns=edges[-1] - edges[0],
        accounting_fault=None if accounting_valid else "see layer1_accounting",
        steps_min=gates.warmup_stabilized_bin_steps_min,
        drift_max=gates.warmup_stabilized_drift_max,
    )
