"""Real runs as the fit reads them: Layer-1 steps with shapes, profiled steps with families."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opprof.analysis.inputs import RunInputs, read_inputs
from opprof.analysis.layer1 import read_layer1
from opprof.analysis.windows import read_windows
from opprof.engines.sim.cost import StepShape
from opprof.mapping import load_table
from opprof.protocol import Protocol

BLOCK_TOKENS = 16
KV_BLOCKS = {"1": 46541, "2": 131603}
"""From the runs: blocks of a first request over its ``kv_usage``."""


@dataclass
class Sample:
    """One profiled step of one rank."""

    run: str
    ranks: int
    shape: StepShape
    family_ms: dict[str, float]
    """Collectives without waiting: of a step's ranks the one that waits least hardly waits."""
    window: int
    step: int
    """Layer-1 index: ranks of one step have it in common."""
    head_ms: float
    """Logits GEMM, told by its scope."""
    cache_ms: float
    """Kernels that write the KV cache, told by their name."""
    gate_ms: float | None
    """Router GEMM, told by its scope outside graphs; None inside."""


@dataclass
class Run:
    """What is used of one run."""

    name: str
    ranks: int
    steps: list[dict[str, Any]]
    profiled: list[tuple[int, int]]
    requests: list[dict[str, Any]]
    samples: list[Sample] = field(default_factory=list)


def find_runs(paths: list[Path]) -> list[Path]:
    """Return the run directories among ``paths`` and directly below them."""
    roots = []
    for path in paths:
        below = sorted(one for one in path.iterdir() if (one / "client").is_dir())
        roots += [path] if (path / "client").is_dir() else below
    return roots


def read_run(root: Path, protocol: Protocol) -> Run:
    inputs = read_inputs(root)
    side = read_layer1(inputs, protocol)
    ranks = side.stream.header.config.tensor_parallel_size
    lines = inputs.stream.read_bytes().splitlines()
    steps = [msgspec.json.decode(line) for line in lines if b'"step"' in line[:40]]
    steps = [step for step in steps if step["type"] == "step"]
    _add_starts(steps)
    windows = [i for i in inputs.timeline.intervals if i.kind == "profile"]
    profiled = [(i.start_mono_ns, i.end_mono_ns + 300_000_000) for i in windows]
    lines = (root / "client" / "requests.jsonl").read_bytes().splitlines()
    requests = [msgspec.json.decode(line) for line in lines]
    # Days have runs of equal names: the folder tells them apart.
    name = f"{root.resolve().parent.name}/{root.name}"
    run = Run(name, ranks, steps, profiled, requests)
    _add_samples(run, inputs, side.columns, protocol)
    return run


def _add_starts(steps: list[dict[str, Any]]) -> None:
    """Give each prefill chunk the tokens computed before it.

    A step that used its whole token budget cut its last chunk; the next step's first continues it.
    """
    carried = 0
    for step in steps:
        chunks = step["prefill_chunks"]
        hits = (step["prefix_hits"] or 0) / len(chunks) if chunks else 0.0
        starts = [hits] * len(chunks)
        if chunks and carried:
            starts[0] = float(carried)
        step["starts"] = starts
        full = step["prefill_tokens"] + step["decode_tokens"] == 8192
        carried = round(starts[-1] + chunks[-1]) if chunks and full else 0


def shape_of(step: dict[str, Any], ranks: int) -> StepShape:
    graph = step["graph"]
    tokens = step["prefill_tokens"] + step["decode_tokens"]
    pieces = list(zip(step["starts"], step["prefill_chunks"], strict=True))
    ends = [start + chunk for start, chunk in pieces]
    decode_context = max(0, round(step["context_len_sum"] - sum(ends)))
    unique = min(decode_context, round(step["kv_usage"] * KV_BLOCKS[str(ranks)] * BLOCK_TOKENS))
    product = sum(chunk * (start + chunk / 2) for start, chunk in pieces)
    return StepShape(
        mode=graph["mode"],
        padded_tokens=graph["bucket_tokens"] or tokens,
        rows=step["scheduled_requests"],
        decodes=step["decode_requests"],
        decode_context=decode_context,
        unique_context=unique,
        prefill_product=product,
    )


def _add_samples(run: Run, inputs: RunInputs, columns: Any, protocol: Protocol) -> None:
    table = load_table("v2")
    by_index = {step["step"]: step for step in run.steps}
    for window in read_windows(inputs, columns, run.ranks, protocol):
        if window.trace is None or window.rows is None:
            continue
        families = window.trace.families(table.classify)
        for row, traced, sums in zip(window.rows, window.trace.steps, families, strict=True):
            assert traced.execute is not None
            run.samples.append(
                Sample(
                    run=run.name,
                    ranks=run.ranks,
                    shape=shape_of(by_index[row], run.ranks),
                    family_ms={name: tally.ns / 1e6 for name, tally in sums.items()},
                    window=window.window,
                    step=row,
                    head_ms=_nvjet_ms(window.trace, traced, "aten::linear", inside_moe=False),
                    cache_ms=sum(
                        tally.ns / 1e6
                        for (name, _), tally in traced.kernels.items()
                        if "reshape_and_cache" in window.trace.names[name]
                    ),
                    gate_ms=None
                    if by_index[row]["graph"]["mode"] != "NONE"
                    else _nvjet_ms(window.trace, traced, "vllm::moe_forward", inside_moe=True),
                )
            )
    least: dict[tuple[int, int], float] = {}
    for sample in run.samples:
        key, ms = (sample.window, sample.step), sample.family_ms.get("collective", 0.0)
        least[key] = min(ms, least.get(key, ms))
    for sample in run.samples:
        if run.ranks > 1:
            sample.family_ms["collective"] = least[sample.window, sample.step]


def _nvjet_ms(trace: Any, step: Any, scope: str, *, inside_moe: bool) -> float:
    total = 0
    for (name, chain), tally in step.kernels.items():
        scopes = trace.scopes[chain]
        if trace.names[name].startswith("nvjet") and scope in scopes:
            total += tally.ns if ("vllm::moe_forward" in scopes) == inside_moe else 0
    return total / 1e6
