"""The sanity block of a comparison (protocol, "Data sanity block contract")."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from opprof.artifacts.common import SanityBlock, SanityFamily
from opprof.artifacts.comparison import MetricRatio, TableComparison
from opprof.compare.pairing import Group


def sanity_block(
    table: TableComparison, ratios: Sequence[MetricRatio], groups: Sequence[Group]
) -> SanityBlock:
    """Return the families of numbers of a comparison, and what cannot be among them."""
    shares = [family.share for row in table.windows for family in row.families.values()]
    gaps = [gap for row in table.inversions for gap in (*row.gaps_p, *row.gaps_q)]
    taus = [row.tau_b for row in table.tau]
    values = [row.value for row in ratios]
    families = [
        _family("kernel_ns", [row.kernel_ns for row in table.windows], unit="ns"),
        _family("share", shares),
        _family("classified_fraction", [row.classified_fraction for row in table.windows]),
        _family("gap", gaps, signed=True),
        _family("tau_b", taus, signed=True),
        # A metric may be signed (residuals, interference); its own artefact judges that.
        _family("metric_value", values, signed=True),
        _family("metric_ratio", [row.ratio for row in ratios], signed=True),
    ]
    return SanityBlock(families=families, red_flags=_red_flags(families, groups))


def _family(
    name: str, values: Sequence[float | None], *, unit: str = "", signed: bool = False
) -> SanityFamily:
    present = [value for value in values if value is not None]
    finite = [value for value in present if isfinite(value)]
    return SanityFamily(
        name=name,
        n=len(values),
        finite=len(finite),
        missing=len(values) - len(present),
        min=min(finite, default=None),
        max=max(finite, default=None),
        distinct=len(set(finite)),
        unit=unit,
        signed=signed,
    )


def _red_flags(families: Sequence[SanityFamily], groups: Sequence[Group]) -> list[str]:
    flags = []
    for family in families:
        if family.finite + family.missing < family.n:
            flags.append(f"{family.name}: a value is not finite")
    bounds = {
        "kernel_ns": (0, inf),
        "share": (0, 1),
        "classified_fraction": (0, 1),
        "gap": (-1, 1),
        "tau_b": (-1, 1),
    }
    for family in families:
        low, high = bounds.get(family.name, (-inf, inf))
        if family.min is not None and family.max is not None:
            if family.min < low:
                flags.append(f"{family.name}: {family.min} is below {low}")
            if family.max > high:
                flags.append(f"{family.name}: {family.max} is above {high}")
    for group in groups:
        flags += _identical(group)
    return flags


def _identical(group: Group) -> list[str]:
    """Two patterns with the very same nanoseconds are one measurement under two names."""
    seen: dict[tuple[object, ...], str] = {}
    flags = []
    for entry in group.runs:
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
