"""The writer process: clean close, engine errors, a dead engine, the switch, unwritable folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_fakes import header
from test_recorder_stream import assert_balanced, lines

from opprof.artifacts.layer1 import Step
from opprof.engines.recorder.handle import Recorder
from opprof.errors import EnvironmentFailure


def run_steps(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        step = recorder.submit(10, 2, [4, 9], [1, 1], None, [], [], 0.0, 0, 0, 0, 2, 0, 0, 0, 0)
        recorder.complete(step, 20, "FULL", 2, 2)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in 300 s"
        time.sleep(0.01)


def stop_writer(recorder: Recorder) -> subprocess.Popen[bytes]:
    """Stop the writer process, see it stopped, and return it."""
    process = recorder._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: _state(process.pid) == "T")
    return process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "opprof" / "engine-0.jsonl"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    made = Recorder(path, header())
    made.start()
    yield made
    made.close()


def test_a_clean_close_writes_everything(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 500)
    assert recorder.close()
    side = assert_balanced(path)
    assert (side.written_records, side.final, side.dropped_records) == (500, True, 0)
    assert not recorder.is_on


def test_an_engine_error_leaves_no_footer(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 3)
    recorder.submit(30, 1, [4], [1], None, [], [], 0.0, -1, -1, 0, 1, 0, 0, 0, 0)
    assert recorder.close("engine error: RuntimeError: out of luck")
    side = assert_balanced(path)
    assert (side.final, side.reason) == (False, "engine error: RuntimeError: out of luck")
    assert (side.written_records, side.open_steps) == (3, 1)


def test_a_fault_of_the_recorder_ends_the_recording(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 3)
    recorder.fail("ValueError: a bug")
    assert not recorder.is_on
    wait_for(recorder.died)
    assert assert_balanced(path).reason == "ValueError: a bug"
    assert not recorder.close()


def test_a_completion_of_nothing_ends_the_recording(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 1)
    recorder.complete(99, 40, None, 0, 0)
    wait_for(recorder.died)
    side = assert_balanced(path)
    assert side.reason == "step 99 completed but was never submitted"
    assert side.written_records == 1
    assert not recorder.is_on


def test_flushes_come_by_themselves(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 7)
    wait_for(lambda: assert_balanced_quietly(path) == 7)
    assert recorder.close()


def assert_balanced_quietly(path: Path) -> int:
    # Between the two renames of a flush the files may disagree for a moment: ask again.
    try:
        return assert_balanced(path).written_records
    except AssertionError:
        return -1


def test_the_switch_at_run_time(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 2)
    control = Path(f"{path}.control")
    control.write_text("off\n")
    wait_for(lambda: not recorder.is_on)
    control.write_text("on\n")
    wait_for(lambda: recorder.is_on)
    run_steps(recorder, 2)
    assert recorder.close()
    side = assert_balanced(path)
    assert (side.pauses, side.written_records) == (1, 4)


def test_a_full_ring_drops_whole_steps_and_counts_them(path: Path) -> None:
    recorder = Recorder(path, header(), capacity=1 << 17)
    recorder.start()
    process = stop_writer(recorder)
    run_steps(recorder, 2000)
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: recorder._words[0] == recorder._words[1])
    run_steps(recorder, 5)
    assert recorder.close()
    side = assert_balanced(path)
    assert side.dropped_records > 0
    assert side.encoded_records == 2005
    steps = [line.step for line in lines(path) if isinstance(line, Step)]
    assert steps == sorted(steps)
    assert steps[-1] == 2004


def test_an_unwritable_folder_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = Recorder(tmp_path / "file" / "engine-0.jsonl", header())
    with pytest.raises(EnvironmentFailure, match=r"Not a directory|File exists"):
        recorder.start()
    assert not recorder.is_on
    assert not recorder.close()


ENGINE = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from engine_fakes import header
from test_recorder_process import run_steps
from opprof.engines.recorder.handle import Recorder
recorder = Recorder(Path(sys.argv[1]), header())
recorder.start()
run_steps(recorder, 123)
print(recorder._process.pid, flush=True)
time.sleep(1000)
"""


def test_sigkill_of_the_engine_loses_nothing_published(path: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert engine.stdout is not None
    writer = int(engine.stdout.readline())
    engine.kill()
    engine.wait()
    engine.stdout.close()
    wait_for(lambda: _is_zombie(writer))
    side = assert_balanced(path)
    assert (side.written_records, side.final) == (123, False)
    assert (side.reason, side.engine_gone) == (None, True)


def _is_zombie(pid: int) -> bool:
    return _state(pid) in ("", "Z")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_sigkill_of_both_leaves_a_valid_checkpoint(recorder: Recorder, path: Path) -> None:
    run_steps(recorder, 50)
    wait_for(lambda: assert_balanced_quietly(path) == 50)
    run_steps(recorder, 50)
    # A kill is judged at any moment but the one rename between lines and sidecar.
    while (process := stop_writer(recorder)) and assert_balanced_quietly(path) < 0:
        process.send_signal(signal.SIGCONT)
    process.kill()
    wait_for(recorder.died)
    side = assert_balanced(path)
    assert side.written_records in (50, 100)
    assert not side.final
