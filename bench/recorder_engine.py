"""Cost of the recorder inside the real engine, beside vLLM's own ``schedule()`` in the same run.

usage: python bench/recorder_engine.py --env FOLDER [--json FILE] [--seconds N]

Starts the tiny CPU server with a second plugin that times both: the hooks' whole cost on the
scheduler's thread (hooked minus original call, cold caches and all) and the original
``schedule()``. Recording is switched on and off; what the clocks alone cost is taken away. The
target is 10 %.
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
from collections.abc import Iterable
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


def hooks_ns(row: list[int]) -> int:
    """What the hooks added to both calls of a step."""
    return row[3] - row[4] + row[5] - row[6]


def summarise(rows: list[list[int]], label: str, low: int, high: int, new: bool) -> dict[str, Any]:
    """Return medians of the steps with ``low`` to ``high`` requests; ``new``: mixed ones only.

    ``clocks_us`` is what the same steps cost while recording is off: the bench's own clocks around
    the calls, and the hooks' look at the switch.
    """
    kept = [row for row in rows if low <= row[1] <= high and (row[2] > row[1]) is new]
    on, off = [row for row in kept if row[0]], [row for row in kept if not row[0]]
    if len(on) < 20 or len(off) < 20:
        return {"shape": label, "steps_on": len(on), "steps_off": len(off)}

    def median_us(values: Iterable[int]) -> float:
        return round(statistics.median(values) / 1e3, 1)

    result: dict[str, Any] = {
        "shape": label,
        "steps_on": len(on),
        "steps_off": len(off),
        "hooks_us": median_us(map(hooks_ns, on)),
        "clocks_us": median_us(map(hooks_ns, off)),
        "submit_us": median_us(row[3] - row[4] for row in on),
        "complete_us": median_us(row[5] - row[6] for row in on),
        "schedule_us": median_us(row[4] for row in on),
        "update_us": median_us(row[6] for row in on),
    }
    result["share_of_schedule"] = round(
        (result["hooks_us"] - result["clocks_us"]) / result["schedule_us"], 4
    )
    return result


SHAPES = (
    ("1 decode", 1, 1, False),
    ("32 decodes", 32, 32, False),
    ("256 decodes", 256, 256, False),
    ("mixed, 100 to 256", 100, 256, True),
)


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
            control = server.opprof_dir / "engine-0.jsonl.control"
            for word in ("on", "off", "on", "off"):
                control.write_text(word)
                time.sleep(0.2)
                for batch in (1, 32, 256):
                    drive(server, batch, arguments.seconds / 2)
                mixed(server, arguments.seconds / 2)
        rows = json.loads(timings.read_text())
    shapes = [summarise(rows, *shape) for shape in SHAPES]
    for shape in shapes:
        print(json.dumps(shape))
    if arguments.json:
        arguments.json.write_text(json.dumps(shapes, indent=1) + "\n")
    share = shapes[2].get("share_of_schedule")
    print(f"256 decodes: hooks are {share} of schedule(), target {TARGET}")
    return int(share is None or share > TARGET)


if __name__ == "__main__":
    sys.exit(main())
