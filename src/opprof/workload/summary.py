"""What may be said of a manifest without its contents: the ``manifest.sha256`` summary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opprof.artifacts.run import LengthSummary, ManifestSummary
from opprof.errors import InputError
from opprof.workload.raggedness import raggedness

COHORTS = (32, 64, 128)
"""Cohort sizes of the protocol: 64 is primary, the others show the sensitivity."""


def summarize_lengths(lengths: ArrayLike) -> LengthSummary:
    """Return the distribution of ``int[n]`` lengths in tokens.

    ``median`` and ``p95`` interpolate linearly between order statistics (rank ``q * (n - 1)``).

    Raises:
        InputError: there is no length.
    """
    ordered = np.sort(np.asarray(lengths, dtype=np.int64))
    if ordered.size == 0:
        raise InputError("the manifest has no request")
    return LengthSummary(
        n=int(ordered.size),
        min=int(ordered[0]),
        median=_quantile(ordered, 50),
        p95=_quantile(ordered, 95),
        max=int(ordered[-1]),
        sum=int(ordered.sum()),
        distinct=int(np.unique(ordered).size),
    )


def _quantile(ordered: NDArray[np.int64], percent: int) -> float:
    """Linear quantile; the rank is split in integers, so that machines cannot disagree on it."""
    whole, hundredths = divmod(percent * (ordered.size - 1), 100)
    low = int(ordered[whole])
    if hundredths == 0:
        return float(low)
    return low + (int(ordered[whole + 1]) - low) * hundredths / 100


def summarize(
    *,
    sha256: str,
    pattern: str,
    arrival: str,
    prefix: str,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    generator: dict[str, Any],
    tokenizer_sha256: str | None,
    private: bool,
) -> ManifestSummary:
    """Return the summary of a manifest whose lengths are given in arrival order."""
    return ManifestSummary(
        schema=1,
        sha256=sha256,
        pattern=pattern,
        arrival=arrival,
        prefix=prefix,
        input_tokens=summarize_lengths(input_tokens),
        output_tokens=summarize_lengths(output_tokens),
        generator=generator,
        tokenizer_sha256=tokenizer_sha256,
        raggedness={f"R{cohort}": raggedness(input_tokens, cohort) for cohort in COHORTS},
        private=private,
    )
