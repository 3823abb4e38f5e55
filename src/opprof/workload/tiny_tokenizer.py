"""A small byte-level BPE tokenizer, made and not downloaded: for tests, demo and rehearsals.

It is a real tokenizer of the ``tokenizers`` library in every respect (byte-level alphabet, ordered
merges, special tokens outside the base vocabulary), only its merges come from a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec

from opprof.errors import InputError
from opprof.files import write_atomic
from opprof.workload.tokenizer import FILE_NAME

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SPACE = "Ġ"
"""How the byte-level alphabet of GPT-2 writes a space."""


def write_tiny_tokenizer(folder: Path, *, vocabulary_size: int = 4096) -> Path:
    """Write ``tokenizer.json`` with ``vocabulary_size`` ordinary tokens and return its path.

    Raises:
        InputError: the size is below the 256 bytes or above what the merge rule yields.
    """
    alphabet = byte_alphabet()
    merges = _merges()
    if not len(alphabet) <= vocabulary_size <= len(alphabet) + len(merges):
        raise InputError(
            f"a tiny vocabulary has {len(alphabet)} to {len(alphabet) + len(merges)} tokens,"
            f" not {vocabulary_size}"
        )
    merges = merges[: vocabulary_size - len(alphabet)]
    tokens = [*alphabet, *(left + right for left, right in merges)]
    path = folder / FILE_NAME
    write_atomic(path, msgspec.json.encode(_tokenizer(tokens, merges)))
    return path


def _tokenizer(tokens: list[str], merges: list[tuple[str, str]]) -> dict[str, Any]:
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(tokens) + i, "content": content, **flags, "special": True}
            for i, content in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **byte_level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def byte_alphabet() -> list[str]:
    """Return the printable stand-in of each byte, as in GPT-2's ``bytes_to_unicode``."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [stand_in.get(byte, chr(byte)) for byte in range(256)]


def _merges() -> list[tuple[str, str]]:
    """Return the merges in order: letter pairs, spaced letters, then pairs of pairs."""
    pairs = [left + right for left, right in product(ascii_lowercase, repeat=2)]

    def rule() -> Iterator[tuple[str, str]]:
        yield from product(ascii_lowercase, repeat=2)
        yield from ((_SPACE, pair) for pair in pairs)
        yield from ((_SPACE, letter) for letter in ascii_lowercase)
        yield from product(pairs[::7], repeat=2)

    return list(rule())
