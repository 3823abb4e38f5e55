"""Facts of a whole campaign with a planted truth, for calibration and tests.

No run directory, engine or trace: steps, windows and sums are drawn directly from a declared truth,
so that a decision over them must come out one way. Everything made here is marked as simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opprof.artifacts.common import Provenance, RunIdentity, SanityBlock
from opprof.artifacts.kernels import (
    ActiveStep,
    Alternative,
    AttentionSplit,
    FamilyTime,
    Kernels,
    Window,
    WindowFamilies,
)
from opprof.decision.design import Key, run_name
from opprof.decision.facts import RunFacts
from opprof.decision.series import CleanSeries
from opprof.mapping.families import FAMILIES
from opprof.protocol.model import ProtocolFile
from opprof.statistics.interference import StepTimes
from opprof.statistics.quantiles import Events

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]

_HASHES = {"v1": "1" * 64, "v2": "2" * 64}
_STEP_NS = 2e7
_ALPHA_MS = 0.5
_LATENCY_PARTS = {"ttft_ms": 0.2, "tpot_ms": 0.01, "latency_ms": 1.0}

SHARES: Mapping[str, float] = {
    "moe_router": 0.04,
    "attention": 0.24,
    "moe_gemm": 0.40,
    "sampler": 0.02,
    "dense_gemm": 0.17,
    "norm_elementwise": 0.10,
    "kv_memory": 0.01,
    "other": 0.02,
}
"""Kernel time of a step by family; sums to 1."""


@dataclass(frozen=True)
class Truth:
    """What one pattern is like; the defaults are the same for all, which is the null."""

    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    share_noise: float = 0.08
    """Relative standard deviation of a family's time from step to step."""
    step_correlation: float = 0.0
    """Correlation of neighbouring active steps."""
    padding: float = 0.05
    miss_rate: float = 0.02
    slowdown: float = 0.0
    """Relative extra time of every step: lowers useful-token efficiency."""
    mixed_extra: float = 0.0
    """Relative extra time of mixed steps: interference."""
    drift: float = 0.03
    """Relative standard deviation of a slow AR(1) modulation of padding and times."""
    drift_correlation: float = 0.5
    """Its correlation from one second to the next."""
    r64: float | None = 0.1
    cv_moe: float | None = 0.2


@dataclass(frozen=True)
class Plan:
    """How much is drawn."""

    windows: int = 2
    active_steps: int = 8
    bins: int = 240
    block_bins: int = 5
    steps_a_bin: int = 10


def planted_facts(
    file: ProtocolFile,
    truths: Mapping[str, Truth],
    generator: Generator,
    *,
    plan: Plan | None = None,
    keys: Sequence[Key] | None = None,
    quarantined: Sequence[Key] = (),
) -> list[RunFacts]:
    """Draw the facts of every run in ``keys`` (default: primary config and load point).

    ``truths`` holds a pattern's truth; a pattern without one has the default.
    """
    load = file.load
    wanted = keys
    if wanted is None:
        primary = (load.primary_config, load.primary_load_point, "primary")
        wanted = [(row.id, *primary) for row in file.patterns]
    return [
        _facts(key, truths.get(key[0], Truth()), plan or Plan(), generator, key in quarantined)
        for key in wanted
    ]


def planted_provenance() -> Provenance:
    """A provenance that names no input, since there is none."""
    return Provenance({}, None, None, "v2", _HASHES["v2"], "planted", "0" * 64)


