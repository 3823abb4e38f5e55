"""Hashed grams of 16 bytes, and a filter that holds them.

A gram is two little-endian words. Its hash depends on all of both in the upper half, which alone
chooses a filter's word and an index entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInt64 = NDArray[Any]

GRAM = 16
"""Bytes of a gram."""
WORD = 8

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_PATTERNS = 1 << 12
_PATTERN_SHIFT = 22
"""Bits that choose a pattern; a filter of 2^29 words (4 GiB) would still not share them."""
_BITS_AN_ENTRY = 8
_MOST_WORDS_LOG2 = 29


def gram_hashes(first: UInt64, second: UInt64) -> UInt64:
    """Return uint64 hashes of grams given as two words: multilinear, mixed in the upper half."""
    import numpy as np

    mixed = first * np.uint64(_FACTORS[0])
    mixed += second * np.uint64(_FACTORS[1])
    return mixed


class GramFilter:
    """Tells "certainly not added" or "perhaps": a Bloom filter with three bits in one word."""

    def __init__(self, entries: int) -> None:
        """Make room for so many hashes at 8 to 16 bits each (0.5 to 5 % of others pass)."""
        import numpy as np

        log2 = max(10, (entries * _BITS_AN_ENTRY // 64).bit_length())
        self._shift = np.uint64(64 - min(_MOST_WORDS_LOG2, log2))
        self._words = np.zeros(1 << (64 - int(self._shift)), np.uint64)
        self._patterns = _patterns()

    @property
    def memory_bytes(self) -> int:
        """Memory of the filter."""
        return int(self._words.nbytes)

    def add(self, hashes: UInt64) -> None:
        """Add uint64 hashes."""
        import numpy as np

        slots = (hashes >> self._shift).view(np.int64)
        bits = self._chosen(hashes)
        while len(slots):
            # Of several with one slot the last one wins; the others are added in the next round.
            self._words[slots] |= bits
            lost = (self._words[slots] & bits) != bits
            slots, bits = slots[lost], bits[lost]

    def passes(self, hashes: UInt64) -> NDArray[Any]:
        """Return bool: False where a hash was certainly not added."""
        import numpy as np

        words = self._words[(hashes >> self._shift).view(np.int64)]
        bits = self._chosen(hashes)
        words &= bits
        passed: NDArray[Any] = words == bits
        return passed

    def _chosen(self, hashes: UInt64) -> UInt64:
        import numpy as np

        which = (hashes >> np.uint64(_PATTERN_SHIFT)) & np.uint64(_PATTERNS - 1)
        chosen: UInt64 = self._patterns.take(which.view(np.int64), mode="wrap")
        return chosen


def _patterns() -> UInt64:
    """Every pattern has three different bits of 64."""
    import numpy as np

    order = np.random.default_rng(0).permuted(np.tile(np.arange(64), (_PATTERNS, 1)), axis=1)
    bits = np.left_shift(np.uint64(1), order[:, :3].astype(np.uint64))
    patterns: UInt64 = np.bitwise_or.reduce(bits, axis=1)
    return patterns


def words_at(data: bytes | bytearray | memoryview, start: int, count: int) -> UInt64:
    """Return uint64[count] of neighbouring words from a byte offset on (not aligned)."""
    import numpy as np

    return np.frombuffer(data, np.uint64, count, start)


def rows(values: NDArray[Any], places: NDArray[Any], reach: tuple[int, int]) -> NDArray[Any]:
    """Return uint8[places, reach] around each place, 0 outside of the values."""
    import numpy as np

    at = places[:, None] + np.arange(*reach)[None, :]
    inside = (at >= 0) & (at < len(values))
    at[~inside] = 0
    found: NDArray[Any] = values[at]
    found[~inside] = 0
    return found


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices of ``size`` that cover ``count``."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
