"""The fast path: one repeat of a whole campaign's decision, drawn from populations.

A repeat draws, for each primary cell, as many of the population's windows as the protocol has and
new noise on their steps; moving blocks of the clean series; and the gates that go with the drawn
windows. Everything else (gates of the run, lengths) is the whole path's own. Then it decides by the
ordinary code. Source: protocol, "Statistical summaries" for the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from opprof.analysis.gates import invalidates
from opprof.analysis.representativeness import judge_window
from opprof.artifacts.common import Gate
from opprof.artifacts.kernels import ActiveStep, FamilyTime, Kernels, Window
from opprof.decision.facts import GateReach, RunFacts
from opprof.decision.series import CleanSeries, Missing
from opprof.engines.sim.cost import PARTS, CostFile, CostModel, families_of
from opprof.engines.sim.graphs import Dispatch
from opprof.protocol import Protocol
from opprof.rehearsal.population import Population
from opprof.statistics.interference import StepTimes
from opprof.statistics.quantiles import Events

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    Int64 = NDArray[np.int64]

OPAQUE = "graph_replay_opaque"
MS = 1_000_000
_REDRAWN = ("representativeness", "recovery")
"""Gates that are judged anew in each repeat."""


@dataclass(frozen=True)
class FastCell:
    """One primary cell: the whole path's facts and the population behind its repeats."""

    base: RunFacts
    population: Population


@dataclass(frozen=True)
class DrawnRun:
    """One run of one repeat."""

    facts: RunFacts
    failed_gates: frozenset[str]


def draw_run(cell: FastCell, cost: CostFile, protocol: Protocol, generator: Generator) -> DrawnRun:
    """Draw one run of a repeat."""
    population, base = cell.population, cell.base
    wanted = protocol.file.timeline.profile_windows
    chosen = generator.choice(len(population.windows), size=wanted, replace=False)
    kernels, gates = _windows(cell, cost, protocol, generator, [int(i) for i in chosen])
    if any(population.recovery_failed[int(i)] for i in chosen):
        gates.append(_gate("recovery", "completion rate or waiting depth did not return"))
    kept = [item for item in base.gates if item.gate.name not in _REDRAWN]
    reached = [GateReach(gate, invalidates(gate)) for gate in gates]
    series: CleanSeries | Missing = population.series
    waste = dict(base.waste)
    if isinstance(series, CleanSeries):
        series = resample_series(series, generator)
        waste |= waste_of(series)
    variations = [
        step.moe_layer_cv
        for window in kernels.windows
        for step in window.steps
        if step.moe_layer_cv is not None
    ]
    if base.waste.get("CV_moe") is not None and variations:
        waste["CV_moe"] = math.fsum(variations) / len(variations)
    facts = replace(
        base, kernels=kernels, gates=[*kept, *reached], waste=waste, series=series, metrics={}
    )
    failed = {item.gate.name for item in facts.gates if item.gate.outcome == "fail"}
    return DrawnRun(facts, frozenset(failed))


def _gate(name: str, reason: str) -> Gate:
    return Gate(name=name, outcome="fail", reason=reason)


def _windows(
    cell: FastCell,
    cost: CostFile,
    protocol: Protocol,
    generator: Generator,
    chosen: Sequence[int],
) -> tuple[Kernels, list[Gate]]:
    """Return the drawn windows as ``kernels.json`` and the gates they fail."""
    import numpy as np

    base, population = cell.base.kernels, cell.population
    rule = protocol.file.representativeness
    model = CostModel(cost, 1)
    windows, reasons, gates = [], [], []
    for position, index in enumerate(chosen):
        steps = population.windows[index]
        drift = float(np.exp(generator.normal(0.0, cost.noise.drift_sigma)))
        drawn = [_step_families(population, model, generator, step, drift, cost) for step in steps]
        windows.append(_window(base.windows[position], population, steps, drawn, protocol))
        rows = population.columns.step.searchsorted(np.asarray(steps, np.int64))
        judged = judge_window(
            population.columns,
            rows,
            population.clean_rows,
            rule,
            window=position,
            clean_segment=None,
        )
        if judged.outcome == "fail":
            reasons.append(f"window {position}: {judged.reason}")
    if reasons:
        gates.append(_gate("representativeness", reasons[0]))
    if any(window.classifiable is False for window in windows):
        gates.append(_gate("classifiable", "too little kernel time is classified"))
    kernels = msgspec.structs.replace(
        base,
        windows=windows,
        alternatives={
            version: msgspec.structs.replace(
                table, windows=[window.alternatives[version] for window in windows]
            )
            for version, table in base.alternatives.items()
        },
        breakdown_valid=not reasons,
        breakdown_reasons=reasons,
        representativeness=None,
    )
    return kernels, gates


