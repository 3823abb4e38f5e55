"""The plugin's experiments on a GPU, one stage a call; the same stages run on the CPU build.

usage: python3 scripts/gpu/experiments.py STAGE --site DIR --model DIR --work DIR --out DIR
       python3 scripts/gpu/experiments.py STAGE --cpu ENV --work DIR --out DIR

runs-a  P01 with three profiler windows and vLLM's own graph statistics, then a drain under load;
        P03 with two windows on a fresh server, then SIGKILL of the engine under load
runs-b  P08 with two windows, then the overhead pairs on the same warm server, then a drain
tp2     P01 with two windows on two ranks, then a drain

Every run goes through ``opprof run`` and the specification's server command. A check prints PASS or
FAIL and never stops the stage: machine time is dear, the next experiment may still work.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
sys.path.insert(0, str(Path(__file__).parent))

from e2e_vllm_plugin import Load  # noqa: E402
from opprof_disk_checks import check_accounting, check_steps, steps_of  # noqa: E402
from run_checks import collect, cost_in_engine, graph_table, joins  # noqa: E402
from vllm_cpu_server import CHECKOUT, Server, plugin_path, profiler_config  # noqa: E402

MODEL_NAME = "Qwen3-30B-A3B-shape"
TAR_BYTES = 15 << 20


def plugin_of(run: Path, *, timed: bool) -> tuple[str, dict[str, str]]:
    """Return PYTHONPATH and variables: the plugin, or the plugin with the bench's clocks."""
    if not timed:
        return plugin_path(run / "plugin"), {}
    path = plugin_path(run / "plugin", "opprof", "recorder_engine_shim:register")
    timings = {"OPPROF_BENCH_TIMINGS": str(run / "timings.json")}
    return os.pathsep.join([path, str(CHECKOUT / "bench")]), timings


