"""Every substring of 32 characters of a private text, found in a stream: exact and vectorised.

A common substring of 32 characters has at least 32 bytes. Of the private text, the 16-byte grams
at positions p with ``p mod 16 < a`` are in a filter; the stream is probed at every multiple of
``a`` (8 for text, 1 for ids). Whatever the two texts' offset to one another, some position within
16 bytes of the common substring's start is on both grids (the residues ``0 … a-1`` less the
multiples of ``a`` below 16 are all residues mod 16), and its gram ends within 32 bytes: no match
is missed.

Only the grams at multiples of 16 have an entry that tells where they are. Around a probe s that
passes, the private text's multiple of 16 lies at s-7 … s, or, where that is before the substring,
at s+9 … s+16, whose gram then ends inside of it: these 16 places are looked up. Of the other 16
bytes eight stand on one side of that gram, so it must be known with the word before or after it,
too. An entry is one ``uint64``: the upper bits of the gram's hash, below them the number of the
block. What is found is compared with the text itself, so that a finding is never a collision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opprof.integrity.grams import GRAM, WORD, GramFilter, gram_hashes, rows, slices, words_at
from opprof.integrity.stretches import MIN_CHARS

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

    UInt64 = NDArray[Any]

MIN_DISTINCT = 4
"""Different characters that 32 in a row need: rulers and rows of zeros are nobody's prompt."""
MAX_PERIOD = 8
"""Nor is a unit of so few characters, four times or more in a row: ``[], [], [], …``."""

