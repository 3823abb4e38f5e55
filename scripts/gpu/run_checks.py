"""What is checked of one finished run directory on the machine that made it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
sys.path.insert(0, str(SCRIPTS.parent / "bench"))

from opprof_disk_checks import join_trace, profiler_events, steps_of  # noqa: E402
from recorder_engine import SHAPES, summarise  # noqa: E402
from vllm_cpu_server import Server  # noqa: E402

TABLE_ROW = re.compile(r"\| (\d+) +\| (\d+) +\| (\d+) +\| (\w+) +\| (\d+) +\|")


def collect(server: Server) -> str:
    """Rename the traces of all windows as the contract names them, with the original names kept."""
    names: dict[str, str] = {}
    stops = [event for event in profiler_events(server.opprof_dir) if event["event"] == "stop"]
    for window, event in enumerate(event for event in stops if event["traces"]):
        for number, trace in enumerate(event["traces"]):
            match = re.search(r"rank[-_]?(\d+)", trace)
            rank = int(match.group(1)) if match else number
            names[f"window{window}-rank{rank}.pt.trace.json.gz"] = trace
    for new, old in names.items():
        # The client collects by itself where it was given the server's recording folder.
        if (server.trace_dir / old).exists():
            (server.trace_dir / old).rename(server.trace_dir / new)
        if not (server.trace_dir / new).exists():
            raise AssertionError(f"neither {old} nor {new} is in {server.trace_dir}")
    (server.trace_dir / "original-names.json").write_text(json.dumps(names, indent=1))
    return f"{len(names)} traces"


def joins(server: Server) -> str:
    """Join every trace to Layer 1 by its annotations."""
    steps = steps_of(server.opprof_dir)
    found = {}
    for path in sorted(server.trace_dir.glob("window*.gz")):
        joined = join_trace(path, steps)
        modes = Counter((steps[index]["graph"] or {}).get("mode") for index in joined)
        found[path.name.partition(".")[0]] = (joined[0], dict(modes))
    if not found:
        raise AssertionError("no traces")
    return str(found)


def graph_table(server: Server) -> str:
    """Find every table of graph statistics that vLLM logged as a run of steps in the stream.

    The tables follow each other without gaps, except that vLLM prints none while it is idle.
    """
    log = (server.run_dir / "server.log").read_text(errors="replace")
    steps: list[tuple[int, int, str]] = []
    for step in steps_of(server.opprof_dir):
        graph = step["graph"]
        if graph is not None:
            is_eager = graph["mode"] == "NONE"
            padded = graph["unpadded_tokens"] if is_eager else graph["bucket_tokens"]
            steps.append((graph["unpadded_tokens"], padded, graph["mode"]))
    side = json.loads((server.opprof_dir / "engine-0.jsonl.footer.json").read_text())
    is_paused = side["pauses"] > 0
    at = matched = tables = 0
    for text in log.split("**CUDAGraph Stats:**")[1:]:
        table: Counter[tuple[int, int, str]] = Counter()
        for unpadded, padded, _, mode, count in TABLE_ROW.findall(text):
            table[int(unpadded), int(padded), mode] += int(count)
        size = table.total()
        if not size:
            continue
        while at + size <= len(steps) and Counter(steps[at : at + size]) != table:
            at += 1
        if at + size > len(steps):
            if is_paused and matched > len(steps) // 2:
                break  # From here on vLLM counted steps that were deliberately not recorded.
            raise AssertionError(
                f"table {tables} of {size} steps is nowhere in the stream: {table}"
            )
        at, matched, tables = at + size, matched + size, tables + 1
    if not tables:
        raise AssertionError("vLLM logged no graph table")
    modes = Counter(mode for _, _, mode in steps)
    return f"{tables} tables of {matched} steps equal, of {len(steps)}; modes {dict(modes)}"


def cost_in_engine(server: Server) -> str:
    """Summarise the clocks around hooks and originals."""
    rows = json.loads((server.run_dir / "timings.json").read_text())
    wide = ("decode, 150 to 256", 150, 256, False)
    return "\n  ".join(json.dumps(summarise(rows, *shape)) for shape in (*SHAPES, wide))
