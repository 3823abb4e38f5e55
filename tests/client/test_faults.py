"""What goes wrong on the way: each ends with one clear message or reason, and whole lines."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client_helpers import SCRIPT, environment

from opprof.workload.read import open_manifest

Client = Callable[..., subprocess.CompletedProcess[str]]
Flags = Callable[..., list[str]]
Patient = Callable[[Callable[[float, Path], None]], None]
CLEAN_ONLY: dict[str, Any] = {"profile_after_clean": False, "num_profile_windows": 0}


def result_of(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return value


def whole_lines(folder: Path) -> list[dict[str, Any]]:
    data = (folder / "requests.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


CODES = {
    "http_500": "http_500",
    "cut": "cut_stream",
    "no_done": "no_done",
    "no_usage": "no_usage",
    "stream_error": "stream_error",
    "wrong_output": "output_count",
    "wrong_input": "input_count",
}
"""The mock's fault to the client's reason code."""


def test_failed_requests_in_a_clean_segment_fail_the_run_with_their_reasons(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    # The server's steps allow 100 requests/s at most, so number 80 comes after the 0.6 s of warm-up
    # however fast the machine is; a third of that rate brings the last one into the clean 2.4 s.
    faults = {str(80 + 2 * k): fault for k, fault in enumerate(CODES)}

    def check(scale: float, run: Path) -> None:
        server = mock("--step-ms", f"{4000 * scale:g}", "--faults", json.dumps(faults))
        folder = run / "client"
        done = client(run_flags(manifest(), server.url, folder, **CLEAN_ONLY, time_scale=scale))
        assert done.returncode == 1, done.stdout + done.stderr
        result = result_of(folder)
        assert not result["accepted"]
        clean, counts = (
            [reason for reason in result["reasons"] if reason.startswith(gate)]
            for gate in ("clean_requests", "token_counts")
        )
        assert len(clean) == len(counts) == 1, result["reasons"]
        assert all(f"{code} x1" in clean[0] for code in CODES.values()), clean
        assert "input_count x1, output_count x1" in counts[0]
        lines = [line for line in whole_lines(folder) if line["error"] is not None]
        assert sorted(line["error"] for line in lines) == sorted(CODES.values())
        for line in lines:
            answered = line["error"] in ("output_count", "input_count")
            assert (line["completed_mono_ns"] is not None) == answered
            assert (line["ended_mono_ns"] is not None) != answered
        assert "injected" not in done.stdout + done.stderr + json.dumps(result)

    patient(check)


def test_a_failure_in_the_warm_up_is_recorded_and_fails_nothing(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    def check(scale: float, run: Path) -> None:
        server = mock("--step-ms", f"{1000 * scale:g}", "--faults", '{"3": "http_500"}')
        folder = run / "client"
        done = client(run_flags(manifest(), server.url, folder, **CLEAN_ONLY, time_scale=scale))
        assert done.returncode == 0, done.stdout + done.stderr
        sanity = json.loads((folder / "sanity.json").read_text())
        gate = next(gate for gate in sanity["gates"] if gate["name"] == "clean_requests")
        assert gate["numbers"]["failed_outside"] == 1
        assert gate["numbers"]["codes_outside"] == "http_500 x1"

    patient(check)


def test_a_connection_that_the_server_closed_while_idle_costs_no_request(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    def check(scale: float, run: Path) -> None:
        server = mock("--step-ms", f"{1000 * scale:g}", "--faults", '{"40": "swallow"}')
        folder = run / "client"
        done = client(run_flags(manifest(), server.url, folder, **CLEAN_ONLY, time_scale=scale))
        assert done.returncode == 0, done.stdout + done.stderr
        assert result_of(folder)["metrics"]["client"]["resent"] == 1
        assert all(line["error"] is None for line in whole_lines(folder))

    patient(check)


def test_a_server_that_dies_ends_the_run_at_once(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    server = mock("--step-ms", "10")
    folder = tmp_path / "run" / "client"

    def kill() -> None:
        # Only a server that has answered can die in the run; a loaded machine starts slowly.
        wait_for_lines(folder)
        with suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"{server.url}/_mock/die").close()

    killer = threading.Thread(target=kill)
    killer.start()
    done = client(run_flags(manifest(), server.url, folder, time_scale=1.0))
    killer.join()
    assert done.returncode == 1, done.stdout + done.stderr
    result = result_of(folder)
    assert any("does not accept connections" in reason for reason in result["reasons"])
    assert json.loads((folder / "timeline.json").read_text())["state"] == "failed"
    assert {line["error"] for line in whole_lines(folder)} <= {None, "cut_stream", "connect"}


def test_a_slow_drain_is_quarantined(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    # 16 requests of 40 steps of 10 ms, three at a time: the drain needs 2 s, and 1.2 s are allowed.
    def check(scale: float, run: Path) -> None:
        server = mock("--step-ms", f"{1000 * scale:g}", "--slots", "3")
        folder, requests = run / "client", manifest(output=40)
        done = client(run_flags(requests, server.url, folder, **CLEAN_ONLY, time_scale=scale))
        assert (folder / "result.json").is_file(), done.stdout + done.stderr
        result = result_of(folder)
        assert result["drain_quarantined"], done.stdout
        assert result["accepted"] and done.returncode == 0
        assert "drain-quarantined" in done.stdout
        assert all(line["error"] is None for line in whole_lines(folder))
        assert result["metrics"]["drain_budget_s"] == pytest.approx(120 * scale)
        assert result["metrics"]["drain_timeout_requested_s"] == pytest.approx(120 * scale)

    patient(check)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_whole_lines_and_says_so(
    number: signal.Signals, tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "10")
    folder = tmp_path / "run" / "client"
    process = start(run_flags(manifest(), server.url, folder, time_scale=1.0))
    wait_for_lines(folder)
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in errors
    lines = whole_lines(folder)
    assert sum(line["error"] == "interrupted" for line in lines) == 16
    assert all(line["completed_mono_ns"] is not None for line in lines if line["error"] is None)
    timeline = json.loads((folder / "timeline.json").read_text())
    assert timeline["state"] == "interrupted"
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("moment", ["preflight", "finish"])
def test_a_signal_before_or_after_the_load_leaves_one_consistent_story(
    moment: str, tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    folder, opprof = tmp_path / "run" / "client", tmp_path / "opprof"
    # A step stream that nobody writes any more: the client waits for it after the drain.
    server = mock("--step-ms", "10", "--opprof-dir", str(opprof))
    still = tmp_path / "still"
    shutil.copytree(opprof, still)
    flags = run_flags(
        manifest(),
        server.url,
        folder,
        profile_after_clean=False,
        num_profile_windows=0,
        opprof_dir=still,
    )
    if moment == "preflight":
        # A server that takes the connection and says nothing.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            flags[flags.index("--base-url") + 1] = f"http://127.0.0.1:{silent.getsockname()[1]}"
            process = start(flags)
            silent.settimeout(120)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=600)
        assert process.returncode == 130 and "Traceback" not in errors
        assert not folder.exists()
        return
    process = start(flags)
    wait_for(lambda: '"drain"' in read_or_empty(folder / "timeline.json") or ended(folder))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert "Traceback" not in errors
    state = json.loads((folder / "timeline.json").read_text())["state"]
    if process.returncode == 130:
        assert state == "interrupted" and not (folder / "result.json").exists()
    else:
        assert process.returncode in (0, 1) and state == "complete"
        assert (folder / "result.json").exists()


def ended(folder: Path) -> bool:
    """The clean interval is over, by the timeline that is written when it ends."""
    return read_or_empty(folder / "timeline.json").count('"clean"') == 3


def read_or_empty(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_manifest_cut_under_the_run_is_a_reason_and_no_hang(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "10")
    folder, requests = tmp_path / "run" / "client", manifest(40_000)
    flags = run_flags(requests, server.url, folder, **CLEAN_ONLY, time_scale=1.0)
    process = start(flags)
    wait_for_lines(folder)
    with requests.open("r+b") as stream:
        stream.truncate(2000)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "was changed while it was in use" in output
    assert json.loads((folder / "timeline.json").read_text())["state"] == "failed"
    assert not result_of(folder)["accepted"]
    assert all(line["error"] is None for line in whole_lines(folder))


def test_an_engine_file_that_is_broken_costs_the_acceptance_and_not_the_result(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    def check(scale: float, run: Path) -> None:
        opprof, folder = run / "opprof", run / "client"
        server = mock("--step-ms", f"{1000 * scale:g}", "--opprof-dir", str(opprof))
        (opprof / "engine-0.profiler.ndjson").write_text("{broken\n")
        flags = run_flags(manifest(), server.url, folder, opprof_dir=opprof, time_scale=scale)
        done = client(flags)
        assert done.returncode == 1, done.stdout + done.stderr
        result = result_of(folder)
        assert any("engine-0.profiler.ndjson:1" in reason for reason in result["reasons"])
        assert result["completed_rps"] > 0 and not result["accepted"]

    patient(check)


def test_a_killed_client_leaves_whole_lines_and_no_result(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    server = mock("--step-ms", "10")
    folder = tmp_path / "run" / "client"
    flags = run_flags(manifest(), server.url, folder, time_scale=1.0)
    process = start(flags)
    wait_for_lines(folder)
    process.kill()
    process.communicate(timeout=600)
    assert whole_lines(folder)
    assert json.loads((folder / "timeline.json").read_text())["state"] == "running"
    assert not (folder / "result.json").exists()
    # What it left is never overwritten.
    before = (folder / "requests.jsonl").read_bytes()
    done = client(flags)
    assert done.returncode == 2 and "E-STATE" in done.stderr
    assert (folder / "requests.jsonl").read_bytes() == before


def start(flags: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def wait_for_lines(folder: Path) -> None:
    give_up = time.monotonic() + 120
    path = folder / "requests.jsonl"
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_full_disk_is_one_message_and_no_result(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags
) -> None:
    server = mock("--step-ms", "5")
    folder = tmp_path / "run" / "client"
    flags = run_flags(manifest(), server.url, folder, time_scale=1.0)
    # A limit on the size of any file stands for the full disk: writes beyond it fail.
    code = (
        "import resource, signal, runpy, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
        f"sys.argv = [{str(SCRIPT)!r}, *sys.argv[1:]];"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=environment(),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and "cannot write" in done.stderr
    assert whole_lines(folder)
    assert json.loads((folder / "timeline.json").read_text())["state"] == "failed"
    assert not (folder / "result.json").exists()
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_profile_endpoints_that_are_missing_fail_before_the_load(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    server = mock("--no-profile")
    folder = tmp_path / "run" / "client"
    done = client(run_flags(manifest(), server.url, folder))
    assert done.returncode == 1 and "/start_profile" in done.stderr and "404" in done.stderr
    assert server.log()["arrivals"] == [] and not folder.exists()


def test_an_unreachable_server(
    tmp_path: Path, manifest: Any, run_flags: Flags, client: Client
) -> None:
    folder = tmp_path / "run" / "client"
    done = client(run_flags(manifest(), "http://127.0.0.1:9", folder))
    assert done.returncode == 1 and "no HTTP server at http://127.0.0.1:9" in done.stderr
    assert done.stderr.count("\n") == 1 and not folder.exists()


def test_another_model(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    server = mock("--model", "other")
    done = client(run_flags(manifest(), server.url, tmp_path / "run" / "client"))
    assert done.returncode == 1 and "serves other, not mock" in done.stderr


def test_the_key_comes_from_the_environment_and_is_never_shown(
    mock: Any, manifest: Any, run_flags: Flags, client: Client, patient: Patient
) -> None:
    def check(scale: float, run: Path) -> None:
        server = mock("--step-ms", f"{1000 * scale:g}", "--require-key", "sesame")
        flags = run_flags(manifest(), server.url, run / "client", **CLEAN_ONLY, time_scale=scale)
        refused = client(flags)
        assert refused.returncode == 1 and "OPPROF_API_KEY" in refused.stderr
        done = client(flags, OPENAI_API_KEY="sesame", OPPROF_HEADERS="X-Team: turquoise")
        assert done.returncode == 0, done.stdout + done.stderr
        texts = [p.read_text() for p in run.rglob("*") if p.is_file()]
        for text in [*texts, done.stdout, done.stderr]:
            assert "sesame" not in text and "turquoise" not in text

    patient(check)


def test_no_layer1_stream_where_one_is_promised(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    server = mock()
    flags = run_flags(
        manifest(), server.url, tmp_path / "run" / "client", opprof_dir=tmp_path / "none"
    )
    done = client(flags)
    assert done.returncode == 1 and "no Layer-1 stream" in done.stderr


def test_a_manifest_that_was_changed(
    tmp_path: Path, mock: Any, manifest: Any, run_flags: Flags, client: Client
) -> None:
    path = manifest(50)
    with open_manifest(path, verify=True) as opened:
        summary = msgspec.json.encode(opened.summary)
    path.with_name(path.stem + ".manifest.sha256").write_bytes(summary)
    path.write_text(path.read_text().replace("[0,1,", "[0,2,"))
    folder = tmp_path / "run" / "client"
    done = client(run_flags(path, mock().url, folder))
    assert done.returncode == 2 and "changed" in done.stderr and not folder.exists()
