"""No two requests share a long prefix, checked for every pair (protocol, "Prefix sharing")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAST_THE_END = -1
"""Stands behind the last token of a request that is shorter than the compared stretch."""


def first_shared_pair(first_ids: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the first two requests whose rows are equal, or None when all rows differ.

    With ``k + 1`` columns this decides the rule "no common prefix longer than ``k``" for all pairs
    at once: two requests of more than ``k`` tokens share more than ``k`` exactly when their first
    ``k + 1`` ids are equal. Shorter requests are filled with :data:`PAST_THE_END`, so that equal
    rows there mean the same whole prompt, which "unique per request" forbids as well.

    Args:
        first_ids: ``int64[n, k + 1]``.

    Returns:
        The indices of the pair, in order; the pair whose second member comes first.
    """
    if first_ids.shape[0] < 2:
        return None
    rows = np.ascontiguousarray(first_ids)
    keys = rows.view([("", rows.dtype)] * rows.shape[1]).reshape(-1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    repeats = np.flatnonzero(ordered[1:] == ordered[:-1])
    if repeats.size == 0:
        return None
    # Equal rows keep their order, so each repeat stands next to its nearest earlier twin.
    second = order[repeats + 1]
    at = int(np.argmin(second))
    return int(order[repeats[at]]), int(second[at])
