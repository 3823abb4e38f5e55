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
BUDGET_BYTES = 512 << 20
"""Of the sorted entries; the densest sampling that fits is taken."""
MIN_DISTINCT = 4
"""Different characters that 32 in a row need: rulers and rows of zeros are nobody's prompt."""

_BLOCK = 1 << 20
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)
_ROWS = 1 << 14
_REACH = MIN_CHARS * 4
"""Bytes that 32 characters of UTF-8 may take."""
_NARROW = (-GRAM, 2 * GRAM)
_WIDE = (-_REACH, GRAM + _REACH)
_REMEMBERED = 1 << 17
_UNKNOWN = object()


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

    def __init__(
        self, text: bytes | bytearray | mmap.mmap, *, budget_bytes: int = BUDGET_BYTES
    ) -> None:
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
        self._bits = min(31, max(16, (self._size * 16).bit_length()))
        self._bitmap = np.zeros(1 << (self._bits - 3), np.uint8)
        self._fill()
        self._entries.sort()
        self._cold: dict[bytes, Any] = {}
        """Surroundings of 48 bytes that agree nowhere in 32."""
        self._warm: dict[bytes, Any] = {}
        """Surroundings of 272 bytes with their longest match, or None."""

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

        A match is told as far as 128 bytes around its gram, each stretch once.
        """
        if not self._size or len(stream) < GRAM:
            return
        told: set[tuple[int, int]] = set()
        for at, hashed in self._hits(stream):
            for match in self._verify(stream, at, hashed):
                stretch = (match.start, len(match.text))
                if stretch not in told:
                    told.add(stretch)
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
        """Compare hits with the text itself, each surrounding once.

        Whether 32 bytes agree depends on the 48 around the gram alone, and whether 32 telling
        characters do on the 272 around it (a match that tells further away has a gram of its own).
        Traces repeat their names without end, so both answers are remembered.
        """
        import numpy as np

        values = np.frombuffer(stream, np.uint8)
        for first in range(0, len(at), _ROWS):
            places, hashes = at[first : first + _ROWS], upper[first : first + _ROWS]
            windows = _rows(values, places, _NARROW)
            kinds, inverse = _distinct(windows)
            for kind, row in enumerate(kinds.tolist()):
                window = windows[row].tobytes()
                if window in self._cold:
                    continue
                sources = self._alike(int(hashes[row]), windows[row])
                if not len(sources):
                    _remember(self._cold, window, None)
                    continue
                for number in np.flatnonzero(inverse == kind).tolist():
                    match = self._longest(stream, int(places[number]), sources)
                    if match is not None:
                        yield match

    def _alike(self, upper: int, window: NDArray[Any]) -> NDArray[Any]:
        """Positions of a gram in the text where at least 32 bytes agree with the window."""
        import numpy as np

        low, high = upper, upper | ((1 << self._low) - 1)
        first = int(np.searchsorted(self._entries, np.uint64(low)))
        last = int(np.searchsorted(self._entries, np.uint64(high), side="right"))
        text = np.frombuffer(self.text, np.uint8)
        found = []
        for start in range(first, last, _ROWS):
            numbers = (self._entries[start : min(start + _ROWS, last)] & ~self._mask).astype(
                np.int64
            )
            places = numbers // self.step * GRAM + numbers % self.step
            same = (near := _rows(text, places, _NARROW)) == window[None, :]
            same &= near != 0
            middle = same[:, GRAM : 2 * GRAM].all(axis=1)
            before = np.logical_and.accumulate(same[:, GRAM - 1 :: -1], axis=1).sum(axis=1)
            after = np.logical_and.accumulate(same[:, 2 * GRAM :], axis=1).sum(axis=1)
            found.append(places[middle & (before + after >= GRAM)])
        return np.concatenate(found)

    def _longest(self, stream: bytes, at: int, sources: NDArray[Any]) -> Match | None:
        """Return the longest telling match around a gram; None when none tells anything."""
        import numpy as np

        start = max(0, at - _REACH)
        wide = stream[start : at + GRAM + _REACH]
        key = wide + bytes([at - start])
        known = self._warm.get(key, _UNKNOWN)
        if known is not None and known is not _UNKNOWN:
            left, source, text = known
            return Match(at - left, source, text)
        if known is None:
            return None
        if len(sources) > 1:
            # Of places with the same surroundings one is enough.
            text_values = np.frombuffer(self.text, np.uint8)
            rows = _rows(text_values, sources, _WIDE)
            _, kept = np.unique(rows, axis=0, return_index=True)
            sources = sources[kept]
        best: Match | None = None
        for source in sources.tolist():
            match = self._extend(wide, at - start, source)
            if match is not None and (best is None or len(match.text) > len(best.text)):
                best = match
        if best is None:
            _remember(self._warm, key, None)
            return None
        left = at - start - best.start
        _remember(self._warm, key, (left, best.source, best.text))
        return Match(at - left, best.source, best.text)

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
        if not _telling(text.decode("utf-8", "ignore")):
            return None
        return Match(first_stream, first_source, text)


def _remember(memory: dict[bytes, Any], key: bytes, value: object) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


def _telling(characters: str) -> bool:
    """Tell whether some 32 characters in a row hold enough different ones."""
    return any(
        len(set(characters[start : start + MIN_CHARS])) >= MIN_DISTINCT
        for start in range(len(characters) - MIN_CHARS + 1)
    )


def _distinct(windows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (a row of each distinct kind, kind of every row) of uint8[rows, 48]."""
    import numpy as np

    words = np.ascontiguousarray(windows).view(np.uint64)
    mixed = words[:, 0].copy()
    for column in range(1, words.shape[1]):
        mixed = _hash(mixed, words[:, column])
    _, rows, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    if not (words == words[rows][inverse]).all():
        # Two kinds with one hash: tell all rows apart.
        rows = inverse = np.arange(len(windows))
    return rows, inverse


def _rows(values: NDArray[Any], places: NDArray[Any], reach: tuple[int, int]) -> NDArray[Any]:
    """Return uint8[places, reach] around each place, 0 outside of the values."""
    import numpy as np

    at = places[:, None] + np.arange(*reach)[None, :]
    inside = (at >= 0) & (at < len(values))
    at[~inside] = 0
    rows: NDArray[Any] = values[at]
    rows[~inside] = 0
    return rows


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