def _step_families(
    population: Population,
    model: CostModel,
    generator: Generator,
    step: int,
    drift: float,
    cost: CostFile,
) -> dict[str, int]:
    """Return one step's family times with new noise, nanoseconds."""
    _, shape = population.shapes[step]
    effects, noise = population.effects, cost.noise
    parts = effects.shares(model.part_ms(shape), shape.mode)
    factor = drift * effects.slowdown * math.exp(generator.normal(0.0, noise.step_sigma))
    spread = generator.normal(0.0, noise.part_sigma, len(PARTS)).tolist()
    noisy = {
        name: value * factor * math.exp(sigma)
        for (name, value), sigma in zip(parts.items(), spread, strict=True)
    }
    dispatch: Dispatch = population.shapes[step][0]
    families = families_of(noisy, dispatch.mode)
    if effects.opaque and dispatch.mode != "NONE":
        seen = {"sampler": families["sampler"], "dense_gemm": noisy["lm_head"]}
        families = {**seen, OPAQUE: sum(families.values()) - sum(seen.values())}
    return {name: round(ms * MS) for name, ms in families.items() if ms > 0}


def _merged(step: Mapping[str, int], version: str) -> dict[str, int]:
    """Return a step under another table: ``v1`` counts every cuBLAS kernel as a MoE GEMM."""
    if version != "v1":
        return dict(step)
    merged = {name: ns for name, ns in step.items() if name != "dense_gemm"}
    merged["moe_gemm"] = merged.get("moe_gemm", 0) + step.get("dense_gemm", 0)
    return merged


def _window(
    base: Window,
    population: Population,
    steps: Sequence[int],
    drawn: Sequence[dict[str, int]],
    protocol: Protocol,
) -> Window:
    limit = protocol.file.gates.classifiable_min
    alternatives = {
        version: msgspec.structs.replace(
            window, **_fields([_merged(step, version) for step in drawn], limit)
        )
        for version, window in base.alternatives.items()
    }
    # Layers are told apart outside graphs only, so a mode either has a variation or has none.
    by_mode = {step.mode: step for step in base.steps}
    actives = [
        ActiveStep(
            profiler_step=position + protocol.file.layer2.warmup_iterations,
            layer1_step=step,
            mode=population.shapes[step][0].mode,
            kernel_ns=sum(families.values()),
            families=families,
            moe_layer_cv=_variation(by_mode.get(population.shapes[step][0].mode)),
        )
        for position, (step, families) in enumerate(zip(steps, drawn, strict=True))
    ]
    return msgspec.structs.replace(
        base, steps=actives, alternatives=alternatives, **_fields(drawn, limit)
    )


def _variation(step: ActiveStep | None) -> float | None:
    return None if step is None else step.moe_layer_cv


def _fields(steps: Sequence[Mapping[str, int]], classifiable_min: float) -> dict[str, Any]:
    sums: dict[str, int] = {}
    for step in steps:
        for name, ns in step.items():
            sums[name] = sums.get(name, 0) + ns
    total = sum(sums.values())
    classified = 1 - (sums.get("other", 0) + sums.get(OPAQUE, 0)) / total
    return {
        "kernel_ns": total,
        "classified_fraction": classified,
        "classifiable": classified >= classifiable_min,
        "families": {name: FamilyTime(ns, ns / total, len(steps)) for name, ns in sums.items()},
        "accepted": True,
        "reasons": [],
        "step_family_ns": [dict(step) for step in steps],
    }


def resample_series(series: CleanSeries, generator: Generator) -> CleanSeries:
    """Draw moving blocks of a clean series, steps and latencies with them."""
    import numpy as np

    blocks = -(-series.bins // series.block_bins)
    starts = generator.integers(0, series.bins - series.block_bins + 1, blocks)
    taken = (starts[:, None] + np.arange(series.block_bins)).reshape(-1)[: series.bins]
    steps, bins = _reorder(series.step_bins, taken)
    times = series.steps
    return CleanSeries(
        bins=series.bins,
        block_bins=series.block_bins,
        sums={name: values[taken] for name, values in series.sums.items()},
        steps=StepTimes(
            times.prefill_tokens[steps],
            times.prefill_requests[steps],
            times.decode_tokens[steps],
            times.decode_requests[steps],
            times.duration_ms[steps],
        ),
        step_bins=bins,
        latencies={
            name: Events(events.values[rows], to)
            for name, events in series.latencies.items()
            for rows, to in [_reorder(events.bins, taken)]
        },
    )


def _reorder(bins: Int64, taken: Int64) -> tuple[Int64, Int64]:
    """Return which items the drawn bins hold, and the bins they lie in now."""
    import numpy as np

    order = np.argsort(bins, kind="stable")
    ordered = bins[order]
    first = np.searchsorted(ordered, taken, side="left")
    last = np.searchsorted(ordered, taken, side="right")
    counts = last - first
    to = np.repeat(np.arange(len(taken)), counts)
    offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + offsets], to


def waste_of(series: CleanSeries) -> dict[str, float | None]:
    """Return the waste ratios of a series, under the names of the contract."""
    sums = {name: float(values.sum()) for name, values in series.sums.items()}

    def ratio(top: str, bottom: str) -> float | None:
        return sums[top] / sums[bottom] if sums[bottom] > 0 else None

    return {
        "padding_fraction": ratio("padded_tokens", "bucket_tokens"),
        "graph_miss_rate": ratio("miss_steps", "executed_steps"),
        "eligible_miss_rate": ratio("eligible_miss_steps", "executed_steps"),
        "overflow_rate": ratio("overflow_steps", "executed_steps"),
        "E_token_per_ms": ratio("scheduled_tokens", "step_ms"),
    }
