"""The shared-memory ring: order, wrapping, refusal when full, visibility one poll later."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.engines.recorder.ring import HEAD, LOST, PREFIX, TAIL, Ring
from opprof.errors import IntegrityError


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring.create(mmap.PAGESIZE)
    yield made
    made.close()


def test_records_become_visible_one_poll_later(ring: Ring) -> None:
    assert ring.put(3, b"abc")
    assert list(ring.drain()) == []
    assert list(ring.drain()) == [(3, b"abc\0\0\0\0\0")]
    assert list(ring.drain()) == []


def test_everything_reads_up_to_the_head(ring: Ring) -> None:
    ring.put(3, b"abc")
    ring.put(4, b"")
    assert [kind for kind, _ in ring.drain(everything=True)] == [3, 4]


@given(sizes=st.lists(st.integers(0, 900), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_sequence_comes_back_in_order_or_is_counted(sizes: list[int]) -> None:
    ring = Ring.create(mmap.PAGESIZE)
    try:
        sent, received = [], []
        for number, size in enumerate(sizes):
            payload = bytes([number % 251 + 1]) * size
            if ring.put(number + 1, payload):
                sent.append((number + 1, payload))
            if number % 5 == 4:
                received += list(ring.drain(everything=True))
        received += list(ring.drain(everything=True))
        assert [
            (kind, data[: len(wanted)])
            for (kind, data), (_, wanted) in zip(received, sent, strict=True)
        ] == sent
        assert ring.words[LOST] == len(sizes) - len(sent)
        assert ring.words[HEAD] == ring.words[TAIL]
    finally:
        ring.close()


def test_a_full_ring_refuses_and_counts(ring: Ring) -> None:
    assert ring.put(1, bytes(2000))
    assert ring.put(1, bytes(2000))
    assert not ring.put(1, bytes(2000))
    assert ring.words[LOST] == 1
    assert len(list(ring.drain(everything=True))) == 2
    assert ring.put(1, bytes(2000))


def test_spare_room_is_kept_for_completions(ring: Ring) -> None:
    assert ring.room(mmap.PAGESIZE - 64, 128) == -1
    assert ring.room(mmap.PAGESIZE - 64, 64) == 0


def test_a_senseless_size_is_an_integrity_error(ring: Ring) -> None:
    ring.put(1, b"")
    PREFIX.pack_into(ring.data, 0, 1, 5)
    with pytest.raises(IntegrityError, match="makes no sense"):
        list(ring.drain(everything=True))


def test_two_mappings_share_the_memory(ring: Ring) -> None:

    other = Ring(os.dup(ring.descriptor), ring.capacity)
    ring.put(7, b"x")
    assert [kind for kind, _ in other.drain(everything=True)] == [7]
    assert ring.words[TAIL] == 16
    other.close()


def test_capacity_must_be_whole_pages() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Ring(-1, 1000)
