"""End-to-end checks of the vLLM plugin on the CPU build: real requests, real kills.

usage: python scripts/e2e_vllm_plugin.py --env FOLDER [--only NAME ...] [--keep DIR]

``FOLDER`` comes from ``scripts/vllm_cpu_env.sh``. Each scenario starts its own tiny server; the last
line is ``N passed, M failed``. What is on disk is read here with the standard library alone, so that
a fault of the product's own readers cannot hide one of its writers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from vllm_cpu_server import CHECKOUT, Server, plugin_path

EXECUTE = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")
FLUSH_NS = 1_000_000_000
TOLERANCE_NS = 100_000_000


class Load:
    """A closed loop of small requests from threads; counts what succeeded and failed."""

    def __init__(self, server: Server, concurrency: int, output_tokens: int = 48) -> None:
        self.server = server
        self.done = 0
        self.failed = 0
        self._stop = threading.Event()
        self._output_tokens = output_tokens
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), daemon=True)
            for seed in range(concurrency)
        ]

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set():
            tokens = [draw.randrange(300, 4000) for _ in range(draw.randrange(20, 200))]
            try:
                status = self.server.complete(tokens, self._output_tokens)
            except OSError:
                status = 0
            if status == 200:
                self.done += 1
            else:
                self.failed += 1
                time.sleep(0.05)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Start no more requests and wait for those that run."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


def steps_of(server: Server, index: int = 0) -> list[dict[str, Any]]:
    """Return the step lines of a stream; every line must decode."""
    data = (server.opprof_dir / f"engine-{index}.jsonl").read_bytes()
    assert data.endswith(b"\n"), "the stream ends in a partial line"
    return [line for line in map(json.loads, data.splitlines()) if line["type"] == "step"]


def check_accounting(server: Server, *, final: bool, signal_wall_ns: int | None = None) -> int:
    """Assert A-P3-5 on what is on disk; return the number of steps."""
    stream = server.opprof_dir / "engine-0.jsonl"
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    data = stream.read_bytes()
    assert data.endswith(b"\n"), "the stream ends in a partial line"
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[0]["type"] == "header"
    steps = [line for line in lines if line["type"] == "step"]
    footers = [line for line in lines if line["type"] == "footer"]
    assert side["written_records"] == len(steps), (side, len(steps))
    assert side["encoded_records"] == side["written_records"] + side["dropped_records"]
    assert side["dropped_records"] == 0, side
    assert side["last_step_index"] == (steps[-1]["step"] if steps else -1)
    assert [step["step"] for step in steps] == list(range(len(steps))), "steps are not contiguous"
    assert side["final"] is final, side
    assert len(footers) == int(final), footers
    if final:
        assert lines[-1]["type"] == "footer"
        for name in ("encoded_records", "written_records", "dropped_records", "last_step_index"):
            assert footers[0][name] == side[name]
        assert side["open_steps"] == 0, side
    if signal_wall_ns is not None:
        age_ns = signal_wall_ns - side["wall_time_ns"]
        assert age_ns <= FLUSH_NS + TOLERANCE_NS, f"checkpoint is {age_ns / 1e9:.3f} s old"
    return len(steps)


def check_steps(steps: list[dict[str, Any]]) -> None:
    """Assert what holds of every step line."""
    for step in steps:
        assert step["submit_mono_ns"] < step["complete_mono_ns"]
        assert sum(step["prefill_chunks"]) == step["prefill_tokens"]
        assert len(step["prefill_chunks"]) == step["prefill_requests"]
        assert sum(step["context_len_hist"].values()) == step["scheduled_requests"]
        tokens = step["prefill_tokens"] + step["decode_tokens"]
        assert step["model_executed"] is (tokens > 0)
        assert (step["graph"] is None) is (tokens == 0), step
        if step["graph"] is not None:
            assert step["graph"]["unpadded_tokens"] == tokens


def run_window(server: Server, active_s: float = 1.0) -> None:
    """One profiler window under load."""
    assert server.post("/start_profile") == 200
    time.sleep(active_s)
    assert server.post("/stop_profile") == 200


def annotations(path: Path) -> list[dict[str, Any]]:
    """Return the CPU-side annotations of a trace, by time."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    events = json.loads(text)["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    return sorted(found, key=lambda event: float(event["ts"]))


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether one event lies within another on the clock."""
    start, end = float(outer["ts"]), float(outer["ts"]) + float(outer["dur"])
    return start <= float(inner["ts"]) and float(inner["ts"]) + float(inner["dur"]) <= end + 0.002


def join_trace(path: Path, steps: list[dict[str, Any]]) -> list[int]:
    """Assert that all eight active steps join to Layer 1; return their step indices."""
    events = annotations(path)
    profiler = [event for event in events if event["name"].startswith("ProfilerStep#")]
    assert [event["name"] for event in profiler] == [f"ProfilerStep#{n}" for n in range(2, 10)]
    executes = [event for event in events if EXECUTE.match(event["name"])]
    marks = [event for event in events if event["name"].startswith("opprof_step_")]
    assert len(executes) == len(marks) == 8, (len(executes), len(marks))
    joined = []
    for span, execute, mark in zip(profiler, executes, marks, strict=True):
        assert inside(execute, span), (execute, span)
        assert inside(mark, execute), (mark, execute)
        index = int(mark["name"].rpartition("_")[2])
        step = steps[index]
        match = EXECUTE.match(execute["name"])
        assert match is not None
        seen = tuple(map(int, match.groups()))
        assert seen == (
            step["prefill_requests"],
            step["prefill_tokens"],
            step["decode_requests"],
            step["decode_tokens"],
        ), (seen, step)
        assert step["profiled"], step
        joined.append(index)
    assert joined == list(range(joined[0], joined[0] + 8)), joined
    return joined


def profiler_events(server: Server) -> list[dict[str, Any]]:
    """Return the lines of the profiler's event file."""
    text = (server.opprof_dir / "engine-0.profiler.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def check_windows(server: Server, count: int, ranks: int) -> None:
    """Assert that each of ``count`` windows left ``ranks`` traces that join fully."""
    steps = steps_of(server)
    stops = [event for event in profiler_events(server) if event["event"] == "stop"]
    good = [event for event in stops if event["fault"] is None]
    assert len(good) == count, stops
    seen: list[int] = []
    for event in good:
        assert len(event["traces"]) == event["expected_ranks"] == ranks, event
        joins = [join_trace(server.trace_dir / name, steps) for name in event["traces"]]
        assert all(join == joins[0] for join in joins), "ranks join to different steps"
        assert not seen or joins[0][0] > seen[-1]
        seen = joins[0]
    assert not steps[0]["profiled"]


def scenario_windows_and_drain(env: Path, run: Path) -> str:
    """Three windows join; faults of the endpoints are said; the switch; a drain under load."""
    server = Server(env, run, flags=["--enforce-eager"])
    with server:
        assert server.post("/stop_profile") == 500, "a stop without a start must be said"
        assert server.post("/start_profile") == 200
        assert server.post("/stop_profile") == 500, "a window without a trace must be said"
        with Load(server, 8) as load:
            time.sleep(1)
            for _ in range(3):
                run_window(server)
            control = server.opprof_dir / "engine-0.jsonl.control"
            control.write_text("off")
            time.sleep(0.5)
            control.write_text("on")
            time.sleep(0.5)
            assert load.failed == 0
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
    count = check_accounting(server, final=True)
    steps = steps_of(server)
    check_steps(steps)
    check_windows(server, 3, 1)
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    assert side["pauses"] == 1
    faults = [event["fault"] for event in profiler_events(server) if event["fault"]]
    assert faults[0] == "stopped without a start"
    assert faults[1].startswith("no trace was written")
    config = json.loads((server.opprof_dir / "engine-config.json").read_text())
    assert config["config"]["attention_backend"] == "CPU_ATTN"
    assert config["provenance"]["tested"] is True
    assert len(config["provenance"]["hooked"]) >= 25
    assert max(step["running"] for step in steps) >= 4
    return f"{count} steps, 3 windows of 8 joined steps"


def scenario_kill_engine(env: Path, run: Path) -> str:
    """SIGKILL of the engine core under load: nothing that was published is lost."""
    server = Server(env, run, flags=["--enforce-eager"])
    server.start()
    with Load(server, 8):
        time.sleep(3.3)
        signal_ns = time.time_ns()
        os.kill(server.engine_pid(), signal.SIGKILL)
        time.sleep(1.5)
        count = check_accounting(server, final=False, signal_wall_ns=signal_ns)
        server.kill()
    steps = steps_of(server)
    age_ms = (signal_ns - _wall(server, steps[-1]["complete_mono_ns"])) / 1e6
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    assert side["reason"] == "the engine process is gone", side
    return f"{count} steps, the last completed {age_ms:.0f} ms before the signal"


def scenario_kill_parent(env: Path, run: Path) -> str:
    """SIGKILL of the API parent: the engine lives on, keeps its stream valid, and drains later."""
    server = Server(env, run, flags=["--enforce-eager"])
    server.start()
    engine = server.engine_pid()
    with Load(server, 8):
        time.sleep(2.2)
        signal_ns = time.time_ns()
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        time.sleep(0.3)
        check_accounting(server, final=False, signal_wall_ns=signal_ns)
    os.kill(engine, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return f"{check_accounting(server, final=True)} steps, clean footer of the orphan"


def scenario_kill_everything(env: Path, run: Path) -> str:
    """SIGKILL of every process at once: the last checkpoint is at most a flush interval old."""
    server = Server(env, run, flags=["--enforce-eager"])
    server.start()
    with Load(server, 8):
        time.sleep(3.7)
        signal_ns = time.time_ns()
        server.kill()
    count = check_accounting(server, final=False, signal_wall_ns=signal_ns)
    assert count > 100
    return f"{count} steps in the last checkpoint"


def scenario_tensor_parallel(env: Path, run: Path) -> str:
    """TP2: one stream, two rank traces a window with the same step indices; hidden counters."""
    flags = ["--enforce-eager", "--tensor-parallel-size", "2", "--disable-log-stats"]
    server = Server(env, run, flags=flags)
    with server, Load(server, 8):
        time.sleep(2)
        for _ in range(3):
            run_window(server, 1.5)
    count = check_accounting(server, final=True)
    steps = steps_of(server)
    check_steps(steps)
    check_windows(server, 3, 2)
    assert [path.name for path in server.opprof_dir.glob("engine-*.jsonl")].count(
        "engine-0.jsonl"
    ) == 1
    assert not (server.opprof_dir / "engine-1.jsonl").exists()
    assert all(step["prefix_queries"] is None for step in steps), "hidden counters must be null"
    config = json.loads((server.opprof_dir / "engine-config.json").read_text())
    assert [worker["rank"] for worker in config["workers"]] == [0, 1]
    return f"{count} steps, 3 windows on 2 ranks"


def scenario_async_preemption(env: Path, run: Path) -> str:
    """Forced asynchronous scheduling, few KV blocks, structured output and aborts."""
    shim = Path(__file__).resolve().parents[1] / "tests" / "e2e_vllm"
    path = os.pathsep.join([plugin_path(run / "plugin"), str(shim)])
    target = "async_shim:register"
    extra = plugin_path(run / "shim", "opprof-async-shim", target)
    server = Server(
        env,
        run,
        flags=["--enforce-eager", "--num-gpu-blocks-override", "24", "--max-num-seqs", "16"],
        variables={"OPPROF_TEST_FORCE_ASYNC": "1"},
        pythonpath=os.pathsep.join([path, extra]),
    )
    with server, Load(server, 12, output_tokens=96) as load:
        for number in range(6):
            server.post("/v1/completions", _structured(number))
            _abort_one(server)
        for _ in range(3):
            run_window(server)
        time.sleep(1)
        assert load.failed == 0
    count = check_accounting(server, final=True)
    steps = steps_of(server)
    check_steps(steps)
    check_windows(server, 3, 1)
    config = json.loads((server.opprof_dir / "engine-config.json").read_text())
    assert config["batches_in_flight"] == 2, config
    pairs = zip(steps, steps[1:], strict=False)
    overlapping = sum(later["submit_mono_ns"] < first["complete_mono_ns"] for first, later in pairs)
    assert overlapping > count // 2, (overlapping, count)
    preempted = sum(step["preemptions"] for step in steps)
    resumed = sum(step["resumed_requests"] for step in steps)
    recomputed = sum(step["recomputed_tokens"] for step in steps)
    assert preempted > 0, "the scenario must preempt"
    assert 0 < resumed <= preempted
    assert recomputed > 0
    return f"{count} steps, {overlapping} in flight, {preempted} preemptions, {recomputed} again"


def _structured(number: int) -> dict[str, Any]:
    return {
        "model": "tiny-qwen3",
        "prompt": [300 + number] * 30,
        "max_tokens": 24,
        "temperature": 0,
        "structured_outputs": {"choice": ["yes", "no"]},
    }


def _abort_one(server: Server) -> None:
    """Start a streaming request and hang up after its first bytes."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"model": "tiny-qwen3", "prompt": [7] * 40, "max_tokens": 400, "stream": True}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), headers)
    connection.getresponse().read(32)
    connection.close()


def scenario_unwritable(env: Path, run: Path) -> str:
    """A folder that cannot be made: the engine serves, and the log says that nothing is recorded."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "opprof").write_text("a file where the folder should be")
    server = Server(env, run, flags=["--enforce-eager"])
    with server:
        assert server.complete([300, 301, 302], 8) == 200
    assert "NOT RECORDING" in (run / "server.log").read_text(errors="replace")
    return "served without recording, and said so"


def scenario_full_disk(env: Path, run: Path) -> str:
    """The disk fills up: the engine serves on, the stream ends valid with a reason."""
    folder = run / "opprof"
    with small_disk(folder, 256 << 10) as mounted:
        if not mounted:
            return "skipped: no permission to mount a small disk"
        server = Server(env, run, flags=["--enforce-eager"])
        with server:
            with Load(server, 8) as load:
                deadline = time.monotonic() + 60
                side: dict[str, Any] = {}
                while time.monotonic() < deadline and not side.get("reason"):
                    time.sleep(0.2)
                    with suppress(OSError, ValueError):
                        side = json.loads((folder / "engine-0.jsonl.footer.json").read_text())
                assert "No space left" in side.get("reason", ""), side
                before = load.done
                time.sleep(1.5)
                assert load.done > before, "the engine must serve on"
                assert load.failed == 0
        stream = (folder / "engine-0.jsonl").read_bytes()
        assert stream.endswith(b"\n")
        steps = [line for line in map(json.loads, stream.splitlines()) if line["type"] == "step"]
        side = json.loads((folder / "engine-0.jsonl.footer.json").read_text())
        assert side["written_records"] == len(steps), (side, len(steps))
        assert side["last_step_index"] == steps[-1]["step"]
        assert side["encoded_records"] == side["written_records"] + side["dropped_records"]
        assert side["dropped_records"] > 0
        assert side["final"] is False
        return f"{len(steps)} steps kept, {side['dropped_records']} counted as lost"


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a tiny file system at ``folder`` (root only); yields whether it worked."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "opprof-e2e", str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def scenario_refusal(env: Path, run: Path) -> str:
    """A vLLM that differs from the tested one is refused before the model loads, with what differs."""
    copy = run / "changed" / "opprof"
    shutil.copytree(CHECKOUT / "src" / "opprof", copy)
    table = copy / "engines" / "vllm" / "tested.json"
    rows = json.loads(table.read_text())
    for row in rows.values():
        row["files"]["v1/core/sched/scheduler.py"] = "0" * 64
        row["seams"]["v1/core/sched/scheduler.py::Scheduler.schedule"] = "0" * 64
    table.write_text(json.dumps(rows))
    plugin_path(run / "plugin")
    path = os.pathsep.join([str(run / "plugin"), str(copy.parent)])
    server = Server(env, run, flags=["--enforce-eager"], pythonpath=path)
    try:
        server.start()
    except RuntimeError:
        log = (run / "server.log").read_text(errors="replace")
    else:
        server.stop()
        raise AssertionError("the server started with an engine that differs")
    assert "opprof refuses vLLM" in log
    assert "Scheduler.schedule differs" in log
    assert "Starting to load model" not in log
    allowed = Server(
        env,
        run / "allowed",
        flags=["--enforce-eager"],
        variables={"OPPROF_ALLOW_UNTESTED": "1"},
        pythonpath=path,
    )
    with allowed:
        assert allowed.complete([300, 301], 4) == 200
    check_accounting(allowed, final=True)
    header = json.loads((allowed.opprof_dir / "engine-0.jsonl").read_text().splitlines()[0])
    assert any("Scheduler.schedule differs" in line for line in header["untested"]), header
    return "refused with what differs; allowed and marked"


def _wall(server: Server, mono_ns: int) -> int:
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    return int(side["wall_time_ns"] - side["mono_time_ns"] + mono_ns)


SCENARIOS: dict[str, Callable[[Path, Path], str]] = {
    "windows": scenario_windows_and_drain,
    "tp2": scenario_tensor_parallel,
    "kill-engine": scenario_kill_engine,
    "kill-parent": scenario_kill_parent,
    "kill-everything": scenario_kill_everything,
    "async": scenario_async_preemption,
    "full-disk": scenario_full_disk,
    "unwritable": scenario_unwritable,
    "refusal": scenario_refusal,
}


def main() -> int:
    """Run the scenarios; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    arguments = parser.parse_args()
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="opprof-e2e-"))
    failed = 0
    for name in arguments.only:
        started = time.monotonic()
        run = root / name
        shutil.rmtree(run, ignore_errors=True)
        try:
            result = f"ok      {SCENARIOS[name](arguments.env, run.resolve())}"
        except Exception:  # noqa: BLE001 - any fault of a scenario is its failure
            failed += 1
            result = f"FAILED  (see {run})\n{traceback.format_exc()}"
        print(f"{name:16} {time.monotonic() - started:6.1f} s  {result}", flush=True)
    if arguments.keep is None and not failed:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{len(arguments.only) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