def _facts(key: Key, truth: Truth, plan: Plan, generator: Generator, quarantined: bool) -> RunFacts:
    pattern, config, load_point, role = key
    run = RunIdentity(
        name=run_name(key),
        pattern=pattern,
        config=config,
        load_point=load_point,
        role=role,
        simulated=True,
        drain_quarantined=quarantined,
    )
    series = planted_series(truth, plan, generator)
    sums = {name: float(values.sum()) for name, values in series.sums.items()}
    windows = [_window(i, truth, plan, generator) for i in range(plan.windows)]
    drawn = [step.moe_layer_cv or 0.0 for window in windows for step in window.steps]
    waste = {
        "padding_fraction": sums["padded_tokens"] / sums["bucket_tokens"],
        "graph_miss_rate": sums["miss_steps"] / sums["executed_steps"],
        "overflow_rate": 0.0,
        "R32": truth.r64,
        "R64": truth.r64,
        "R128": truth.r64,
        "CV_moe": None if truth.cv_moe is None else sum(drawn) / len(drawn),
        "E_token_per_ms": sums["scheduled_tokens"] / sums["step_ms"],
    }
    missing = {name: "not planted" for name, value in waste.items() if value is None}
    return RunFacts(
        kernels=_kernels(run, windows),
        source=f"planted/{run.name}",
        waste=waste,
        missing_waste=missing,
        metrics={"completed_rps": sums["completed"] / sums["seconds"]},
        series=series,
    )


def _kernels(run: RunIdentity, windows: list[Window]) -> Kernels:
    return Kernels(
        schema=1,
        run=run,
        mapping_version="v2",
        mapping_sha256=_HASHES["v2"],
        windows=windows,
        alternatives={
            "v1": Alternative(
                "v1", _HASHES["v1"], [window.alternatives["v1"] for window in windows]
            )
        },
        breakdown_valid=True,
        breakdown_reasons=[],
        representativeness=None,
        gates=[],
        sanity=SanityBlock([], []),
        provenance=planted_provenance(),
    )


def step_nanoseconds(truth: Truth, count: int, generator: Generator) -> list[dict[str, int]]:
    """Draw the families' times of neighbouring active steps."""
    import numpy as np

    noise = ar1(count, len(truth.shares), truth.step_correlation, generator)
    total = _STEP_NS * np.exp(0.2 * generator.standard_normal(count))
    names = list(truth.shares)
    base = np.array([truth.shares[name] for name in names])
    times = base * np.exp(truth.share_noise * noise) * total[:, None]
    return [{name: int(ns) for name, ns in zip(names, row, strict=True)} for row in times.tolist()]


def ar1(count: int, columns: int, correlation: float, generator: Generator) -> Float64:
    """Standard normal series with that correlation of neighbours, float64[count, columns]."""
    import numpy as np

    drawn = generator.standard_normal((count, columns))
    series = np.empty_like(drawn)
    scale = np.sqrt(1 - correlation**2)
    previous = drawn[0]
    for index in range(count):
        previous = drawn[0] if index == 0 else correlation * previous + scale * drawn[index]
        series[index] = previous
    return series


def _window(index: int, truth: Truth, plan: Plan, generator: Generator) -> Window:
    steps = step_nanoseconds(truth, plan.active_steps, generator)
    # v1 calls every dense GEMM a MoE GEMM, as on real Hopper traces.
    merged = [
        {
            **step,
            "moe_gemm": step.get("moe_gemm", 0) + step.get("dense_gemm", 0),
            "dense_gemm": 0,
        }
        for step in steps
    ]
    cv = truth.cv_moe
    values = [
        None if cv is None else abs(cv * (1 + 0.1 * float(generator.standard_normal())))
        for _ in steps
    ]
    return Window(
        **_window_fields(index, "v2", steps),
        steps=[
            ActiveStep(
                profiler_step=2 + position,
                layer1_step=position,
                mode="FULL",
                kernel_ns=sum(step.values()),
                families=step,
                moe_layer_cv=value,
                moe_layers=48,
            )
            for position, (step, value) in enumerate(zip(steps, values, strict=True))
        ],
        alternatives={"v1": WindowFamilies(**_window_fields(index, "v1", merged))},
    )


