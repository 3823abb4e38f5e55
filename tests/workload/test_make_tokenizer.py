"""``scripts/make_tokenizer.py``: merges recovered from ranks, and refusals."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from opprof.workload.tokenizer import load_counter, load_vocabulary

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_tokenizer.py"
BYTES = [bytes([byte]) for byte in range(256)]


def write_ranks(path: Path, tokens: list[bytes]) -> Path:
    lines = [f"{base64.b64encode(token).decode()} {i}" for i, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n")
    return path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_ranks_become_merges(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokens = [*BYTES, b"he", b"ll", b"hell", b" o", b"hello"]
    done = make(tmp_path, "--tiktoken", str(write_ranks(tmp_path / "ranks", tokens)))
    assert done.returncode == 0, done.stderr
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    assert model["merges"] == ["h e", "l l", "he ll", "Ġ o", "hell o"]
    assert load_vocabulary(tmp_path).token_ids.tolist() == list(range(261))
    assert load_counter(tmp_path)(["hello", "hell o", "help", "42"]) == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([*BYTES, b"abc"], "no byte-level BPE"),
        ([*BYTES, b"ab", b"ab"], "a token repeats"),
        (BYTES[1:], "no token for 1 single bytes"),
    ],
)
def test_what_is_no_bpe_is_refused(tmp_path: Path, tokens: list[bytes], reason: str) -> None:
    done = make(tmp_path / "out", "--tiktoken", str(write_ranks(tmp_path / "ranks", tokens)))
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("IQ== 0\nnot base64\n")
    done = make(tmp_path / "out", "--tiktoken", str(path))
    assert "ranks:2" in done.stderr


def test_without_ranks_the_tiny_tokenizer_is_written(tmp_path: Path) -> None:
    assert make(tmp_path).returncode == 0
    assert load_vocabulary(tmp_path).token_ids.size == 4096
