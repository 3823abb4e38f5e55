"""CPU masks as ``taskset -c`` and ``/sys`` write them: ``0-19,40-59``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opprof.errors import InputError

_NUMBER = re.compile(r"[0-9]{1,9}")
CPUS_MAX = 1 << 16
"""Far above any machine; a mask beyond it is a typing error."""


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a mask, ascending and once each; empty for an empty text.

    Raises:
        InputError: not a list of numbers and ascending ranges.
    """
    cpus: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if not _NUMBER.fullmatch(first) or (dash and not _NUMBER.fullmatch(last)):
            raise InputError(f"CPU mask {text!r}: {part!r} is neither a CPU nor a range of CPUs")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high >= CPUS_MAX:
            raise InputError(f"CPU mask {text!r}: {part!r} is no range of CPUs below {CPUS_MAX}")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest mask that :func:`parse_cpus` reads back as these CPUs."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
