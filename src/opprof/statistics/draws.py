"""Random integers from keyed streams: the same bytes on every NumPy release and any worker.

NumPy freezes the words of its bit generators, not ``Generator.integers`` (NEP 19), so indices are
made here from raw words by integer arithmetic. A stream is keyed by seed and label, never by the
order of calls: results do not depend on which other runs are there or who computes them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int32 = NDArray[np.int32]

_CHUNK_WORDS = 1 << 15
"""Words at a time, so that they stay in the cache; the result does not depend on it."""


class Stream:
    """Bounded integers from one PCG64 stream, two from each 64-bit word."""

    def __init__(self, seed: int, *labels: str) -> None:
        import numpy as np

        # A hash, since seed sequences mix integers and two labels must never meet.
        text = "\x1f".join((str(seed), *labels)).encode()
        self._bits = np.random.PCG64(int.from_bytes(hashlib.sha256(text).digest(), "big"))

    def below(self, bound: int, count: int) -> Int32:
        """Return ``count`` integers of ``[0, bound)``, int32[count].

        Each word gives its lower half first. ``half * bound >> 32`` is Lemire's map without
        rejection: no value's chance is off by more than ``bound / 2**32`` of itself, under 1e-5
        for every bound used here.

        Raises:
            ValueError: the bound is not in 1..2**31, or the count is negative.
        """
        import numpy as np

        if not 1 <= bound <= 1 << 31 or count < 0:
            raise ValueError(f"{count} integers below {bound}")
        words = (count + 1) // 2
        result = np.empty(2 * words, np.int32)
        for first in range(0, words, _CHUNK_WORDS):
            size = min(_CHUNK_WORDS, words - first)
            halves = self._bits.random_raw(size).astype("<u8", copy=False).view("<u4")
            scaled = halves * np.uint64(bound)
            scaled >>= np.uint64(32)
            result[2 * first : 2 * (first + size)] = scaled
        return result[:count]
