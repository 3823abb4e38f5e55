"""Mock servers, manifests and a protocol for runs of seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client_helpers import SCRIPT, environment

from opprof.protocol.load import packaged_path
from patience import Check, patiently


@dataclass
class Mock:
    """A running mock server."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/_mock/log") as answer:
            value: dict[str, Any] = json.load(answer)
        return value


@contextmanager
def running_mock(*flags: str) -> Iterator[Mock]:
    command = [sys.executable, "-m", "opprof.client.mock_server", "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        yield Mock(port, process)
    finally:
        process.terminate()
        process.wait(300)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def mock() -> Iterator[Callable[..., Mock]]:
    """Return a function that starts a mock with the given flags."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(running_mock(*flags))


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a manifest of ``count`` requests."""

    def write(
        count: int = 4000, *, pattern: str = "P01", arrival: str = "steady", output: int = 4
    ) -> Path:
        folder = tmp_path / "manifests"
        folder.mkdir(exist_ok=True)
        path = folder / f"{pattern}-{arrival.replace(':', '')}.jsonl"
        with path.open("w") as stream:
            for k in range(count):
                line = {
                    "id": f"{pattern}-{k}",
                    "input_tokens": 5,
                    "output_tokens": output,
                    "arrival": arrival,
                    "pattern": pattern,
                    "prompt_token_ids": [k // 256, k % 256, 7, 8, 9],
                }
                stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        return path

    return write


@pytest.fixture
def relaxed_protocol(tmp_path: Path) -> Path:
    """phase3 with gates that a busy test machine cannot fail; the rules under test are kept."""
    text = packaged_path().read_text()
    for old, new in {
        "client_cpu_share_max = 0.90": "client_cpu_share_max = 100.0",
        "client_loop_delay_p99_max_ms = 50.0": "client_loop_delay_p99_max_ms = 1e6",
        "client_lag_sustained_max_s = 1.0": "client_lag_sustained_max_s = 86400.0",
        "offered_rate_error_max = 0.05": "offered_rate_error_max = 10.0",
        "recovery_tolerance = 0.10": "recovery_tolerance = 1e6",
        "warmup_completions_min = 32": "warmup_completions_min = 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "relaxed.toml"
    path.write_text(text)
    return path


@pytest.fixture
def run_flags(relaxed_protocol: Path) -> Callable[..., list[str]]:
    """Return a function that builds ``run``'s arguments, at a hundredth of the protocol's time."""

    def build(manifest: Path, url: str, result_dir: Path, **changes: Any) -> list[str]:
        flags: dict[str, Any] = {
            "manifest": manifest,
            "base_url": url,
            "model": "mock",
            "load_point": "saturation",
            "max_concurrency": 16,
            "warmup_seconds": 60,
            "clean_segment_seconds": 80,
            "num_clean_segments": 3,
            "profile_after_clean": True,
            "num_profile_windows": 2,
            "recovery_seconds": 30,
            "drain_timeout_seconds": 120,
            "time_scale": 0.01,
            "result_dir": result_dir,
            "protocol": relaxed_protocol,
            **changes,
        }
        result: list[str] = ["run", "--ignore-eos", "--no-progress"]
        for name, value in flags.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                result.append(flag)
            elif value is not None and value is not False:
                result += [flag, str(value)]
        return result

    return build


@pytest.fixture
def client() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the specification's script."""

    def call(flags: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            env=environment(**variables),
        )

    return call


@pytest.fixture
def patient(tmp_path: Path) -> Callable[[Check], None]:
    """Return a function that makes runs and judges them, at a hundredth of the time or slower.

    The check makes its runs with a mock whose steps have the same scale.
    """
    return lambda check: patiently(check, tmp_path, (0.01, 0.05, 0.25))
