"""Several runs in worker processes: what remains when somebody is stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "h200-runs"
RUNS = sorted(path for path in FOLDER.iterdir() if path.is_dir())


def listen_to_interrupts() -> None:
    """In the child: a shell's background job starts with SIGINT ignored, and so would its tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(out: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start an analysis in two workers; return it with the workers, once both have begun."""
    command = [sys.executable, "-m", "opprof", "analyze", *map(str, RUNS)]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
    )
    me = psutil.Process(process.pid)
    while process.poll() is None:
        # The workers are the fork server's children.
        workers = [c for c in me.children(recursive=True) if c.ppid() != process.pid]
        if len(workers) == 2:
            return process, workers
        time.sleep(0.01)
    pytest.fail("the analysis ended before its workers began")


def gone(workers: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(workers, timeout=300)[1]


def test_an_interrupt_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    process, workers = start(tmp_path / "out")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C: to the whole group
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said.strip() == "opprof: interrupted; what was complete is kept"
    assert gone(workers)
    assert not (tmp_path / "out").exists()


def test_a_killed_worker_is_one_message(tmp_path: Path) -> None:
    process, workers = start(tmp_path / "out")
    workers[0].kill()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 1
    assert said.startswith("opprof: error [E-ENV] a worker process was killed")
    assert said.count("\n") == 1
    assert gone(workers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent(number: signal.Signals, tmp_path: Path) -> None:
    process, workers = start(tmp_path / "out")
    process.send_signal(number)
    process.communicate(timeout=600)
    # SIGTERM unwinds the command as Ctrl-C does; nothing can unwind SIGKILL.
    assert process.returncode == (130 if number == signal.SIGTERM else -number)
    assert gone(workers)
