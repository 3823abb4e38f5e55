"""Cut Phase 3 down to a campaign that one borrowed machine can run in minutes (a draft to freeze).

usage: python scripts/machine_protocol.py KIND OUT.toml [HOST]

h200    one H200, a model of the protocol's shape
pair    the same on two H200 with the co-location check, one target and one background
cpu     vLLM on two CPU cores, a tiny dense model

HOST: a file that describes the machine (default: this one); it is asked for the CPU map of `pair`.

The durations stay the protocol's own: the campaign declares a time scale. What a shortened run
cannot meet is opened in the protocol, before anything runs, with the reason beside it; nothing is
opened afterwards. Everything else keeps Phase 3's text and values.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from opprof.campaign.places import split_cpus
from opprof.host.detect import open_real_host
from opprof.host.fake import FakeHost
from opprof.host.fake_file import load_machine
from opprof.protocol.check import check_protocol
from opprof.protocol.design import design
from opprof.protocol.load import parse_protocol

PHASE3 = Path(__file__).parents[1] / "protocols" / "phase3.toml"
DROPPED = ("private_source", "partial_matrix", "amendments", "open_decisions")

SHORTENED = "opened: a run on a declared time scale holds a fraction of the protocol's events"
COMMON: dict[str, tuple[Any, str]] = {
    "gates.recovery_tolerance": (20.0, SHORTENED),
    "gates.recovery_zero_median_waiting_max": (256, SHORTENED),
    "gates.warmup_completions_min": (8, SHORTENED),
    "representativeness.smd_max": (12.0, "opened: eight steps beside a short segment; see docs"),
    "representativeness.null_draws": (200, "small design"),
    "statistics.bootstrap_resamples": (2000, "small design"),
    "statistics.permutations": (20000, "small design"),
    "cells.sentinel_patterns": ([], "no factorial in the small design"),
    "cells.sentinel_configs": ([], ""),
    "cells.extra": ([], ""),
    "confirmations.patterns": ([], "none in the small design"),
    "budget.gpu_hours_used": (0.0, "nothing was used before"),
}
KINDS: dict[str, dict[str, Any]] = {
    "h200": {
        "patterns": {"P01": {}, "P03": {}},
        "configs": {"C00": {}, "C01": {}},
        "values": {
            "id": ("h200-small", ""),
            "title": (
                "Two patterns, two configurations, one H200, 12 layers of 48",
                "",
            ),
            "pinned.hardware": ("NVIDIA H200", ""),
            "workload.num_requests": (8192, "enough for a declared time scale of 0.05"),
            "load.saturation_max_concurrency": (
                16,
                "long prompts must end in a short warm-up",
            ),
            "cells.sentinel_patterns": (["P01", "P03"], ""),
            "cells.sentinel_configs": (["C01"], ""),
            "gates.offered_rate_error_max": (0.10, SHORTENED),
            "representativeness.smd_max": (
                200.0,
                "opened: profiled steps are slower, so more requests decode in each; see docs",
            ),
            "burnin.pattern": ("P01", ""),
            "h1b.irregular": (["P03"], ""),
            "h1b.contrasts": ([["P03", "P01"]], ""),
            "placement.gpus": (1, ""),
            "placement.cpu_map": (["0-15"], ""),
            "placement.numa_nodes": ([0], ""),
            "budget.startup_s": (150, "seen: 130 s"),
            "budget.gpu_hours_max": (1.0, ""),
            "budget.free_space_bytes_min": (5_000_000_000, "a lent machine has 64 GiB"),
        },
        "server": ("vllm serve ${MODEL}", "vllm serve ${MODEL} --load-format dummy"),
    },
    "cpu": {
        "patterns": {
            "P01": {"input": "uniform:16:96", "output": "fixed:32", "cell": "short; steady"},
            "P11": {"input": "uniform:64:192", "output": "fixed:16", "cell": "longer; bursts of 8"},
        },
        "configs": {
            "C00": {
                "max_num_seqs": 32,
                "max_num_batched_tokens": 1024,
                "flags": ["--max-num-seqs", "32", "--max-num-batched-tokens", "1024"],
            },
            "C10": {
                "max_num_seqs": 8,
                "max_num_batched_tokens": 1024,
                "flags": ["--max-num-seqs", "8", "--max-num-batched-tokens", "1024"],
            },
        },
        "values": {
            "id": ("cpu-small", ""),
            "title": ("Two patterns and two configurations on vLLM's CPU build", ""),
            "pinned.hardware": ("CPU", ""),
            "pinned.moe_backend_expected": ("none", "a dense model"),
            "load.moderate_rate_fraction": (0.4, "a neighbour may take half of two shared cores"),
            "workload.num_requests": (16384, ""),
            "load.saturation_max_concurrency": (24, "two cores"),
            "cells.sentinel_patterns": (["P01", "P11"], ""),
            "cells.sentinel_configs": (["C10"], ""),
            "burnin.pattern": ("P01", ""),
            "gates.client_cpu_share_max": (2.0, "opened: client and server share two cores"),
            "gates.client_loop_delay_p99_max_ms": (1000.0, "opened: the same"),
            "gates.offered_rate_error_max": (0.15, SHORTENED),
            "timeline.profile_windows": (0, "none: a CPU trace holds no device kernels"),
            "h1b.irregular": (["P11"], ""),
            "h1b.contrasts": ([["P11", "P01"]], ""),
            "placement.gpus": (1, ""),
            "placement.cpu_map": (["0-1"], ""),
            "placement.numa_nodes": ([0], ""),
            "budget.startup_s": (90, ""),
            "budget.gpu_hours_max": (4.0, "slot hours: no GPU is charged on a CPU"),
            "budget.free_space_bytes_min": (1_000_000_000, ""),
        },
        "server": (
            "vllm serve ${MODEL}",
            "vllm serve ${MODEL} --load-format dummy --dtype bfloat16 --max-model-len 2048 "
            "--enforce-eager",
        ),
    },
}


KINDS["pair"] = KINDS["h200"] | {
    "configs": {"C00": {}},
    "values": KINDS["h200"]["values"]
    | {
        "id": ("h200-pair", ""),
        "title": ("Two cells side by side on two H200, 4 layers of 48", ""),
        "cells.sentinel_patterns": ([], ""),
        "cells.sentinel_configs": ([], ""),
        "burnin.seconds": (10, "a compile cache is filled by the first requests"),
        "colocation.pattern": ("P01", ""),
        "colocation.backgrounds_eight": (["P03"], "one GPU beside the target's"),
        "colocation.backgrounds_four": (["P03"], ""),
    },
}


def of_this_machine(path: str | None) -> dict[str, Any]:
    """Return the placement of a machine with GPUs."""
    host = open_real_host() if path is None else FakeHost(load_machine(path))
    masks, nodes = split_cpus(host.topology())
    return {"placement.gpus": len(masks), "placement.cpu_map": masks, "placement.numa_nodes": nodes}


def put(document: Any, path: str, value: Any, reason: str) -> None:
    """Set one key, with the reason as its comment."""
    table = document
    *parents, name = path.split(".")
    for parent in parents:
        table = table[parent]
    item = tomlkit.item(value)
    if reason:
        item.comment(reason)
    table[name] = item


def keep_rows(document: Any, name: str, wanted: dict[str, dict[str, Any]]) -> None:
    """Keep the rows with these ids, with these changes."""
    rows = document[name]
    for index in reversed(range(len(rows))):
        if rows[index]["id"] not in wanted:
            del rows[index]
    for row in rows:
        for key, value in wanted[row["id"]].items():
            row[key] = value


def manifest_command(row: Any, requests: int) -> str:
    """Return the generator's arguments for a row of the small design."""
    _, low, high = row["input"].split(":")
    return (
        f"materialize --id {row['id']} --kind synthetic --input-uniform {low}:{high} "
        f"--output-fixed {row['output'].split(':')[1]} --prefix none --arrival {row['arrival']} "
        f"--num-requests {requests} --workload-seed 20260712 --out "
        f'"${{PRIVATE}}/{row["id"]}.jsonl"'
    )


