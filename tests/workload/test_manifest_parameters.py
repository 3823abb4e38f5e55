"""Flags: what is accepted, and one clear message for each impossible combination."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_helpers import make_spec

from opprof.errors import InputError
from opprof.workload.arrival import parse_arrival
from opprof.workload.parameters import (
    Fixed,
    Mixture,
    PrefixPool,
    Uniform,
    parse_mixture,
    parse_uniform,
)

P09 = '{"uniform:128:512":0.5,"uniform:1024:2048":0.3,"uniform:4096:8192":0.2}'
POOL: dict[str, Any] = {
    "kind": "prefix-pool",
    "num_prefixes": 4,
    "prefix_len": 32,
    "suffix_fixed": 20,
}


def test_the_mixtures_of_the_protocol_have_exact_counts() -> None:
    half = parse_mixture('{"uniform:128:512":0.5,"uniform:4096:8192":0.5}')
    assert half.modes == (Uniform(128, 512), Uniform(4096, 8192))
    assert half.counts(32_768) == (16_384, 16_384)
    # 0.3 and 0.2 of 32,768 are 9,830.4 and 6,553.6: the larger remainder gets the last request.
    assert parse_mixture(P09).counts(32_768) == (16_384, 9_830, 6_554)


def test_weights_are_decimals_not_floats() -> None:
    mixture = parse_mixture('{"fixed:1":0.1,"fixed:2":0.2,"fixed:3":0.7}')
    assert sum(mixture.weights) == 1
    assert mixture.weights[0] == Fraction(1, 10)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.integers(1, 5_000),
)
def test_largest_remainder_is_exact_and_near(parts: list[int], requests: int) -> None:
    weights = tuple(Fraction(part, sum(parts)) for part in parts)
    mixture = Mixture(tuple(Fixed(i + 1) for i in range(len(parts))), weights)
    try:
        counts = mixture.counts(requests)
    except InputError:
        assert min(weights) * requests < 1
        return
    assert sum(counts) == requests
    assert all(abs(c - w * requests) < 1 for c, w in zip(counts, weights, strict=True))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"uniform:1:5":0.5,"uniform:6:9":0.4}', "sum to 0.9, not to 1"),
        ('{"uniform:1:5":0.5,"uniform:6:9":0.6}', "sum to 1.1"),
        ('{"uniform:1:5":1.5,"uniform:6:9":-0.5}', r"not in \(0, 1\]"),
        ('{"uniform:1:5":1,"uniform:6:9":0}', r"not in \(0, 1\]"),
        ('{"uniform:1:5":"1"}', "not a number"),
        ('{"uniform:1:5":true}', "not a number"),
        ('{"uniform:1:5":NaN}', "not a number"),
        ('{"uniform:1:5":1e-400,"fixed:2":1}', r"not in \(0, 1\]"),
        ('{"normal:1:5":1}', "use uniform:LO:HI or fixed:N"),
        ('{"uniform:9:5":1}', "LO is greater than HI"),
        ('{"uniform:0:5":1}', "outside 1"),
        ('{"fixed:-3":1}', "outside 1"),
        ('{"fixed:2":0.5,"fixed:2":0.5}', "occurs twice"),
        ("{}", "no mode"),
        ("[1]", "JSON object"),
        ("[]", "no mode"),
        ("3", "JSON object"),
        ("{'a':1}", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_an_impossible_mixture_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_mixture(text)


def test_a_mode_without_requests_is_refused() -> None:
    with pytest.raises(InputError, match="mode fixed:9 gets none of 2 requests"):
        make_spec(input_mixture='{"fixed:3":0.9,"fixed:9":0.1}', num_requests=2)


@pytest.mark.parametrize("text", ["5", "1:2:3", "a:b", "1.5:2", "1:", "", "1 :2", "²:3"])
def test_a_malformed_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="use LO:HI"):
        parse_uniform(text)


@pytest.mark.parametrize("text", ["0:5", "-4:5", "5:1048577"])
def test_a_length_outside_the_domain_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="outside 1 … 1048576"):
        parse_uniform(text)


def test_arrival_classes() -> None:
    assert parse_arrival("steady") == 1
    assert parse_arrival("burst:8") == 8
    for text in ("burst", "burst:0", "burst:-1", "burst:8.0", "Steady", "burst:08", ""):
        with pytest.raises(InputError, match="use 'steady' or 'burst:N'"):
            parse_arrival(text)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "chat"}, "'chat' is unknown"),
        ({"input_uniform": None}, "exactly one of .* none was given"),
        ({"input_fixed": 5, "input_uniform": "1:2"}, "--input-uniform and --input-fixed"),
        ({"input_fixed": 0}, "--input-fixed: a length of 0"),
        ({"output_fixed": 0}, "--output-fixed: a length of 0"),
        ({"output_fixed": -2}, "--output-fixed: a length of -2"),
        ({"num_requests": 0}, "--num-requests 0"),
        ({"num_requests": 1 << 23}, "--num-requests"),
        ({"seed": -1}, "--workload-seed -1"),
        ({"prefix": "high"}, "shared prefixes come from --kind prefix-pool"),
        ({"prefix_len": 5}, "--prefix-len belongs to --kind prefix-pool"),
        ({"pattern": "a/b"}, "--id 'a/b'"),
        ({"pattern": 'P"'}, "--id"),
        ({"arrival": "poisson"}, "--arrival 'poisson'"),
        ({**POOL, "suffix_fixed": None}, "needs --suffix-fixed"),
        ({**POOL, "input_uniform": "1:2"}, "--input-uniform belongs to --kind synthetic"),
        ({**POOL, "prefix": "none"}, "--prefix 'none' belongs to --kind synthetic"),
        ({**POOL, "num_prefixes": 41}, "--num-prefixes 41 is outside 1 … 40"),
        ({**POOL, "num_prefixes": 0}, "--num-prefixes 0"),
        ({**POOL, "prefix_len": 0}, "--prefix-len: a length of 0"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make_spec(**changes)


def test_a_pool_is_described_in_the_flags_words() -> None:
    spec = make_spec(**POOL)
    assert spec.input == PrefixPool(4, 32, 20)
    assert spec.prefix == "high"
    assert spec.describe()["num_prefixes"] == 4