class GpuServer(Server):
    """The specification's server command on the carried site."""

    def __init__(
        self, machine: Machine, run_dir: Path, flags: Sequence[str], tp: int, timed: bool
    ) -> None:
        super().__init__(Path("/"), run_dir, flags=flags)
        self._timed = timed
        self.model = machine.model
        self.model_name = MODEL_NAME
        self._site = machine.site
        self._tp = tp

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model), "--served-model-name", MODEL_NAME),
            *("--load-format", "dummy", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--tensor-parallel-size", str(self._tp)),
            *("--enable-chunked-prefill", "--enable-prefix-caching"),
            *("--profiler-config", profiler_config(self.trace_dir, with_stack=True)),
            *self._flags,
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment: the carried site, the plugin, no network."""
        path, more = plugin_of(self.run_dir, timed=self._timed)
        return dict(os.environ) | {
            **more,
            "PYTHONPATH": os.pathsep.join([path, str(self._site)]),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_OPPROF_DIR": str(self.opprof_dir),
        }


class Pattern(NamedTuple):
    """How one pattern is made and how long it is measured here."""

    lengths: str
    requests: int
    time_scale: float
    """Declared factor on warm-up, recovery, drain and segments."""
    segment_s: float
    """Clean segment before scaling; three of them."""


UNIFORM = "--kind synthetic --input-uniform {} --output-fixed {} --prefix none --arrival steady"
POOL = "--kind prefix-pool --num-prefixes 8 --prefix-len {} --suffix-fixed {} --output-fixed {}"
GPU_PATTERNS = {
    "P01": Pattern(UNIFORM.format("128:512", 64), 12288, 0.15, 54),
    "P03": Pattern(UNIFORM.format("4096:8192", 64), 1024, 0.3, 27),
    "P08": Pattern(POOL.format(1024, 256, 512) + " --arrival burst:8", 4096, 0.25, 32),
}
CPU_PATTERNS = {
    "P01": Pattern(UNIFORM.format("32:128", 64), 4096, 0.1, 30),
    "P03": Pattern(UNIFORM.format("256:512", 32), 4096, 0.1, 30),
    "P08": Pattern(POOL.format(256, 64, 64) + " --arrival burst:8", 4096, 0.1, 30),
}


class Machine:
    """Where the stage runs: a GPU with a carried site, or the CPU build."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cpu: Path | None = arguments.cpu
        self.site: Path | None = arguments.site
        self.model: Path = arguments.model if self.cpu is None else self.cpu / "tiny-qwen3"
        self.work: Path = arguments.work.resolve()
        self.out: Path = arguments.out.resolve()
        self.patterns = GPU_PATTERNS if self.cpu is None else CPU_PATTERNS
        self.python = sys.executable if self.cpu is None else str(self.cpu / "bin" / "python")
        self.concurrency = 256 if self.cpu is None else 16
        self.failures = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the stage's clock."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def check(self, name: str, function: Callable[[], Any]) -> Any:
        """Run one check; a fault is printed and counted, and the stage goes on."""
        try:
            result = function()
        except Exception:  # noqa: BLE001 - see the module's text
            self.failures += 1
            self.say(f"FAIL {name}\n{traceback.format_exc(limit=-4)}")
            return None
        self.say(f"PASS {name}: {result}")
        return result

    def server(self, run: Path, flags: Sequence[str], tp: int, timed: bool) -> Server:
        """Return the server for a run directory; ``timed``: with clocks around the hooks."""
        if self.cpu is None:
            return GpuServer(self, run, flags, tp, timed)
        path, variables = plugin_of(run, timed=timed)
        more = ["--enforce-eager", "--tensor-parallel-size", str(tp), *flags]
        return Server(self.cpu, run, flags=more, pythonpath=path, variables=variables)

    def environment(self) -> dict[str, str]:
        """Return the environment of ``opprof`` commands."""
        parts = [str(CHECKOUT / "src"), *([] if self.site is None else [str(self.site)])]
        return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(parts)}

    def opprof(self, *arguments: str, log: Path) -> int:
        """Run an ``opprof`` command, its output appended to ``log``."""
        with log.open("ab") as stream:
            stream.write((" ".join(arguments) + "\n").encode())
            stream.flush()
            return subprocess.run(
                [self.python, "-m", "opprof", *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                check=False,
            ).returncode

    def manifest(self, name: str) -> Path:
        """Make the pattern's manifest and return it."""
        path = self.work / f"{name}.jsonl"
        pattern = self.patterns[name]
        code = self.opprof(
            *("materialize", "--id", name, *pattern.lengths.split()),
            *("--num-requests", str(pattern.requests), "--workload-seed", "20260712"),
            *("--tokenizer", str(self.model), "--out", str(path)),
            log=self.work / "opprof.log",
        )
        if code:
            raise RuntimeError((self.work / "opprof.log").read_text()[-3000:])
        return path


def run_pattern(machine: Machine, server: Server, name: str, config: str, windows: int) -> str:
    """Drive one saturation run through ``opprof run``; return its last lines."""
    pattern = machine.patterns[name]
    log = server.run_dir / "client.log"
    code = machine.opprof(
        *("run", "--manifest", str(machine.work / f"{name}.jsonl"), "--base-url", server.url),
        *("--model", MODEL_NAME if machine.cpu is None else "tiny-qwen3"),
        *("--config", config, "--load-point", "saturation", "--request-rate", "inf"),
        *("--max-concurrency", str(machine.concurrency), "--ignore-eos", "--temperature", "0"),
        *("--time-scale", str(pattern.time_scale)),
        *("--clean-segment-seconds", str(pattern.segment_s), "--num-clean-segments", "3"),
        *("--profile-after-clean", "--num-profile-windows", str(windows)),
        "--no-progress",
        *("--result-dir", str(server.run_dir / "client")),
        *("--opprof-dir", str(server.opprof_dir)),
        log=log,
    )
    return f"exit {code}; " + " | ".join(log.read_text().strip().splitlines()[-6:])


def drain_under_load(machine: Machine, server: Server) -> str:
    """SIGTERM the API parent under load: all requests finish, footer, ``final: true``."""
    with Load(server, min(64, machine.concurrency)):
        time.sleep(3)
        began = time.monotonic()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(90)
    count = check_accounting(server.opprof_dir, final=True)
    return f"exit {code} after {time.monotonic() - began:.1f} s, {count} steps"


def recording_off_for_a_while(machine: Machine, server: Server) -> None:
    """A few seconds of load with recording off: what the bench's clocks cost by themselves."""
    control = server.opprof_dir / "engine-0.jsonl.control"
    control.write_text("off")
    with Load(server, machine.concurrency):
        time.sleep(5)
    control.write_text("on")
    time.sleep(0.3)


def kill_under_load(machine: Machine, server: Server) -> str:
    """SIGKILL the engine under load: the checkpoint obeys A-P3-5."""
    with Load(server, min(64, machine.concurrency)):
        time.sleep(3.3)
        signal_ns = time.time_ns()
        os.kill(server.engine_pid(), signal.SIGKILL)
        written = json.dumps({"signal_wall_ns": signal_ns})
        (server.run_dir / "environment.json").write_text(written + "\n")
        time.sleep(2)
        server.kill()
    count = check_accounting(server.opprof_dir, final=False, signal_wall_ns=signal_ns)
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    age_ms = (signal_ns - side["wall_time_ns"]) / 1e6
    return f"{count} steps, checkpoint {age_ms:.0f} ms before the signal"


def gpu_state(machine: Machine, server: Server) -> None:
    """Record clocks, memory and versions beside the run."""
    if machine.cpu is None:
        query = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,memory.used,power.draw"
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv"]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        with (server.run_dir / "gpu.csv").open("a") as stream:
            stream.write(text)


def overhead(machine: Machine, server: Server, shape: str) -> str:
    """Run the overhead pairs of one shape on the warm server."""
    out = server.run_dir / f"overhead-{shape}.json"
    sizes: list[str] = []
    if machine.cpu is not None:
        sizes = ["--requests", "12", "--input", "64", "--output", "48"]
    else:
        sizes = ["--vocabulary", "150000"]
    streams = {"p01": "0", "decode": "8" if machine.cpu is None else "4"}[shape]
    command = [machine.python, str(SCRIPTS / "overhead_experiment.py"), "--url", server.url]
    command += ["--model", MODEL_NAME if machine.cpu is None else "tiny-qwen3"]
    command += ["--opprof-dir", str(server.opprof_dir), "--out", str(out), "--shape", shape]
    command += ["--pairs", "16" if machine.cpu is None else "12"]
    done = subprocess.run(
        [*command, *sizes, "--streams", streams],
        capture_output=True,
        text=True,
        env=machine.environment(),
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return done.stdout.strip()


def after_run(machine: Machine, server: Server) -> None:
    """The checks that need no machine time of a server."""
    name = server.run_dir.name
    machine.check(f"{name} collect", lambda: collect(server))
    machine.check(f"{name} steps", lambda: check_steps(steps_of(server.opprof_dir)))
    machine.check(f"{name} join by annotation", lambda: joins(server))


def pack(machine: Machine, run: Path, *, whole_windows: int) -> None:
    """Write the run as tar files of at most 15 MiB: big traces one by one, the rest together."""
    machine.out.mkdir(parents=True, exist_ok=True)
    traces = sorted((run / "traces").glob("window*.gz"))[:whole_windows]
    groups: list[list[Path]] = []
    for trace in traces:
        size = trace.stat().st_size
        if groups and sum(path.stat().st_size for path in groups[-1]) + size < TAR_BYTES:
            groups[-1].append(trace)
        else:
            groups.append([trace])
    for number, group in enumerate(groups):
        with tarfile.open(machine.out / f"{run.name}-traces{number}.tar", "w") as archive:
            for path in group:
                archive.add(path, arcname=str(path.relative_to(run.parent)))
    with tarfile.open(machine.out / f"{run.name}.tar.xz", "w:xz", preset=2) as archive:
        for path in sorted(run.rglob("*")):
            wanted = path.is_file() and "plugin" not in path.parts and path not in traces
            if wanted and not path.name.endswith(".trace.json.gz"):
                archive.add(path, arcname=str(path.relative_to(run.parent)))


def one_run(
    machine: Machine,
    name: str,
    *,
    windows: int,
    ending: Callable[[Machine, Server], str],
    flags: Sequence[str] = (),
    tp: int = 1,
    timed: bool = False,
    extra: Callable[[Machine, Server], None] | None = None,
) -> Server | None:
    """A fresh server, one pattern, more experiments on it, and its end."""
    config = "C00-TP2" if tp > 1 else "C00"
    server = machine.server(machine.work / f"{name}-{config}-saturation", flags, tp, timed)
    machine.say(f"{name}: starting the server")
    try:
        server.start()
    except RuntimeError:
        machine.check(f"{name} server", lambda: (_ for _ in ()).throw(RuntimeError(server.tail())))
        return None
    machine.say(f"{name}: healthy")
    gpu_state(machine, server)
    machine.check(f"{name} run", lambda: run_pattern(machine, server, name, config, windows))
    gpu_state(machine, server)
    if extra is not None:
        extra(machine, server)
    machine.check(f"{name} {ending.__name__}", lambda: ending(machine, server))
    server.kill()
    gpu_state(machine, server)
    return server


def stage_runs_a(machine: Machine) -> None:
    """P01 and P03."""
    for name in ("P01", "P03"):
        machine.check(f"{name} manifest", lambda name=name: machine.manifest(name))
    flags = ["--cudagraph-metrics"]
    first = one_run(
        machine,
        "P01",
        windows=3,
        ending=drain_under_load,
        flags=flags,
        timed=True,
        extra=recording_off_for_a_while,
    )

    def after_first() -> None:
        if first is not None:
            machine.check("P01 graphs against vLLM's own", lambda: graph_table(first))
            machine.check("P01 cost in the engine", lambda: cost_in_engine(first))
        finish(machine, [first], {"P01": 3})

    # The first run is packed while the second server starts: a stage that is cut short keeps it.
    packing = threading.Thread(target=after_first)
    packing.start()
    second = one_run(machine, "P03", windows=2, ending=kill_under_load)
    packing.join()
    finish(machine, [second], {"P03": 2})


def stage_runs_b(machine: Machine) -> None:
    """P08 and the overhead pairs."""
    machine.check("P08 manifest", lambda: machine.manifest("P08"))

    def pairs(machine: Machine, server: Server) -> None:
        for shape in ("decode", "p01"):
            machine.check(f"overhead {shape}", lambda shape=shape: overhead(machine, server, shape))

    server = one_run(machine, "P08", windows=2, ending=drain_under_load, extra=pairs)
    finish(machine, [server], {"P08": 2})


def stage_tp2(machine: Machine) -> None:
    """P01 on two ranks."""
    machine.check("P01 manifest", lambda: machine.manifest("P01"))
    server = one_run(machine, "P01", windows=2, ending=drain_under_load, tp=2)
    finish(machine, [server], {"P01": 4})


def finish(machine: Machine, servers: Sequence[Server | None], windows: dict[str, int]) -> None:
    """Post-process and pack every run."""
    for server in servers:
        if server is None:
            continue
        after_run(machine, server)
        run = server.run_dir
        count = windows[run.name[:3]]
        machine.check(
            f"{run.name} pack", lambda run=run, n=count: pack(machine, run, whole_windows=n)
        )


STAGES = {"runs-a": stage_runs_a, "runs-b": stage_runs_b, "tp2": stage_tp2}


def main() -> int:
    """Run one stage; 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--cpu", type=Path, help="rehearse on this CPU environment")
    parser.add_argument("--site", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine(arguments)
    shutil.rmtree(machine.work, ignore_errors=True)
    machine.work.mkdir(parents=True)
    STAGES[arguments.stage](machine)
    machine.say(f"{machine.failures} checks failed")
    for path in sorted(machine.out.iterdir()) if machine.out.is_dir() else []:
        print(f"{path.stat().st_size:12} {path.name}")
    return 1 if machine.failures else 0


if __name__ == "__main__":
    sys.exit(main())
