"""The decision's data sanity block."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import SanityBlock, SanityFamily
from opprof.artifacts.decision import Contrast, RunIntervals, TableVerdict
from opprof.decision.metrics import SIGNED
from opprof.rules.sanity import family, non_finite_flags

_RATIOS = (
    "padding_fraction",
    "graph_miss_rate",
    "eligible_miss_rate",
    "overflow_rate",
    "bucket_slack",
)

_MEASURED = ("E_token_per_ms", "step_duration_mean_ms")


def sanity_block(
    table: TableVerdict, contrasts: Sequence[Contrast], intervals: Sequence[RunIntervals]
) -> SanityBlock:
    """Summarise every numeric family of the decision and flag what cannot be true."""
    families = _table_families(table)
    metrics = [metric for contrast in contrasts for metric in contrast.metrics]
    for name in dict.fromkeys(metric.metric for metric in metrics):
        values = [metric.difference for metric in metrics if metric.metric == name]
        families.append(_family(f"contrast.{name}", values, signed=True))
    found: dict[str, list[float | None]] = {}
    for run in intervals:
        for name, estimate in run.metrics.items():
            found.setdefault(name, []).append(estimate.value)
    families += [_family(name, values, signed=name in SIGNED) for name, values in found.items()]
    return SanityBlock(families, _red_flags(families) + _copies(families))


def table_sanity(table: TableVerdict) -> SanityBlock:
    """Summarise one mapping table's numbers alone, and flag what cannot be true of them."""
    families = _table_families(table)
    return SanityBlock(families, _red_flags(families))


def _table_families(table: TableVerdict) -> list[SanityFamily]:
    gaps = [gap for item in table.comparisons for gap in (*item.gaps_p, *item.gaps_q)]
    shares = [part.share for row in table.rankings for part in row.families.values()]
    return [
        _family("gap", gaps, signed=True),
        _family("permutation_p", [item.permutation_p for item in table.comparisons]),
        _family("holm_p", [item.holm_p for item in table.comparisons]),
        _family("exact_p", [item.exact_p for item in table.comparisons]),
        _family("tau_b", [row.tau_b for row in table.tau], signed=True),
        _family("family_share", shares),
    ]


def _copies(families: Sequence[SanityFamily]) -> list[str]:
    """Flag times and rates that several runs have to the last bit: a copy, no second measurement.

    Ratios of counts may well be the same (a share of misses of 0, say), sums of measured times not.
    """
    return [
        f"{found.name}: identical in all {found.finite} runs"
        for found in families
        if found.name in _MEASURED and found.finite > 1 and found.distinct == 1
    ]


def _red_flags(families: Sequence[SanityFamily]) -> list[str]:
    flags = non_finite_flags(families)
    for found in families:
        bounded = found.name in _RATIOS or found.name.endswith(("_p", "_share"))
        if found.min is not None and found.min < 0 and not found.signed:
            flags.append(f"{found.name}: negative value {found.min:g}")
        if bounded and found.max is not None and found.max > 1:
            flags.append(f"{found.name}: {found.max:g} is above 1")
    return flags


def _family(name: str, values: Sequence[float | None], *, signed: bool = False) -> SanityFamily:
    unit = name.rsplit("_", 1)[-1] if name.endswith(("_ms", "_rps")) else ""
    return family(name, values, unit=unit, signed=signed)
