"""End-to-end checks of the vLLM plugin on the CPU build: real requests, real kills.

usage: python scripts/e2e_vllm_plugin.py --env FOLDER [--only NAME ...] [--keep DIR]

``FOLDER`` comes from ``scripts/vllm_cpu_env.sh``. Each scenario starts its own tiny server. Two run
at a time, because a server spends most of its start on one core; the one that judges the age of a
checkpoint runs alone afterwards. The last line is ``N passed, M failed``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from opprof_disk_checks import (
    FLUSH_NS,
    check_accounting,
    check_steps,
    check_windows,
    executed,
    is_balanced,
    profiler_events,
    sidecar,
    steps_of,
)
from vllm_cpu_server import CHECKOUT, Server, is_alive, plugin_path

PATIENCE_S = 600.0
"""For anything that must happen: it bounds a hang and judges no speed."""


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
            thread.join(PATIENCE_S)


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, f"in {PATIENCE_S:g} s never: {what}"
        time.sleep(0.1)


def wait_for_steps(server: Server, count: int, since_ns: int = 0) -> None:
    """Wait until ``count`` executed steps that were submitted since then stand in the stream."""
    wait_until(
        lambda: (
            sum(step["submit_mono_ns"] >= since_ns for step in executed(server.opprof_dir)) >= count
        ),
        f"{count} steps",
    )


def checkpoints(server: Server, count: int) -> list[int]:
    """Return the wall times of the next ``count`` checkpoints, those missed in between left out."""
    seen: list[int] = []

    def look() -> bool:
        at = int(sidecar(server.opprof_dir)["wall_time_ns"])
        if at not in seen[-1:]:
            seen.append(at)
        return len(seen) == count

    wait_until(look, f"{count} checkpoints")
    return seen


def run_window(server: Server) -> None:
    """One profiler window under load, as long as its ten steps take on this machine."""
    assert server.post("/start_profile") == 200
    wait_for_steps(server, 16, since_ns=time.monotonic_ns())
    assert server.post("/stop_profile") == 200


def scenario_windows_and_drain(env: Path, run: Path) -> str:
    """Three windows join; faults of the endpoints are said; the switch; a drain under load."""
    server = Server(env, run, flags=["--enforce-eager"])
    with server:
        assert server.post("/stop_profile") == 500, "a stop without a start must be said"
        assert server.post("/start_profile") == 200
        assert server.post("/stop_profile") == 500, "a window without a trace must be said"
        with Load(server, 8) as load:
            wait_until(lambda: load.done, "an answer")
            for _ in range(3):
                run_window(server)
            control = server.opprof_dir / "engine-0.jsonl.control"
            control.write_text("off")
            wait_until(lambda: sidecar(server.opprof_dir)["pauses"] == 1, "a pause")
            control.write_text("on")
            wait_for_steps(server, 1, since_ns=time.monotonic_ns())
            assert load.failed == 0
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_S) == 0
    count = check_accounting(server.opprof_dir, final=True)
    steps = steps_of(server.opprof_dir)
    check_steps(steps)
    check_windows(server.opprof_dir, server.trace_dir, 3, 1)
    assert sidecar(server.opprof_dir)["pauses"] == 1
    faults = [event["fault"] for event in profiler_events(server.opprof_dir) if event["fault"]]
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
        wait_for_steps(server, 101)
        signal_ns = time.time_ns()
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(lambda: sidecar(server.opprof_dir)["engine_gone"], "the last checkpoint")
        count = check_accounting(server.opprof_dir, final=False, signal_wall_ns=signal_ns)
        server.kill()
    steps = steps_of(server.opprof_dir)
    age_ms = (signal_ns - _wall(server, steps[-1]["complete_mono_ns"])) / 1e6
    assert sidecar(server.opprof_dir)["reason"] is None
    return f"{count} steps, the last completed {age_ms:.0f} ms before the signal"


def scenario_kill_parent(env: Path, run: Path) -> str:
    """SIGKILL of the API parent: the engine lives on, keeps its stream valid, and drains later."""
    server = Server(env, run, flags=["--enforce-eager"])
    server.start()
    engine = server.engine_pid()
    with Load(server, 8):
        wait_for_steps(server, 101)
        signal_ns = time.time_ns()
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        wait_until(
            lambda: (
                sidecar(server.opprof_dir)["wall_time_ns"] > signal_ns
                and is_balanced(server.opprof_dir)
            ),
            "a valid checkpoint of the orphan",
        )
    os.kill(engine, signal.SIGTERM)
    wait_until(lambda: not is_alive(engine), "the end of the orphan")
    return f"{check_accounting(server.opprof_dir, final=True)} steps, clean footer of the orphan"


def scenario_kill_everything(env: Path, run: Path) -> str:
    """SIGKILL of every process at once: the last checkpoint is at most a flush interval old.

    A machine that holds the writer up just then makes it older, or the kill meets the one rename
    between lines and sidecar; so one kill of three must find it so. The interval itself is judged
    at the shortest of several, which no machine makes too short.
    """
    for attempt in range(1, KILLS + 1):
        server = Server(env, run / f"kill-{attempt}", flags=["--enforce-eager"])
        server.start()
        with Load(server, 8):
            wait_for_steps(server, 101)
            gaps = [later - earlier for earlier, later in pairwise(checkpoints(server, 6))]
            assert min(gaps) <= FLUSH_NS, gaps
            # At any moment between two flushes.
            time.sleep(random.uniform(0, FLUSH_NS / 1e9))
            signal_ns = time.time_ns()
            server.kill()
        try:
            count = check_accounting(server.opprof_dir, final=False, signal_wall_ns=signal_ns)
        except AssertionError as error:
            if attempt == KILLS:
                raise
            print(f"kill {attempt} of {KILLS}: {error}", flush=True)
            continue
        assert count > 100
        break
    return f"{count} steps in the last checkpoint, kill {attempt}"


def scenario_tensor_parallel(env: Path, run: Path) -> str:
    """TP2: one stream, two rank traces a window with the same step indices; hidden counters."""
    flags = ["--enforce-eager", "--tensor-parallel-size", "2", "--disable-log-stats"]
    server = Server(env, run, flags=flags)
    with server, Load(server, 8) as load:
        wait_until(lambda: load.done, "an answer")
        for _ in range(3):
            run_window(server)
    count = check_accounting(server.opprof_dir, final=True)
    steps = steps_of(server.opprof_dir)
    check_steps(steps)
    check_windows(server.opprof_dir, server.trace_dir, 3, 2)
    assert [path.name for path in server.opprof_dir.glob("engine-*.jsonl")].count(
        "engine-0.jsonl"
    ) == 1
    assert not (server.opprof_dir / "engine-1.jsonl").exists()
    assert all(step["prefix_queries"] is None for step in steps), "hidden counters must be null"
    config = json.loads((server.opprof_dir / "engine-config.json").read_text())
    assert [worker["rank"] for worker in config["workers"]] == [0, 1]
    return f"{count} steps, 3 windows on 2 ranks"


def scenario_pipeline_parallel(env: Path, run: Path) -> str:
    """PP2: one stream, two rank traces a window with the same step indices."""
    server = Server(env, run, flags=["--enforce-eager", "--pipeline-parallel-size", "2"])
    with server, Load(server, 8) as load:
        wait_until(lambda: load.done, "an answer")
        for _ in range(2):
            run_window(server)
    count = check_accounting(server.opprof_dir, final=True)
    check_steps(steps_of(server.opprof_dir))
    check_windows(server.opprof_dir, server.trace_dir, 2, 2)
    return f"{count} steps, 2 windows on 2 stages"


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
        wait_until(
            lambda: all(
                sum(step[name] for step in executed(server.opprof_dir))
                for name in ("preemptions", "resumed_requests", "recomputed_tokens")
            ),
            "a preemption and its resumption",
        )
        assert load.failed == 0
    count = check_accounting(server.opprof_dir, final=True)
    steps = steps_of(server.opprof_dir)
    check_steps(steps)
    check_windows(server.opprof_dir, server.trace_dir, 3, 1)
    config = json.loads((server.opprof_dir / "engine-config.json").read_text())
    assert config["batches_in_flight"] == 2, config
    overlapping = sum(
        later["submit_mono_ns"] < earlier["complete_mono_ns"] for earlier, later in pairwise(steps)
    )
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

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    body = {"model": "tiny-qwen3", "prompt": [7] * 40, "max_tokens": 400, "stream": True}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), headers)
    connection.getresponse().read(32)
    connection.close()


def scenario_unwritable(env: Path, run: Path) -> str:
    """A folder that cannot be made: the engine serves, and the log says so."""
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
        with server, Load(server, 8) as load:
            wait_until(lambda: sidecar(folder).get("reason"), "a full disk")
            assert "No space left" in sidecar(folder)["reason"], sidecar(folder)
            before = load.done
            wait_until(lambda: load.done > before + 8, "the engine must serve on")
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
    """A vLLM that differs is refused before the model loads, with what differs."""
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
    check_accounting(allowed.opprof_dir, final=True)
    header = json.loads((allowed.opprof_dir / "engine-0.jsonl").read_text().splitlines()[0])
    assert any("Scheduler.schedule differs" in line for line in header["untested"]), header
    return "refused with what differs; allowed and marked"


def _wall(server: Server, mono_ns: int) -> int:
    side = sidecar(server.opprof_dir)
    return int(side["wall_time_ns"] - side["mono_time_ns"] + mono_ns)


SCENARIOS: dict[str, Callable[[Path, Path], str]] = {
    "windows": scenario_windows_and_drain,
    "tp2": scenario_tensor_parallel,
    "pp2": scenario_pipeline_parallel,
    "async": scenario_async_preemption,
    "refusal": scenario_refusal,
    "full-disk": scenario_full_disk,
    "unwritable": scenario_unwritable,
    "kill-engine": scenario_kill_engine,
    "kill-parent": scenario_kill_parent,
    "kill-everything": scenario_kill_everything,
}
ALONE = ("kill-everything",)
"""It judges how old the last checkpoint is, so nothing else may hold up its writer."""
KILLS = 3


def run_scenario(env: Path, root: Path, name: str) -> bool:
    """Run one scenario in a fresh folder, print its line and return whether it passed."""
    started = time.monotonic()
    run = root / name
    shutil.rmtree(run, ignore_errors=True)
    try:
        passed, result = True, f"ok      {SCENARIOS[name](env, run.resolve())}"
    except Exception:  # noqa: BLE001 - any fault of a scenario is its failure
        passed, result = False, f"FAILED  (see {run})\n{traceback.format_exc()}"
    print(f"{name:16} {time.monotonic() - started:6.1f} s  {result}", flush=True)
    return passed


def main() -> int:
    """Run the scenarios; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    arguments = parser.parse_args()
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="opprof-e2e-"))
    one = partial(run_scenario, arguments.env, root)
    with ThreadPoolExecutor(max_workers=2) as pool:
        passed = list(pool.map(one, [name for name in arguments.only if name not in ALONE]))
    passed += [one(name) for name in arguments.only if name in ALONE]
    failed = passed.count(False)
    if arguments.keep is None and not failed:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{len(passed) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
