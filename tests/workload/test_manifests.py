"""Manifests of every kind: frozen bytes, exact properties, the summary."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from workload_helpers import make_spec

from opprof.artifacts.manifest import ManifestLine
from opprof.errors import InputError
from opprof.files import sha256_file
from opprof.workload.draw import RawStream, bounded
from opprof.workload.materialize import materialize_synthetic
from opprof.workload.plan import plan_lengths
from opprof.workload.tokenizer import Vocabulary

KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"input_uniform": "20:60", "prefix": "none"},
    "fixed": {"input_fixed": 30, "arrival": "burst:8"},
    "mixture": {"input_mixture": '{"uniform:18:25":0.5,"fixed:40":0.3,"uniform:90:99":0.2}'},
    "pool": {
        "kind": "prefix-pool",
        "num_prefixes": 8,
        "prefix_len": 24,
        "suffix_fixed": 17,
        "arrival": "burst:8",
    },
}
FROZEN = {
    "uniform": "1e5336ad49f59551794075dfc6c6fd80f84ca031dc9e36bfd80e5911d66cfe0c",
    "fixed": "99969283b94f258cd55eafcb35900f3491e6e70a505aa9e43bf82a86f768871a",
    "mixture": "ca8fecdb53e482696b5adf8e799e54614b339f89de90762eac7a05e3b1c60039",
    "pool": "dd3a7ece30a9022bc8aed7cae3feecafd33f65f7c7e50fca4e3a494c7b3e7869",
}
"""Equal under NumPy 1.26.4 and 2.4.6. A change here is a change of ``opprof-workload/1``."""


def materialize(out: Path, vocabulary: Vocabulary, kind: str, **changes: Any) -> list[ManifestLine]:
    options = {name: changes.pop(name) for name in ("block_tokens",) if name in changes}
    materialize_synthetic(make_spec(**{**KINDS[kind], **changes}), vocabulary, out, **options)
    return [msgspec.json.decode(line, type=ManifestLine) for line in out.read_bytes().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_frozen(tmp_path: Path, vocabulary: Vocabulary, kind: str) -> None:
    out = tmp_path / "T01.jsonl"
    materialize(out, vocabulary, kind)
    assert sha256_file(out) == FROZEN[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_tokens", [1, 37, 1 << 20])
def test_the_block_size_does_not_matter(
    tmp_path: Path, vocabulary: Vocabulary, kind: str, block_tokens: int
) -> None:
    out = tmp_path / "T01.jsonl"
    materialize(out, vocabulary, kind, block_tokens=block_tokens)
    assert sha256_file(out) == FROZEN[kind]


def test_progress_counts_to_the_end(tmp_path: Path, vocabulary: Vocabulary) -> None:
    seen: list[tuple[int, int]] = []
    materialize_synthetic(
        make_spec(),
        vocabulary,
        tmp_path / "T01.jsonl",
        block_tokens=300,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (40, 40)
    assert len(seen) > 1
    assert seen == sorted(seen)


def test_a_line_is_what_the_contract_says(tmp_path: Path, vocabulary: Vocabulary) -> None:
    lines = materialize(tmp_path / "T01.jsonl", vocabulary, "fixed", num_requests=3)
    raw = json.loads((tmp_path / "T01.jsonl").read_text().splitlines()[2])
    assert list(raw) == [
        "id",
        "prompt_token_ids",
        "input_tokens",
        "output_tokens",
        "arrival",
        "pattern",
    ]
    assert (raw["id"], raw["arrival"], raw["pattern"]) == ("T01-000002", "burst:8", "T01")
    assert [line.id for line in lines] == ["T01-000000", "T01-000001", "T01-000002"]


def test_tokens_come_from_the_stream_as_documented(tmp_path: Path, vocabulary: Vocabulary) -> None:
    lines = materialize(tmp_path / "T01.jsonl", vocabulary, "uniform")
    stream = RawStream(20260712)
    lengths = 20 + bounded(stream.words(0, 40), 41)
    assert [line.input_tokens for line in lines] == lengths.tolist()
    ids = vocabulary.token_ids[bounded(stream.words(40, int(lengths.sum())), 4096)]
    assert [i for line in lines for i in line.prompt_token_ids or []] == ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_token_exact_and_ids_ordinary(
    tmp_path: Path, vocabulary: Vocabulary, kind: str
) -> None:
    ordinary = set(vocabulary.token_ids.tolist())
    for line in materialize(tmp_path / "T01.jsonl", vocabulary, kind):
        assert line.prompt_token_ids is not None
        assert len(line.prompt_token_ids) == line.input_tokens
        assert set(line.prompt_token_ids) <= ordinary
        assert line.output_tokens == 8


def test_uniform_lengths_reach_both_ends() -> None:
    lengths = plan_lengths(make_spec(input_uniform="3:6", num_requests=400)).input_tokens
    assert sorted(set(lengths.tolist())) == [3, 4, 5, 6]


def test_a_mixture_has_exact_counts_in_mixed_order(tmp_path: Path, vocabulary: Vocabulary) -> None:
    lines = materialize(tmp_path / "T01.jsonl", vocabulary, "mixture")
    modes = [
        "short" if n <= 25 else "mid" if n == 40 else "long"
        for n in (line.input_tokens for line in lines)
    ]
    assert Counter(modes) == {"short": 20, "mid": 12, "long": 8}
    assert modes != sorted(modes, reverse=True)
    assert len({tuple(modes[i : i + 10]) for i in range(0, 40, 10)}) == 4


def test_a_pool_is_balanced_shuffled_and_unique(tmp_path: Path, vocabulary: Vocabulary) -> None:
    lines = materialize(tmp_path / "T01.jsonl", vocabulary, "pool", num_requests=48)
    prompts = [tuple(line.prompt_token_ids or ()) for line in lines]
    prefixes = Counter(prompt[:24] for prompt in prompts)
    assert set(prefixes.values()) == {6}
    assert len(prefixes) == 8
    assert len({prompt[24:] for prompt in prompts}) == 48
    order = [prompt[:24] for prompt in prompts]
    assert order[:8] != order[8:16]


def test_matched_patterns_carry_the_same_prompts(tmp_path: Path, vocabulary: Vocabulary) -> None:
    one = materialize(tmp_path / "P02.jsonl", vocabulary, "uniform", pattern="P02")
    two = materialize(
        tmp_path / "P11.jsonl", vocabulary, "uniform", pattern="P11", arrival="burst:8"
    )
    assert [a.prompt_token_ids for a in one] == [b.prompt_token_ids for b in two]
    other = materialize(tmp_path / "T03.jsonl", vocabulary, "uniform", seed=20260713)
    assert [a.prompt_token_ids for a in one] != [c.prompt_token_ids for c in other]


def test_requests_that_share_a_prefix_are_refused(tmp_path: Path) -> None:
    two_words = Vocabulary(np.array([5, 9]), "0" * 64)
    out = tmp_path / "T01.jsonl"
    spec = make_spec(input_fixed=30, num_requests=2_000)
    with pytest.raises(InputError, match=r"T01-\d{6} and T01-\d{6} share more than 16"):
        materialize_synthetic(spec, two_words, out)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_beyond_every_length_still_asks_for_unique_prompts(tmp_path: Path) -> None:
    two_words = Vocabulary(np.array([5, 9]), "0" * 64)
    spec = make_spec(input_uniform="1:4", num_requests=20, max_common_prefix_tokens=10**12)
    with pytest.raises(InputError, match="or are equal"):
        materialize_synthetic(spec, two_words, tmp_path / "T01.jsonl")
    spec = make_spec(input_fixed=40, num_requests=20, max_common_prefix_tokens=10**12)
    assert materialize_synthetic(spec, two_words, tmp_path / "T01.jsonl").input_tokens.n == 20


def test_shared_pool_prefixes_and_suffixes_are_refused(tmp_path: Path) -> None:
    one_word = Vocabulary(np.array([5]), "0" * 64)
    pool = {**KINDS["pool"], "num_prefixes": 2}
    with pytest.raises(InputError, match="shared prefixes number 0 and number 1"):
        materialize_synthetic(make_spec(**pool), one_word, tmp_path / "T01.jsonl")
    pool["num_prefixes"] = 1
    with pytest.raises(InputError, match="the suffixes are too small"):
        materialize_synthetic(make_spec(**pool), one_word, tmp_path / "T01.jsonl")


def test_the_summary_says_what_the_manifest_holds(tmp_path: Path, vocabulary: Vocabulary) -> None:
    out = tmp_path / "T01.jsonl"
    spec = make_spec(**KINDS["mixture"], num_requests=70)
    summary = materialize_synthetic(spec, vocabulary, out, provenance={"protocol_sha256": "abc"})
    lengths = [json.loads(line)["input_tokens"] for line in out.read_text().splitlines()]
    block = summary.input_tokens
    assert summary.sha256 == sha256_file(out)
    assert (block.n, block.min, block.max) == (70, min(lengths), max(lengths))
    assert (block.sum, block.distinct) == (sum(lengths), len(set(lengths)))
    assert block.median == np.median(lengths)
    assert block.p95 == pytest.approx(np.percentile(lengths, 95), rel=1e-12)
    assert summary.raggedness is not None
    assert summary.raggedness["R128"] is None
    cohorts = [lengths[:32], lengths[32:64]]
    rectangle = sum(32 * max(cohort) for cohort in cohorts)
    expected = 1 - sum(map(sum, cohorts)) / rectangle
    assert summary.raggedness["R32"] == pytest.approx(expected, rel=1e-12)
    assert summary.generator["protocol_sha256"] == "abc"
    assert [mode["requests"] for mode in summary.generator["mixture"]] == [35, 21, 14]
    assert not summary.private
