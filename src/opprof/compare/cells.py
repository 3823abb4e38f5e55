"""The per-cell analysis: a pattern under a config, its load points side by side.

Source: protocol, "Unit of analysis and load points" (a cell is two fresh-server runs) and "Data
sanity block contract" (every per-cell analysis ends with a block; four logical windows a cell).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from opprof.artifacts.common import Gate, SanityBlock
from opprof.artifacts.comparison import CellSummary, ComparisonRule
from opprof.artifacts.run import LoadPoint
from opprof.compare.ratios import Metrics
from opprof.compare.sanity import family_flags, identical_flags
from opprof.compare.values import RunShares
from opprof.rules.sanity import family

LOAD_POINTS: tuple[str, ...] = get_args(LoadPoint)
_PRIMARY = "primary"


def cell_summaries(
    runs: Sequence[tuple[RunShares, Metrics]], rule: ComparisonRule | None
) -> list[CellSummary]:
    """Return one summary for every pattern, config, role and kind of clock, in that order."""
    found: dict[tuple[str, str, str, bool, float], list[tuple[RunShares, Metrics]]] = {}
    for entry in runs:
        run = entry[0].run
        key = (run.pattern, run.config, run.role, run.simulated, run.time_scale)
        found.setdefault(key, []).append(entry)
    return [_summary(found[key], rule) for key in sorted(found)]


def _summary(
    entries: Sequence[tuple[RunShares, Metrics]], rule: ComparisonRule | None
) -> CellSummary:
    ordered = sorted(entries, key=lambda entry: LOAD_POINTS.index(entry[0].run.load_point))
    shares = [entry for entry, _ in ordered]
    first = shares[0].run
    metrics = {
        entry.run.load_point: {name: value for (name, rank), value in given.items() if rank is None}
        for entry, given in ordered
    }
    windows = {entry.run.load_point: len(entry.window_ids) for entry in shares}
    return CellSummary(
        pattern=first.pattern,
        config=first.config,
        role=first.role,
        simulated=first.simulated,
        time_scale=first.time_scale,
        runs={entry.run.load_point: entry.run.name for entry in shares},
        windows=windows,
        metrics=metrics,
        gates=[_load_points(windows, first.role), _windows(windows, first.role, rule)],
        marks=[f"{entry.run.load_point}: {mark}" for entry in shares for mark in entry.marks],
        sanity=_block(shares, metrics),
    )


def _load_points(windows: dict[str, int], role: str) -> Gate:
    """Both load points; a missing one leaves the cell incomplete, which is no failure."""
    missing = [name for name in LOAD_POINTS if name not in windows]
    meaning = "Without both load points the cell is incomplete."
    if role != _PRIMARY:
        reason = f"a {role} run stands alone"
        return Gate("cell_load_points", "not_evaluable", reason, scope="cell", meaning=meaning)
    if missing:
        reason = f"no {' and no '.join(missing)} run among those compared"
        return Gate("cell_load_points", "not_evaluable", reason, scope="cell", meaning=meaning)
    return Gate("cell_load_points", "pass", "both load points", scope="cell", meaning=meaning)


def _windows(windows: dict[str, int], role: str, rule: ComparisonRule | None) -> Gate:
    """Exactly the protocol's logical windows over both load points (four)."""
    name, meaning = "cell_windows", "A cell has other than the protocol's logical windows."
    total = sum(windows.values())
    if rule is None or role != _PRIMARY:
        reason = (
            "no protocol judges this comparison"
            if rule is None
            else f"a {role} run has its own plan"
        )
        return Gate(name, "not_evaluable", reason, {"windows": total}, "cell", meaning)
    expected = rule.windows * len(LOAD_POINTS)
    numbers = {"windows": total, "expected": expected, "per_load_point": rule.windows}
    odd = {point: count for point, count in windows.items() if count != rule.windows}
    if odd:
        listed = ", ".join(f"{count} at {point}" for point, count in odd.items())
        reason = f"{listed}; the protocol has {rule.windows} at each load point"
        return Gate(name, "fail", reason, dict(numbers), "cell", meaning)
    if len(windows) < len(LOAD_POINTS):
        reason = f"{total} of {expected}: a load point is missing"
        return Gate(name, "not_evaluable", reason, dict(numbers), "cell", meaning)
    return Gate(name, "pass", f"{total} logical windows", dict(numbers), "cell", meaning)


def _block(shares: Sequence[RunShares], metrics: dict[str, dict[str, float | None]]) -> SanityBlock:
    windows = [window for entry in shares for window in entry.windows]
    names = dict.fromkeys(name for given in metrics.values() for name in given)
    families = [
        family("kernel_ns", [window.kernel_ns for window in windows], unit="ns"),
        family(
            "share",
            [
                None if (share := window.share(name)) is None else float(share)
                for window in windows
                for name in window.family_ns
            ],
        ),
        family(
            "classified_fraction",
            [None if (part := window.classified) is None else float(part) for window in windows],
        ),
        *(
            # A metric may be signed (residuals, interference); its own artefact judges that.
            family(name, [given.get(name) for given in metrics.values()], signed=True)
            for name in names
        ),
    ]
    return SanityBlock(families, [*family_flags(families), *identical_flags(shares)])
