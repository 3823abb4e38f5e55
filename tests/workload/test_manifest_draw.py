"""The stream's words and mappings do not move between machines and NumPy releases."""

from __future__ import annotations

import numpy as np
import pytest

from opprof.errors import InputError
from opprof.workload.draw import MAX_SPAN, RawStream, bounded, permutation


def test_the_words_are_those_of_default_rng() -> None:
    expected = np.random.default_rng(20260712).bit_generator.random_raw(5)
    assert RawStream(20260712).words(0, 5).tolist() == expected.tolist()
    # Worked out once with NumPy 1.26 and 2.4: PCG64 seeded by SeedSequence(20260712).
    assert RawStream(20260712).words(0, 2).tolist() == [
        12774524683068519527,
        8898614146479037469,
    ]


def test_words_are_addressable_in_any_order() -> None:
    stream = RawStream(7)
    whole = RawStream(7).words(0, 100)
    assert stream.words(60, 40).tolist() == whole[60:].tolist()
    assert stream.words(0, 10).tolist() == whole[:10].tolist()
    assert stream.words(10, 50).tolist() == whole[10:60].tolist()


def test_bounded_is_the_documented_integer_formula() -> None:
    words = np.array([0, 1 << 20, (1 << 64) - 1, 12345678901234567890], dtype=np.uint64)
    expected = [(int(word) >> 20) * 151_643 >> 44 for word in words]
    assert bounded(words.copy(), 151_643).tolist() == expected
    assert bounded(words.copy(), MAX_SPAN)[2] == MAX_SPAN - 1
    assert bounded(words.copy(), 1).tolist() == [0, 0, 0, 0]


def test_bounded_reaches_every_value_about_equally() -> None:
    counts = np.bincount(bounded(RawStream(1).words(0, 100_000), 10), minlength=10)
    assert counts.min() > 9_600
    assert counts.max() < 10_400


@pytest.mark.parametrize("span", [0, -1, MAX_SPAN + 1])
def test_a_span_outside_the_domain_is_refused(span: int) -> None:
    with pytest.raises(InputError, match="a draw can choose from"):
        bounded(RawStream(1).words(0, 1), span)


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_outside_the_domain_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match="seed"):
        RawStream(seed)


def test_permutation_sorts_and_keeps_the_order_of_equal_words() -> None:
    words = np.array([5, 3, 5, 1, 3], dtype=np.uint64)
    assert permutation(words).tolist() == [3, 1, 4, 0, 2]
