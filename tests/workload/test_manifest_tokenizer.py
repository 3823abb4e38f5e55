"""The ordinary vocabulary of a tokenizer file, and counts of text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opprof.errors import EnvironmentFailure, InputError, SchemaError
from opprof.workload.tiny_tokenizer import SPECIAL_TOKENS, write_tiny_tokenizer
from opprof.workload.tokenizer import load_counter, load_vocabulary


def write(folder: Path, content: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def test_the_vocabulary_agrees_with_the_library(tokenizer: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    vocabulary = load_vocabulary(tokenizer)
    base = library.get_vocab(with_added_tokens=False)
    assert vocabulary.token_ids.tolist() == sorted(base.values())
    specials = {library.token_to_id(token) for token in SPECIAL_TOKENS}
    assert not specials & set(vocabulary.token_ids.tolist())
    assert len(specials) == len(SPECIAL_TOKENS)


def test_a_file_is_as_good_as_its_folder(tokenizer: Path) -> None:
    assert load_vocabulary(tokenizer).sha256 == load_vocabulary(tokenizer / "tokenizer.json").sha256


def test_special_added_unknown_and_placeholder_ids_are_left_out(tmp_path: Path) -> None:
    tokens = ["<s>", "<unk>", "a", "b", "[unused7]", "<unused1>", "<|reserved_3|>", "c"]
    vocab = {token: index for index, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"}
    write(tmp_path, {"model": model, "added_tokens": [{"id": 0, "content": "<s>"}, {"id": 9}]})
    assert load_vocabulary(tmp_path).token_ids.tolist() == [2, 3, 7]


def test_a_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2.0]]}
    write(tmp_path, {"model": model, "added_tokens": []})
    assert load_vocabulary(tmp_path).token_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"model": {"vocab": {"a": "x"}}}, "not a tokenizer.json"),
        ({"models": {}}, "not a tokenizer.json"),
        ([], "not a tokenizer.json"),
        ({"model": {"vocab": {}}}, "0 ordinary tokens"),
        ({"model": {"vocab": {"a": 10**7}}}, "1 ordinary tokens"),
        ({"model": {"vocab": {"a": -1}}}, "1 ordinary tokens"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    write(tmp_path, content)
    with pytest.raises(InputError, match=reason):
        load_vocabulary(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file not found"):
        load_vocabulary(tmp_path)


def test_text_is_counted_without_truncation_or_padding(tmp_path: Path, tokenizer: Path) -> None:
    pytest.importorskip("tokenizers")
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    write(tmp_path, content)
    # "ab" merges; the digits stay single bytes.
    assert load_counter(tmp_path)(["ab", "12345678901", ""]) == [1, 11, 0]


def test_a_file_that_the_library_cannot_read_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write(tmp_path, {"model": {"type": "BPE", "vocab": {"a": 0}}})
    with pytest.raises(SchemaError, match="the tokenizers library cannot read it"):
        load_counter(tmp_path)


def test_the_missing_library_names_its_extra(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'opprof\[client\]'"):
        load_counter(tokenizer)


@pytest.mark.parametrize("size", [255, 10**6])
def test_a_tiny_vocabulary_has_bounds(tmp_path: Path, size: int) -> None:
    with pytest.raises(InputError, match="tiny vocabulary"):
        write_tiny_tokenizer(tmp_path, vocabulary_size=size)
