"""The pure rules: raggedness and common prefixes against their plain definitions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.errors import InputError
from opprof.workload.prefixes import PAST_THE_END, first_shared_pair
from opprof.workload.raggedness import raggedness
from opprof.workload.summary import summarize_lengths

lengths = st.lists(st.integers(1, 9_000), max_size=80)
prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=12)


@given(lengths, st.integers(1, 20))
def test_raggedness_is_the_protocols_formula(values: list[int], cohort: int) -> None:
    groups = [values[i : i + cohort] for i in range(0, len(values) - cohort + 1, cohort)]
    result = raggedness(values, cohort)
    if not groups:
        assert result is None
        return
    rectangle = sum(cohort * max(group) for group in groups)
    assert result == pytest.approx(1 - sum(map(sum, groups)) / rectangle, abs=1e-12)
    assert 0 <= result < 1


def test_raggedness_leaves_the_incomplete_cohort_out() -> None:
    assert raggedness([1, 3, 2, 2, 9_000], 2) == pytest.approx(1 - 8 / 10)
    assert raggedness([5] * 64, 64) == 0


def test_raggedness_refuses_impossible_input() -> None:
    with pytest.raises(InputError, match="request 1 has a length of 0"):
        raggedness([3, 0], 2)
    with pytest.raises(InputError, match="cohort"):
        raggedness([3], 0)


@given(prompts, st.integers(0, 4))
def test_the_prefix_rule_equals_comparing_all_pairs(values: list[list[int]], limit: int) -> None:
    width = limit + 1
    rows = np.full((len(values), width), PAST_THE_END, dtype=np.int64)
    for row, prompt in zip(rows, values, strict=True):
        row[: min(width, len(prompt))] = prompt[:width]

    def shared(a: list[int], b: list[int]) -> bool:
        common = 0
        while common < min(len(a), len(b)) and a[common] == b[common]:
            common += 1
        return common > limit or a == b

    pairs = [(i, j) for i, j in combinations(range(len(values)), 2) if shared(values[i], values[j])]
    found = first_shared_pair(rows)
    if not pairs:
        assert found is None
    else:
        assert found in pairs
        assert found[1] == min(j for _, j in pairs)


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=60))
def test_length_summary_equals_numpys(values: list[int]) -> None:
    block = summarize_lengths(values)
    assert block.median == pytest.approx(np.median(values), rel=1e-12)
    assert block.p95 == pytest.approx(np.percentile(values, 95), rel=1e-12)


def test_an_empty_manifest_has_no_summary() -> None:
    with pytest.raises(InputError, match="no request"):
        summarize_lengths([])