_BLOCKS = 1 << 15
_PROBES = 1 << 15
_PAIRS = 1 << 16
_ROWS = 1 << 13
_REACH = MIN_CHARS * 4
"""Bytes that 32 characters of UTF-8 may take."""
_NARROW = (-GRAM, 2 * GRAM)
_WIDE = (-_REACH, GRAM + _REACH)
_REMEMBERED = 1 << 16
_HEAVY = 1 << 8
"""Entries of one gram beyond which a surrounding that agrees with none of them is remembered."""


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

    def __init__(self, text: bytes | bytearray | mmap.mmap, *, dense: bool = True) -> None:
        """Index ``text``: collapsed prompts with NUL between them; it stays in memory.

        Memory beside the text: 0.7 to 0.9 bytes a byte of text, and half to one more with
        ``dense``, with which an eighth of a stream's places is probed.
        """
        import numpy as np

        self.text = text
        self.step = 8 if dense else 1
        self._size = max(0, len(text) // GRAM)
        self._low = max(1, self._size.bit_length())
        self._mask = ~np.uint64((1 << self._low) - 1)
        self._entries = np.empty(self._size, np.uint64)
        self._coarse = GramFilter(self._size)
        self._beside = GramFilter(self._size * 2)
        self._fine = GramFilter(self._size * 8) if dense else self._coarse
        self._fill()
        self._entries.sort()
        self._thin()
        self._cold: dict[bytes, Any] = {}
        """Surroundings of 48 bytes that agree with none of many places in 32."""
        self._warm: dict[bytes, Any] = {}
        """Surroundings of 272 bytes with their matches."""

    @property
    def memory_bytes(self) -> int:
        """Memory of index, filters and text."""
        filters = {self._coarse, self._beside, self._fine}
        held = sum(item.memory_bytes for item in filters)
        return int(self._entries.nbytes) + held + len(self.text)

    def _fill(self) -> None:
        import numpy as np

        for part in slices(self._size, _BLOCKS):
            count = part.stop - part.start
            # With a block before and one after, which are NUL at the ends.
            raw = bytes(self.text[max(0, part.start - 1) * GRAM : (part.stop + 1) * GRAM])
            raw = (b"" if part.start else bytes(GRAM)) + raw
            raw = raw.ljust((count + 2) * GRAM, b"\x00")
            words = words_at(raw, 0, 2 * count + 4)
            hashes = gram_hashes(words[2:-2:2], words[3:-1:2])
            numbers = np.arange(part.start, part.stop).astype(np.uint64)
            self._entries[part] = (hashes & self._mask) | numbers
            self._coarse.add(hashes)
            self._beside.add(gram_hashes(words[1:-4:2], hashes))
            self._beside.add(gram_hashes(hashes, words[4::2]))
            if self._fine is not self._coarse:
                self._fine.add(hashes)
                for residue in range(1, self.step):
                    words = words_at(raw, GRAM + residue, 2 * count)
                    self._fine.add(gram_hashes(words[0::2], words[1::2]))

    def _thin(self) -> None:
        """Keep one entry of those with the same gram and the same 128 bytes on both sides.

        Boilerplate and rulers stand in many prompts, and every match is looked at as far as that.
        """
        import numpy as np

        kept = np.ones(len(self._entries), bool)
        for run in self._heavy():
            blocks = (self._entries[run] & ~self._mask).astype(np.int64)
            kept[run] = ~self._repeated(blocks)
        if kept.all():
            return
        # In place, for the entries may take as much memory as all the rest.
        end = 0
        for part in slices(len(kept), _BLOCKS):
            some = self._entries[part][kept[part]]
            self._entries[end : end + len(some)] = some
            end += len(some)
        self._entries = self._entries[:end]

    def _heavy(self) -> Iterator[slice]:
        """Yield the entries of every gram that has more than :data:`_HEAVY`."""
        import numpy as np

        found = [np.empty(0, np.int64)]
        for part in slices(len(self._entries) - _HEAVY, _BLOCKS):
            later = self._entries[part.start + _HEAVY : part.stop + _HEAVY]
            same = ((self._entries[part] ^ later) & self._mask) == 0
            found.append(np.flatnonzero(same) + part.start)
        at = np.concatenate(found)
        upper = self._entries[at] & self._mask
        for run in np.split(at, np.flatnonzero(upper[1:] != upper[:-1]) + 1):
            if len(run):
                yield slice(int(run[0]), int(run[-1]) + _HEAVY + 1)

    def _repeated(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """Return which blocks have the surroundings of another one that is kept."""
        import numpy as np

        text = np.frombuffer(self.text, np.uint64, len(self.text) // WORD)
        around = np.arange(_WIDE[0] // WORD, _WIDE[1] // WORD)
        inner = (blocks * 2 + around[0] >= 0) & (blocks * 2 + around[-1] < len(text))
        hashes = np.zeros(len(blocks), np.uint64)
        for part in slices(len(blocks), _ROWS):
            words = text.take(blocks[part, None] * 2 + around, mode="clip")
            for column in range(len(around)):
                mixed = hashes[part] ^ (hashes[part] >> np.uint64(32))
                hashes[part] = gram_hashes(mixed, words[:, column])
        order = np.argsort(hashes, kind="stable")
        same = np.zeros(len(blocks), bool)
        for part in slices(len(blocks) - 1, _ROWS):
            first, second = order[part], order[part.start + 1 : part.stop + 1]
            words = text.take(blocks[first, None] * 2 + around, mode="clip")
            others = text.take(blocks[second, None] * 2 + around, mode="clip")
            same[second] = (words == others).all(axis=1) & inner[first] & inner[second]
        return same

    def find(self, stream: bytes) -> Iterator[Match]:
        """Yield matches of 32 characters or more that tell something (:func:`_telling`).

        A match is told as far as 128 bytes around its gram, each stretch once.
        """
        if not self._size or len(stream) < GRAM:
            return
        told: set[tuple[int, int]] = set()
        for match in self._verify(stream, *self._hits(stream)):
            stretch = (match.start, len(match.text))
            if stretch not in told:
                told.add(stretch)
                yield match

    def _hits(self, stream: bytes) -> tuple[NDArray[Any], UInt64]:
        """Return positions and hashes of grams that are perhaps on the coarse grid."""
        import numpy as np

        found = [np.empty(0, np.int64)]
        hashed = [np.empty(0, np.uint64)]
        for phase in range(0, WORD, self.step):
            grams = (len(stream) - phase) // WORD - 1
            for part in slices(grams, _PROBES):
                start = part.start * WORD + phase
                words = words_at(stream, start, part.stop - part.start + 1)
                hashes = gram_hashes(words[:-1], words[1:])
                passed = np.flatnonzero(self._fine.passes(hashes))
                found.append(passed * WORD + start)
                hashed.append(hashes[passed])
        at, hashes = np.concatenate(found), np.concatenate(hashed)
        if self.step > 1 and len(at):
            at, hashes = self._near(stream, at)
        return self._known(stream, at, hashes)

    def _near(self, stream: bytes, places: NDArray[Any]) -> tuple[NDArray[Any], UInt64]:
        """Return grams around probes that are perhaps on the coarse grid, each place once."""
        import numpy as np

        # A word before the stream and five after it, so that all around a probe is there.
        padded = bytes(WORD) + stream + bytes(6 * WORD)
        words = words_at(padded, 0, len(padded) // WORD)
        number = places[:, None] // WORD
        shift = np.arange(1, WORD + 1).astype(np.uint64)[None, :] * np.uint64(8)

        def moved(by: int) -> UInt64:
            """The words that begin 1 to 8 bytes after the one that is ``by`` words further."""
            low, high = words[number + 1 + by], words[number + 2 + by]
            both: UInt64 = (low >> shift) | (high << (np.uint64(64) - shift))
            return both

        found, hashed = [], []
        for first, reached in ((-1, -7), (1, 9)):
            hashes = gram_hashes(moved(first), moved(first + 1))
            row, column = np.nonzero(self._coarse.passes(hashes))
            found.append(places[row] + (column + reached))
            hashed.append(hashes[row, column])
        at, first_one = np.unique(np.concatenate(found), return_index=True)
        inside = (at >= 0) & (at + GRAM <= len(stream))
        return at[inside], np.concatenate(hashed)[first_one][inside]

    def _known(
        self, stream: bytes, at: NDArray[Any], hashes: UInt64
    ) -> tuple[NDArray[Any], UInt64]:
        """Return the grams that are perhaps known with the word before or after them."""
        import numpy as np

        values = np.frombuffer(stream, np.uint8)
        windows = np.ascontiguousarray(rows(values, at, (-WORD, GRAM + WORD))).view(np.uint64)
        before = self._beside.passes(gram_hashes(windows[:, 0], hashes))
        kept = before | self._beside.passes(gram_hashes(hashes, windows[:, 3]))
        return at[kept], hashes[kept]

    def _verify(self, stream: bytes, at: NDArray[Any], hashes: UInt64) -> Iterator[Match]:
        """Compare hits with the text itself.

        Whether 32 bytes agree depends on the 48 around the gram alone, and whether 32 telling
        characters do on the 272 around it (a match that tells further away has a gram of its own).
        Traces repeat their names without end, so answers are remembered.
        """
        import numpy as np

        upper = hashes & self._mask
        first = np.searchsorted(self._entries, upper)
        last = np.searchsorted(self._entries, upper | ~self._mask, side="right")
        there = first < last
        at, first, last = at[there], first[there], last[there]
        values = np.frombuffer(stream, np.uint8)
        for part in slices(len(at), _ROWS):
            windows = rows(values, at[part], _NARROW)
            kinds, inverse = _distinct(windows)
            ranges = (first[part][kinds], last[part][kinds])
            alike = self._alike(windows[kinds], *ranges)
            for kind, sources in alike.items():
                for number in np.flatnonzero(inverse == kind).tolist():
                    yield from self._matches(stream, int(at[part][number]), sources)

    def _alike(
        self, windows: NDArray[Any], first: NDArray[Any], last: NDArray[Any]
    ) -> dict[int, list[NDArray[Any]]]:
        """Return, by window, the text's places where at least 32 bytes agree with it."""
        import numpy as np

        found: dict[int, list[NDArray[Any]]] = {}
        counts = last - first
        heavy = {kind: windows[kind].tobytes() for kind in np.flatnonzero(counts > _HEAVY).tolist()}
        asked = np.ones(len(windows), bool)
        asked[[kind for kind, window in heavy.items() if window in self._cold]] = False
        kinds = np.flatnonzero(asked)
        ends = np.cumsum(counts[kinds])
        for part in slices(int(ends[-1]) if len(ends) else 0, _PAIRS):
            pairs = np.arange(part.start, part.stop)
            row = np.searchsorted(ends, pairs, side="right")
            kind = kinds[row]
            entry = self._entries[last[kind] - (ends[row] - pairs)]
            block = (entry & ~self._mask).astype(np.int64)
            kept = self._same(windows, kind, block)
            kind, places = kind[kept], block[kept] * GRAM
            kept = _agree(rows(np.frombuffer(self.text, np.uint8), places, _NARROW), windows[kind])
            kind, places = kind[kept], places[kept]
            for one in np.unique(kind).tolist():
                found.setdefault(one, []).append(places[kind == one])
        for one, window in heavy.items():
            if one not in found:
                _remember(self._cold, window, None)
        return found

    def _same(self, windows: NDArray[Any], kind: NDArray[Any], block: NDArray[Any]) -> NDArray[Any]:
        """Return which pairs agree in the gram and in the word before or after it.

        Of 32 bytes around a gram, 8 or more stand on one side of it.
        """
        import numpy as np

        text = np.frombuffer(self.text, np.uint64, len(self.text) // WORD)
        asked = np.ascontiguousarray(windows).view(np.uint64)
        word = block * (GRAM // WORD)
        before = text[np.maximum(word - 1, 0)] == asked[kind, 1]
        after = text[np.minimum(word + 2, len(text) - 1)] == asked[kind, 4]
        kept = np.flatnonzero(before | after)
        word, kind = word[kept], kind[kept]
        same = (text[word] == asked[kind, 2]) & (text[word + 1] == asked[kind, 3])
        found: NDArray[Any] = kept[same]
        return found

    def _matches(self, stream: bytes, at: int, sources: list[NDArray[Any]]) -> list[Match]:
        """Return the telling matches around a gram that lie in no other one."""
        start = max(0, at - _REACH)
        wide = stream[start : at + GRAM + _REACH]
        key = wide + bytes([at - start])
        known = self._warm.get(key)
        if known is None:
            known = self._extents(wide, at - start, sources)
            _remember(self._warm, key, known)
        return [
            Match(at - before, source - before, wide[at - start - before : at - start + after])
            for before, after, source in known
        ]

    def _extents(
        self, wide: bytes, at: int, sources: list[NDArray[Any]]
    ) -> list[tuple[int, int, int]]:
        """Return (bytes before the gram's start, after it, source) of maximal telling matches."""
        import numpy as np

        text = np.frombuffer(self.text, np.uint8)
        window = rows(np.frombuffer(wide, np.uint8), np.array([at]), _WIDE)
        reached: dict[int, int] = {}
        for places in sources:
            for part in slices(len(places), _ROWS):
                before, after = _reach(rows(text, places[part], _WIDE), window, _REACH)
                both = before * (2 * _REACH) + after
                _, some = np.unique(both, return_index=True)
                for one in some.tolist():
                    reached.setdefault(int(both[one]), int(places[part][one]))
        found: list[tuple[int, int, int]] = []
        extents = [(*divmod(both, 2 * _REACH), source) for both, source in reached.items()]
        for left, right, source in sorted(extents, key=lambda one: -one[0] - one[1]):
            if any(left <= other[0] and right <= other[1] for other in found):
                continue
            # Half a character at either side is none.
            characters = wide[at - left : at + right].decode("utf-8", "ignore")
            if _telling(characters):
                found.append((left, right, source))
        return found


def _reach(near: NDArray[Any], window: NDArray[Any], at: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how many bytes in a row agree before column ``at`` and from it on; NUL never does."""
    import numpy as np

    same = (near == window) & (near != 0)
    before = np.logical_and.accumulate(same[:, at - 1 :: -1], axis=1).sum(axis=1)
    after = np.logical_and.accumulate(same[:, at:], axis=1).sum(axis=1)
    return before, after


def _agree(near: NDArray[Any], windows: NDArray[Any]) -> NDArray[Any]:
    """Return which rows agree with their window in 32 bytes around the gram."""
    before, after = _reach(near, windows, GRAM)
    agree: NDArray[Any] = (after >= GRAM) & (before + after >= MIN_CHARS)
    return agree


def _remember(memory: dict[bytes, Any], key: bytes, value: object) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value


def _telling(characters: str) -> bool:
    """Tell whether some 32 characters in a row are more than a short unit again and again."""
    return any(
        len(set(part)) >= MIN_DISTINCT
        and not any(part[period:] == part[:-period] for period in range(1, MAX_PERIOD + 1))
        for part in (
            characters[start : start + MIN_CHARS]
            for start in range(len(characters) - MIN_CHARS + 1)
        )
    )


def _distinct(windows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (a row of each distinct kind, kind of every row) of uint8[rows, 48]."""
    import numpy as np

    words = np.ascontiguousarray(windows).view(np.uint64)
    mixed = words[:, 0].copy()
    for column in range(1, words.shape[1]):
        mixed = gram_hashes(mixed ^ (mixed >> np.uint64(32)), words[:, column])
    _, kinds, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    if not (words == words[kinds][inverse]).all():
        # Two kinds with one hash: tell all rows apart.
        kinds = inverse = np.arange(len(windows))
    return kinds, inverse
