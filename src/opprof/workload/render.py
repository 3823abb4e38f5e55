"""Token ids to JSON text, block by block; the speed of ``materialize`` lies here.

Each id's text with its comma (``"12345,"``) sits in an eight-byte cell of a table. A block of
draws becomes text by one table look-up, one deletion of the cells' unused bytes and one split at
the requests' ends: about 25 ns a token, where ``str`` and ``join`` need ten times that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from opprof.workload.draw import RawStream, bounded

_CELL = "S8"
BLOCK_TOKENS = 1 << 16
"""Tokens a block: large enough to hide Python's own cost, small enough for the caches."""


class TokenText:
    """Draws requests' token ids from a vocabulary and renders them as JSON array elements."""

    def __init__(self, token_ids: NDArray[np.int64], *, keep_tokens: int) -> None:
        """Build the tables.

        Args:
            token_ids: ``int64[v]``, the ids to draw from, each below 10**7.
            keep_tokens: how many first ids of each request :meth:`requests` returns beside the
                text.
        """
        digits = token_ids.astype(_CELL)
        self._ids = token_ids
        self._inner = np.char.add(digits, b",").astype(_CELL).view(np.uint64)
        self._last = np.char.add(digits, b"\n").astype(_CELL).view(np.uint64)
        self._keep = keep_tokens

    def requests(
        self, stream: RawStream, start: int, lengths: NDArray[np.int64]
    ) -> tuple[list[bytes], NDArray[np.int64]]:
        """Draw and render consecutive requests.

        Args:
            stream: the manifest's words.
            start: position of the first request's first word.
            lengths: ``int64[r]``, tokens of each request, each at least 1.

        Returns:
            ``r`` texts like ``b"17,4,902"``, and the first ids of each as ``int64[r, keep]``,
            filled with -1 behind the end of a shorter request.
        """
        ends = np.cumsum(lengths)
        drawn = bounded(stream.words(start, int(ends[-1])), self._ids.size)
        cells = self._inner.take(drawn)
        cells[ends - 1] = self._last.take(drawn[ends - 1])
        texts = cells.tobytes().translate(None, b"\0").split(b"\n")
        texts.pop()
        return texts, self._first_ids(drawn, ends - lengths, lengths)

    def _first_ids(
        self, drawn: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        columns = np.arange(self._keep)
        inside = columns < lengths[:, np.newaxis]
        at = np.where(inside, starts[:, np.newaxis] + columns, 0)
        return np.where(inside, self._ids[drawn[at]], -1)


def blocks(
    lengths: NDArray[np.int64], *, block_tokens: int = BLOCK_TOKENS
) -> Iterator[tuple[int, int]]:
    """Yield ranges ``[first, last)`` of requests with about ``block_tokens`` tokens each."""
    ends = np.cumsum(lengths)
    first, done = 0, 0
    while first < lengths.size:
        last = int(np.searchsorted(ends, done + block_tokens, side="right"))
        last = max(last, first + 1)
        yield first, last
        first, done = last, int(ends[last - 1])
