"""The one random stream of a manifest, addressable by position.

NumPy promises that the words of a bit generator never change between releases, but not what
``Generator.integers`` or ``Generator.permutation`` make of them (NEP 19). So only the raw 64-bit
words of ``numpy.random.default_rng(seed)`` are used, **exactly one word a draw**, and the two
mappings below turn a word into a value. Draw number ``j`` of a manifest is word ``j``, whoever
computes it and in whatever order: results cannot depend on block size or number of workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from opprof.errors import InputError

MAX_SPAN = 1 << 20
"""Most values a draw can choose from: 44 bits of a word times 20 bits stay within 64."""
_WORD_SHIFT = np.uint64(20)
_RESULT_SHIFT = np.uint64(44)
_PERIOD = 1 << 128


class RawStream:
    """The words of ``default_rng(seed)``; reading in order costs nothing extra.

    Raises:
        InputError: the seed is negative or has more than 63 bits.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 1 << 63:
            raise InputError(f"the workload seed must lie in 0 … 2^63-1, not {seed}")
        # The bit generator is named, since default_rng may choose another in some later release.
        self._bits = np.random.default_rng(np.random.PCG64(seed)).bit_generator
        self._position = 0

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Return words ``start … start + count - 1`` as a fresh ``uint64[count]``."""
        if start != self._position:
            assert isinstance(self._bits, np.random.PCG64)
            self._bits.advance((start - self._position) % _PERIOD)
        self._position = start + count
        drawn: NDArray[np.uint64] = self._bits.random_raw(count)
        return drawn


def bounded(words: NDArray[np.uint64], span: int) -> NDArray[np.int64]:
    """Map words to integers ``0 … span - 1``, in place: ``(word >> 20) * span >> 44``.

    Integer arithmetic only, hence equal on every machine. A value's probability differs from
    ``1/span`` by less than ``2**-44`` (for a vocabulary of 150,000 one part in 10^8).
    """
    if not 1 <= span <= MAX_SPAN:
        raise InputError(f"a draw can choose from 1 to {MAX_SPAN} values, not {span}")
    np.right_shift(words, _WORD_SHIFT, out=words)
    np.multiply(words, np.uint64(span), out=words)
    np.right_shift(words, _RESULT_SHIFT, out=words)
    return words.view(np.int64)


def permutation(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the permutation that sorts ``words``; equal words keep their order."""
    return np.argsort(words, kind="stable")
