"""The numeric families of a data sanity block, and the red flags that they raise by themselves.

Source: protocol, "Data sanity block contract".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from opprof.artifacts.common import SanityBlock, SanityFamily


def family(
    name: str,
    values: Sequence[float | int | None],
    *,
    unit: str = "",
    signed: bool = False,
    expected_constant: bool = False,
) -> SanityFamily:
    """Return n, finite, missing, range and distinct values of one numeric family in ``unit``.

    ``finite`` counts the values without nulls, NaN and infinities; the latter two count neither as
    finite nor as missing. Minimum, maximum and distinct values are over the finite ones.
    """
    present = [value for value in values if value is not None]
    finite = [value for value in present if math.isfinite(value)]
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
        expected_constant=expected_constant,
    )


def non_finite_flags(families: Iterable[SanityFamily]) -> list[str]:
    """Return a red flag for every family that holds a NaN or an infinity."""
    counts = [(found, found.n - found.finite - found.missing) for found in families]
    return [
        f"non_finite: {found.name}: {broken} of {found.n} are NaN or infinite"
        for found, broken in counts
        if broken
    ]


def family_flags(families: Iterable[SanityFamily]) -> list[str]:
    """Red flags of the families: non-finite numbers, negative counters, ratios outside [0, 1]."""
    listed = list(families)
    flags = non_finite_flags(listed)
    for found in listed:
        if found.min is None or found.max is None:
            continue
        if found.min < 0 and not found.signed:
            flags.append(f"negative: {found.name} goes down to {found.min} {found.unit}".rstrip())
        if found.unit == "ratio" and not found.signed and found.max > 1:
            flags.append(f"ratio_out_of_bounds: {found.name} goes up to {found.max}")
    return flags


def block(families: Iterable[SanityFamily], red_flags: Iterable[str]) -> SanityBlock:
    """Join families and red flags, with the flags that the families raise by themselves first."""
    listed = list(families)
    return SanityBlock(listed, [*family_flags(listed), *red_flags])
