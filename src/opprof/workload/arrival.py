"""Arrival classes of a manifest (protocol, "Arrival shape"); standard library only."""

from __future__ import annotations

import re

from opprof.errors import InputError


def parse_arrival(arrival: str) -> int:
    """Return the requests a burst of an arrival class: 1 for ``steady``, N for ``burst:N``.

    Raises:
        InputError: the class is neither, or N is not in 1 … 999999.
    """
    if arrival == "steady":
        return 1
    match = re.fullmatch(r"burst:([1-9][0-9]{0,5})", arrival)
    if match is None:
        raise InputError(f"--arrival {arrival!r}: use 'steady' or 'burst:N' with N from 1")
    return int(match.group(1))
