"""The recorder's cost on a warm server: fixed work with recording on and off, in ABBA order.

usage: python scripts/overhead_experiment.py --url URL --model NAME --opprof-dir DIR --out FILE
           [--shape p01|decode] [--requests N] [--input N] [--output N] [--pairs N] [--streams N]

Each batch is the same work (equal lengths, fresh token ids, so a cold prefix cache), admitted by
one HTTP request with all its prompts; ``--streams`` further requests of the same shape are
streamed, to see the step period of decode at the client. Makespan and period are compared in pairs
(off-on, on-off, ...): relative difference on/off - 1, mean and 95 % interval by Student's t.

Runs the same on the CPU build (rehearsal) and on a GPU. Needs aiohttp, which vLLM brings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

SHAPES = {
    # requests, input tokens, output tokens: P01 is U[128,512] to 64; decode has little else.
    "p01": (256, 320, 64),
    "decode": (248, 64, 256),
}
SETTLE_S = 0.2
"""The writer looks at the switch every 50 ms."""


def t_quantile_975(freedom: int) -> float:
    """Student's t at 97.5 %, by the Cornish-Fisher expansion (error below 0.003 from 9 degrees on).

    Source: Abramowitz and Stegun, 26.7.5.
    """
    if freedom < 9:
        raise ValueError("at least ten pairs are needed")
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def paired(differences: list[float]) -> dict[str, float]:
    """Return mean and 95 % interval of paired relative differences, in percent."""
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    reach = t_quantile_975(len(differences) - 1) * error
    values = {
        "mean": mean,
        "low": mean - reach,
        "high": mean + reach,
        "sd": error * math.sqrt(len(differences)),
    }
    return {name: round(100 * value, 4) for name, value in values.items()}


class Batch:
    """One batch of fixed work against the server."""

    def __init__(self, session: aiohttp.ClientSession, options: argparse.Namespace) -> None:
        self._session = session
        self._options = options

    def _prompt(self, draw: random.Random) -> list[int]:
        top = self._options.vocabulary
        return [draw.randrange(300, top) for _ in range(self._options.input)]

    def _body(self, prompt: object) -> dict[str, Any]:
        return {
            "model": self._options.model,
            "prompt": prompt,
            "max_tokens": self._options.output,
            "temperature": 0,
            "ignore_eos": True,
        }

    async def run(self, seed: int) -> dict[str, Any]:
        """Run one batch; return its makespan and the streamed requests' step periods, in ns."""
        draw = random.Random(seed)
        prompts = [self._prompt(draw) for _ in range(self._options.requests)]
        bodies = [self._body(prompts)] if prompts else []
        streamed = [
            self._body(self._prompt(draw)) | {"stream": True} for _ in range(self._options.streams)
        ]
        begin = time.perf_counter_ns()
        results = await asyncio.gather(
            *(self._whole(body) for body in bodies), *(self._stream(body) for body in streamed)
        )
        makespan = time.perf_counter_ns() - begin
        periods = [result for result in results if result is not None]
        return {"makespan_ns": makespan, "streams": periods}

    async def _whole(self, body: dict[str, Any]) -> None:
        async with self._session.post("/v1/completions", json=body) as answer:
            data = await answer.json()
            assert answer.status == 200, data
            wanted = self._options.output * len(body["prompt"])
            assert data["usage"]["completion_tokens"] == wanted, data["usage"]

    async def _stream(self, body: dict[str, Any]) -> dict[str, float]:
        arrivals: list[int] = []
        async with self._session.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    arrivals.append(time.perf_counter_ns())
        gaps = sorted(b - a for a, b in pairwise(arrivals))
        return {
            "mean_ns": (arrivals[-1] - arrivals[0]) / (body["max_tokens"] - 1),
            "median_ns": statistics.median(gaps),
            "chunks": len(arrivals),
        }


async def switch(options: argparse.Namespace, *, on: bool) -> None:
    """Switch recording and wait until the writer has seen it."""
    control = options.opprof_dir / "engine-0.jsonl.control"
    control.write_text("on\n" if on else "off\n")
    await asyncio.sleep(SETTLE_S)


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run warm-up and all pairs; return one row a batch, in the order they ran."""
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    rows = []
    async with aiohttp.ClientSession(options.url, timeout=timeout, connector=connector) as session:
        batch = Batch(session, options)
        for number in range(options.warmup):
            await switch(options, on=bool(number % 2))
            await batch.run(options.seed - 1 - number)
        for pair in range(options.pairs):
            # ABBA: the order turns in every pair, so a linear drift cancels.
            for on in (False, True) if pair % 2 == 0 else (True, False):
                await switch(options, on=on)
                row = await batch.run(options.seed + len(rows))
                rows.append({"pair": pair, "on": on} | row)
        await switch(options, on=True)
    return rows


def value_of(row: dict[str, Any], name: str) -> float:
    """Return one figure of a batch in ns."""
    if name == "makespan_ns":
        return float(row["makespan_ns"])
    return statistics.fmean(stream[name] for stream in row["streams"])


def analyse(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return, for each figure, both arms' means and the paired difference."""
    result: dict[str, Any] = {}
    for name in names:
        pairs: dict[int, dict[bool, float]] = {}
        for row in rows:
            pairs.setdefault(row["pair"], {})[row["on"]] = value_of(row, name)
        differences = [pair[True] / pair[False] - 1 for pair in pairs.values()]
        result[name] = {
            "pairs": len(pairs),
            "off_mean_ms": round(statistics.fmean(p[False] for p in pairs.values()) / 1e6, 4),
            "on_mean_ms": round(statistics.fmean(p[True] for p in pairs.values()) / 1e6, 4),
            "difference_percent": paired(differences),
            "differences_percent": [round(100 * value, 4) for value in differences],
        }
    return result


def main() -> None:
    """Run the experiment and write figures and raw rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--opprof-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="p01")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--input", type=int)
    parser.add_argument("--output", type=int)
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=4000, help="largest token id, exclusive")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=2, help="batches before the first pair")
    parser.add_argument("--seed", type=int, default=20260712)
    options = parser.parse_args()
    requests, tokens, output = SHAPES[options.shape]
    options.requests = requests if options.requests is None else options.requests
    options.input = options.input or tokens
    options.output = options.output or output
    started = time.time()
    rows = asyncio.run(measure(options))
    names = ["makespan_ns", *(["mean_ns", "median_ns"] if options.streams else [])]
    report = {
        "shape": options.shape,
        "requests": options.requests,
        "streams": options.streams,
        "input_tokens": options.input,
        "output_tokens": options.output,
        "order": "off-on, on-off, ...",
        "seconds": round(time.time() - started, 1),
        "figures": analyse(rows, names),
        "batches": rows,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, figure in report["figures"].items():
        percent = figure["difference_percent"]
        print(
            f"{options.shape} {name}: off {figure['off_mean_ms']} ms, on {figure['on_mean_ms']} ms,"
            f" on/off - 1 = {percent['mean']:+.3f} %"
            f" [{percent['low']:+.3f}, {percent['high']:+.3f}], {figure['pairs']} pairs"
        )


if __name__ == "__main__":
    main()
