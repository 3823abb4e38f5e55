"""The rehearsal's own data sanity block (protocol, "Data sanity block contract")."""

from __future__ import annotations

import msgspec

from opprof.artifacts.common import SanityBlock, SanityFamily
from opprof.artifacts.rehearsal import Rehearsal
from opprof.rules.sanity import block, family


def with_sanity(report: Rehearsal) -> Rehearsal:
    """Return the rehearsal with its block: costs, rates of its runs, shares of its gates."""
    return msgspec.structs.replace(report, sanity=_block(report))


def _block(report: Rehearsal) -> SanityBlock:
    cost, runs = report.cost, report.runs
    rates = [rate for row in report.gates for rate in (row.failed, row.no_effect) if rate]
    families: list[SanityFamily] = [
        family("cost", [cost.gpu_hours, cost.wall_hours], unit="h"),
        family("planned_cost", [cost.planned_gpu_hours, cost.planned_wall_hours], unit="h"),
        # What is left of a budget may be less than nothing.
        family("budget", [cost.budget_gpu_hours], unit="h", signed=True),
        family("completed_rps", [row.completed_rps for row in runs], unit="requests/s"),
        family("offered_rps", [row.offered_rps for row in runs], unit="requests/s"),
        family("virtual_s", [row.virtual_s for row in runs], unit="s"),
        family("gate_share", [rate.share for rate in rates], unit="ratio"),
        family("resolution", [row.resolution for row in report.resolution]),
    ]
    return block(families, _identical(report))


def _identical(report: Rehearsal) -> list[str]:
    """All runs alike: one run under several names, unless there is one pattern only."""
    figures = {(row.completed_rps, row.offered_rps, row.virtual_s) for row in report.runs}
    if len(report.runs) > 2 and len(figures) == 1:
        return [f"identical: all {len(report.runs)} runs have the same rates and durations"]
    return []
