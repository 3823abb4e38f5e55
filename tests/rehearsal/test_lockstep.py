"""Server and client as two processes in lock step: as one process, byte for byte, and killable."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from opprof.analysis.run import analyze_run
from opprof.client.lockstep import LockstepTransport, Wire, parse_address
from opprof.client.options import RunOptions, build_plan
from opprof.client.ports import Outcome, RequestSpec
from opprof.client.run import run_client
from opprof.client.virtual import VirtualClock
from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import load_cost
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.seeds import run_seed
from opprof.errors import EnvironmentFailure, InputError
from opprof.protocol import Protocol, load_protocol
from opprof.rehearsal.run import RehearsedRun, profiler_config, rehearse_run
from opprof.rehearsal.source import plan_manifest
from opprof.workload.tiny_tokenizer import write_tiny_tokenizer

SEED = 7


@contextmanager
def serving(run: Path, *more: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(run / "traces"),
        "warmup_iterations": 2,
        "active_iterations": 8,
    }
    command = [sys.executable, "-m", "opprof", "serve-sim", "m", "--virtual", "--port", "0"]
    command += ["--seed", str(SEED), "--profiler-config", json.dumps(profiler), *more]
    environment = {**os.environ, "VLLM_OPPROF_DIR": str(run / "opprof")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split()[-1]), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifest")
    write_tiny_tokenizer(folder / "tokenizer")
    flags = f"""materialize --id P08 --kind prefix-pool --num-prefixes 8 --prefix-len 1024
        --suffix-fixed 256 --output-fixed 512 --arrival burst:8 --num-requests 32768
        --workload-seed 20260712 --tokenizer {folder}/tokenizer --out {folder}/P08.jsonl"""
    subprocess.run(
        [sys.executable, "-m", "opprof", *flags.split()],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=True,
        capture_output=True,
    )
    return folder / "P08.jsonl"


def bound() -> Protocol:
    found = load_protocol("phase3")
    assert found is not None
    return found


def options(manifest: Path, port: int, run: Path, **changes: Any) -> RunOptions:
    values: dict[str, Any] = {
        "manifest": manifest,
        "base_url": f"lockstep://127.0.0.1:{port}",
        "model": "m",
        "load_point": "saturation",
        "request_rate": "inf",
        "saturation_result": None,
        "rate_fraction": None,
        "max_concurrency": 64,
        "temperature": 0.0,
        "warmup_seconds": 6.0,
        "clean_segment_seconds": 4.0,
        "num_clean_segments": 3,
        "profile_after_clean": True,
        "num_profile_windows": 2,
        "profile_warmup_iterations": 2,
        "profile_active_iterations": 8,
        "profile_window_seconds": None,
        "recovery_seconds": 4.0,
        "drain_timeout_seconds": 120.0,
        "workload_seed": None,
        "result_dir": run / "client",
        "config": "C00",
        "role": "primary",
        "opprof_dir": run / "opprof",
        "progress": False,
        **changes,
    }
    return RunOptions(**values)


def digests(folder: Path, *parts: str) -> dict[str, str]:
    """Hashes by name; the configuration names folders, so it is left out."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in parts
        for path in sorted((folder / part).rglob("*"))
        if path.name != "engine-config.json"
    }


def test_two_processes_make_the_run_that_one_process_makes(manifest: Path, tmp_path: Path) -> None:
    protocol = bound()
    stream = "P08-C00-saturation"
    for name in ("first", "second", "other"):
        # A run's own numbers, as a campaign's launch asks for them.
        mine = f"{stream}-confirmation" if name == "other" else stream
        with serving(tmp_path / name, "--stream", mine) as (port, process):
            report = run_client(options(manifest, port, tmp_path / name), protocol)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        assert report.result is not None and report.result.simulated
        assert report.result.metrics["clean"]["completed"] >= 64
    whole = ("client", "opprof", "traces", "manifest.sha256")
    assert digests(tmp_path / "first", *whole) == digests(tmp_path / "second", *whole)

    planned = plan_manifest(protocol.file, "P08", workload_seed=protocol.file.seeds.workload)
    alone = tmp_path / "alone"
    plan = build_plan(
        options(manifest, 1, alone), pattern="P08", arrival="burst:8", rate=None, protocol=protocol
    )
    config = SimConfig(model="m", tensor_parallel_size=1, profiler=profiler_config(protocol, alone))
    seed = run_seed(SEED, stream)
    rehearse_run(RehearsedRun(plan, planned, config, protocol, seed, Effects()), load_cost(), alone)
    wanted, found = (
        digests(alone, "opprof", "traces"),
        digests(tmp_path / "first", "opprof", "traces"),
    )
    # The sidecar says when the engine was told to end, which here is the starter's business.
    wanted.pop("opprof/engine-0.jsonl.footer.json")
    found.pop("opprof/engine-0.jsonl.footer.json")
    assert wanted == found
    one, two, other = (
        times(folder / "client" / "requests.jsonl")
        for folder in (alone, tmp_path / "first", tmp_path / "other")
    )
    assert one == two
    # A confirmation is no copy of what it confirms.
    assert one != other


