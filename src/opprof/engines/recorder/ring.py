"""A bounded single-producer single-consumer byte ring in shared memory.

Layout of the memory, all numbers native and 8-byte aligned::

    word 0   head: bytes ever published (producer writes)
    word 1   tail: bytes ever consumed (consumer writes)
    word 2   dropped steps (producer writes)
    word 3   lost records that had no room at all (producer writes)
    word 4   flag of the consumer: 0 off, 1 on, 2 dead (consumer writes)
    64 ...   data, ``capacity`` bytes

A record is ``u32 kind, u32 size`` and its payload, padded to 8 bytes; it never wraps (a PAD record
fills the end). The producer only stores; it takes no lock, makes no system call, wakes nobody. The
consumer polls, and reads up to the head it saw at the *previous* poll: whatever the memory order of
the processor, stores that are a poll interval old are visible.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

from opprof.errors import IntegrityError

HEAD, TAIL, DROPPED, LOST, FLAG = range(5)
FLAG_OFF, FLAG_ON, FLAG_DEAD = 0, 1, 2
DATA_OFFSET = 64
PAD = 0
PREFIX = struct.Struct("@II")
"""Kind and size in bytes (prefix included, multiple of 8) at the start of each record."""


class Ring:
    """One mapping of the ring; producer and consumer each make their own from the descriptor."""

    def __init__(self, descriptor: int, capacity: int) -> None:
        if capacity <= 0 or capacity % mmap.PAGESIZE:
            raise ValueError(f"capacity must be a multiple of {mmap.PAGESIZE}, not {capacity}")
        self.descriptor = descriptor
        self.capacity = capacity
        self.memory = mmap.mmap(descriptor, DATA_OFFSET + capacity)
        self._view = memoryview(self.memory)
        self.words = self._view[:DATA_OFFSET].cast("Q")
        self.data = self._view[DATA_OFFSET:]
        self._visible = 0

    @classmethod
    def create(cls, capacity: int) -> Ring:
        """Make the shared memory, touch every page (no fault on the step path), and map it."""
        descriptor = os.memfd_create("opprof-ring", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, DATA_OFFSET + capacity)
        ring = cls(descriptor, capacity)
        zeros = bytes(mmap.PAGESIZE)
        for offset in range(0, capacity, mmap.PAGESIZE):
            ring.data[offset : offset + mmap.PAGESIZE] = zeros
        return ring

    def room(self, size: int, spare: int = 0) -> int:
        """Return the data offset where ``size`` bytes may be written now, or -1 when full.

        ``spare`` bytes must stay free behind them. A PAD record is written where the end of the
        data is too short; :meth:`publish` makes pad and record visible together.
        """
        words = self.words
        head = words[HEAD]
        free = self.capacity - (head - words[TAIL])
        offset: int = head % self.capacity
        to_end = self.capacity - offset
        if size <= to_end:
            return offset if size + spare <= free else -1
        if to_end + size + spare > free:
            return -1
        PREFIX.pack_into(self.data, offset, PAD, to_end)
        words[HEAD] = head + to_end
        return 0

    def publish(self, size: int) -> None:
        """Make the record of ``size`` bytes behind the head visible."""
        self.words[HEAD] += size

    def put(self, kind: int, payload: bytes) -> bool:
        """Write one rare record (not for the step path); False, and counted lost, when full."""
        payload += bytes(-len(payload) % 8)
        size = PREFIX.size + len(payload)
        offset = self.room(size)
        if offset < 0:
            self.words[LOST] += 1
            return False
        PREFIX.pack_into(self.data, offset, kind, size)
        start = offset + PREFIX.size
        self.data[start : start + len(payload)] = payload
        self.publish(size)
        return True

    def drain(self, *, everything: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield ``(kind, payload)`` of the records that were visible at the previous call.

        ``everything`` reads up to the head of this moment: right only when the producer has
        stopped. Zeros that pad it to 8 bytes stay on the payload.

        Raises:
            IntegrityError: a record's size makes no sense; nothing behind it can be read.
        """
        words = self.words
        head = words[HEAD]
        upto = head if everything else self._visible
        self._visible = head
        tail = words[TAIL]
        while tail < upto:
            offset = tail % self.capacity
            kind, size = PREFIX.unpack_from(self.data, offset)
            if size < PREFIX.size or size % 8 or offset + size > self.capacity:
                raise IntegrityError(f"ring record of {size} bytes at {tail} makes no sense")
            if kind != PAD:
                yield kind, bytes(self.data[offset + PREFIX.size : offset + size])
            tail += size
            words[TAIL] = tail

    def close(self) -> None:
        """Unmap the memory and close the descriptor."""
        self.words.release()
        self.data.release()
        self._view.release()
        self.memory.close()
        self.close_descriptor()

    def close_descriptor(self) -> None:
        """Close the descriptor and keep the mapping: the other side has its own by then."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
