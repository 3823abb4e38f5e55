"""Cost of reading one trace, against merely inflating it, in one run of this script.

usage: python bench/trace_read.py [TRACE] [--repeat N] [--hta-python PYTHON]
       python bench/trace_read.py --generate python|kernels|mixed [--gigabytes 2]

Every measurement is a process of its own: CPU time (user + system) and peak memory include
start-up and imports. The minimum over the repetitions counts, taken in turns, so that a busy
machine hurts all alike. ``--hta-python`` is an interpreter with HolisticTraceAnalysis 0.5.0 (in a
virtual environment of its own). ``--generate`` writes a trace of that many gigabytes of text to a
temporary folder and reads it instead.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT.parent / "shared/h200-runs/P03-C00-saturation/traces/window0-rank0.pt.trace.json.gz"

FLOOR = """
import sys
from isal import isal_zlib
inflate = isal_zlib.decompressobj(31)
with open(sys.argv[1], "rb") as stream:
    while piece := stream.read(65536):
        inflate.decompress(piece)
"""
FLOOR_FILE_API = """
import sys
from isal import igzip
with igzip.open(sys.argv[1], "rb") as stream:
    while stream.read(65536):
        pass
"""
OURS = """
import re, sys
from pathlib import Path
from opprof.mapping import load_table
from opprof.trace.model import TraceLimits
from opprof.trace.window import read_window
limits = TraceLimits(early_ns=10**7, horizon_ns=60 * 10**9, overrun_factor=1000)
table = load_table("v2")
window = read_window(Path(sys.argv[1]), expected_steps=range(2, 10), limits=limits,
                     layer_scope=re.compile("moe_forward"){more})
families = window.families(table.classify)
print(window.inflated_bytes, window.all_kernels.events, window.kernel.ns, window.searched_bytes,
      "accepted" if window.accepted else [str(reason) for reason in window.reasons])
"""
HTA = """
import os, shutil, sys, tempfile
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(sys.argv[1], os.path.join(folder, "rank0.json.gz"))
    analysis = TraceAnalysis(trace_files={0: os.path.join(folder, "rank0.json.gz")},
                             trace_dir=folder)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    print(kinds.to_string())
"""


class Cost(NamedTuple):
    """CPU seconds and peak MiB of one process, and what it printed."""

    cpu_s: float
    peak_mib: float
    output: str


def measure(python: str, script: str, trace: Path) -> Cost:
    """Run a script in a process of its own."""
    with tempfile.TemporaryFile() as output:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(
            [python, "-c", script, str(trace)], stdout=output, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"a measured process failed with {process.returncode}")
        output.seek(0)
        text = output.read().decode()
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text.strip())


def compare(trace: Path, repeat: int, hta_python: str | None) -> None:
    """Measure all ways in turns and print their ratios to the floor."""
    ways = {
        "floor: isal inflate, 64 KiB pieces": FLOOR,
        "floor: isal's file object, 64 KiB reads": FLOOR_FILE_API,
        "opprof: read, attribute, families": OURS.replace("{more}", ""),
        "opprof, python_function text parsed whole": OURS.replace(
            "{more}", ", json_budget_bytes=None"
        ),
    }
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, script in ways.items():
            found[name].append(measure(sys.executable, script, trace))
    best = {name: min(costs) for name, costs in found.items()}
    if hta_python is not None:
        best["HTA 0.5.0: load, kernel breakdown"] = measure(hta_python, HTA, trace)
    floor = best["floor: isal inflate, 64 KiB pieces"].cpu_s
    ours = best["opprof: read, attribute, families"]
    print(f"{trace.name}: {trace.stat().st_size / 1e6:.1f} MB gzip; {ours.output}")
    print(f"{'way':44} {'CPU s':>8} {'x floor':>8} {'x opprof':>9} {'peak MiB':>9}")
    for name, cost in best.items():
        print(
            f"{name:44} {cost.cpu_s:8.3f} {cost.cpu_s / floor:8.2f} "
            f"{cost.cpu_s / ours.cpu_s:9.2f} {cost.peak_mib:9.1f}"
        )


# ------------------------------------------------------------------------- a large trace


def _event(category: str, name: str, ts_ns: int, dur_ns: int, args: str, tid: int = 7) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 1, "tid": {tid},\n'
        f'    "ts": {ts_ns // 1000}.{ts_ns % 1000:03d}, '
        f'"dur": {dur_ns // 1000}.{dur_ns % 1000:03d},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


def events(kind: str, size_bytes: int) -> Iterator[str]:
    """Yield the events of a window of eight one-second steps, ``size_bytes`` of text in all."""
    begin, second = 5_140_000_000_000_000, 1_000_000_000
    for step in range(8):
        at = begin + step * second
        execute = "execute_context_0(0)_generation_4(4)"
        yield _event("user_annotation", f"ProfilerStep#{step + 2}", at, second - 9000, '"a": 1', 1)
        yield _event("user_annotation", execute, at + 1000, second - 20000, '"a": 1', 1)
    share = {"python": 0.97, "mixed": 0.86, "kernels": 0.0}[kind]
    total, number = 0, 0
    while total < size_bytes * share:
        number += 1
        text = _event(
            "python_function",
            f"vllm/model_executor/layers/linear.py({number % 997}): forward_{number % 61}",
            begin + number * 1000 % (8 * second),
            977,
            f'"Python parent id": {number}, "Python id": {number + 1}, "Ev Idx": {number}',
            1,
        )
        total += len(text) + 2
        yield text
    number = 0
    # One launch takes about 740 bytes of text; the spacing leaves room for all inside the window.
    step_ns = 8 * second // max(1, int(size_bytes * (1 - share) / 600))
    while total < size_bytes:
        number += 1
        at = begin + number * step_ns + 30_000
        name = f"void some_namespace::some_kernel_with_a_long_name<{number % 97}, float>(Params)"
        parts = (
            _event(
                "cpu_op",
                f"aten::op{number % 97}",
                at,
                min(900, step_ns - 1),
                f'"Ev Idx": {number}',
                1,
            ),
            _event(
                "cuda_runtime", "cudaLaunchKernel", at + 100, 200, f'"correlation": {number}', 1
            ),
            _event(
                "kernel",
                name,
                at + 20_000,
                max(1, min(700, step_ns - 1)),
                '"queued": 0, "device": 0, "context": 1, "stream": 7, '
                f'"correlation": {number}, "grid": [40, 1, 1], "block": [256, 1, 1]',
            ),
        )
        total += sum(map(len, parts)) + 6
        yield from parts


def generate(path: Path, kind: str, size_bytes: int) -> None:
    """Write a trace in Kineto's layout with about ``size_bytes`` of text."""
    with gzip.open(path, "wb", compresslevel=zlib.Z_BEST_SPEED) as stream:
        stream.write(b'\n  {\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        batch: list[str] = []
        first = True
        for text in events(kind, size_bytes):
            batch.append(text)
            if len(batch) == 4096:
                stream.write((("" if first else ",\n") + ",\n".join(batch)).encode())
                batch, first = [], False
        stream.write((("" if first else ",\n") + ",\n".join(batch)).encode())
        stream.write(b'\n  ],\n  "traceName": "generated.json"\n}\n')


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--hta-python")
    parser.add_argument("--generate", choices=["python", "mixed", "kernels"])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    options = parser.parse_args()
    if options.generate is None:
        compare(options.trace, options.repeat, options.hta_python)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"generated-{options.generate}.pt.trace.json.gz"
        generate(path, options.generate, int(options.gigabytes * 1e9))
        compare(path, 1, None)


if __name__ == "__main__":
    main()
