"""The parts of the Ray executor that need no Ray: frames, environment, addresses, refusals."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opprof.artifacts.campaign import Attempt, Phase, RunRecord
from opprof.campaign.attempt import Outcome
from opprof.campaign.executors import frames, ray_cluster, ray_probe
from opprof.campaign.executors.ray import home_of_kept
from opprof.campaign.executors.ray_cluster import (
    Identity,
    RayLimits,
    check_address,
    check_code,
    connect,
)
from opprof.campaign.executors.ray_worker import node_environment
from opprof.campaign.store import pretty
from opprof.code_hash import code_sha256
from opprof.errors import EnvironmentFailure, InputError, StateConflict


def test_without_ray_one_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'opprof\[ray\]'"):
        asyncio.run(connect("127.0.0.1:6379", "c", RayLimits()))


@pytest.mark.parametrize(
    "address", ["", "auto", "host", "host:", ":6379", "ray://h:10001", "h:x", "h:0", "h:99999"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        check_address(address)


def test_a_silent_cluster_is_told_before_ray_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", sys)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EnvironmentFailure, match=f"no Ray cluster answers at {address}: "):
        asyncio.run(connect(address, "c", RayLimits(connect_s=2)))


def test_the_probe_tells_this_package_and_its_hash() -> None:
    found = ray_probe.identity()
    assert found["code_sha256"] == code_sha256() and found["missing"] == ""
    assert found["python"] == sys.executable


def test_other_code_is_refused_with_both_hashes() -> None:
    same = Identity(0, "python", 0, "boot", "host", "1.0", "a" * 64, "")
    check_code("n1", same, "a" * 64)
    with pytest.raises(EnvironmentFailure, match=f"n1 has other code: {'a' * 64} .* {'b' * 64}"):
        check_code("n1", same, "b" * 64)


def test_frames_survive_a_pipe_and_its_end() -> None:
    reader, writer = os.pipe()
    outcome = Outcome({}, "why", "infrastructure", None, None, 0.5, None)
    sent: list[frames.Up] = [
        frames.PhaseEntered("serving", ""),
        frames.Finished(outcome),
        frames.Broke("StateConflict", "there", "f"),
    ]
    for frame in sent:
        frames.write_frame(writer, frames.encode(frame))
    os.write(writer, b"\0\0\0\x09half")
    os.close(writer)
    got = [frames.read_frame(reader) for _ in range(5)]
    os.close(reader)
    assert [frames.decode_up(data) for data in got[:3] if data is not None] == sent
    assert got[3:] == [None, None]


def test_errors_are_rebuilt_by_name() -> None:
    conflict = frames.Broke("StateConflict", "is there", "file").exception()
    assert type(conflict) is StateConflict and str(conflict) == "file: is there"
    for name in ("KeyError", "os", "annotations"):
        other = frames.Broke(name, "x").exception()
        assert type(other) is EnvironmentFailure and name in str(other)


def test_the_environment_is_the_nodes_own() -> None:
    raylet = b"PATH=/bin\0OMP_NUM_THREADS=4\0LD_PRELOAD=/ray/jemalloc.so\0RAY_X=1\0"
    raylet += b"CUDA_VISIBLE_DEVICES=0,1\0EMPTY=\0"
    own = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "RAY_X": "1",
        "RAY_JOB_ID": "01",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "EMPTY": "",
    }
    assert node_environment(own, raylet) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "EMPTY": "",
    }


def test_only_the_last_open_attempt_of_a_run_is_taken_home(tmp_path: Path) -> None:
    def save(run: str, phase: Phase, number: int) -> None:
        last = Attempt(number, f"runs/{run}", phase, [], None, [], {}, {})
        record = RunRecord(
            1, run, "P01", "C00", "moderate", "primary", 0, [], state=phase, attempts=[last]
        )
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / f"{run}.json").write_bytes(pretty(record))

    save("a", "loading", 2)
    save("b", "complete", 1)
    assert home_of_kept(tmp_path, "a", 2) == tmp_path / "runs" / "a"
    assert home_of_kept(tmp_path, "a", 1) is None
    assert home_of_kept(tmp_path, "b", 1) is None
    assert home_of_kept(tmp_path, "c", 1) is None
    (tmp_path / "runs" / "a").mkdir(parents=True)
    assert home_of_kept(tmp_path, "a", 2) is None


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (None, "no Ray cluster answers at .*: timed out"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no head of a Ray cluster"),
        (b"", "is no head of a Ray cluster"),
        (b"\0\0\x18\4\0\0\0\0\0", ""),
    ],
)
def test_only_a_head_is_joined(
    monkeypatch: pytest.MonkeyPatch, says: bytes | None, reason: str
) -> None:
    """A service that listens and never answers would hold Ray itself for eleven minutes."""
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                if says is not None:
                    peer.recv(100)
                    peer.sendall(says)
                else:
                    while peer.recv(100):
                        pass

        answering = pool.submit(answer)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        limits = RayLimits(connect_s=0.5)
        if reason:
            with pytest.raises(EnvironmentFailure, match=reason):
                ray_cluster.knock(address, limits)
        else:
            ray_cluster.knock(address, limits)
        answering.result()
