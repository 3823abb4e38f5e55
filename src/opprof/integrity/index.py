"""Every substring of 32 characters of a private text, found in a stream: exact and vectorised.

A common substring of 32 characters has at least 32 bytes. Let ``a`` be 1, 2, 4 or 8. The private
text's 16-byte grams at positions p with ``p mod 16 < a`` are indexed; the stream is probed at every
multiple of ``a``. Whatever the two texts' offset to one another, some position within 16 bytes of
the common substring's start is on both grids (the residues ``0 … a-1`` less the multiples of ``a``
below 16 are all residues mod 16), and its gram ends within 31 bytes: no match is missed.
``a = 8`` probes an eighth of the stream with half of the text indexed, ``a = 1`` all of the stream
with a sixteenth indexed; the index takes the largest ``a`` within its budget.

An entry is one ``uint64``: the upper bits of the gram's hash, below them the number of the sample,
which is its position. A bitmap answers most probes without the sorted array. Hits are compared
with the text itself, so that a finding is never a collision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opprof.integrity.normalize import MIN_CHARS

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    UInt64 = NDArray[Any]

GRAM = 16
BUDGET_BYTES = 256 << 20
"""Of the sorted entries; the densest sampling that fits is taken."""
MIN_DISTINCT = 4
"""Different characters that 32 in a row need: rulers and rows of zeros are nobody's prompt."""

_BLOCK = 1 << 20
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)
_PAIRS = 1 << 16
_HEAVY = 64
_REACH = MIN_CHARS * 4
"""Bytes that 32 characters of UTF-8 may take."""


@dataclass(frozen=True, slots=True)
class Match:
    """A stretch that the stream shares with the private text."""

    start: int
    """In the stream's bytes."""
    source: int
    """In the private text's bytes."""
    text: bytes


