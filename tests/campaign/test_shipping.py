"""Folders between hosts: whole with the listed bytes, or not at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from opprof.campaign.executors import shipping
from opprof.errors import EnvironmentFailure, InputError, IntegrityError, StateConflict


def make_folder(root: Path) -> Path:
    (root / "traces").mkdir(parents=True)
    (root / "client" / "deep").mkdir(parents=True)
    (root / "client" / "deep" / "result.json").write_bytes(b"{}")
    (root / "empty").write_bytes(b"")
    (root / "big").write_bytes(os.urandom(2 * shipping.PIECE_BYTES + 1))
    return root


def reader(root: Path, sizes: list[int] | None = None) -> shipping.ReadPiece:
    async def read(name: str, offset: int) -> bytes:
        piece = shipping.read_piece(root, name, offset)
        if sizes is not None:
            sizes.append(len(piece))
        return piece

    return read


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_a_folder_arrives_as_it_was_in_bounded_pieces(tmp_path: Path) -> None:
    root, target, sizes = make_folder(tmp_path / "a"), tmp_path / "home" / "b", list[int]()
    listing = shipping.list_folder(root)
    assert listing.folders == ["client", "client/deep", "traces"]
    asyncio.run(shipping.fetch_folder(listing, reader(root, sizes), target))
    assert names(target) == names(root)
    assert (target / "big").read_bytes() == (root / "big").read_bytes()
    assert max(sizes) == shipping.PIECE_BYTES and sum(sizes) == listing.size
    assert [path.name for path in target.parent.iterdir()] == ["b"]
    assert shipping.list_folder(target) == listing


@pytest.mark.parametrize("how", ["longer", "shorter", "other"])
def test_other_bytes_than_listed_leave_nothing(tmp_path: Path, how: str) -> None:
    root, target = make_folder(tmp_path / "a"), tmp_path / "b"
    listing = shipping.list_folder(root)
    data = (root / "client" / "deep" / "result.json").read_bytes()
    changed = {"longer": data + b" ", "shorter": data[:-1], "other": b"[]"}[how]
    (root / "client" / "deep" / "result.json").write_bytes(changed)
    with pytest.raises(IntegrityError, match=r"client/deep/result\.json arrived with"):
        asyncio.run(shipping.fetch_folder(listing, reader(root), target))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    root, target = make_folder(tmp_path / "a"), tmp_path / "b"
    target.mkdir()
    with pytest.raises(StateConflict, match="exists already"):
        asyncio.run(shipping.fetch_folder(shipping.list_folder(root), reader(root), target))
    assert not list(target.iterdir())


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b"])
def test_names_that_lead_out_are_refused_on_both_sides(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        shipping.read_piece(tmp_path, name, 0)
    entry = shipping.FileEntry(name, 0, shipping.hashlib.sha256().hexdigest())
    listing = shipping.Listing([], [entry])
    with pytest.raises(InputError):
        asyncio.run(shipping.fetch_folder(listing, reader(tmp_path), tmp_path / "b"))
    assert not list(tmp_path.iterdir())


def test_a_link_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        shipping.list_folder(tmp_path / "a")


def test_pieces_of_a_sent_file_must_follow_each_other(tmp_path: Path) -> None:
    part, path = tmp_path / ".p", tmp_path / "p"
    shipping.append_piece(part, 0, b"abc")
    with pytest.raises(EnvironmentFailure, match="piece 4 follows 3"):
        shipping.append_piece(part, 4, b"e")
    shipping.append_piece(part, 3, b"d")
    assert part.stat().st_mode & 0o777 == 0o600
    with pytest.raises(IntegrityError, match="other bytes than were sent"):
        shipping.finish_file(part, path, "0" * 64)
    assert not part.exists() and not path.exists()


def test_a_scratch_folder_is_private_or_refused(tmp_path: Path) -> None:
    mine = shipping.private_folder(tmp_path / "mine")
    assert mine.stat().st_mode & 0o777 == 0o700
    assert shipping.private_folder(mine) == mine
    mine.chmod(0o755)
    with pytest.raises(EnvironmentFailure, match="private folder"):
        shipping.private_folder(mine)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EnvironmentFailure, match="private folder"):
        shipping.private_folder(tmp_path / "link")


def test_a_listing_travels(tmp_path: Path) -> None:
    listing = shipping.list_folder(make_folder(tmp_path / "a"))
    again = msgspec.json.decode(msgspec.json.encode(listing), type=shipping.Listing)
    assert again == listing
