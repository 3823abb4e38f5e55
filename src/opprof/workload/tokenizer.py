"""What a tokenizer folder says: the ordinary vocabulary, its hash, and token counts of text.

The vocabulary is read from ``tokenizer.json`` itself, so that synthetic manifests need no
tokenizer library; only text (the private anchor) is counted through ``tokenizers``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from opprof.errors import EnvironmentFailure, InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes
from opprof.workload.draw import MAX_SPAN

FILE_NAME = "tokenizer.json"
MAX_TOKEN_ID = 10**7 - 1
_LIMIT_BYTES = 256 << 20
_PLACEHOLDER = re.compile(r"[<\[]\|?(?:unused|reserved)[^>\]]*[>\]]")

TokenCounter = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each text."""


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]
    unk_token: str | None = None
    unk_id: int | None = None


class _AddedToken(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


@dataclass(frozen=True)
class Vocabulary:
    """The ids that prompts are drawn from."""

    token_ids: NDArray[np.int64]
    """``int64[v]``, ascending: in the model's own vocabulary, and neither special, added,
    unknown nor a placeholder such as ``<unused3>``."""
    sha256: str
    """Of the bytes of ``tokenizer.json``."""


def tokenizer_file(location: Path) -> Path:
    """Return the path of ``tokenizer.json``, given it or its folder."""
    return location / FILE_NAME if location.is_dir() else location


def load_vocabulary(location: Path) -> Vocabulary:
    """Read the ordinary vocabulary of a tokenizer folder (or of its ``tokenizer.json``).

    Raises:
        InputError: there is no such file, or it leaves no ordinary token.
        SchemaError: the file is no tokenizer of the ``tokenizers`` library.
    """
    path = tokenizer_file(location)
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        tokenizer = msgspec.json.decode(data, type=_TokenizerFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"not a tokenizer.json: {error}", path=path) from error
    ordinary = _ordinary_ids(tokenizer)
    if not 1 <= len(ordinary) <= MAX_SPAN or ordinary[0] < 0 or ordinary[-1] > MAX_TOKEN_ID:
        raise InputError(
            f"{len(ordinary)} ordinary tokens; 1 to {MAX_SPAN} with ids"
            f" 0 … {MAX_TOKEN_ID} can be used",
            path=path,
        )
    return Vocabulary(np.array(ordinary, dtype=np.int64), sha256_bytes(data))


def _ordinary_ids(tokenizer: _TokenizerFile) -> list[int]:
    model = tokenizer.model
    # A Unigram vocabulary is a list, and the id of a piece is its place in it.
    tokens = (
        list(model.vocab.items())
        if isinstance(model.vocab, dict)
        else [(piece, index) for index, (piece, _) in enumerate(model.vocab)]
    )
    excluded = {entry.id for entry in tokenizer.added_tokens} | {model.unk_id}
    excluded |= {index for piece, index in tokens if piece == model.unk_token}
    excluded |= {index for piece, index in tokens if _PLACEHOLDER.fullmatch(piece)}
    return sorted({index for _, index in tokens} - excluded)


def load_counter(location: Path) -> TokenCounter:
    """Return a function that counts tokens as vLLM's completions endpoint would see them.

    Special tokens are added where the tokenizer's own template adds them (the server does so for
    text prompts too); truncation and padding of the file are switched off.

    Raises:
        EnvironmentFailure: the ``tokenizers`` library is not installed.
        SchemaError: the library cannot read the file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EnvironmentFailure(
            "text is counted by the 'tokenizers' library: pip install 'opprof[client]'"
        ) from error
    path = tokenizer_file(location)
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        # The library raises bare Exception, so nothing narrower can be caught.
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:
        raise SchemaError(f"the tokenizers library cannot read it: {error}", path=path) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return lambda texts: [len(encoding) for encoding in encode(list(texts))]
