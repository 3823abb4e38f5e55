"""Cost of the recorder per step on the scheduler's thread, beside msgspec of the same record.

usage: PYTHONPATH=src python bench/recorder_step.py [--steps N] [--json FILE]

Runs the plugin's own hooks around a fake scheduler that does nothing, with the real writer process
behind the ring, and takes away what the same loop costs without the hooks. The target is
15 microseconds for 256 decodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "engines"))

from engine_fakes import Cached, NewRequest, Output, Result, Scheduler, Stat, header

from opprof.engines.recorder.assemble import build_step
from opprof.engines.recorder.handle import Recorder
from opprof.engines.recorder.records import SUBMIT, Completed, decode_submitted
from opprof.engines.vllm import layer1
from opprof.engines.vllm.capture import Capture

TARGET_US = 15.0


class Plain(Scheduler):
    """Hands out one prepared output."""

    output: Any = None

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: ARG002
        """Return it."""
        return self.output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ARG002
        """Do nothing."""
        return None


class Hooked(Plain):
    """The same with the plugin's hooks."""

    schedule = layer1.wrap_schedule(Plain.schedule)
    update_from_output = layer1.wrap_update(Plain.update_from_output)


def make_output(decodes: int, new: int, chunks: int) -> Output:
    """A step of so many decodes, new prompts and continued prompts."""
    names = [f"cmpl-{number:032x}-0" for number in range(decodes + chunks)]
    computed = [1000 + 7 * number for number in range(decodes + chunks)]
    cached = Cached(names, computed, [50] * decodes + [0] * chunks)
    counts = dict.fromkeys(names[:decodes], 1) | dict.fromkeys(names[decodes:], 512)
    fresh = [NewRequest(f"cmpl-new-{number}") for number in range(new)]
    counts |= {request.req_id: 300 for request in fresh}
    output = Output(fresh, cached, counts)
    total = output.total_num_scheduled_tokens
    # A plain attribute as on the real object, not the fake's computed property.
    return type("Prepared", (Output,), {"total_num_scheduled_tokens": total})(fresh, cached, counts)


def time_loop(scheduler: Any, result: Result, steps: int, rest_s: float) -> list[int]:
    """Return nanoseconds of each schedule-and-update pair, in a hot loop with short rests."""
    clock = time.perf_counter_ns
    costs = []
    for number in range(steps):
        begin = clock()
        output = scheduler.schedule()
        scheduler.update_from_output(output, result)
        costs.append(clock() - begin)
        if number % 50 == 49:
            time.sleep(rest_s)  # No engine runs tens of thousands of steps a second.
    return costs


def floor_us(recorder: Recorder, repeat: int) -> float:
    """Median microseconds of the msgspec encoding of this step's line."""
    payloads = [
        payload for kind, payload in recorder._ring.drain(everything=True) if kind == SUBMIT
    ]
    step = build_step(decode_submitted(payloads[0]), Completed(0, 1, "FULL", 1, 1))
    encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
    costs: list[int] = []
    for _ in range(repeat):
        begin = time.perf_counter_ns()
        encode(step)
        costs.append(time.perf_counter_ns() - begin)
    return statistics.median(costs) / 1e3


def measure(decodes: int, new: int, chunks: int, steps: int) -> dict[str, Any]:
    """Measure one batch shape."""
    output = make_output(decodes, new, chunks)
    tokens = output.total_num_scheduled_tokens
    result = Result(Stat(tokens, tokens, "FULL"))
    plain, hooked = Plain(), Hooked()
    plain.output = hooked.output = output
    rest_s = 0.05 * max(1.0, (decodes + new + chunks) / 256)
    base = time_loop(plain, result, steps // 4, 0.01)
    with tempfile.TemporaryDirectory() as folder:
        silent = Recorder(Path(folder) / "silent.jsonl", header())
        silent._ended = False
        silent._words[4] = 1
        hooked._opprof = Capture(silent, hooked, None)
        hooked.schedule()
        floor = floor_us(silent, steps // 4)
        recorder = Recorder(Path(folder) / "engine-0.jsonl", header())
        recorder.start()
        hooked._opprof = Capture(recorder, hooked, None)
        time_loop(hooked, result, 500, rest_s)
        costs = time_loop(hooked, result, steps, rest_s)
        assert recorder.close(), "the writer did not confirm"
        side = json.loads((Path(folder) / "engine-0.jsonl.footer.json").read_text())
    assert side["written_records"] == steps + 500, side
    nothing = statistics.median(base) / 1e3
    ordered = sorted(cost / 1e3 for cost in costs)
    return {
        "decodes": decodes,
        "new": new,
        "chunks": chunks,
        "p50_us": round(ordered[len(ordered) // 2] - nothing, 2),
        "p90_us": round(ordered[len(ordered) * 9 // 10] - nothing, 2),
        "p99_us": round(ordered[len(ordered) * 99 // 100] - nothing, 2),
        "floor_msgspec_us": round(floor, 2),
        "dropped": side["dropped_records"],
    }


def main() -> int:
    """Print a table; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shapes = [(1, 0, 0), (32, 0, 0), (256, 0, 0), (28, 2, 2), (250, 4, 2), (1024, 0, 0)]
    rows = [measure(*shape, arguments.steps) for shape in shapes]
    print(" decode  new chunk   p50 us     p90     p99   floor   ratio")
    for row in rows:
        print(
            f"{row['decodes']:7}{row['new']:5}{row['chunks']:6}{row['p50_us']:9.2f}"
            f"{row['p90_us']:8.2f}{row['p99_us']:8.2f}{row['floor_msgspec_us']:8.2f}"
            f"{row['p50_us'] / row['floor_msgspec_us']:8.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    hit = next(row for row in rows if row["decodes"] == 256 and not row["new"])
    print(f"256 decodes: {hit['p50_us']} us, target {TARGET_US} us")
    return int(hit["p50_us"] > TARGET_US)


if __name__ == "__main__":
    sys.exit(main())