def times(path: Path) -> list[tuple[int, ...]]:
    names = ("scheduled_mono_ns", "admitted_mono_ns", "first_token_mono_ns", "completed_mono_ns")
    return [
        tuple(row[name] for name in names) for row in map(json.loads, path.read_text().splitlines())
    ]


def test_a_killed_engine_ends_the_run_without_a_result_that_is_accepted(
    manifest: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with serving(run) as (port, process):
        clock = VirtualClock()
        transport = LockstepTransport(clock, ("127.0.0.1", port))
        clock.begin(transport.hello.now_ns)
        ended: list[Outcome] = []
        for number in range(3):
            spec = RequestSpec(f"r{number}", b"[1, 2, 3]", 3, 8)
            transport.send(transport.prepare(spec), ended.append)
        process.kill()
        process.wait()
        clock.run(until_ns=clock.now_ns() + 10**10)
        assert [outcome.error for outcome in ended] == ["connect"] * 3
        transport.close()
    with pytest.raises(EnvironmentFailure, match="no embedded engine answers"):
        run_client(options(manifest, port, tmp_path / "other", opprof_dir=None), bound())


@pytest.mark.parametrize("under_load", [False, True], ids=["after the load", "under load"])
def test_a_killed_engines_checkpoint_is_judged_on_the_clock_of_the_run(
    manifest: Path, tmp_path: Path, under_load: bool
) -> None:
    """A-P3-5: the controller's signal is told by the machine's clock, the checkpoint is not."""
    run, protocol = tmp_path / "run", bound()
    with serving(run) as (port, process):

        def kill_at_first_answer() -> None:
            records = run / "client" / "requests.jsonl"
            while not (records.is_file() and records.stat().st_size):
                time.sleep(0.01)
            process.kill()

        killer = threading.Thread(target=kill_at_first_answer, daemon=True)
        if under_load:
            killer.start()
        report = run_client(options(manifest, port, run), protocol)
        process.kill()
        process.wait()
    assert report.result is not None
    (run / "environment.json").write_text(json.dumps({"signal_wall_ns": time.time_ns()}))
    analysis = analyze_run(run, protocol)
    accounting = analysis.layer1.accounting
    assert not accounting.footer_in_stream
    assert accounting.valid, accounting.reasons
    assert accounting.checkpoint_age_ms is not None
    assert abs(accounting.checkpoint_age_ms) <= 1100
    (gate,) = [gate for gate in analysis.sanity.gates if gate.name == "sidecar_age"]
    assert gate.outcome == "pass", gate.reason


def test_health_is_answered_and_outstanding_requests_are_no_clean_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with serving(run) as (port, process):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        clock = VirtualClock()
        transport = LockstepTransport(clock, ("127.0.0.1", port))
        clock.begin(transport.hello.now_ns)
        transport.send(transport.prepare(RequestSpec("r", b"[5]", 1, 400)), lambda _outcome: None)
        clock.run(until_ns=clock.now_ns() + 10**9)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        transport.close()
    stream = (run / "opprof" / "engine-0.jsonl").read_text().splitlines()
    assert not any('"type":"footer"' in line for line in stream)


def test_a_client_that_is_slow_to_speak_is_served_and_holds_up_nobody(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "run") as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=300) as slow,
    ):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as other:
            other.request("GET", "/health")
            assert other.getresponse().status == 200
        wire = Wire(slow)
        wire.send(["hello"])
        assert wire.receive()


def test_sigterm_leaves_running_requests_their_time_and_refuses_new_ones(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended: list[Outcome] = []
    with serving(run, "--shutdown-timeout", "100") as (port, process):
        clock = VirtualClock()
        transport = LockstepTransport(clock, ("127.0.0.1", port))
        clock.begin(transport.hello.now_ns)
        transport.send(transport.prepare(RequestSpec("r", b"[5]", 1, 400)), ended.append)
        clock.run(until_ns=clock.now_ns() + 10**8)
        process.send_signal(signal.SIGTERM)
        # When the signal is seen is the machine's business; a refusal shows it.
        while not any(outcome.http_status == 503 for outcome in ended):
            transport.send(transport.prepare(RequestSpec("late", b"[6]", 1, 1)), ended.append)
            clock.run(until_ns=clock.now_ns() + 2 * 10**7)
        clock.run(until_ns=clock.now_ns() + 60 * 10**9)
        assert process.wait(300) == 0
        transport.close()
    assert any(outcome.http_status == 503 for outcome in ended)
    assert any(outcome.output_tokens == 400 for outcome in ended)
    assert '"type":"footer"' in (run / "opprof" / "engine-0.jsonl").read_text().splitlines()[-1]


@pytest.mark.parametrize("url", ["lockstep://", "lockstep://host", "lockstep://host:0"])
def test_an_address_without_host_and_port_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        parse_address(url)
