"""A real Ray cluster on this machine for the tests: a raylet a node, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_START_S = 600
_STOP_S = 120
_STARTS = 3
"""Ray looks for free ports long before it uses them; somebody else may be quicker."""
_STORE_BYTES = 80 << 20
"""Ray takes no less than 75 MiB."""


@dataclass
class LocalNode:
    """One ``ray start --block`` and what it started."""

    name: str
    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        """Every process of the node: Ray's services share its group, its workers are children."""
        group = os.getpgid(self.process.pid)
        found = {self.process.pid}
        for _ in range(4):  # ray start -> raylet -> worker -> whatever a worker started
            for pid, parent, pgid in _table():
                if pgid == group or parent in found:
                    found.add(pid)
        return sorted(found)

    def raylet(self) -> int:
        """Return the raylet's pid."""
        for pid in self.pids():
            if b"/raylet\0" in _bytes(f"/proc/{pid}/cmdline")[:400]:
                return pid
        raise AssertionError(f"{self.name} has no raylet")

    def kill(self) -> None:
        """Lose the node: SIGKILL to the raylet and to the command that would clean up after it."""
        os.kill(self.raylet(), signal.SIGKILL)
        self.process.kill()
        self.process.wait(_STOP_S)

    def kill_whole(self) -> None:
        """Lose the node with all that Ray runs on it; what has left its processes lives on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(_STOP_S)

    def stop(self) -> None:
        """End the node as its user would, then whatever is left of it."""
        pids = self.pids() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_STOP_S)
        for pid in pids:
            _kill_if_ray(pid)


@dataclass
class LocalCluster:
    """A head and further nodes; node names are unique."""

    folder: Path
    """Ray's sessions and logs; short, for the sockets in it."""
    port: int
    nodes: dict[str, LocalNode] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """For ``ray.init`` and ``--ray-address``."""
        return f"127.0.0.1:{self.port}"

    def add(
        self,
        name: str,
        *,
        slots: int = 1,
        gpus: int = 0,
        environment: dict[str, str] | None = None,
    ) -> LocalNode:
        """Start a node and wait until it counts.

        ``slots``: of the custom resource. ``gpus``: as many as Ray is told that there are.
        """
        for start in range(_STARTS):
            node = self.nodes[name] = self._started(name, slots, gpus, environment or {})
            try:
                self._wait(node, b"Ray runtime started")
            except AssertionError:
                node.stop()
                del self.nodes[name]
                if start + 1 == _STARTS:
                    raise
                if not self.nodes:
                    self.port = free_port()
            else:
                break
        return node

    def _started(self, name: str, slots: int, gpus: int, environment: dict[str, str]) -> LocalNode:
        head = not self.nodes
        options = ["--head", "--port", str(self.port), "--temp-dir", str(self.folder)]
        options += ["--include-dashboard", "false"]
        if not head:
            options = ["--address", self.address]
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--node-name", name, "--node-ip-address", "127.0.0.1"),
            *("--num-cpus", "2", "--num-gpus", str(gpus)),
            *("--resources", json.dumps({"opprof_gpu": slots} if slots else {})),
            *("--object-store-memory", str(_STORE_BYTES)),
            *("--min-worker-port", "0", "--max-worker-port", "0"),
            *("--dashboard-agent-listen-port", "0"),
            *("--disable-usage-stats", "--include-log-monitor", "false"),
            *options,
        ]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=node_environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return LocalNode(name, process)

    def _wait(self, node: LocalNode, words: bytes) -> None:
        path, give_up = self.folder / f"{node.name}.log", time.monotonic() + _START_S
        while words not in _bytes(str(path)):
            said = _bytes(str(path)).decode(errors="replace")[-2000:]
            assert node.process.poll() is None, f"{node.name} ended: {said}"
            assert time.monotonic() < give_up, f"{node.name} is not up: {said}"
            time.sleep(0.1)


@contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    """Yield a cluster without nodes; all of its processes and files are gone afterwards."""
    # Not pytest's folder: the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="opprof-ray-"))
    cluster = LocalCluster(folder, free_port())
    try:
        yield cluster
    finally:
        for node in reversed(cluster.nodes.values()):
            node.stop()
        left = processes_naming(str(folder))
        for pid in left:
            _kill_if_ray(pid)
        shutil.rmtree(folder, ignore_errors=True)


def node_environment() -> dict[str, str]:
    """Return the environment of a node: this package and the tests' stand-ins, no network."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "OPPROF_"))}
    folders = [REPOSITORY / "src", REPOSITORY / "tests", REPOSITORY / "tests" / "campaign"]
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_AUTO_CONNECT": "0",
    }


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def processes_naming(text: str) -> list[int]:
    """Return the living processes whose command or environment has the text, this one excepted."""
    wanted = text.encode()
    found = []
    for pid, _, _ in _table():
        if pid != os.getpid() and any(
            wanted in _bytes(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")
        ):
            found.append(pid)
    return found


def _kill_if_ray(pid: int) -> None:
    command = _bytes(f"/proc/{pid}/cmdline")
    if b"ray" in command:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def _table() -> list[tuple[int, int, int]]:
    """(pid, parent, process group) of every living process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        text = _bytes(str(entry / "stat")).decode(errors="replace")
        fields = text[text.rfind(")") + 2 :].split()
        if len(fields) > 3 and fields[0] != "Z":
            found.append((int(entry.name), int(fields[1]), int(fields[2])))
    return found


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
