"""The process table: marks, start times, names with parentheses, processes that are gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.errors import EnvironmentFailure, InputError
from opprof.host.cpus import format_cpus, parse_cpus
from opprof.host.disk import tree_bytes
from opprof.host.procfs import ProcFs, parse_stat


def fake_proc(root: Path, pid: int, *, name: str = "python", state: str = "S", **env: str) -> None:
    folder = root / str(pid)
    folder.mkdir(parents=True)
    fields = [state, "1", str(pid), str(pid), *["0"] * 15, "777", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "environ").write_bytes(
        b"".join(f"{key}={value}\0".encode() for key, value in env.items())
    )


def test_this_process_is_found() -> None:
    me = ProcFs().process(os.getpid())
    assert me is not None
    assert (me.ppid, me.pgid, me.same_user) == (os.getppid(), os.getpgrp(), True)
    assert me.alive
    assert me.start_ticks > 0
    assert ProcFs().boot_id() != "unknown"


def test_marks_and_groups(tmp_path: Path) -> None:
    fake_proc(tmp_path, 10, OPPROF_CAMPAIGN="a", OPPROF_RUN="r", CUDA_VISIBLE_DEVICES="3")
    fake_proc(tmp_path, 11, OPPROF_CAMPAIGN="b")
    fake_proc(tmp_path, 12, state="Z", OPPROF_CAMPAIGN="a")
    (tmp_path / "self").mkdir()
    table = ProcFs(tmp_path)
    assert [process.pid for process in table.marked("a")] == [10]
    assert table.marked("a")[0].visible_gpus == "3"
    assert table.marked("a")[0].start_ticks == 777
    assert [process.pid for process in table.group(11)] == [11]
    assert table.process(13) is None
    assert table.boot_id() == "unknown"


def test_a_mark_is_the_whole_value_and_large_environments_are_read(tmp_path: Path) -> None:
    fake_proc(tmp_path, 10, OPPROF_CAMPAIGN="abc")
    fake_proc(tmp_path, 11, OTHER="OPPROF_CAMPAIGN=ab")
    fake_proc(tmp_path, 12, FILL="x" * 200_000, OPPROF_CAMPAIGN="ab")
    fake_proc(tmp_path, 13, FILL="x" * (1 << 21), OPPROF_CAMPAIGN="ab")
    assert [process.pid for process in ProcFs(tmp_path).marked("ab")] == [12]


@pytest.mark.parametrize("name", ["a b", "a) S 1 (b", "", "((", "vLLM::EngineCore"])
def test_names_may_hold_anything(tmp_path: Path, name: str) -> None:
    fake_proc(tmp_path, 10, name=name)
    process = ProcFs(tmp_path).process(10)
    assert process is not None
    assert (process.name, process.state, process.pgid) == (name, "S", 10)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    found = parse_stat(data)
    assert found is None or len(found[1]) >= 20


@given(st.sets(st.integers(0, 400)))
def test_masks_go_there_and_back(cpus: set[int]) -> None:
    text = format_cpus(cpus)
    assert set(parse_cpus(text)) == cpus
    assert format_cpus(parse_cpus(text)) == text


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-2", "0-999999", "1;2"])
def test_bad_masks_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="CPU mask"):
        parse_cpus(text)


def test_sizes_of_folders(tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"45")
    os.link(tmp_path / "b", tmp_path / "hard")
    (tmp_path / "soft").symlink_to(tmp_path / "b")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert tree_bytes(tmp_path) == 5
    assert tree_bytes(tmp_path / "absent") == 0
    with pytest.raises(EnvironmentFailure, match="cannot list"):
        tree_bytes(tmp_path / "b")
