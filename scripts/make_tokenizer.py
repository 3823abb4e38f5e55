"""Make a tokenizer folder without downloading a model: ``make_tokenizer.py DIR [--tiktoken FILE]``.

Without ``--tiktoken`` a tiny byte-level BPE tokenizer of 4,096 tokens is written. With it, a
tiktoken vocabulary in Qwen's form (``base64-token rank`` a line) becomes ``tokenizer.json``: the
merges are recovered from the ranks, pre-tokenisation and special tokens are Qwen's. The package
``dashscope`` ships such a file (``dashscope/resources/qwen.tiktoken``, 151,643 tokens); the
conversion takes about 20 seconds.
"""

from __future__ import annotations

import argparse
import base64
import binascii
from pathlib import Path
from typing import Any

import msgspec

from opprof.errors import InputError
from opprof.files import read_bytes, write_atomic
from opprof.workload.tiny_tokenizer import SPECIAL_TOKENS, byte_alphabet, write_tiny_tokenizer

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main() -> None:
    """Write the folder and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiktoken", type=Path)
    options = parser.parse_args()
    try:
        if options.tiktoken is None:
            path = write_tiny_tokenizer(options.folder)
        else:
            path = convert(options.tiktoken, options.folder)
    except InputError as error:
        raise SystemExit(f"make_tokenizer: {error}") from error
    print(path)


def convert(tiktoken: Path, folder: Path) -> Path:
    """Write ``tokenizer.json`` for a tiktoken file and return its path.

    Raises:
        InputError: a line is no ``base64 rank``, or the ranks are no byte-level BPE.
    """
    ranks = read_ranks(tiktoken)
    letters = byte_alphabet()
    merges = [split(token, ranks, tiktoken) for token in ranks if len(token) > 1]

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab = {text(token): rank for token, rank in ranks.items()}
    pairs = [f"{text(left)} {text(right)}" for left, right in merges]
    path = folder / "tokenizer.json"
    write_atomic(path, msgspec.json.encode(tokenizer(vocab, pairs)))
    return path


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return token bytes to rank, in rank order, checked to be 0, 1, 2 …"""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        parts = line.split()
        try:
            token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (IndexError, ValueError, binascii.Error) as error:
            raise InputError("use 'base64-token rank'", path=path, line=number) from error
        if rank != number - 1 or token in ranks or not token:
            raise InputError("ranks are not 0, 1, 2 …, or a token repeats", path=path, line=number)
        ranks[token] = rank
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise InputError(f"no token for {len(missing)} single bytes", path=path)
    return ranks


def split(token: bytes, ranks: dict[bytes, int], path: Path) -> tuple[bytes, bytes]:
    """Return the two tokens whose merge gave ``token``: what BPE leaves with lower ranks only."""
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        best = min(range(len(joined)), key=joined.__getitem__)
        if joined[best] >= limit:
            raise InputError("the ranks are no byte-level BPE", path=path, line=limit + 1)
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def tokenizer(vocab: dict[str, int], merges: list[str]) -> dict[str, Any]:
    """Return the content of ``tokenizer.json``."""
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": len(vocab) + i, "content": content, **flags, "special": True}
            for i, content in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": QWEN_SPLIT},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", **byte_level},
            ],
        },
        "post_processor": {"type": "ByteLevel", **byte_level},
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


if __name__ == "__main__":
    main()
