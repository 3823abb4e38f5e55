"""Fit the embedded engine's cost model to real runs and write its data file.

    python scripts/fit_cost_model.py RUNS --held-out P03-C00-saturation --out h200.json

RUNS holds the five H200 runs (``examples/h200-runs`` gives the same file as the originals). The
held-out run enters no coefficient; its errors stand in ``residuals`` beside those of the fitted
runs. With ``--cross`` each run is held out in turn and only the errors are printed.

Device parts are fitted to the operator families of the profiled steps (relative least squares,
coefficients not negative), the host's times and the gaps between kernels to the unprofiled
Layer-1 steps, where submission and completion tell them apart (docs/simulation.md).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares, nnls

from opprof.analysis.inputs import RunInputs, read_inputs
from opprof.analysis.layer1 import read_layer1
from opprof.analysis.windows import read_windows
from opprof.engines.sim.cost import (
    SMALL_ROUTER_TOKENS,
    CostFile,
    CostModel,
    HostTimes,
    NoiseModel,
    ProfilerTimes,
    StepShape,
    families_of,
)
from opprof.mapping import FAMILIES, load_table
from opprof.protocol import Protocol, load_protocol

LAYERS, EXPERTS, TOP_K, BLOCK_TOKENS = 48, 128, 8, 16
KV_BLOCKS = {"1": 46541, "2": 131603}
"""From the runs: blocks of a first request over its ``kv_usage``."""
ALLREDUCE_MS_PER_TOKEN = 0.0017
"""No traced TP2 step has more than 18 tokens: 96 reductions of 4 KiB a token at 230 GB/s."""


@dataclass
class Sample:
    """One profiled step of one rank."""

    run: str
    ranks: int
    shape: StepShape
    family_ms: dict[str, float]
    window: int
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
    samples: list[Sample] = field(default_factory=list)


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
    run = Run(root.name, ranks, steps, profiled)
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


def _nvjet_ms(trace: Any, step: Any, scope: str, *, inside_moe: bool) -> float:
    total = 0
    for (name, chain), tally in step.kernels.items():
        scopes = trace.scopes[chain]
        if trace.names[name].startswith("nvjet") and scope in scopes:
            total += tally.ns if ("vllm::moe_forward" in scopes) == inside_moe else 0
    return total / 1e6


# --------------------------------------------------------------------------- device parts


def fit_parts(samples: list[Sample]) -> dict[str, tuple[float, ...]]:
    """Fit every part; families that share a part are fitted together."""
    parts = {"attention": _attention(samples)}
    parts |= _gemms(samples)
    router = [s for s in samples if s.shape.padded_tokens > SMALL_ROUTER_TOKENS]
    small = [s for s in samples if s.shape.padded_tokens <= SMALL_ROUTER_TOKENS]
    line = _line(router, "moe_router", lambda s: (1.0, s.shape.padded_tokens))
    tiny = statistics.median(s.family_ms["moe_router"] for s in small) if small else line[0]
    parts["moe_router"] = (*line, tiny)
    parts["norm"] = _line(samples, "norm_elementwise", lambda s: (1.0, s.shape.padded_tokens))
    parts["sampler"] = _line(samples, "sampler", lambda s: (1.0, s.shape.rows))
    graph = [s.family_ms.get("other", 0.0) for s in samples if s.shape.mode != "NONE"]
    eager = [s.family_ms.get("other", 0.0) for s in samples if s.shape.mode == "NONE"]
    parts["other"] = (statistics.median(graph), statistics.median(eager))
    # The ranks wait for each other inside a collective; the least of them waits least.
    two = [s.family_ms["collective"] for s in samples if s.ranks > 1]
    floor = float(np.percentile(two, 25)) if two else 0.42
    parts["collective"] = (floor, ALLREDUCE_MS_PER_TOKEN)
    return parts


def _weights(samples: list[Sample]) -> Any:
    """Weigh every distinct step size alike, however many steps had it."""
    keys = [(s.ranks, s.shape.mode, s.shape.padded_tokens // 256) for s in samples]
    counts = Counter(keys)
    return np.array([counts[key] ** -0.5 for key in keys])


def _line(samples: list[Sample], family: str, features: Any) -> tuple[float, ...]:
    """Relative least squares with coefficients that are not negative."""
    seen = np.array([s.family_ms.get(family, 0.0) for s in samples])
    return _nonnegative(samples, [features(s) for s in samples], seen)


def _nonnegative(samples: list[Sample], features: Any, seen: Any) -> tuple[float, ...]:
    weights = _weights(samples)
    rows = np.array(features, dtype=float) / seen[:, None] * weights[:, None]
    solution, _ = nnls(rows, weights)
    return tuple(float(value) for value in solution)


def _attention(samples: list[Sample]) -> tuple[float, ...]:
    """Fit the cache writes by their kernel, then the rest of the family."""
    padded = [(1.0, s.shape.padded_tokens) for s in samples]
    fixed, write = _nonnegative(samples, padded, np.array([s.cache_ms for s in samples]))
    rows = []
    for sample in samples:
        shape, t = sample.shape, sample.ranks
        shared = shape.decode_context - shape.unique_context
        product = shape.prefill_product
        rows.append((1.0, shape.decodes, shape.unique_context / t, shared / t, product / t))
    seen = [s.family_ms["attention"] - fixed - write * s.shape.padded_tokens for s in samples]
    a, b, own, shared_cost, product = _nonnegative(samples, rows, np.array(seen))
    if not any(s.shape.decode_context > 1.2 * s.shape.unique_context for s in samples):
        # No fitted run shares KV blocks: a shared token costs what an own one does.
        shared_cost = own
    return (a + fixed, b, own, shared_cost, product, write)


def _gemms(samples: list[Sample]) -> dict[str, tuple[float, ...]]:
    """Fit the router's and logits GEMM by their kernels, then the two GEMM families together."""
    heads = [(1.0 / s.ranks, s.shape.rows / s.ranks) for s in samples]
    eager = [s for s in samples if s.gate_ms is not None]
    fixed = {
        "lm_head": _nonnegative(samples, heads, np.array([s.head_ms for s in samples])),
        "moe_gate": _nonnegative(
            eager,
            [(1.0, s.shape.padded_tokens) for s in eager],
            np.array([s.gate_ms for s in eager]),
        ),
    }
    weights = _weights(samples)
    scale = np.array([1.0, 0.1, 0.01, 0.3, 1.0, 0.003])
    start = np.array([0.05, 0.115, 0.008, 0.2, 0.5, 0.0025])

    def unpack(values: Any) -> dict[str, tuple[float, ...]]:
        fitted = tuple(float(v) for v in values * scale)
        return {"moe_gemm": fitted[:3], "dense_gemm": fitted[3:], **fixed}

    def residual(values: Any) -> list[float]:
        parts = unpack(values)
        errors = []
        for sample, weight in zip(samples, weights, strict=True):
            moe, dense = _gemm_families(parts, sample)
            errors.append(weight * (moe / sample.family_ms["moe_gemm"] - 1))
            errors.append(weight * (dense / sample.family_ms["dense_gemm"] - 1))
        return errors

    solution = least_squares(residual, start / scale, bounds=(0, np.inf))
    return unpack(solution.x)


