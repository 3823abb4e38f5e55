"""Effects between cells: 2x2 factorial of scheduler limits, and deltas of repeated runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]

T = TypeVar("T")


@dataclass(frozen=True)
class Factorial(Generic[T]):
    """Main effects and interaction; floats for the estimate, arrays for its resamples."""

    first: T
    """Mean effect of lowering the first factor: ((C10 - C00) + (C11 - C01)) / 2."""
    second: T
    """Mean effect of lowering the second factor: ((C01 - C00) + (C11 - C10)) / 2."""
    interaction: T
    """How the first factor's effect changes with the second: (C11 - C01) - (C10 - C00)."""


def factorial(c00: Float64, c10: Float64, c01: Float64, c11: Float64) -> Factorial[Float64]:
    """Return the effects of a 2x2 design, elementwise over resamples."""
    return Factorial(
        first=((c10 - c00) + (c11 - c01)) / 2,
        second=((c01 - c00) + (c11 - c10)) / 2,
        interaction=(c11 - c01) - (c10 - c00),
    )


@dataclass(frozen=True)
class Delta:
    """A repeated run against the first; nothing is averaged and nothing removed."""

    first: float
    repeat: float
    absolute: float
    """``repeat - first``."""
    relative: float | None
    """``repeat / first - 1``; None when the first is 0."""


def run_delta(first: float, repeat: float) -> Delta:
    """Return the absolute and relative difference of two runs of one cell."""
    relative = repeat / first - 1 if first else None
    return Delta(first=first, repeat=repeat, absolute=repeat - first, relative=relative)
