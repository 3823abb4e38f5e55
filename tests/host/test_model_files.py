"""Model fingerprint: what is hashed, and when again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from opprof.errors import EnvironmentFailure, InputError
from opprof.files import sha256_bytes, sha256_file
from opprof.host.model_files import fingerprint


class Counting:
    """A hash function that keeps what it was asked."""

    def __init__(self, also: Callable[[Path], object] = lambda _: None) -> None:
        self.asked: list[str] = []
        self._also = also

    def __call__(self, path: Path) -> str:
        self.asked.append(path.name)
        digest = sha256_file(path)
        self._also(path)
        return digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / ".hidden").write_text("hidden")
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "tokenizer.json").write_text("tok")
    blob = tmp_path / "blob"
    blob.write_bytes(b"weights")
    (folder / "model-00001.safetensors").symlink_to(blob)
    return folder


def test_every_visible_file_is_hashed_in_order(model: Path) -> None:
    found = fingerprint(model)
    assert [each.path for each in found.files] == [
        "config.json",
        "model-00001.safetensors",
        "sub/tokenizer.json",
    ]
    assert found.files[1].sha256 == sha256_bytes(b"weights")
    assert found.files[1].bytes == 7
    lines = "".join(f"{f.path} {f.bytes} {f.sha256}\n" for f in found.files)
    assert found.sha256 == sha256_bytes(lines.encode())


def test_only_changed_files_are_hashed_again(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    first, second, third = Counting(), Counting(), Counting()
    before = fingerprint(model, cache, hash_file=first)
    assert len(first.asked) == 3
    assert fingerprint(model, cache, hash_file=second) == before
    assert second.asked == []
    config = model / "config.json"
    stat = config.stat()
    config.write_text("[]")
    os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    after = fingerprint(model, cache, hash_file=third)
    assert third.asked == ["config.json"]
    assert after.sha256 != before.sha256


def test_a_replaced_file_of_equal_size_and_time_is_seen_by_its_inode(
    model: Path, tmp_path: Path
) -> None:
    cache, counting = tmp_path / "cache.json", Counting()
    fingerprint(model, cache)
    config = model / "config.json"
    stat = config.stat()
    new = tmp_path / "new"
    new.write_text("[]")
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(config)
    fingerprint(model, cache, hash_file=counting)
    assert counting.asked == ["config.json"]


def test_an_interrupted_hashing_keeps_what_it_has(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"

    def stop(path: Path) -> None:
        if path.name == "tokenizer.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fingerprint(model, cache, hash_file=Counting(stop))
    rest = Counting()
    fingerprint(model, cache, hash_file=rest)
    assert rest.asked == ["tokenizer.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"config.json": {"bytes": "x"}}'])
def test_a_damaged_cache_is_made_anew(model: Path, tmp_path: Path, damage: bytes) -> None:
    cache, counting = tmp_path / "cache.json", Counting()
    cache.write_bytes(damage)
    fingerprint(model, cache, hash_file=counting)
    assert len(counting.asked) == 3
    assert len(msgspec.json.decode(cache.read_bytes())) == 3


def test_a_file_that_changes_meanwhile_is_refused(model: Path, tmp_path: Path) -> None:
    def grow(path: Path) -> None:
        with path.open("ab") as stream:
            stream.write(b"x")

    with pytest.raises(EnvironmentFailure, match="changed while"):
        fingerprint(model, tmp_path / "cache.json", hash_file=Counting(grow))


def test_progress_is_told(model: Path) -> None:
    told: list[tuple[str, int]] = []
    fingerprint(model, advance=lambda name, size: told.append((name, size)))
    assert ("model-00001.safetensors", 7) in told


def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such model folder"):
        fingerprint(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no file"):
        fingerprint(tmp_path)
    (tmp_path / "weights").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="cannot read"):
        fingerprint(tmp_path)