def cut(kind: str, host: str | None = None) -> str:
    """Return the text of the small protocol."""
    plan = KINDS[kind]
    document = tomlkit.parse(PHASE3.read_text())
    for name in (*DROPPED, *([] if kind == "pair" else ["colocation"])):
        document.pop(name, None)
    document["amendments"] = tomlkit.array()
    document["open_decisions"] = tomlkit.array()
    # The two empty lists must stand before the first table.
    for name in ("open_decisions", "amendments"):
        item = document.pop(name)
        body = tomlkit.document()
        body.add(name, item)
        body.update(document)
        document = body
    keep_rows(document, "patterns", plan["patterns"])
    keep_rows(document, "configs", plan["configs"])
    values = {**COMMON, **plan["values"]}
    if kind == "pair":
        values |= {path: (value, "") for path, value in of_this_machine(host).items()}
    for path, (value, reason) in values.items():
        put(document, path, value, reason)
    for row in document["patterns"]:
        row["manifest"] = manifest_command(row, document["workload"]["num_requests"])
    old, new = plan["server"]
    document["server"]["command"] = document["server"]["command"].replace(old, new)
    if kind == "cpu":
        command = document["server"]["command"]
        with_stack = '"torch_profiler_with_stack":true'
        document["server"]["command"] = command.replace(
            with_stack, '"torch_profiler_with_stack":false'
        )
    text = tomlkit.dumps(document)
    counts = msgspec.to_builtins(design(parse_protocol(text.encode(), source=kind).file))
    for name in document["expected"]:
        document["expected"][name] = counts[name]
    document["budget"]["gpu_hours_estimate"] = round(counts["gpu_hours"], 3)
    document["budget"]["wall_hours_estimate"] = round(counts["wall_hours"], 3)
    return tomlkit.dumps(document)


def main(arguments: list[str]) -> int:
    """Write the protocol and say what is wrong with it."""
    kind, out = arguments[0], Path(arguments[1])
    text = cut(kind, arguments[2] if len(arguments) > 2 else None)
    problems = check_protocol(parse_protocol(text.encode(), source=kind).file)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        out.write_text(text)
        print(out)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
