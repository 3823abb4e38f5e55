"""Places of families within a window, and Kendall's tau-b between two windows.

Source: protocol, "Operator shares and bottleneck ranking".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import sqrt


def tie_places(shares: Mapping[str, Fraction], tie: Fraction) -> dict[str, int]:
    """Return each family's place, 1 for the greatest share.

    Going down from the greatest share, a family within ``tie`` (inclusive) of the first of the open
    group shares that group's place; otherwise it opens the next group, whose place is one more than
    the families before it (1, 2, 2, 4).

    The group's first decides, not the nearest neighbour: a chain of neighbours would put families
    any distance apart in one place, so that "the top family" could trail the greatest by more than
    the protocol's one point. The price is that two families within one point of each other may
    stand in different groups. Equal shares always share a place; order of the input never matters.
    """
    places: dict[str, int] = {}
    first: Fraction | None = None
    place = 0
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    for before, (family, share) in enumerate(ordered):
        if first is None or first - share > tie:
            first, place = share, before + 1
        places[family] = place
    return places


def kendall_tau_b(x: Sequence[int], y: Sequence[int]) -> float | None:
    """Return Kendall's tau-b of two equally long vectors of places; None when it is undefined.

    ``(C - D) / sqrt((n0 - n1) (n0 - n2))`` with C concordant and D discordant pairs, ``n0`` all
    pairs, ``n1`` and ``n2`` those tied in x and in y (Kendall 1945). Undefined when either vector
    has all its pairs tied, so also below two elements.

    Raises:
        ValueError: the vectors differ in length.
    """
    if len(x) != len(y):
        raise ValueError(f"vectors of {len(x)} and {len(y)} elements")
    score = untied_x = untied_y = 0
    for i in range(len(x)):
        for j in range(i):
            sign_x, sign_y = _sign(x[i] - x[j]), _sign(y[i] - y[j])
            score += sign_x * sign_y
            untied_x += sign_x != 0
            untied_y += sign_y != 0
    if not untied_x or not untied_y:
        return None
    # One square root of the exact product: identical vectors then give exactly 1.
    return score / sqrt(untied_x * untied_y)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
