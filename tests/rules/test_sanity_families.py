"""Families count what is there; their own numbers raise red flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.analysis.sanity import column_family
from opprof.rules.sanity import family, family_flags


@given(
    st.lists(
        st.one_of(st.none(), st.integers(-50, 50), st.floats(allow_nan=True, allow_infinity=True))
    )
)
def test_a_family_accounts_for_every_value(values: list[float | int | None]) -> None:
    found = family("x", values)
    finite = [v for v in values if v is not None and np.isfinite(v)]
    assert found.n == len(values)
    assert found.missing == values.count(None)
    assert found.finite == len(finite)
    assert found.min == (min(finite) if finite else None)
    assert found.max == (max(finite) if finite else None)
    assert found.distinct == len(set(finite))
    array = np.array([np.nan if v is None else v for v in values], np.float64)
    same = column_family("x", array, missing=np.array([v is None for v in values], np.bool_))
    assert (same.n, same.finite, same.missing, same.distinct) == (
        found.n,
        found.finite,
        found.missing,
        found.distinct,
    )


@pytest.mark.parametrize(
    ("values", "options", "flag"),
    [
        ([1, -2], {}, "negative: x goes down to -2"),
        ([1, -2], {"signed": True}, None),
        ([0.5, 1.25], {"unit": "ratio"}, "ratio_out_of_bounds: x goes up to 1.25"),
        ([0.0, 1.0], {"unit": "ratio"}, None),
        ([-0.5, 1.5], {"unit": "ratio", "signed": True}, None),
        ([1.0, float("nan"), float("inf")], {}, "non_finite: x: 2 of 3"),
        ([None, None], {}, None),
    ],
)
def test_bounds_raise_red_flags(
    values: list[float | None], options: dict[str, Any], flag: str | None
) -> None:
    flags = family_flags([family("x", values, **options)])
    assert [found[: len(flag or "")] for found in flags] == ([flag] if flag else [])