def _gemm_families(parts: dict[str, tuple[float, ...]], sample: Sample) -> tuple[float, float]:
    shape, t = sample.shape, sample.ranks
    n = shape.padded_tokens
    hit = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** n)
    a, b, c = parts["moe_gemm"]
    moe = a + math.hypot(b * hit, c * n) / t
    a, b, c = parts["dense_gemm"]
    dense = a + math.hypot(b, c * n) / t
    a, b = parts["lm_head"]
    dense += (a + b * shape.rows) / t
    a, b = parts["moe_gate"]
    gate = a + b * n
    return (moe + gate, dense) if shape.mode == "NONE" else (moe, dense + gate)


# --------------------------------------------------------------------------- host and gaps


def _spans(run: Run) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Three consecutive steps, none of them touched by a profiler window."""
    found = []
    for three in zip(run.steps, run.steps[1:], run.steps[2:], strict=False):
        low, high = three[0]["submit_mono_ns"], three[2]["complete_mono_ns"]
        if not any(low < end and high > start for start, end in run.profiled):
            found.append(three)
    return found


def fit_host(runs: list[Run], parts: dict[str, tuple[float, ...]]) -> HostTimes:
    """Fit the times between steps, launches and gaps from unprofiled steps."""
    between, blocking = [], {"PIECEWISE": [], "NONE": []}
    worker, gaps = [], []
    for run in runs:
        model = CostModel(_bare(parts), run.ranks)
        for before, step, after in _spans(run):
            if before["graph"] is None or step["graph"] is None or after["graph"] is None:
                continue
            pause = (after["submit_mono_ns"] - before["complete_mono_ns"]) / 1e6
            if 0 < pause < 60:
                between.append((step["scheduled_requests"], pause))
            blocked = (before["complete_mono_ns"] - step["submit_mono_ns"]) / 1e6
            mode = step["graph"]["mode"]
            if mode != "FULL" and before["graph"]["mode"] == "FULL":
                if run.ranks == 1 and blocked < 150:
                    blocking[mode].append(blocked)
                elif run.ranks > 1:
                    whole = (step["complete_mono_ns"] - step["submit_mono_ns"]) / 1e6
                    worker.append(whole)
            if mode == before["graph"]["mode"] == after["graph"]["mode"] == "FULL":
                took = (step["complete_mono_ns"] - before["complete_mono_ns"]) / 1e6
                gaps.append(took - sum(model.part_ms(shape_of(step, run.ranks)).values()))
    counts = np.array([[1.0, n] for n, _ in between])
    pauses = np.array([p for _, p in between])
    solution, _ = nnls(counts / pauses[:, None], np.ones(len(pauses)))
    spread = np.log(pauses / (counts @ solution))
    launch = {mode: statistics.median(values) for mode, values in blocking.items() if values}
    return HostTimes(
        between_ms=float(solution[0]),
        between_request_ms=float(solution[1]),
        between_sigma=float(min(0.5, np.percentile(np.abs(spread), 68))),
        launch_ms={"FULL": 1.5, **launch},
        launch_worker_ms={
            "FULL": 1.5,
            "PIECEWISE": float(np.percentile(worker, 10)) if worker else launch["PIECEWISE"],
            "NONE": launch["NONE"],
        },
        launch_sigma={
            "FULL": 0.1,
            **{m: float(np.std(np.log(v))) for m, v in blocking.items() if len(v) > 1},
        },
        first_kernel_ms=1.5,
        gap_ms=dict.fromkeys(blocking | {"FULL": []}, float(max(0.0, statistics.median(gaps)))),
        frontend_ms=3.0,
        frontend_request_ms=2.3,
        frontend_token_ms=0.03,
    )


def _bare(parts: dict[str, tuple[float, ...]]) -> CostFile:
    zero = HostTimes(0, 0, 0, {}, {}, {}, 0, {}, 0, 0, 0)
    return CostFile(
        schema=1,
        device="NVIDIA H200",
        model="Qwen3-30B-A3B shape, dummy weights, bfloat16",
        engine="vllm 0.24.0",
        layers=LAYERS,
        experts=EXPERTS,
        experts_per_token=TOP_K,
        kv_blocks=dict(KV_BLOCKS),
        block_tokens=BLOCK_TOKENS,
        fitted_runs=[],
        held_out_run="",
        parts=parts,
        host=zero,
        profiler=ProfilerTimes(0, 1, 0, 0, 0, 0, 0),
        noise=NoiseModel(0, 0, 0, 0),
        residuals={},
        assumed=[],
    )


def fit_profiler(runs: list[Run]) -> ProfilerTimes:
    """Fit the writing time to the stall that the tenth call after a start shows."""
    rows, seen = [], []
    for run in runs:
        for (start, _), window in zip(run.profiled, (0, 1), strict=True):
            samples = [s for s in run.samples if s.window == window][:8]
            inside = [s for s in run.steps if s["submit_mono_ns"] >= start][:14]
            took = [
                (b["complete_mono_ns"] - a["complete_mono_ns"]) / 1e6 for a, b in pairwise(inside)
            ]
            eager = sum(s.shape.mode != "FULL" for s in samples)
            requests = sum(s.shape.rows for s in samples if s.shape.mode == "FULL")
            rows.append((8.0, requests, eager))
            seen.append(max(took))
    solution, _ = nnls(np.array(rows) / np.array(seen)[:, None], np.ones(len(seen)))
    return ProfilerTimes(
        start_ms=40.0,
        host_factor=2.5,
        save_step_ms=float(solution[0]),
        save_request_ms=float(solution[1]),
        save_eager_ms=float(solution[2]),
        stop_ms=1000.0,
        stop_save_fraction=0.2,
    )


def fit_noise(samples: list[Sample], parts: dict[str, tuple[float, ...]]) -> NoiseModel:
    """Split the logarithm of measured over modelled family times: window, step, part."""
    windows: dict[tuple[str, int, int], list[float]] = {}
    single = []
    for sample in samples:
        model = CostModel(_bare(parts), sample.ranks)
        families = families_of(model.part_ms(sample.shape), sample.shape.mode)
        whole = math.log(sum(sample.family_ms.values()) / sum(families.values()))
        windows.setdefault((sample.run, sample.window, sample.ranks), []).append(whole)
        for name in ("moe_gemm", "attention", "dense_gemm", "norm_elementwise"):
            single.append(math.log(sample.family_ms[name] / families[name]) - whole)
    means = [statistics.fmean(values) for values in windows.values()]
    within = [v - statistics.fmean(values) for values in windows.values() for v in values]
    return NoiseModel(
        step_sigma=float(np.percentile(np.abs(within), 68)),
        part_sigma=float(np.percentile(np.abs(single), 50)),
        drift_sigma=float(np.std(means)),
        drift_s=20.0,
    )


# --------------------------------------------------------------------------- the file


def residuals(samples: list[Sample], file: CostFile) -> dict[str, dict[str, float]]:
    """Return run to family to (summed model / summed measurement - 1) over the profiled steps."""
    result: dict[str, dict[str, float]] = {}
    for name in sorted({s.run for s in samples}):
        chosen = [s for s in samples if s.run == name]
        model = CostModel(file, chosen[0].ranks)
        made = [families_of(model.part_ms(s.shape), s.shape.mode) for s in chosen]
        result[name] = {}
        for family in FAMILIES:
            seen = sum(s.family_ms.get(family, 0.0) for s in chosen)
            if seen > 0:
                result[name][family] = round(sum(m[family] for m in made) / seen - 1, 4)
        total = sum(sum(s.family_ms.values()) for s in chosen)
        result[name]["kernel_time"] = round(sum(sum(m.values()) for m in made) / total - 1, 4)
    return result


def fit(runs: list[Run], held_out: str) -> CostFile:
    """Fit everything to the runs but ``held_out``."""
    used = [run for run in runs if run.name != held_out]
    samples = [sample for run in used for sample in run.samples]
    parts = fit_parts(samples)
    file = msgspec.structs.replace(
        _bare(parts),
        fitted_runs=[run.name for run in used],
        held_out_run=held_out,
        host=fit_host(used, parts),
        profiler=fit_profiler(used),
        noise=fit_noise(samples, parts),
        assumed=[
            f"collective: {ALLREDUCE_MS_PER_TOKEN} ms a token (96 all-reduces of 4 KiB at 230 "
            "GB/s); the traced TP2 steps have at most 18 tokens",
            "host.launch_ms FULL and first_kernel_ms: 1.5 ms, hidden behind the step before",
            "profiler.start_ms, host_factor, stop_ms: typical of the runs' windows",
            "frontend_ms: first tokens 2 to 5 ms after their step; frontend_request_ms: 256 "
            "requests sent together are in the engine after 0.6 to 0.75 s; frontend_token_ms: what "
            "is left",
            "noise.drift_s: two windows a run cannot tell it",
        ],
    )
    everything = [sample for run in runs for sample in run.samples]
    return msgspec.structs.replace(file, residuals=residuals(everything, file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--held-out", default="P03-C00-saturation")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cross", action="store_true")
    arguments = parser.parse_args()
    protocol = load_protocol()
    assert protocol is not None
    roots = sorted(path for path in arguments.runs.iterdir() if (path / "client").is_dir())
    runs = [read_run(root, protocol) for root in roots]
    names = [run.name for run in runs] if arguments.cross else [arguments.held_out]
    for name in names:
        file = fit(runs, name)
        print(f"held out {name}:")
        for run, errors in file.residuals.items():
            mark = "*" if run == name else " "
            print(f" {mark}{run:24s}", "  ".join(f"{k} {v:+.1%}" for k, v in errors.items()))
        if arguments.out is not None and not arguments.cross:
            text = msgspec.json.format(msgspec.json.encode(_rounded(file)), indent=1)
            arguments.out.write_bytes(text + b"\n")
    return 0


def _rounded(value: Any) -> Any:
    """Six significant digits: what the data can bear, and stable between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return _rounded(msgspec.to_builtins(value))
    return value


if __name__ == "__main__":
    sys.exit(main())