class GramIndex:
    """The private text with its index; read-only after construction and shared by threads."""

    def __init__(self, text: bytes | mmap.mmap, *, budget_bytes: int = BUDGET_BYTES) -> None:
        """Index ``text``: collapsed prompts with NUL between them; it stays in memory."""
        import numpy as np

        self.text = text
        blocks = max(0, (len(text) - GRAM) // GRAM + 1)
        self.step = next((a for a in (8, 4, 2) if blocks * a * 8 <= budget_bytes), 1)
        self._size = blocks * self.step
        self._low = max(1, self._size.bit_length())
        self._entries = np.empty(self._size, np.uint64)
        low = np.uint64((1 << self._low) - 1)
        self._mask = ~low
        self._bits = min(31, max(16, (self._size * 32).bit_length()))
        self._bitmap = np.zeros(1 << (self._bits - 3), np.uint8)
        self._fill()
        self._entries.sort()
        self._heavy: dict[int, NDArray[Any]] = {}

    @property
    def memory_bytes(self) -> int:
        """Memory of index, bitmap and text."""
        return int(self._entries.nbytes + self._bitmap.nbytes) + len(self.text)

    def _fill(self) -> None:
        import numpy as np

        blocks, step = self._size // self.step, self.step
        rows = _BLOCK // GRAM
        for first in range(0, blocks, rows):
            count = min(rows, blocks - first)
            part = bytes(self.text[first * GRAM : (first + count + 1) * GRAM])
            part = part.ljust((count + 1) * GRAM, b"\x00")
            for residue in range(step):
                words = np.frombuffer(part, np.uint64, 2 * count, residue)
                hashes = _hash(words[0::2], words[1::2])
                at = slice(first * step + residue, (first + count) * step, step)
                numbers = np.arange(first * step + residue, (first + count) * step, step)
                self._entries[at] = (hashes & self._mask) | numbers.astype(np.uint64)
                slots = hashes >> np.uint64(64 - self._bits)
                self._set(slots)

    def _set(self, slots: UInt64) -> None:
        import numpy as np

        slots = np.unique(slots)
        cells = (slots >> np.uint64(3)).astype(np.int64)
        values = np.left_shift(np.uint8(1), (slots & np.uint64(7)).astype(np.uint8))
        starts = np.flatnonzero(np.diff(cells, prepend=-1))
        if len(starts):
            self._bitmap[cells[starts]] |= np.bitwise_or.reduceat(values, starts)

    def find(self, stream: bytes) -> Iterator[Match]:
        """Yield matches of 32 characters or more that hold :data:`MIN_DISTINCT` different ones.

        Of matches that overlap in the stream only the first is told.
        """
        if not self._size or len(stream) < GRAM:
            return
        told = -1
        for at, hashed in self._hits(stream):
            for match in self._verify(stream, at, hashed):
                if match.start >= told:
                    told = match.start + len(match.text)
                    yield match

    def _hits(self, stream: bytes) -> Iterator[tuple[NDArray[Any], UInt64]]:
        """Yield positions and hashes of the probes whose gram's hash is in the index, by phase."""
        import numpy as np

        for phase in range(0, 8, self.step):
            words = np.frombuffer(stream, np.uint64, (len(stream) - phase) // 8, phase)
            if len(words) < 2:
                continue
            hashes = _hash(words[:-1], words[1:])
            slots = hashes >> np.uint64(64 - self._bits)
            cells = self._bitmap[(slots >> np.uint64(3)).view(np.int64)]
            passed = np.flatnonzero((cells >> (slots & np.uint64(7)).astype(np.uint8)) & 1)
            if not len(passed):
                continue
            upper = hashes[passed] & self._mask
            left = np.searchsorted(self._entries, upper)
            left[left == self._size] = self._size - 1
            there = (self._entries[left] & self._mask) == upper
            if there.any():
                yield passed[there] * 8 + phase, upper[there]

    def _verify(self, stream: bytes, at: NDArray[Any], upper: UInt64) -> Iterator[Match]:
        """Compare hits with the text itself, gram by gram."""
        import numpy as np

        order = np.argsort(upper, kind="stable")
        borders = np.flatnonzero(np.diff(upper[order])) + 1
        found: list[Match] = []
        for group in np.split(order, borders):
            sources = self._sources(int(upper[group[0]]))
            places = at[group]
            rows = max(1, _PAIRS // len(sources))
            for first in range(0, len(places), rows):
                found += self._compare(stream, places[first : first + rows], sources)
        yield from sorted(found, key=lambda match: match.start)

    def _sources(self, upper: int) -> NDArray[Any]:
        """Positions in the text of one gram hash; of many alike, one for each surrounding."""
        import numpy as np

        known = self._heavy.get(upper)
        if known is not None:
            return known
        low, high = upper, upper | ((1 << self._low) - 1)
        first = int(np.searchsorted(self._entries, np.uint64(low)))
        last = int(np.searchsorted(self._entries, np.uint64(high), side="right"))
        numbers = (self._entries[first:last] & ~self._mask).astype(np.int64)
        places = numbers // self.step * GRAM + numbers % self.step
        if len(places) > _HEAVY:
            around: dict[bytes, int] = {}
            for place in places.tolist():
                start = max(0, place - _REACH)
                around.setdefault(bytes(self.text[start : place + GRAM + _REACH]), place)
            places = np.fromiter(around.values(), np.int64)
            self._heavy[upper] = places
        return places

    def _compare(
        self, stream: bytes, places: NDArray[Any], sources: NDArray[Any]
    ) -> Iterator[Match]:
        """Yield the matches among all pairs: first by bytes, all at once, then by characters."""
        import numpy as np

        span = np.arange(-GRAM, 2 * GRAM)
        left = _rows(np.frombuffer(stream, np.uint8), places, span)
        near = np.frombuffer(b"".join(self._near(place) for place in sources.tolist()), np.uint8)
        right = near.reshape(len(sources), len(span))
        same = (left[:, None, :] == right[None, :, :]) & (right != 0)[None, :, :]
        middle = same[:, :, GRAM : 2 * GRAM].all(axis=2)
        before = np.logical_and.accumulate(same[:, :, GRAM - 1 :: -1], axis=2).sum(axis=2)
        after = np.logical_and.accumulate(same[:, :, 2 * GRAM :], axis=2).sum(axis=2)
        for place, source in zip(*np.nonzero(middle & (before + after >= GRAM)), strict=True):
            match = self._extend(stream, int(places[place]), int(sources[source]))
            if match is not None:
                yield match

    def _near(self, place: int) -> bytes:
        start = place - GRAM
        part = bytes(self.text[max(0, start) : place + 2 * GRAM])
        return part.rjust(len(part) + max(0, -start), b"\x00").ljust(3 * GRAM, b"\x00")

    def _extend(self, stream: bytes, at: int, source: int) -> Match | None:
        """Grow a match to both sides; None when it is too short or says nothing."""
        first_stream, first_source = at, source
        while first_stream and first_source:
            byte = stream[first_stream - 1]
            if not byte or byte != self.text[first_source - 1]:
                break
            first_stream, first_source = first_stream - 1, first_source - 1
        end, other = at, source
        while end < len(stream) and other < len(self.text):
            if not stream[end] or stream[end] != self.text[other]:
                break
            end, other = end + 1, other + 1
        text = stream[first_stream:end]
        # Half a character at either side is none.
        characters = text.decode("utf-8", "ignore")
        if not _telling(characters):
            return None
        return Match(first_stream, first_source, text)


def _telling(characters: str) -> bool:
    """Tell whether some 32 characters in a row hold enough different ones."""
    return any(
        len(set(characters[start : start + MIN_CHARS])) >= MIN_DISTINCT
        for start in range(len(characters) - MIN_CHARS + 1)
    )


def _rows(values: NDArray[Any], places: NDArray[Any], span: NDArray[Any]) -> NDArray[Any]:
    """Return uint8[places, span], 0 outside of the stream."""
    import numpy as np

    at = places[:, None] + span[None, :]
    inside = (at >= 0) & (at < len(values))
    return np.where(inside, values[np.where(inside, at, 0)], 0)


def _hash(first: UInt64, second: UInt64) -> UInt64:
    """Mix two words into 64 bits whose upper ones depend on all of both."""
    import numpy as np

    mixed = first * np.uint64(_MIX[0])
    mixed ^= mixed >> np.uint64(32)
    mixed += second
    mixed *= np.uint64(_MIX[1])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MIX[2])
    return mixed
