"""A rehearsal in several processes that is stopped: one message, code 130, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

SMALL = Path(__file__).parents[2] / "protocols" / "small.toml"
SAID = "opprof: interrupted; what was complete is kept"


def listen_to_interrupts() -> None:
    """In the child: a shell's background job starts with SIGINT ignored, and so would its tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(temporary: Path, *more: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a rehearsal in two workers; return it with its processes, once both have begun."""
    command = [sys.executable, "-m", "opprof", "rehearse", str(SMALL), "--jobs", "2", *more]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_interrupts,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    me = psutil.Process(process.pid)
    while process.poll() is None:
        children = me.children(recursive=True)
        # The workers are the fork server's children.
        if sum(child.ppid() != process.pid for child in children) == 2:
            return process, children
        time.sleep(0.01)
    pytest.fail("the rehearsal ended before its workers began")


def to_all(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def to_parent(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("stop", [to_all, to_parent, terminate])
def test_a_stop_is_one_message_and_leaves_nothing(
    stop: Callable[[subprocess.Popen[str]], None], tmp_path: Path
) -> None:
    process, children = start(tmp_path)
    stop(process)
    shown, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert shown == "" and said.splitlines()[-1] == SAID
    assert "Traceback" not in said and said.count("opprof:") == 1
    assert not psutil.wait_procs(children, timeout=300)[1]
    assert list(tmp_path.iterdir()) == []


def test_a_stop_among_the_repeats(tmp_path: Path) -> None:
    process, _ = start(tmp_path, "--repeat", "500")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("decided"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    time.sleep(1.0)
    to_all(process)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130 and said.strip() == SAID
    assert not psutil.wait_procs(children, timeout=300)[1]
    assert list(tmp_path.iterdir()) == []
