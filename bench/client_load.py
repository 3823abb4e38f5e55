"""The load client beside the floor and its peers, judged from the mock server's own log.

  python bench/client_load.py [--rounds 3] [--vllm PYTHON] [--guidellm COMMAND] [--aiperf COMMAND]

(a) closed loop of 256, 64 output tokens, no delay: requests/s, CPU seconds per 1,000 requests, RSS;
(b) 100 requests/s, 16 tokens at 5 ms: lag against the ideal grid, anchored at its median offset;
(c) bursts of 8 every 0.5 s: spread from first to last arrival; (d) process start to first request
for 2,000 prompts of 1,280 tokens. Every client is one process tree pinned to core 1, the mock to
core 0; rounds are interleaved. Ratios to the floor (a raw client that parses nothing) carry over to
other machines, absolute figures do not. Without --vllm and the others only the floor is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_tools import ENVIRONMENT, ROOT, Mock, pinned, running_mock, write_manifest
from client_peers import Peers

FLOOR = [sys.executable, str(ROOT / "bench" / "client_floor.py")]
SCRIPT = str(ROOT / "scripts" / "opprof_phase3_client.py")


@dataclass
class Measured:
    """One client's process and what the server saw of it."""

    log: dict[str, Any]
    started_ns: int
    cpu_s: float
    rss_mb: float


