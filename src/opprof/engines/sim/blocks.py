"""Paged KV blocks with a prefix cache by block content (vLLM V1's block pool, as a model).

A block is cached under ``(serial of its parent, its token bytes)``, so a chain of equal blocks is
found without any hash collision. Blocks of equal content all stay findable, the first cached one
is found. Freed blocks keep their content and go to the tail of the free queue, last block first;
those that hold no whole block go to its head. The head of the queue is reused, and its content
forgotten, first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

Key = tuple[int, object]
"""Serial of the parent block (0 for the first) and the block's content."""


class BlockPool:
    """``count`` blocks; every operation costs constant time a block."""

    def __init__(self, count: int, *, caching: bool) -> None:
        self.count = count
        self.used = 0
        self._caching = caching
        self._references = [0] * count
        self._stamps = [0] * count
        self._serials = [0] * count
        self._keys: list[Key | None] = [None] * count
        self._cached: dict[Key, int | dict[int, None]] = {}
        """The one block that holds a content, or all that do, the first cached one first."""
        self._free: deque[tuple[int, int]] = deque(zip(range(count), repeat(0), strict=False))
        self._next_serial = 1

    @property
    def free(self) -> int:
        """Blocks that nobody uses; their content may still be cached."""
        return self.count - self.used

    @property
    def cached(self) -> int:
        """Blocks whose content can be found."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Fraction of blocks in use, 0..1."""
        return self.used / self.count

    def allocate(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, forgetting what they held; None when there are not enough."""
        if count > self.count - self.used:
            return None
        taken: list[int] = []
        free, stamps, keys, cached = self._free, self._stamps, self._keys, self._cached
        serials, references = self._serials, self._references
        while len(taken) < count:
            block, stamp = free.popleft()
            if stamp != stamps[block]:
                # The entry is stale: a prefix hit took the block out of the queue.
                continue
            key = keys[block]
            if key is not None:
                keys[block] = None
                holders = cached.pop(key)
                if isinstance(holders, dict):
                    del holders[block]
                    if holders:
                        cached[key] = holders
            serials[block] = 0
            references[block] = 1
            stamps[block] = stamp + 1
            taken.append(block)
        self.used += count
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block; a chain's tail is offered for reuse first."""
        references, stamps, free = self._references, self._stamps, self._free
        empty: list[tuple[int, int]] = []
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                stamps[block] += 1
                (empty if self._keys[block] is None else free).append((block, stamps[block]))
                self.used -= 1
        free.extendleft(reversed(empty))

    def match(self, contents: Sequence[object], most: int) -> list[int]:
        """Return the cached blocks that hold the leading contents, at most ``most``."""
        found: list[int] = []
        if not self._caching:
            return found
        parent = 0
        for content in contents[:most]:
            holders = self._cached.get((parent, content))
            if holders is None:
                break
            block = _first(holders)
            found.append(block)
            parent = self._serials[block]
        return found

    def touch(self, blocks: Sequence[int]) -> None:
        """Take one more reference of cached blocks."""
        for block in blocks:
            if not self._references[block]:
                self._stamps[block] += 1
                self.used += 1
            self._references[block] += 1

    def idle(self, blocks: Sequence[int]) -> int:
        """Return how many of the blocks nobody uses at the moment."""
        return sum(not self._references[block] for block in blocks)

    def cache(self, blocks: Sequence[int], first: int, contents: Sequence[object]) -> None:
        """Make ``blocks[first:]`` findable under ``contents``, one content a block."""
        if not self._caching:
            return
        cached, serials, keys = self._cached, self._serials, self._keys
        parent = serials[blocks[first - 1]] if first else 0
        for block, content in zip(blocks[first : first + len(contents)], contents, strict=True):
            key = (parent, content)
            holders = cached.get(key)
            if holders is None:
                parent = self._next_serial
                self._next_serial += 1
                cached[key] = block
            else:
                parent = serials[_first(holders)]
                if isinstance(holders, dict):
                    holders[block] = None
                else:
                    cached[key] = {holders: None, block: None}
            keys[block] = key
            serials[block] = parent


def _first(holders: int | dict[int, None]) -> int:
    return next(iter(holders)) if isinstance(holders, dict) else holders
