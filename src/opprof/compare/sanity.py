"""The sanity block of a comparison (protocol, "Data sanity block contract")."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from opprof.artifacts.common import SanityBlock, SanityFamily
from opprof.artifacts.comparison import MetricRatio, TableComparison
from opprof.compare.values import RunShares
from opprof.rules.sanity import family, non_finite_flags


def sanity_block(
    table: TableComparison, ratios: Sequence[MetricRatio], runs: Sequence[RunShares]
) -> SanityBlock:
    """Return the families of numbers of one table, and what cannot be among them."""
    shares = [family.share for row in table.windows for family in row.families.values()]
    gaps = [gap for row in table.inversions for gap in (*row.gaps_p, *row.gaps_q)]
    taus = [row.tau_b for row in table.tau]
    values = [row.value for row in ratios]
    families = [
        family("kernel_ns", [row.kernel_ns for row in table.windows], unit="ns"),
        family("share", shares),
        family("classified_fraction", [row.classified_fraction for row in table.windows]),
        family("gap", gaps, signed=True),
        family("tau_b", taus, signed=True),
        # A metric may be signed (residuals, interference); its own artefact judges that.
        family("metric_value", values, signed=True),
        family("metric_ratio", [row.ratio for row in ratios], signed=True),
    ]
    return SanityBlock(
        families=families, red_flags=[*family_flags(families), *identical_flags(runs)]
    )


_BOUNDS = {
    "kernel_ns": (0, inf),
    "share": (0, 1),
    "classified_fraction": (0, 1),
    "gap": (-1, 1),
    "tau_b": (-1, 1),
}


def family_flags(families: Sequence[SanityFamily]) -> list[str]:
    """What cannot be among the numbers: infinities, and values outside of their bounds."""
    flags = non_finite_flags(families)
    for found in families:
        low, high = _BOUNDS.get(found.name, (-inf, inf))
        if found.min is not None and found.max is not None:
            if found.min < low:
                flags.append(f"{found.name}: {found.min} is below {low}")
            if found.max > high:
                flags.append(f"{found.name}: {found.max} is above {high}")
    return flags


def identical_flags(runs: Sequence[RunShares]) -> list[str]:
    """Two runs with the very same nanoseconds are one measurement under two names.

    It counts between any two runs: patterns, configs and load points alike.
    """
    seen: dict[tuple[object, ...], str] = {}
    flags = []
    for entry in runs:
        figures = tuple(
            (item.window, item.rank, *sorted(item.family_ns.items()))
            for item in entry.windows
            if item.kernel_ns
        )
        if not figures:
            continue
        other = seen.setdefault(figures, entry.run.name)
        if other != entry.run.name:
            flags.append(f"{entry.run.name} and {other} have identical family times")
    return flags
