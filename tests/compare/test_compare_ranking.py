"""Places with ties, and tau-b against SciPy."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.compare import kendall_tau_b, tie_places

POINT = Fraction(1, 100)


def per_cent(**shares: str) -> dict[str, Fraction]:
    return {name: Fraction(value) / 100 for name, value in shares.items()}


def test_ties_within_a_point_share_a_place_and_the_next_is_skipped() -> None:
    shares = per_cent(a="50", b="20", c="19.5", d="19", e="5")
    assert tie_places(shares, POINT) == {"a": 1, "b": 2, "c": 2, "d": 2, "e": 5}


def test_the_groups_first_decides_and_no_chain_forms() -> None:
    shares = per_cent(a="20", b="19.2", c="18.4", d="17.6")
    assert tie_places(shares, POINT) == {"a": 1, "b": 1, "c": 3, "d": 3}


@pytest.mark.parametrize(("second", "place"), [("29", 1), ("28.999999999999999", 2)])
def test_exactly_one_point_is_a_tie(second: str, place: int) -> None:
    assert tie_places(per_cent(a="30", b=second), POINT)["b"] == place


def test_no_families_have_no_places() -> None:
    assert tie_places({}, POINT) == {}


SHARES = st.dictionaries(
    st.text("abcdefghi", min_size=1, max_size=2),
    st.integers(0, 400).map(lambda n: Fraction(n, 400)),
    max_size=9,
)


@given(shares=SHARES, tie=st.integers(0, 20).map(lambda n: Fraction(n, 400)))
def test_what_places_promise(shares: dict[str, Fraction], tie: Fraction) -> None:
    places = tie_places(shares, tie)
    assert set(places) == set(shares)
    for a in shares:
        above = [b for b in shares if places[b] < places[a]]
        # The place counts the families before the group, all of which have greater shares.
        assert places[a] == 1 + len(above)
        assert all(shares[b] > shares[a] for b in above)
        for b in shares:
            if places[a] == places[b]:
                assert abs(shares[a] - shares[b]) <= tie
            if shares[a] == shares[b]:
                assert places[a] == places[b]
    tops = [shares[a] for a in shares if places[a] == 1]
    # The first group is exactly the families within the tie of the greatest share.
    assert len(tops) == sum(max(shares.values()) - s <= tie for s in shares.values())


@given(shares=SHARES, data=st.data())
def test_the_order_of_the_input_does_not_matter(
    shares: dict[str, Fraction], data: st.DataObject
) -> None:
    items = data.draw(st.permutations(list(shares.items())))
    assert tie_places(dict(items), POINT) == tie_places(shares, POINT)


VECTORS = st.integers(0, 10).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 4), min_size=n, max_size=n),
        st.lists(st.integers(1, 4), min_size=n, max_size=n),
    )
)


@given(pair=VECTORS)
def test_tau_b_is_antisymmetric_symmetric_and_bounded(pair: tuple[list[int], list[int]]) -> None:
    x, y = pair
    tau = kendall_tau_b(x, y)
    assert tau == kendall_tau_b(y, x)
    reverse = kendall_tau_b(x, [-value for value in y])
    if tau is None:
        assert reverse is None
    else:
        assert reverse == -tau
        assert -1 <= tau <= 1
    if len(set(x)) > 1:
        assert kendall_tau_b(x, x) == 1.0
    else:
        assert tau is None


def test_tau_b_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(20260714)
    defined = 0
    for _ in range(300):
        size = draw.randint(2, 10)
        x = [draw.randint(1, 6) for _ in range(size)]
        y = [draw.randint(1, 6) for _ in range(size)]
        ours = kendall_tau_b(x, y)
        if ours is None:
            assert len(set(x)) == 1 or len(set(y)) == 1
            continue
        defined += 1
        theirs = float(stats.kendalltau(x, y, variant="b").statistic)
        assert math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12)
    assert defined > 250


def test_tau_b_by_hand() -> None:
    # Pairs: 12 concordant, 13 concordant, 23 tied in y; 1/sqrt: C=2, untied 3 and 2.
    assert kendall_tau_b([1, 2, 3], [1, 2, 2]) == pytest.approx(2 / math.sqrt(6))
    assert kendall_tau_b([1, 1], [1, 2]) is None
    with pytest.raises(ValueError, match="3 and 2"):
        kendall_tau_b([1, 2, 3], [1, 2])
