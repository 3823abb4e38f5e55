"""Who gets which length, prefix and words of the stream: decided before a single token is drawn.

The draw order is part of the format (``opprof-workload/1``); each draw is one word of the stream:

1.  input lengths: one word a request for ``uniform``; for a mixture one word for each request of
    each uniform mode, modes in the order given, then ``n`` words for the permutation of the
    requests; nothing for ``fixed``; for a pool ``n`` words for the permutation of the balanced
    assignment ``0, 1, … P-1, 0, 1, …``;
2.  the shared prefixes of a pool, one word a token, prefix after prefix;
3.  the remaining tokens of the requests, one word a token, in arrival order.

The pattern's name is no part of the seed: patterns that differ only in output length or arrival
(P01, P02 and P11; P03 and P04; P05 and P06) carry the same prompts, which makes the protocol's
matched pairs exactly matched. Runs cannot profit from it, since each has a fresh server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opprof.workload.draw import RawStream, bounded, permutation
from opprof.workload.parameters import Fixed, ManifestSpec, Mixture, PrefixPool, Uniform

ALGORITHM = "opprof-workload/1"


@dataclass(frozen=True)
class Plan:
    """Lengths and stream positions of all requests, in arrival order."""

    input_tokens: NDArray[np.int64]
    """``int64[n]``, prompt tokens with the shared prefix."""
    pool_index: NDArray[np.int64] | None
    """``int64[n]``, the shared prefix of each request; None without a pool."""
    pool_start: int
    """Position of the first word of the shared prefixes."""
    drawn_tokens: NDArray[np.int64]
    """``int64[n]``, tokens of the request itself."""
    drawn_start: int
    """Position of the first word of the first request's own tokens."""


def plan_lengths(spec: ManifestSpec) -> Plan:
    """Return the plan of a manifest; the same for the same spec on every machine."""
    stream = RawStream(spec.seed)
    if isinstance(spec.input, PrefixPool):
        return _plan_pool(spec.input, spec.num_requests, stream)
    lengths, used = _draw_lengths(spec.input, spec.num_requests, stream)
    return Plan(lengths, None, used, lengths, used)


def _draw_lengths(
    shape: Uniform | Fixed | Mixture, count: int, stream: RawStream
) -> tuple[NDArray[np.int64], int]:
    """Return ``int64[count]`` lengths and the number of words they took."""
    if isinstance(shape, Mixture):
        return _draw_mixture(shape, count, stream)
    return _draw_mode(shape, count, stream, 0)


def _draw_mode(
    mode: Uniform | Fixed, count: int, stream: RawStream, position: int
) -> tuple[NDArray[np.int64], int]:
    if isinstance(mode, Fixed):
        return np.full(count, mode.tokens, dtype=np.int64), position
    span = mode.high - mode.low + 1
    return mode.low + bounded(stream.words(position, count), span), position + count


def _draw_mixture(mixture: Mixture, count: int, stream: RawStream) -> tuple[NDArray[np.int64], int]:
    parts, position = [], 0
    for mode, requests in zip(mixture.modes, mixture.counts(count), strict=True):
        part, position = _draw_mode(mode, requests, stream, position)
        parts.append(part)
    order = permutation(stream.words(position, count))
    return np.concatenate(parts)[order], position + count


def _plan_pool(pool: PrefixPool, count: int, stream: RawStream) -> Plan:
    balanced = np.arange(count, dtype=np.int64) % pool.prefixes
    return Plan(
        input_tokens=np.full(count, pool.prefix_tokens + pool.suffix_tokens, dtype=np.int64),
        pool_index=balanced[permutation(stream.words(0, count))],
        pool_start=count,
        drawn_tokens=np.full(count, pool.suffix_tokens, dtype=np.int64),
        drawn_start=count + pool.prefixes * pool.prefix_tokens,
    )