def measure(mock: Mock, command: list[str], env: dict[str, str] | None = None) -> Measured:
    """Run a client to its end and take the server's log."""
    mock.get("/_mock/clear")
    started_ns = time.monotonic_ns()
    process = subprocess.Popen(
        pinned(1, command),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=env or ENVIRONMENT,
        text=True,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # 1 is a run that was judged and not accepted, for instance for a busy client; ours says so.
    if process.returncode not in ((0, 1) if SCRIPT in command else (0,)):
        raise SystemExit(f"{command[:4]} ended with {process.returncode}: {errors[-2000:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    log = mock.take_log()
    if not log["arrivals"]:
        raise SystemExit(f"{command[:4]} sent nothing: {errors[-2000:]}")
    return Measured(log, started_ns, cpu_s, usage.ru_maxrss / 1024)


def middle_rps(log: dict[str, Any]) -> float:
    """Answers per second over the middle 60 % of the time in which answers ended."""
    ends = sorted(row["ended_ns"] for row in log["arrivals"] if row["ended_ns"])
    low = ends[0] + 0.2 * (ends[-1] - ends[0])
    high = ends[0] + 0.8 * (ends[-1] - ends[0])
    return sum(low <= end < high for end in ends) / ((high - low) / 1e9)


def grid_lags_ms(log: dict[str, Any], period_s: float) -> list[float]:
    """|arrival - ideal grid| in ms, sorted; the grid is anchored at the run's median offset."""
    times = sorted(row["first_byte_ns"] for row in log["arrivals"])
    offsets = [time - k * period_s * 1e9 for k, time in enumerate(times)]
    anchor = statistics.median(offsets)
    return sorted(abs(offset - anchor) / 1e6 for offset in offsets)


def spreads_ms(log: dict[str, Any], size: int) -> list[float]:
    """First to last arrival of every group of ``size``, in ms, sorted."""
    times = sorted(row["first_byte_ns"] for row in log["arrivals"])
    groups = [times[i : i + size] for i in range(0, len(times) - size + 1, size)]
    return sorted((group[-1] - group[0]) / 1e6 for group in groups)


def at(ordered: list[float], q: float) -> float:
    """Nearest-rank quantile."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@dataclass
class Bench:
    """Folders, peers and collected rows."""

    folder: Path
    rounds: int
    peers: Peers
    rows: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)

    def ours(self, mock: Mock, manifest: Path, name: str, *flags: str) -> list[str]:
        """Return the command line of our client into a fresh folder."""
        result = self.folder / f"{name}-{time.monotonic_ns()}" / "client"
        fixed = ["--model", "mock", "--max-concurrency", "256", "--no-progress"]
        command = [sys.executable, SCRIPT, "run", "--manifest", str(manifest), "--base-url"]
        return [*command, mock.url, *fixed, "--result-dir", str(result), *flags]

    def add(self, part: str, client: str, row: dict[str, float]) -> None:
        """Keep one round's figures."""
        self.rows.setdefault(part, {}).setdefault(client, []).append(row)

    def moderate_flags(self, manifest: Path, rate: float) -> list[str]:
        """A made saturation result of 1,000 requests/s, so that a fraction gives ``rate``."""
        import hashlib

        result = {
            "schema": 1,
            "accepted": True,
            "reasons": [],
            "completed_rps": 1000.0,
            "offered_rps": 1000.0,
            "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
            "pattern": "B01",
            "config": "C00",
            "load_point": "saturation",
            "role": "primary",
            "drain_quarantined": False,
            "metrics": {},
        }
        path = self.folder / f"saturation-{manifest.stem}.json"
        path.write_text(json.dumps(result))
        fraction = ["--rate-fraction", str(rate / 1000)]
        return ["--load-point", "moderate", "--saturation-result", str(path), *fraction]


def closed_loop(bench: Bench) -> None:
    """Part (a)."""
    manifest = bench.folder / "closed.jsonl"
    write_manifest(manifest, 40_000, 128, 64, "steady")
    flags = ["--load-point", "saturation", "--request-rate", "inf"]
    flags += ["--warmup-seconds", "1", "--clean-segment-seconds", "5", "--num-clean-segments", "1"]
    with running_mock() as mock:
        clients: dict[str, Callable[[], list[str]]] = {
            "floor": lambda: [*FLOOR, str(mock.port), "closed", "256", "6", "64"],
            "opprof": lambda: bench.ours(mock, manifest, "closed", *flags),
            **bench.peers.closed(mock),
        }
        for _ in range(bench.rounds):
            for name, command in clients.items():
                seen = measure(mock, command(), bench.peers.environment(name))
                count = len(seen.log["arrivals"])
                row = {
                    "requests/s": middle_rps(seen.log),
                    "CPU s/1000": seen.cpu_s / count * 1000,
                    "RSS MB": seen.rss_mb,
                    "most outstanding": max(r["outstanding"] for r in seen.log["arrivals"]),
                }
                bench.add("(a) closed loop 256, 64 tokens", name, row)


def steady_rate(bench: Bench) -> None:
    """Part (b)."""
    manifest = bench.folder / "steady.jsonl"
    write_manifest(manifest, 4_000, 128, 16, "steady")
    flags = [*bench.moderate_flags(manifest, 100.0), "--warmup-seconds", "5"]
    flags += ["--clean-segment-seconds", "15", "--num-clean-segments", "1"]
    with running_mock("--step-ms", "5") as mock:
        clients: dict[str, Callable[[], list[str]]] = {
            "floor": lambda: [*FLOOR, str(mock.port), "rate", "100", "20", "16"],
            "opprof": lambda: bench.ours(mock, manifest, "steady", *flags),
            **bench.peers.rate(mock),
        }
        for _ in range(bench.rounds):
            for name, command in clients.items():
                seen = measure(mock, command(), bench.peers.environment(name))
                lags = grid_lags_ms(seen.log, 0.01)
                row = {
                    "lag p50 ms": at(lags, 0.5),
                    "lag p99 ms": at(lags, 0.99),
                    "lag max ms": lags[-1],
                    "requests": len(lags),
                }
                bench.add("(b) 100 requests/s for 20 s", name, row)


def bursts(bench: Bench) -> None:
    """Part (c)."""
    manifest = bench.folder / "burst.jsonl"
    write_manifest(manifest, 4_000, 128, 16, "burst:8")
    flags = [*bench.moderate_flags(manifest, 16.0), "--warmup-seconds", "5"]
    flags += ["--clean-segment-seconds", "10", "--num-clean-segments", "1"]
    with running_mock("--step-ms", "5") as mock:
        clients: dict[str, Callable[[], list[str]]] = {
            "floor": lambda: [*FLOOR, str(mock.port), "burst", "8", "0.5", "15", "16"],
            "opprof": lambda: bench.ours(mock, manifest, "burst", *flags),
        }
        for _ in range(bench.rounds):
            for name, command in clients.items():
                spreads = spreads_ms(measure(mock, command()).log, 8)
                row = {"spread p50 ms": at(spreads, 0.5), "spread max ms": spreads[-1]}
                bench.add("(c) bursts of 8 every 0.5 s", name, {**row, "bursts": len(spreads)})


def start_up(bench: Bench) -> None:
    """Part (d)."""
    manifest = bench.folder / "long.jsonl"
    write_manifest(manifest, 2_000, 1_280, 4, "steady")
    flags = ["--load-point", "saturation", "--warmup-seconds", "0.5"]
    flags += ["--clean-segment-seconds", "0.5", "--num-clean-segments", "1"]
    with running_mock("--step-ms", "20") as mock:
        clients: dict[str, Callable[[], list[str]]] = {
            "opprof": lambda: bench.ours(mock, manifest, "long", *flags),
            **bench.peers.start(mock),
        }
        for _ in range(bench.rounds):
            for name, command in clients.items():
                seen = measure(mock, command(), bench.peers.environment(name))
                first = min(row["first_byte_ns"] for row in seen.log["arrivals"])
                row = {"first request s": (first - seen.started_ns) / 1e9, "RSS MB": seen.rss_mb}
                bench.add("(d) start-up, 2,000 x 1,280 tokens", name, row)


def show(rows: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print medians with ranges, and ratios to the floor."""
    for part, clients in rows.items():
        print(f"\n{part}")
        names = list(next(iter(clients.values()))[0])
        print(f"  {'client':<10}" + "".join(f"{name:>28}" for name in names))
        floor = clients.get("floor")
        for client, results in clients.items():
            cells = []
            for name in names:
                values = [row[name] for row in results]
                middle = statistics.median(values)
                text = f"{middle:.3g} ({min(values):.3g}-{max(values):.3g})"
                if floor and client != "floor":
                    base = statistics.median(row[name] for row in floor)
                    text += f" x{middle / base:.2f}" if base else ""
                cells.append(f"{text:>28}")
            print(f"  {client:<10}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="abcd")
    parser.add_argument("--vllm", help="python of an environment with vLLM")
    parser.add_argument("--guidellm", help="guidellm command of its own environment")
    parser.add_argument("--aiperf", help="aiperf command of its own environment")
    parser.add_argument("--tokenizer", help="tokenizer folder for the peers")
    parser.add_argument("--json", type=Path, help="write every round's figures here")
    options = parser.parse_args()
    parts = {"a": closed_loop, "b": steady_rate, "c": bursts, "d": start_up}
    with tempfile.TemporaryDirectory() as folder:
        peers = Peers(options.vllm, options.guidellm, options.aiperf, options.tokenizer, folder)
        bench = Bench(Path(folder), options.rounds, peers)
        for letter in options.parts:
            parts[letter](bench)
    show(bench.rows)
    if options.json:
        options.json.write_text(json.dumps(bench.rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
