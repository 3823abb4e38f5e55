"""The files of a stream: A-P3-5 after every flush, close, failure and full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from engine_fakes import header

from opprof.artifacts.layer1 import Footer, Header, Line, Sidecar, Step
from opprof.engines.recorder import stream as stream_module
from opprof.engines.recorder.assemble import build_step
from opprof.engines.recorder.records import Completed, Submitted
from opprof.engines.recorder.stream import StreamWriter, set_aside


def step(number: int) -> Step:
    one = Submitted(number, 10 * number, 0.1, 0, 0, 1, 0, 1, 0, 0, 0, 0, [4], [1], [False])
    return build_step(one, Completed(number, 10 * number + 5, "FULL", 1, 1))


def lines(path: Path) -> list[Header | Step | Footer]:
    data = path.read_bytes()
    assert data.endswith(b"\n"), "a partial line"
    return [msgspec.json.decode(line, type=Line) for line in data.splitlines()]


def sidecar(path: Path) -> Sidecar:
    return msgspec.json.decode(
        path.with_name(path.name + ".footer.json").read_bytes(), type=Sidecar
    )


def assert_balanced(path: Path) -> Sidecar:
    """Assert the rule of A-P3-5 for what is on disk, and return the sidecar."""
    side = sidecar(path)
    steps = [line for line in lines(path) if isinstance(line, Step)]
    assert side.written_records == len(steps)
    assert side.last_step_index == (steps[-1].step if steps else -1)
    assert side.encoded_records == side.written_records + side.dropped_records
    footers = [line for line in lines(path) if isinstance(line, Footer)]
    assert len(footers) == int(side.final)
    for footer in footers:
        assert footer == lines(path)[-1]
        assert footer.written_records == side.written_records
        assert footer.dropped_records == side.dropped_records
    return side


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "opprof" / "engine-0.jsonl"


def test_every_flush_is_a_valid_end(path: Path) -> None:
    writer = StreamWriter(path, header(), wall_ns=lambda: 77, mono_ns=lambda: 88)
    assert assert_balanced(path).written_records == 0
    for number in range(5):
        writer.append(step(number))
        assert assert_balanced(path).written_records == number
        writer.flush()
        assert assert_balanced(path).written_records == number + 1
    side = sidecar(path)
    assert (side.wall_time_ns, side.mono_time_ns, side.final) == (77, 88, False)
    writer.close()


def test_a_clean_close(path: Path) -> None:
    writer = StreamWriter(path, header())
    writer.append(step(0))
    writer.dropped = 2
    writer.pauses = 1
    writer.close(open_steps=1)
    side = assert_balanced(path)
    assert (side.final, side.dropped_records, side.open_steps, side.pauses) == (True, 2, 1, 1)
    assert sorted(item.name for item in path.parent.iterdir()) == [
        "engine-0.jsonl",
        "engine-0.jsonl.footer.json",
    ]


def test_abandon_leaves_a_reason_and_no_footer(path: Path) -> None:
    writer = StreamWriter(path, header())
    writer.append(step(0))
    writer.abandon("because", open_steps=3)
    side = assert_balanced(path)
    assert (side.final, side.reason, side.open_steps) == (False, "because", 3)


def test_a_full_disk_cuts_back_to_the_last_flush(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StreamWriter(path, header())
    writer.append(step(0))
    writer.flush()
    writer.append(step(1))
    writer.append(step(2))
    real = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    def no_new_file(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stream_module.os, "write", half)
    monkeypatch.setattr(stream_module.Path, "write_bytes", no_new_file)
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    writer.abandon("cannot write the stream: No space left on device")
    monkeypatch.undo()
    side = assert_balanced(path)
    assert (side.written_records, side.dropped_records) == (1, 2)
    assert side.reason == "cannot write the stream: No space left on device"


def test_the_reserve_carries_the_reason_on_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StreamWriter(path, header())
    writer.append(step(0))
    writer.flush()

    def no_new_file(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stream_module.Path, "write_bytes", no_new_file)
    writer.abandon("cannot write the stream: No space left on device")
    monkeypatch.undo()
    side = assert_balanced(path)
    assert side.reason == "cannot write the stream: No space left on device"


def test_an_earlier_stream_is_set_aside(path: Path) -> None:
    for number in range(2):
        writer = StreamWriter(path, header())
        writer.append(step(0))
        writer.append(step(1))
        writer.close()
        assert len(list(path.parent.glob("engine-0.jsonl.previous-*"))) == number
    assert_balanced(path)


def test_set_aside_of_nothing(tmp_path: Path) -> None:
    assert set_aside(tmp_path / "absent") is None


def test_an_unwritable_folder_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        StreamWriter(tmp_path / "file" / "engine-0.jsonl", header())
