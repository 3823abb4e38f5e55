"""The guarantee: no common substring of 32 telling characters is missed, and every match is one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.integrity.grams import GRAM, GramFilter
from opprof.integrity.index import MAX_PERIOD, MIN_DISTINCT, GramIndex, Match
from opprof.integrity.stretches import MIN_CHARS, collapse

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def tells(text: str) -> bool:
    """The documented rule, written once more."""
    return any(
        len(set(part)) >= MIN_DISTINCT
        and all(part != (part[:unit] * MIN_CHARS)[:MIN_CHARS] for unit in range(1, MAX_PERIOD + 1))
        for part in (text[i : i + MIN_CHARS] for i in range(len(text) - MIN_CHARS + 1))
    )


def found(index: GramIndex, stream: bytes) -> list[Match]:
    matches = list(index.find(stream))
    for match in matches:
        size = len(match.text)
        assert stream[match.start : match.start + size] == match.text
        assert bytes(index.text[match.source : match.source + size]) == match.text
        assert tells(match.text.decode("utf-8", "ignore"))
    return matches


@pytest.mark.parametrize("dense", [True, False])
def test_every_pair_of_offsets_is_on_both_grids(dense: bool) -> None:
    private = ("".join(LETTERS[(i * i + i // 7) % 36] for i in range(96))).encode()
    for source in range(2 * GRAM):
        part = private[source : source + MIN_CHARS]
        index = GramIndex(private, dense=dense)
        for lead in range(GRAM):
            for tail in (b"", b"\xfe", b"\xfe" * 9):
                assert found(index, b"\xfe" * lead + part + tail)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("size", range(MIN_CHARS, MIN_CHARS + GRAM))
def test_the_last_bytes_of_a_private_text_are_in_the_index(size: int, dense: bool) -> None:
    private = (LETTERS * 2)[:size].encode()
    index = GramIndex(private, dense=dense)
    assert found(index, b"xy" + private[-MIN_CHARS:])
    assert found(index, private[:MIN_CHARS] + b"-")
    assert not found(index, b"xy" + private[-MIN_CHARS + 1 :])


texts = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=33, max_size=200),
    st.text("ab ", min_size=33, max_size=200),
    st.lists(
        st.sampled_from(["你好", "мир ", "0, ", "--- ", "def f(x):", "🙂", "\n\n"]), min_size=20
    ).map("".join),
)


@settings(max_examples=200, deadline=None)
@given(
    before=texts,
    text=texts,
    dense=st.booleans(),
    lead=st.binary(max_size=20),
    tail=st.binary(max_size=20),
    data=st.data(),
)
def test_a_planted_substring_is_found_if_it_tells_something(
    before: str, text: str, dense: bool, lead: bytes, tail: bytes, data: st.DataObject
) -> None:
    private = collapse(text.encode())
    characters = private.decode()
    if len(characters) < MIN_CHARS:
        return
    size = data.draw(st.integers(MIN_CHARS, min(len(characters), 80)))
    start = data.draw(st.integers(0, len(characters) - size))
    part = characters[start : start + size]
    index = GramIndex(collapse(before.encode()) + b"\x00" + private + b"\x00", dense=dense)
    matches = found(index, lead + b"\x00" + part.encode() + b"\x00" + tail)
    assert not tells(part) or matches


@settings(max_examples=100, deadline=None)
@given(first=texts, second=texts)
def test_two_texts_match_just_where_they_share_a_telling_substring(first: str, second: str) -> None:
    private, stream = collapse(first.encode()), collapse(second.encode())
    inside, other = private.decode(), stream.decode()
    shared = any(
        tells(other[i : i + MIN_CHARS]) and other[i : i + MIN_CHARS] in inside
        for i in range(len(other) - MIN_CHARS + 1)
    )
    assert bool(found(GramIndex(private), stream)) == shared


def test_text_across_two_prompts_is_no_substring_of_either() -> None:
    index = GramIndex(b"abcdefghijklmnopqrst\x00uvwxyz0123456789ABCDEF\x00")
    assert not found(index, b"abcdefghijklmnopqrst uvwxyz0123456789ABCDEF")
    assert not found(index, b"abcdefghijklmnopqrst\x00uvwxyz0123456789ABCDEF")


def test_a_gram_that_stands_in_many_places_hides_none_of_them() -> None:
    rng = np.random.default_rng(3)
    letters = np.frombuffer(LETTERS.encode(), np.uint8)
    common = b"self.assertEqual("
    parts = [common + letters[rng.integers(0, 36, 47)].tobytes() for _ in range(3000)]
    index = GramIndex(b"".join(part[:64] for part in parts))
    for number in (0, 1, 1500, 2999):
        assert found(index, b"xx " + parts[number][:33] + b" yy")
    assert not found(index, b"xx " + common + b"and something quite different")
    # Asked once more, from memory.
    assert not found(index, b"xx " + common + b"and something quite different")
    assert found(index, b"xx " + parts[7][:33] + b" yy")


def test_of_two_places_with_different_ends_both_are_told() -> None:
    before, middle, after = LETTERS[:20], "The quick fox jumps", LETTERS[20:]
    private = f"{before}{middle}\x00{middle}{after}".encode()
    stream = f"{before}{middle}{after}".encode()
    texts = {match.text.decode() for match in found(GramIndex(private), stream)}
    assert texts == {before + middle, middle + after}


@pytest.mark.parametrize(
    "text",
    ["-" * 40, "0, " * 20, "| --- " * 9, "[], " * 12, "0.0, " * 9, "null, " * 8, "abcdefgh" * 5],
)
def test_a_short_unit_again_and_again_is_nobodys_prompt(text: str) -> None:
    assert not found(GramIndex(text.encode()), text.encode())
    assert found(GramIndex(f"{text}, said he to her".encode()), f"{text}, said he to her".encode())


def test_ruler_prompts_cost_bounded_memory() -> None:
    index = GramIndex(b"-" * (4 << 20) + b" the end of the ruler is here: now")
    assert not found(index, b"-" * 4096)
    assert found(index, b"-" * 64 + b" the end of the ruler is here: now")


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.integers(0, 2000))
def test_a_filter_forgets_nothing(values: list[int], room: int) -> None:
    hashes = np.array(values, np.uint64)
    held = GramFilter(room)
    held.add(np.concatenate([hashes, hashes[: len(hashes) // 2]]))
    assert held.passes(hashes).all()


def test_a_filter_lets_few_others_pass() -> None:
    rng = np.random.default_rng(5)
    held = GramFilter(1 << 16)
    held.add(rng.integers(0, 1 << 64, 1 << 16, np.uint64))
    assert held.passes(rng.integers(0, 1 << 64, 1 << 18, np.uint64)).mean() < 0.06
