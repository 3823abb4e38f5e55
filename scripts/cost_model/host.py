"""The host's times, fitted to unprofiled Layer-1 steps; what a profiler window costs; noise."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import nnls

from cost_model.device import bare
from cost_model.samples import Run, Sample, shape_of
from opprof.engines.sim.cost import (
    CostModel,
    HostTimes,
    NoiseModel,
    ProfilerTimes,
    families_of,
)


def _spans(run: Run) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Three consecutive steps, none of them touched by a profiler window."""
    found = []
    for three in zip(run.steps, run.steps[1:], run.steps[2:], strict=False):
        low, high = three[0]["submit_mono_ns"], three[2]["complete_mono_ns"]
        if not any(low < end and high > start for start, end in run.profiled):
            found.append(three)
    return found


LAUNCH_FULL_MS = 1.5
HOST_FACTOR = 2.5
"""On launches and pauses in a window."""
LAUNCHED = ("PIECEWISE", "NONE")


def _spread(values: list[float]) -> float:
    """Return the standard deviation of the logarithm, from the middle two thirds."""
    low, high = np.percentile(np.log(values), [16, 84])
    return float(high - low) / 2


def _launch_request(runs: list[Run], between: tuple[float, float]) -> float:
    """Return the launch time of a request, from windows: there launching sets the pace."""
    found = []
    for run in runs:
        for start_ns, _ in run.profiled:
            inside = [s for s in run.steps if s["submit_mono_ns"] >= start_ns][2:9]
            for one, two in pairwise(inside):
                if two["graph"] is None or two["graph"]["mode"] != "FULL":
                    continue
                count = two["scheduled_requests"]
                plain = LAUNCH_FULL_MS + (between[0] + between[1] * count) * (run.ranks == 1)
                took = (two["submit_mono_ns"] - one["submit_mono_ns"]) / 1e6
                if count >= 64 and took < 100:
                    found.append(max(0.0, took / HOST_FACTOR - plain) / count)
    return statistics.median(found) if found else 0.0


def fit_host(runs: list[Run], parts: dict[str, tuple[float, ...]]) -> HostTimes:
    """Fit the times between steps, launches and gaps from unprofiled steps."""
    between: list[tuple[int, float]] = []
    # Requests and time of launches behind a graph: until the engine thread is free, or, by a
    # worker, until the step ends.
    own: dict[str, list[tuple[int, float]]] = {mode: [] for mode in LAUNCHED}
    workers: dict[str, list[tuple[int, float]]] = {mode: [] for mode in LAUNCHED}
    gaps = []
    for run in runs:
        model = CostModel(bare(parts), run.ranks)
        for before, step, after in _spans(run):
            if before["graph"] is None or step["graph"] is None or after["graph"] is None:
                continue
            count = step["scheduled_requests"]
            pause = (after["submit_mono_ns"] - before["complete_mono_ns"]) / 1e6
            if 0 < pause < 60:
                between.append((count, pause))
            mode = step["graph"]["mode"]
            if mode != "FULL" and before["graph"]["mode"] == "FULL":
                blocked = (before["complete_mono_ns"] - step["submit_mono_ns"]) / 1e6
                if run.ranks > 1:
                    whole = (step["complete_mono_ns"] - step["submit_mono_ns"]) / 1e6
                    workers[mode].append((count, whole))
                elif blocked < 150:
                    own[mode].append((count, blocked))
            if mode == before["graph"]["mode"] == after["graph"]["mode"] == "FULL":
                took = (step["complete_mono_ns"] - before["complete_mono_ns"]) / 1e6
                gaps.append(took - sum(model.part_ms(shape_of(step, run.ranks)).values()))
    counts = np.array([[1.0, n] for n, _ in between])
    pauses = np.array([p for _, p in between])
    solution, _ = nnls(counts / pauses[:, None], np.ones(len(pauses)))
    fixed, each = float(solution[0]), float(solution[1])
    spread = np.log(pauses / (counts @ solution))
    request = _launch_request(runs, (fixed, each))

    def launch(found: dict[str, list[tuple[int, float]]]) -> dict[str, float]:
        return {
            mode: statistics.median(max(0.0, ms - request * n) for n, ms in values)
            for mode, values in found.items()
            if values
        }

    return HostTimes(
        between_ms=fixed,
        between_request_ms=each,
        between_sigma=float(min(0.5, np.percentile(np.abs(spread), 68))),
        launch_ms={"FULL": LAUNCH_FULL_MS, **launch(own)},
        launch_worker_ms={"FULL": LAUNCH_FULL_MS, **launch(own), **launch(workers)},
        launch_request_ms=request,
        launch_sigma={
            "FULL": 0.1,
            **{mode: _spread([ms for _, ms in values]) for mode, values in own.items() if values},
        },
        first_kernel_ms=1.5,
        gap_ms=dict.fromkeys(("FULL", *LAUNCHED), float(max(0.0, statistics.median(gaps)))),
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
        host_factor=HOST_FACTOR,
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
        model = CostModel(bare(parts), sample.ranks)
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
