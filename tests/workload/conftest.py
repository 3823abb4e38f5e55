"""A tiny tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from opprof.workload.tiny_tokenizer import write_tiny_tokenizer
from opprof.workload.tokenizer import Vocabulary, load_vocabulary


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Path) -> Vocabulary:
    return load_vocabulary(tokenizer)