def _window_fields(index: int, version: str, steps: list[dict[str, int]]) -> dict[str, Any]:
    total = sum(sum(step.values()) for step in steps)
    by_family = {name: sum(step.get(name, 0) for step in steps) for name in FAMILIES}
    return {
        "window": index,
        "rank": 0,
        "mapping_version": version,
        "trace": f"window{index}-rank0.pt.trace.json.gz",
        "profiler_steps": list(range(2, 2 + len(steps))),
        "annotations": len(steps),
        "kernel_events": len(steps),
        "kernel_ns": total,
        "prologue_events": 0,
        "prologue_ns": 0,
        "classified_fraction": 1 - by_family.get("other", 0) / total,
        "families": {
            name: FamilyTime(ns, ns / total, len(steps)) for name, ns in by_family.items()
        },
        "attention": AttentionSplit(0, by_family.get("attention", 0), 0),
        "by_mode": {},
        "top_unmatched": [],
        "accepted": True,
        "reasons": [],
        "classifiable": True,
        "step_family_ns": steps,
    }


def planted_series(truth: Truth, plan: Plan, generator: Generator) -> CleanSeries:
    """Draw the clean steps of a run and bin them."""
    import numpy as np

    count = plan.bins * plan.steps_a_bin
    bins = np.repeat(np.arange(plan.bins), plan.steps_a_bin)
    slow = ar1(plan.bins, 2, truth.drift_correlation, generator) * truth.drift
    kind = generator.integers(0, 20, count)
    prefill = np.where(kind < 8, generator.integers(64, 2048, count), 0)
    decode = np.where((kind >= 4) & (kind < 19), generator.integers(8, 200, count), 0)
    prompts = np.where(prefill > 0, prefill // 1024 + 1, 0)
    duration = (_ALPHA_MS + 0.01 * prefill + 0.03 * decode + 0.3 * prompts) * np.exp(
        0.05 * generator.standard_normal(count) + slow[bins, 0]
    )
    mixed = (prefill > 0) & (decode > 0)
    duration *= (1 + truth.slowdown) * np.where(mixed, 1 + truth.mixed_extra, 1.0)
    executed = (prefill + decode) > 0
    duration = np.where(executed, duration, _ALPHA_MS)
    missed = executed & (generator.random(count) < truth.miss_rate)
    hit = executed & ~missed
    tokens = prefill + decode
    padding = np.clip(truth.padding * np.exp(slow[bins, 1] * 3), 0, 0.9)
    bucket = np.where(hit, np.ceil(tokens / (1 - padding)), 0)

    def binned(values: NDArray[Any]) -> Float64:
        return np.bincount(bins, values, minlength=plan.bins).astype(np.float64)

    completed = generator.poisson(8, plan.bins).astype(np.float64)
    sums = {
        "seconds": np.ones(plan.bins),
        "executed_steps": binned(executed),
        "sized_steps": binned(executed),
        "miss_steps": binned(missed),
        "eligible_miss_steps": binned(missed),
        "overflow_steps": np.zeros(plan.bins),
        "bucket_tokens": binned(bucket),
        "unpadded_tokens": binned(np.where(hit, tokens, 0)),
        "padded_tokens": binned(np.where(hit, bucket - tokens, 0)),
        "scheduled_tokens": binned(tokens),
        "step_ms": binned(np.where(executed, duration, 0.0)),
        "completed": completed,
        "admitted": completed,
    }
    steps = StepTimes(prefill, prompts, decode, decode, duration)
    events = np.repeat(np.arange(plan.bins), completed.astype(np.int64))
    latency = 900.0 * np.exp(0.4 * generator.standard_normal(len(events)) + slow[events, 0])
    latencies = {name: Events(latency * part, events) for name, part in _LATENCY_PARTS.items()}
    return CleanSeries(plan.bins, plan.block_bins, sums, steps, bins, latencies)


def shifted(shares: Mapping[str, float], gain: str, loss: str, amount: float) -> dict[str, float]:
    """Move ``amount`` of the time from one family to another."""
    return {**shares, gain: shares[gain] + amount, loss: shares[loss] - amount}


def inverted(truth: Truth, first: str, second: str) -> Truth:
    """Exchange the shares of two families."""
    shares = {**truth.shares, first: truth.shares[second], second: truth.shares[first]}
    return replace(truth, shares=shares)
