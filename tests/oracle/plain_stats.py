"""Plain statistics in exact fractions: no numpy, nothing from the product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Number = int | Fraction


def mean(values: Sequence[Number]) -> Fraction | None:
    return Fraction(sum(values)) / len(values) if values else None


def variance(values: Sequence[Number], ddof: int) -> Fraction | None:
    if len(values) <= ddof:
        return None
    centre = Fraction(sum(values)) / len(values)
    return sum((Fraction(v) - centre) ** 2 for v in values) / (len(values) - ddof)


def percentile(values: Sequence[Number], percent: int) -> Fraction | None:
    """Linear interpolation between order statistics at rank (n - 1) * percent / 100."""
    if not values:
        return None
    ordered = sorted(values)
    rank = Fraction(percent, 100) * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - Fraction(ordered[low]))


def ratio(above: Number, below: Number) -> float | None:
    return float(Fraction(above) / Fraction(below)) if below else None


def real(value: Number | None) -> float | None:
    return None if value is None else float(value)


def summary(values: Sequence[Number]) -> dict[str, float | int | None]:
    return {
        "n": len(values),
        "mean": real(mean(values)),
        "p50": real(percentile(values, 50)),
        "p95": real(percentile(values, 95)),
        "p99": real(percentile(values, 99)),
        "min": real(min(values)) if values else None,
        "max": real(max(values)) if values else None,
    }


def smd(profile: Sequence[Number], clean: Sequence[Number]) -> dict[str, object]:
    """(mean_profile - mean_clean) / sqrt((s1^2 + s2^2) / 2), sample variances (n - 1).

    With a pooled standard deviation of zero the means must be equal exactly: `smd` is null then.
    """
    m1, m2 = mean(profile), mean(clean)
    v1, v2 = variance(profile, 1), variance(clean, 1)
    if m1 is None or m2 is None or v1 is None or v2 is None:
        return {"smd": None, "constant": False, "passes": None}
    pooled = (v1 + v2) / 2
    out: dict[str, object] = {
        "mean_profile": float(m1),
        "mean_clean": float(m2),
        "sd_profile": math.sqrt(v1),
        "sd_clean": math.sqrt(v2),
        "pooled_sd": math.sqrt(pooled),
    }
    if pooled == 0:
        return {**out, "smd": None, "constant": True, "passes": m1 == m2}
    # |smd| <= 1/4 decided on exact squares, so that no rounding decides a gate.
    return {
        **out,
        "smd": float(m1 - m2) / math.sqrt(pooled),
        "constant": False,
        "passes": (m1 - m2) ** 2 <= Fraction(1, 16) * pooled,
    }


def tie_ranks(shares: dict[str, Fraction], width: Fraction) -> dict[str, int]:
    """Rank by share, largest first; who is within `width` of the first of a group shares its rank.

    Ranks are those of a competition (1, 2, 2, 4).
    """
    ranks: dict[str, int] = {}
    leader: Fraction | None = None
    rank = 0
    for position, name in enumerate(sorted(shares, key=lambda f: (-shares[f], f)), start=1):
        if leader is None or leader - shares[name] > width:
            leader, rank = shares[name], position
        ranks[name] = rank
    return ranks


def tau_b(x: Sequence[int], y: Sequence[int]) -> float | None:
    concordant = discordant = only_x = only_y = 0
    for i in range(len(x)):
        for j in range(i):
            dx, dy = (x[i] > x[j]) - (x[i] < x[j]), (y[i] > y[j]) - (y[i] < y[j])
            if dx and dy:
                concordant += dx == dy
                discordant += dx != dy
            elif dx:
                only_x += 1
            elif dy:
                only_y += 1
    pairs = concordant + discordant
    below = math.sqrt((pairs + only_x) * (pairs + only_y))
    return (concordant - discordant) / below if below else None
