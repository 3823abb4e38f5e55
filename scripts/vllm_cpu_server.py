"""Start and stop a tiny CPU vLLM with this checkout's plugin, for end-to-end checks.

As a library: ``with Server(env, run_dir) as server: ... server.url``. As a command it serves until
interrupted: ``python scripts/vllm_cpu_server.py --env FOLDER --run DIR [-- vLLM flags]``. Needs
only the standard library; vLLM and the model come from ``scripts/vllm_cpu_env.sh``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
MODEL_NAME = "tiny-qwen3"
START_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 300.0
GONE_TIMEOUT_S = 120.0


def reserved_port() -> socket.socket:
    """Return a socket that keeps a free TCP port from everybody but this user's vLLM.

    It does not listen. vLLM binds with SO_REUSEPORT, so it gets the port nevertheless, and no other
    program that asks for any free port does in the seconds until then.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def plugin_path(
    folder: Path, name: str = "opprof", target: str = "opprof.engines.vllm:register"
) -> str:
    """Make a folder that announces the plugin's entry point, and return a PYTHONPATH with it.

    The same as ``pip install --no-deps`` of the checkout, without touching the environment.
    """
    # A dash in the folder's name would cut the name short, and two plugins would count as one.
    info = folder / f"{name.replace('-', '_')}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {target}\n")
    return os.pathsep.join([str(folder), str(CHECKOUT / "src")])


def profiler_config(trace_dir: Path, *, with_stack: bool = False) -> str:
    """Return the specification's ``--profiler-config``; stacks off by default (CPU traces)."""
    return json.dumps(
        {
            "profiler": "torch",
            "torch_profiler_dir": str(trace_dir),
            "torch_profiler_with_stack": with_stack,
            "torch_profiler_record_shapes": True,
            "torch_profiler_use_gzip": True,
            "ignore_frontend": True,
            "wait_iterations": 0,
            "warmup_iterations": 2,
            "active_iterations": 8,
        }
    )


class Server:
    """One tiny vLLM server; ``run_dir`` gets ``server.log``, ``opprof/`` and ``traces/``."""

    def __init__(
        self,
        env: Path,
        run_dir: Path,
        *,
        flags: Sequence[str] = (),
        variables: dict[str, str] | None = None,
        record: bool = True,
        shutdown_timeout_s: int = 120,
        pythonpath: str | None = None,
    ) -> None:
        self.env = env
        self.run_dir = run_dir
        self.opprof_dir = run_dir / "opprof"
        self.trace_dir = run_dir / "traces"
        self.model = env / MODEL_NAME
        self.model_name = MODEL_NAME
        self._reserved = reserved_port()
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._flags = [*flags, "--shutdown-timeout", str(shutdown_timeout_s)]
        self._variables = variables or {}
        self._record = record
        self._pythonpath = pythonpath
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Return the server's command line."""
        return [
            str(self.env / "bin" / "python"),
            *("-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model), "--served-model-name", MODEL_NAME),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "2048"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--enable-chunked-prefill", "--enable-prefix-caching"),
            *("--profiler-config", profiler_config(self.trace_dir)),
            *self._flags,
        ]

    def environment(self) -> dict[str, str]:
        """Return the server's environment: two quiet threads, no telemetry, the plugin."""
        values = dict(os.environ)
        values.pop("VLLM_OPPROF_DIR", None)
        values |= {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "PYTHONPATH": self._pythonpath or plugin_path(self.run_dir / "plugin"),
        }
        if self._record:
            values["VLLM_OPPROF_DIR"] = str(self.opprof_dir)
        return values | self._variables

    def start(self) -> None:
        """Start the server in its own session and wait until it is healthy.

        Raises:
            RuntimeError: it ended or did not become healthy in time; the log's end is in the text.
        """
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.trace_dir.mkdir(exist_ok=True)
        with (self.run_dir / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.run_dir,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"the server ended with {self.process.returncode}: {self.tail()}"
                )
            if self.is_healthy():
                return
            time.sleep(0.25)
        self.kill()
        raise RuntimeError(f"the server did not become healthy: {self.tail()}")

    def is_healthy(self) -> bool:
        """Whether ``/health`` answers 200."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, path: str, body: object | None = None, timeout_s: float = 300) -> int:
        """POST and return the HTTP status; the answer's body is read and dropped."""
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method="POST")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.read()
            return error.code

    def complete(self, tokens: list[int], output_tokens: int) -> int:
        """Run one greedy completion of exactly ``output_tokens`` and return the HTTP status."""
        return self.post(
            "/v1/completions",
            {
                "model": self.model_name,
                "prompt": tokens,
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        )

    def descendants(self) -> dict[int, str]:
        """Return process id to command line of everything below the server's process."""
        assert self.process is not None
        return dict(_descendants(self.process.pid))

    def engine_pid(self) -> int:
        """Return the process id of the (only) engine core.

        Raises:
            RuntimeError: there is none.
        """
        for pid, line in self.descendants().items():
            if "EngineCore" in line:
                return pid
        raise RuntimeError(f"no engine process among {self.descendants()}")

    def stop(self) -> int:
        """Drain by SIGTERM to the API parent; kill where it hangs; return the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL the server and everything below it at once, and see them gone."""
        if self.process is None:
            return
        pids = [*self.descendants(), self.process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        give_up = time.monotonic() + GONE_TIMEOUT_S
        while lives := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < give_up, f"killed processes live on: {lives}"
            time.sleep(0.02)

    def tail(self, size: int = 4000) -> str:
        """Return the end of the server's log."""
        return (self.run_dir / "server.log").read_text(errors="replace")[-size:]

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            if task.name != str(pid):
                children += (task / "children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        yield child, line
        yield from _descendants(child)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("flags", nargs="*", help="more flags of vLLM, after --")
    arguments = parser.parse_args()
    server = Server(arguments.env, arguments.run.resolve(), flags=arguments.flags)
    with server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
