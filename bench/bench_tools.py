"""What the client benchmarks share: pinned processes, the mock server, its log, manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

_RAISE = 'echo -19 2>/dev/null > /proc/self/autogroup; exec nice -n -19 taskset -c {core} "$@"'
_PLAIN = 'exec taskset -c {core} "$@"'


def pinned(core: int, command: Sequence[str]) -> list[str]:
    """Return the command in a session of its own, pinned, with priority where root allows it.

    Priority keeps other work of a shared machine out of the figures; every client gets the same.
    """
    script = (_RAISE if os.geteuid() == 0 else _PLAIN).format(core=core)
    return ["setsid", "-w", "bash", "-c", script, "_", *command]


@dataclass
class Mock:
    """A running mock server."""

    port: int

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """GET and decode JSON."""
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def take_log(self) -> dict[str, Any]:
        """Return the arrival log and clear it."""
        log: dict[str, Any] = self.get("/_mock/log")
        self.get("/_mock/clear")
        return log


@contextmanager
def running_mock(*flags: str) -> Iterator[Mock]:
    """Run the mock on core 0."""
    command = [sys.executable, "-m", "opprof.client.mock_server", "--port", "0", *flags]
    process = subprocess.Popen(
        pinned(0, command), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stdout is not None
        mock = Mock(int(process.stdout.readline().split()[-1]))
        yield mock
    finally:
        process.terminate()
        process.wait(20)


def write_manifest(path: Path, count: int, prompt: int, output: int, arrival: str) -> None:
    """Write a manifest of ``count`` requests of ``prompt`` token ids."""
    rest = list(range(100, 98 + prompt))
    with path.open("w") as stream:
        for k in range(count):
            line = {
                "id": f"B-{k}",
                "input_tokens": prompt,
                "output_tokens": output,
                "arrival": arrival,
                "pattern": "B01",
                "prompt_token_ids": [k // 4096, k % 4096, *rest],
            }
            stream.write(json.dumps(line, separators=(",", ":")) + "\n")
