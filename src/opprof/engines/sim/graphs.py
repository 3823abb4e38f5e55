"""CUDA-graph capture sizes and dispatch, as vLLM 0.24.0 does both (``FULL_AND_PIECEWISE``)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from opprof.artifacts.layer1 import GraphMode

LARGEST_CAPTURE = 512


class Dispatch(NamedTuple):
    """How one step runs."""

    mode: GraphMode
    bucket_tokens: int
    """Tokens of the captured bucket; 0 for NONE."""


def capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[int]:
    """Return vLLM's default sizes: 1, 2, 4, then by 8 below 256, then by 16.

    The largest is ``min(2 * max_num_seqs, 512)``, and never above the token budget, which is
    captured itself where it is no larger.
    """
    largest = min(2 * max_num_seqs, LARGEST_CAPTURE, max_num_batched_tokens)
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += range(8, min(largest + 1, 256), 8)
    if largest >= 256:
        sizes += range(256, largest + 1, 16)
    if max_num_batched_tokens == largest and largest not in sizes:
        sizes.append(largest)
    return sizes


class Dispatcher:
    """Chooses mode and bucket of a step."""

    def __init__(self, sizes: Sequence[int], max_num_seqs: int) -> None:
        self.sizes = sorted(sizes)
        # A uniform decode batch has one token a request, so larger buckets are not captured FULL.
        self._full = [size for size in self.sizes if size <= max_num_seqs]

    def __call__(self, tokens: int, *, uniform_decode: bool) -> Dispatch:
        """Dispatch a step of ``tokens`` (positive); ``uniform_decode``: one token a request."""
        if uniform_decode and (size := _smallest(self._full, tokens)):
            return Dispatch("FULL", size)
        if size := _smallest(self.sizes, tokens):
            return Dispatch("PIECEWISE", size)
        return Dispatch("NONE", 0)


def _smallest(sizes: Sequence[int], tokens: int) -> int:
    index = bisect_left(sizes, tokens)
    return sizes[index] if index < len(sizes) else 0
