"""Sequence raggedness (protocol, "Waste accounting")."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from opprof.errors import InputError


def raggedness(input_tokens: ArrayLike, cohort: int) -> float | None:
    """Return ``R_k``: the padding of an offline rectangular batch-of-``k`` run of these requests.

    ``R_k = 1 - sum_g sum_i L_gi / sum_g (k * max_i L_gi)`` over the consecutive complete cohorts
    ``g`` of ``k`` requests in arrival order; an incomplete last cohort is left out.

    Args:
        input_tokens: ``int[n]``, in arrival order.
        cohort: requests a cohort, at least 1.

    Returns:
        A fraction in ``[0, 1)``, or None when there is no complete cohort.

    Raises:
        InputError: a cohort below 1, or a length below 1 (with its index).
    """
    lengths = np.asarray(input_tokens, dtype=np.int64)
    if cohort < 1:
        raise InputError(f"a cohort needs at least one request, not {cohort}")
    if lengths.size and lengths.min() < 1:
        index = int(lengths.argmin())
        raise InputError(f"request {index} has a length of {lengths[index]} tokens")
    groups = lengths.size // cohort
    if groups == 0:
        return None
    table = lengths[: groups * cohort].reshape(groups, cohort)
    rectangle = cohort * int(table.max(axis=1).sum())
    return (rectangle - int(table.sum())) / rectangle
