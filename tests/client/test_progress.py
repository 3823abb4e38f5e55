"""The live line: drawn by its own process on a terminal, absent in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from client_helpers import SCRIPT, environment

from opprof.client.progress import Snapshot, render

SNAPSHOT = Snapshot("clean 1", 12.3, 4.5, 4.7, 17, 2, 0.04, 99, 1)


def test_the_line_names_phase_time_left_rate_outstanding_and_lag() -> None:
    line = render(SNAPSHOT)
    for part in (
        "clean 1",
        "12.3 s left",
        "4.50 of 4.70 req/s",
        "17 outstanding",
        "+2 waiting",
        "lag 0.04 ms",
        "99 ok",
        "1 failed",
    ):
        assert part in line
    saturated = msgspec.structs.replace(SNAPSHOT, left_s=None, wanted_rps=None, backlog=0, failed=0)
    assert "left" not in render(saturated) and "failed" not in render(saturated)


def test_the_drawing_process_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opprof.client.progress"],
        input=msgspec.json.encode(SNAPSHOT) + b"\n",
        capture_output=True,
        check=False,
        timeout=900,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr


def test_a_terminal_gets_the_line_and_a_pipe_does_not(
    mock: Callable[..., Any],
    manifest: Any,
    run_flags: Callable[..., list[str]],
    patient: Callable[[Callable[[float, Path], None]], None],
) -> None:
    def check(scale: float, folder: Path) -> None:
        server, seen = mock("--step-ms", f"{1000 * scale:g}"), bytearray()
        flags = run_flags(
            manifest(),
            server.url,
            folder / "client",
            profile_after_clean=False,
            num_profile_windows=0,
            time_scale=scale,
        )
        flags.remove("--no-progress")
        main_end, child_end = pty.openpty()

        def read() -> None:
            with suppress(OSError):
                while data := os.read(main_end, 65_536):
                    seen.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *flags],
            stdout=subprocess.PIPE,
            stderr=child_end,
            check=False,
            timeout=900,
            env=environment(TERM="xterm", COLUMNS="160"),
        )
        os.close(child_end)
        reader.join(300)
        os.close(main_end)
        assert done.returncode == 0, bytes(seen)
        assert b"req/s" in seen and b"outstanding" in seen
        assert b"outstanding" not in done.stdout

    patient(check)
