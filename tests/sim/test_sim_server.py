"""``opprof serve-sim`` as a process: routes, streams, profile windows, drain, the real client."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opprof.artifacts.layer1 import Footer, Line
from patience import patiently

FACTOR = 40


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder / "raw"),
        "warmup_iterations": 2,
        "active_iterations": 8,
    }
    command = [sys.executable, "-m", "opprof", "serve-sim", "m", "--port", "0"]
    command += ["--time-factor", str(FACTOR), "--profiler-config", json.dumps(profiler), *more]
    environment = {**os.environ, "VLLM_OPPROF_DIR": str(folder / "opprof")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().split()[-1]), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data)
    response = connection.getresponse()
    try:
        assert response.headers["x-opprof-simulated"] == "true"
        return response.status, response.read()
    finally:
        connection.close()


def wait_for_running(port: int, count: int) -> None:
    wanted = f'vllm:num_requests_running{{model_name="m",engine="0",simulated="true"}} {count}\n'
    give_up = time.monotonic() + 300
    while wanted not in call(port, "GET", "/metrics")[1].decode():
        assert time.monotonic() < give_up, f"never {count} running"
        time.sleep(0.05)


def events(data: bytes) -> list[Any]:
    lines = [line[6:] for line in data.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_routes_streams_profile_and_drain(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-timeout", "30") as (port, process):
        assert call(port, "GET", "/health")[0] == 200
        models = json.loads(call(port, "GET", "/v1/models")[1])
        assert models["data"][0]["id"] == "m"
        assert call(port, "GET", "/nothing")[0] == 404
        assert call(port, "GET", "/v1/completions")[0] == 405
        body = {"model": "m", "prompt": list(range(100)), "max_tokens": 7, "ignore_eos": True}
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        status, data = call(port, "POST", "/v1/completions", stream)
        found = events(data)
        assert status == 200 and len(found) == 8
        assert [e["choices"][0]["finish_reason"] for e in found[:-1]] == [None] * 6 + ["length"]
        assert found[-1]["usage"] == {
            "prompt_tokens": 100,
            "total_tokens": 107,
            "completion_tokens": 7,
        }
        status, data = call(port, "POST", "/v1/completions", body)
        assert status == 200 and json.loads(data)["usage"]["completion_tokens"] == 7
        for wrong, expected in (
            ({**body, "model": "other"}, 404),
            ({**body, "prompt": []}, 400),
            ({**body, "max_tokens": 0}, 400),
            ({**body, "max_tokens": 50_000}, 400),
            ({**body, "n": 2}, 400),
            ([], 400),
        ):
            status, data = call(port, "POST", "/v1/completions", wrong)
            assert status == expected and json.loads(data)["error"]["code"] == expected
        assert call(port, "POST", "/start_profile")[0] == 200
        call(port, "POST", "/v1/completions", {**body, "max_tokens": 30})
        assert call(port, "POST", "/stop_profile")[0] == 200
        assert len(list((tmp_path / "raw").iterdir())) == 1
        metrics = call(port, "GET", "/metrics")[1].decode()
        assert 'vllm:prompt_tokens_total{model_name="m",engine="0",simulated="true"} 300' in metrics
        assert "vllm:kv_cache_usage_perc" in metrics and "SIMULATED" in metrics
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as running:
            running.request("POST", "/v1/completions", json.dumps({**stream, "max_tokens": 500}))
            answer = running.getresponse()  # Its head comes when the request runs.
            process.send_signal(signal.SIGTERM)
            assert events(answer.read())[-1]["usage"]["completion_tokens"] == 500
        assert process.wait(300) == 0
    path = tmp_path / "opprof" / "engine-0.jsonl"
    last = msgspec.json.decode(path.read_bytes().splitlines()[-1], type=Line)
    assert isinstance(last, Footer) and last.open_steps == 0


def test_the_specifications_command_line_starts_and_odd_requests_are_vllms_errors(
    tmp_path: Path,
) -> None:
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(tmp_path / "raw"),
        "torch_profiler_with_stack": True,
        "torch_profiler_record_shapes": True,
        "torch_profiler_use_gzip": True,
        "ignore_frontend": True,
        "wait_iterations": 0,
        "warmup_iterations": 2,
        "active_iterations": 8,
    }
    flags = ["--tensor-parallel-size", "1", "--enable-chunked-prefill", "--enable-prefix-caching"]
    with serving(tmp_path, *flags, "--profiler-config", json.dumps(profiler)) as (port, _):

        def complete(**body: Any) -> tuple[int, Any]:
            status, data = call(port, "POST", "/v1/completions", {"model": "m", **body})
            return status, json.loads(data)

        status, answer = complete(prompt=["one text in a list"], max_tokens=2)
        assert status == 200 and answer["usage"]["completion_tokens"] == 2
        assert complete(prompt=[[5, 6, 7]], max_tokens=1)[1]["usage"]["prompt_tokens"] == 3
        for odd in (
            {"prompt": ["a", "b"]},
            {"prompt": [1], "n": 2},
            {"prompt": [1], "logprobs": 1},
            {"prompt": [1], "echo": True},
            {"prompt": [1], "max_tokens": "two"},
            {"prompt": [1] * 40960, "max_tokens": 1},
            {"prompt": {}},
        ):
            status, answer = complete(**odd)
            assert (status, answer["error"]["type"]) == (400, "BadRequestError"), odd
        status, answer = complete(model="other", prompt=[1])
        assert (status, answer["error"]["type"]) == (404, "NotFoundError")
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": [1], "max_tokens": 3, "stream": True, "stream_options": options}
        streamed = events(call(port, "POST", "/v1/completions", {"model": "m", **body})[1])
        assert [each["usage"]["completion_tokens"] for each in streamed if each["usage"]] == [
            1,
            2,
            3,
        ]
        # As the plugin's hook: a stop without a start, or without a trace, is an error.
        assert call(port, "POST", "/stop_profile")[0] == 500
        assert call(port, "POST", "/start_profile")[0] == 200
        assert call(port, "POST", "/stop_profile")[0] == 500


def test_a_client_that_leaves_is_aborted_and_timeout_zero_kills(tmp_path: Path) -> None:
    with serving(tmp_path) as (port, process):
        body = json.dumps({"prompt": [1] * 50, "max_tokens": 30_000})
        for expected in (1, 0):
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as running:
                running.request("POST", "/v1/completions", body)
                wait_for_running(port, 1)
                if not expected:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(300) == 0
                    break
            wait_for_running(port, 0)
    path = tmp_path / "opprof" / "engine-0.jsonl"
    assert b'"footer"' not in path.read_bytes().splitlines()[-1]
    sidecar = json.loads((tmp_path / "opprof" / "engine-0.jsonl.footer.json").read_bytes())
    assert sidecar["final"] is False and "still running" in sidecar["reason"]


@pytest.mark.parametrize(
    "more",
    [
        ["--tensor-parallel-size", "3"],
        ["--profiler-config", "{}"],
        ["--profiler-config", '{"profiler":"torch","torch_profiler_dir":"x","odd":1}'],
        ["--max-num-batched-tokens", "10"],
    ],
)
def test_unusable_flags_are_one_message(tmp_path: Path, more: list[str]) -> None:
    from click.testing import CliRunner

    from opprof.cli.serve_sim import serve_sim
    from opprof.errors import InputError

    result = CliRunner().invoke(serve_sim, ["m", "--port", "0", *more])
    assert isinstance(result.exception, InputError)


def write_manifest(path: Path) -> None:
    lines = [
        {
            "id": index,
            "prompt_token_ids": [1000 + index * 7 + k for k in range(40 + index % 50)],
            "input_tokens": 40 + index % 50,
            "output_tokens": 16,
            "arrival": "steady",
            "pattern": "P01",
        }
        for index in range(4000)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_real_client_runs_against_it_and_the_analysis_reads_the_run(tmp_path: Path) -> None:
    from opprof.analysis.run import analyze_run
    from opprof.client.options import RunOptions
    from opprof.client.run import run_client
    from opprof.protocol import load_protocol

    protocol = load_protocol("phase3")
    assert protocol is not None
    write_manifest(tmp_path / "m.jsonl")

    def check(scale: float, run: Path) -> None:
        pace = ["--shutdown-timeout", "30", "--time-factor", f"{1 / scale:g}"]
        with serving(run, *pace) as (port, process):
            options = RunOptions(
                manifest=tmp_path / "m.jsonl",
                base_url=f"http://127.0.0.1:{port}",
                model="m",
                load_point="saturation",
                request_rate="inf",
                saturation_result=None,
                rate_fraction=None,
                max_concurrency=16,
                temperature=0.0,
                warmup_seconds=40.0,
                clean_segment_seconds=40.0,
                num_clean_segments=1,
                profile_after_clean=True,
                num_profile_windows=1,
                profile_warmup_iterations=2,
                profile_active_iterations=8,
                profile_window_seconds=None,
                recovery_seconds=12.0,
                drain_timeout_seconds=120.0,
                workload_seed=None,
                result_dir=run / "client",
                config="C00",
                role="primary",
                opprof_dir=run / "opprof",
                time_scale=scale,
                progress=False,
            )
            report = run_client(options, protocol)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        assert report.result is not None and report.result.simulated
        assert report.result.metrics["clean"]["failed"] == 0
        assert (run / "raw").is_dir(), report.result.reasons
        (run / "traces").mkdir(exist_ok=True)
        for trace in (run / "raw").iterdir():
            trace.rename(run / "traces" / "window0-rank0.pt.trace.json.gz")
        analysis = analyze_run(run, protocol)
        assert analysis.layer1.run.simulated
        assert [window.accepted for window in analysis.kernels.windows] == [True]
        assert analysis.kernels.windows[0].families["moe_gemm"].share > 0.2

    patiently(check, tmp_path, (1 / FACTOR, 4 / FACTOR, 16 / FACTOR))
