"""Device parts of a step, fitted to the operator families of profiled steps.

Relative least squares with coefficients that are not negative; every distinct step size weighs
alike.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

import numpy as np
from scipy.optimize import least_squares, nnls

from cost_model.samples import BLOCK_TOKENS, KV_BLOCKS, Sample
from opprof.engines.sim.cost import (
    SMALL_ROUTER_TOKENS,
    CostFile,
    FrontendTimes,
    HostTimes,
    NoiseModel,
    ProfilerTimes,
)

EXPERTS, TOP_K = 128, 8
Parts = dict[str, tuple[float, ...]]
LAYERS = 48
NO_COLLECTIVE = (0.42, 0.0017)
"""Where no run has ranks: 96 reductions of 4 KiB a token at 230 GB/s."""


def fit_parts(samples: list[Sample]) -> dict[str, tuple[float, ...]]:
    """Fit every part; families that share a part are fitted together."""
    parts = _attention(samples) | _gemms(samples)
    router = [s for s in samples if s.shape.padded_tokens > SMALL_ROUTER_TOKENS]
    small = [s for s in samples if s.shape.padded_tokens <= SMALL_ROUTER_TOKENS]
    line = _line(router, "moe_router", lambda s: (1.0, s.shape.padded_tokens))
    tiny = statistics.median(s.family_ms["moe_router"] for s in small) if small else line[0]
    parts["moe_router"] = (*line, tiny)
    parts["norm"] = _line(
        samples,
        "norm_elementwise",
        lambda s: (1.0, s.shape.padded_tokens, s.shape.padded_tokens / s.ranks),
    )
    parts["sampler"] = _line(samples, "sampler", lambda s: (1.0, s.shape.rows))
    graph = [s.family_ms.get("other", 0.0) for s in samples if s.shape.mode != "NONE"]
    eager = [s.family_ms.get("other", 0.0) for s in samples if s.shape.mode == "NONE"]
    parts["other"] = (statistics.median(graph), statistics.median(eager))
    several = [s for s in samples if s.ranks > 1]
    line = _line(several, "collective", lambda s: (1.0, s.shape.padded_tokens)) if several else None
    parts["collective"] = line or NO_COLLECTIVE
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


def _nonnegative(
    samples: list[Sample], features: Any, seen: Any, scale: Any = None
) -> tuple[float, ...]:
    """Fit ``seen``; an error counts relative to ``scale``, or to ``seen`` itself."""
    weights = _weights(samples) / (seen if scale is None else scale)
    solution, _ = nnls(np.array(features, dtype=float) * weights[:, None], seen * weights)
    return tuple(float(value) for value in solution)


def _attention(samples: list[Sample]) -> Parts:
    """Fit the cache writes by their kernel, then steps of decodes, then steps with prefill."""
    padded = [(1.0, s.shape.padded_tokens / s.ranks) for s in samples]
    fixed, write = _nonnegative(samples, padded, np.array([s.cache_ms for s in samples]))

    def rest(sample: Sample) -> float:
        written = fixed + write * sample.shape.padded_tokens / sample.ranks
        return sample.family_ms["attention"] - written

    pure = [s for s in samples if s.shape.rows == s.shape.decodes]
    rows = []
    for sample in pure:
        shape, t = sample.shape, sample.ranks
        shared = shape.decode_context - shape.unique_context
        rows.append((1.0, shape.decodes / t, shape.unique_context / t, shared / t))
    seen = np.array([rest(s) for s in pure])
    a, b, own, shared_cost = _nonnegative(pure, rows, seen)
    if not any(s.shape.decode_context > 1.2 * s.shape.unique_context for s in pure):
        # No fitted run shares KV blocks: a shared token costs what an own one does.
        shared_cost = own
    mixed = [s for s in samples if s.shape.rows > s.shape.decodes]
    rows, left = [], []
    for sample in mixed:
        shape, t = sample.shape, sample.ranks
        shared = shape.decode_context - shape.unique_context
        prefill = max(0, shape.padded_tokens - shape.decodes)
        rows.append((prefill / t, shape.prefill_product / t, shape.decodes / t))
        left.append(rest(sample) - a - (own * shape.unique_context + shared_cost * shared) / t)
    weigh = np.array([s.family_ms["attention"] for s in mixed])
    return {
        "attention": (a + fixed, b, own, shared_cost, write),
        "attention_mixed": _nonnegative(mixed, rows, np.array(left), weigh),
    }


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
    scale = np.array([1.0, 0.1, 0.01, 0.1, 0.3, 1.0, 0.003])
    start = np.array([0.05, 0.115, 0.008, 0.01, 0.2, 0.5, 0.0025])

    def unpack(values: Any) -> dict[str, tuple[float, ...]]:
        fitted = tuple(float(v) for v in values * scale)
        return {"moe_gemm": fitted[:4], "dense_gemm": fitted[4:], **fixed}

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
    a, b, c, d = parts["moe_gemm"]
    moe = a + math.hypot(b * hit, c * n) * (1 + d * (t - 1)) / t
    a, b, c = parts["dense_gemm"]
    dense = a + math.hypot(b, c * n) / t
    a, b = parts["lm_head"]
    dense += (a + b * shape.rows) / t
    a, b = parts["moe_gate"]
    gate = a + b * n
    return (moe + gate, dense) if shape.mode == "NONE" else (moe, dense + gate)


def bare(parts: Parts) -> CostFile:
    """Return a cost file that has nothing but device parts."""
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
        host=HostTimes(0, 0, 0, {}, {}, 0, {}, 0, {}),
        frontend=FrontendTimes(0, 0, 0, 0, 0, 0, 0, 0),
        profiler=ProfilerTimes(0, 1, 0, 0, 0, 0, 0),
        noise=NoiseModel(0, 0, 0, 0),
        residuals={},
        assumed=[],
    )
