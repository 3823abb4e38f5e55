"""Cost of the recorder inside the real engine, beside vLLM's own ``schedule()`` in the same run.

usage: python bench/recorder_engine.py --env FOLDER [--json FILE] [--seconds N]

Starts the tiny CPU server with a second plugin that times both: the hooks' whole cost on the
scheduler's thread (hooked minus original call, cold caches, busy cores and all) and the original
``schedule()``. The target is 10 % of the latter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from vllm_cpu_server import MODEL_NAME, Server, plugin_path  # noqa: E402

TARGET = 0.10


def drive(server: Server, batch: int, seconds: float) -> None:
    """Keep ``batch`` requests in flight: one HTTP request with so many prompts, again and again."""
    stop = time.monotonic() + seconds
    number = 0
    while time.monotonic() < stop:
        number += 1
        prompts = [
            [300 + (number * 7 + row * 31 + at * 13) % 3700 for at in range(24)]
            for row in range(batch)
        ]
        body = {"model": MODEL_NAME, "prompt": prompts, "max_tokens": 200, "temperature": 0}
        status = server.post("/v1/completions", body | {"ignore_eos": True})
        assert status == 200, status


def mixed(server: Server, seconds: float) -> None:
    """Stagger sixteen clients of sixteen requests, so that prefills meet decodes in most steps."""
    threads = [
        threading.Thread(target=drive, args=(server, 16, seconds - 0.1 * delay))
        for delay in range(16)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()


def summarise(rows: list[list[int]], label: str, low: int, high: int, new: bool) -> dict[str, Any]:
    """Return medians of the steps with ``low`` to ``high`` requests; ``new``: mixed ones only."""
    kept = [row for row in rows if low <= row[0] <= high and (row[1] > row[0]) is new]
    if len(kept) < 20:
        return {"shape": label, "steps": len(kept)}
    hooks = [row[2] - row[3] + row[4] - row[5] for row in kept]
    result = {
        "shape": label,
        "steps": len(kept),
        "hooks_us": round(statistics.median(hooks) / 1e3, 1),
        "submit_us": round(statistics.median(row[2] - row[3] for row in kept) / 1e3, 1),
        "complete_us": round(statistics.median(row[4] - row[5] for row in kept) / 1e3, 1),
        "schedule_us": round(statistics.median(row[3] for row in kept) / 1e3, 1),
        "update_us": round(statistics.median(row[5] for row in kept) / 1e3, 1),
    }
    result["share_of_schedule"] = round(result["hooks_us"] / result["schedule_us"], 4)
    return result


def main() -> int:
    """Print a table; 1 when the target is missed at 256 decodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        timings = run / "timings.json"
        path = plugin_path(run / "plugin", "opprof", "recorder_engine_shim:register")
        server = Server(
            arguments.env,
            run,
            flags=["--enforce-eager", "--max-num-seqs", "256"],
            variables={"OPPROF_BENCH_TIMINGS": str(timings)},
            pythonpath=os.pathsep.join([path, str(ROOT / "bench")]),
        )
        with server:
            for batch in (1, 32, 256):
                drive(server, batch, arguments.seconds)
            mixed(server, arguments.seconds)
        rows = json.loads(timings.read_text())
    shapes = [
        summarise(rows, "1 decode", 1, 1, False),
        summarise(rows, "32 decodes", 32, 32, False),
        summarise(rows, "256 decodes", 256, 256, False),
        summarise(rows, "mixed, 100 to 256", 100, 256, True),
    ]
    for shape in shapes:
        print(json.dumps(shape))
    if arguments.json:
        arguments.json.write_text(json.dumps(shapes, indent=1) + "\n")
    share = shapes[2].get("share_of_schedule")
    print(f"256 decodes: hooks are {share} of schedule(), target {TARGET}")
    return int(share is None or share > TARGET)


if __name__ == "__main__":
    sys.exit(main())
