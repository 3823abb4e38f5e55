"""What a decision must say, worked out again from run directories: nothing from the product.

Reads the raw streams, timelines, request records and ``kernels.json``; formulas are the protocol's
(moving blocks, labels permuted within windows, Holm, P-splines), their settings the TOML file's.
Fits and distributions come from scipy, resamples from another generator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import interpolate, optimize, spatial, stats

Row = dict[str, Any]


@dataclass
class PlainRun:
    """One run directory as plain lists."""

    name: str
    pattern: str
    start: int
    end: int
    steps: list[Row]
    """Steps inside the clean union; ``ns`` is their duration."""
    windows: list[Row]
    waste: Row


def read_run(run: Path, analysis: Path) -> PlainRun:
    timeline = json.loads((run / "client" / "timeline.json").read_text())
    clean = [i for i in timeline["intervals"] if i["kind"] == "clean"]
    start, end = clean[0]["start_mono_ns"], clean[-1]["end_mono_ns"]
    last, steps = None, []
    for line in (run / "opprof" / "engine-0.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["type"] != "step":
            continue
        begin = row["submit_mono_ns"] if last is None else max(row["submit_mono_ns"], last)
        done = row["complete_mono_ns"]
        if begin >= start and done <= end:
            steps.append({**row, "ns": done - begin})
        last = done if last is None else max(last, done)
    kernels = json.loads((analysis / "kernels.json").read_text())
    name = "-".join(timeline[key] for key in ("pattern", "config", "load_point"))
    waste = json.loads((analysis / "waste.json").read_text())
    return PlainRun(name, timeline["pattern"], start, end, steps, kernels["windows"], waste)


# ------------------------------------------------------------------------------ bootstrap


def bins_of(run: PlainRun, rows: list[Row], values: list[float], bin_ns: int) -> np.ndarray:
    """Sums by bin of completion; the last nanosecond of the union belongs to the last bin."""
    count = (run.end - run.start) // bin_ns
    sums = np.zeros(count)
    for row, value in zip(rows, values, strict=True):
        at = (row["complete_mono_ns"] - run.start) // bin_ns
        sums[min(at, count - 1)] += value
    return sums


def waste_sums(run: PlainRun, bin_ns: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Numerator and denominator by bin of each ratio that the clean steps give."""
    ran = [s for s in run.steps if s["model_executed"] and s["prefill_tokens"] + s["decode_tokens"]]
    hit = [s for s in ran if s["graph"]["hit"] and s["graph"]["bucket_tokens"] > 0]
    missed = [s for s in ran if not s["graph"]["hit"]]

    def of(rows: list[Row], value: Any) -> np.ndarray:
        return bins_of(run, rows, [float(value(row)) for row in rows], bin_ns)

    def padding(s: Row) -> int:
        return int(s["graph"]["bucket_tokens"] - s["graph"]["unpadded_tokens"])

    return {
        "padding_fraction": (of(hit, padding), of(hit, lambda s: s["graph"]["bucket_tokens"])),
        "graph_miss_rate": (of(missed, lambda s: 1), of(ran, lambda s: 1)),
        "E_token_per_ms": (
            of(ran, lambda s: s["prefill_tokens"] + s["decode_tokens"]),
            of(ran, lambda s: s["ns"] / 1e6),
        ),
    }


def moving_blocks(
    parts: tuple[np.ndarray, np.ndarray], block: int, resamples: int, seed: int, *, circular: bool
) -> np.ndarray:
    """Ratios of sums of moving-block resamples, drawn bin by bin."""
    top, bottom = parts
    n = len(top)
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, n if circular else n - block + 1, (resamples, n // block))
    index = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1) % n
    return top[index].sum(axis=1) / bottom[index].sum(axis=1)


# ---------------------------------------------------------------------------- permutation


def window_rows(run: PlainRun, families: list[str], version: str) -> list[np.ndarray]:
    """Each window's steps: family times, the step's whole time last."""
    found = []
    for window in run.windows:
        steps = window["step_family_ns"]
        if version in window["alternatives"]:
            steps = window["alternatives"][version]["step_family_ns"]
        rows = [[s.get(f, 0) for f in families] + [sum(s.values())] for s in steps]
        found.append(np.array(rows, float))
    return found


def lead(rows: np.ndarray, a: int, b: int) -> float:
    return float((rows[:, a].sum() - rows[:, b].sum()) / rows[:, -1].sum())


def exact_p(p: list[np.ndarray], q: list[np.ndarray], a: int, b: int) -> float:
    """Two-sided over all joint labellings: each window by brute force, then every pair of them."""
    tables = []
    observed = 0.0
    for mine, theirs in zip(p, q, strict=True):
        observed += lead(mine, a, b) - lead(theirs, a, b)
        pool = np.concatenate([mine, theirs])
        gap, total = pool[:, a] - pool[:, b], pool[:, -1]
        chosen = np.array(list(combinations(range(len(pool)), len(mine))))
        up, down = gap[chosen].sum(axis=1), total[chosen].sum(axis=1)
        tables.append(up / down - (gap.sum() - up) / (total.sum() - down))
    first, second = tables
    second = np.sort(second)
    bar = abs(observed) - 2e-12
    high = len(second) - np.searchsorted(second, bar - first, side="left")
    low = np.searchsorted(second, -bar - first, side="right")
    if bar <= 0:
        return 1.0
    return float((high + low).sum() / (len(first) * len(second)))


def drawn_p(
    p: list[np.ndarray], q: list[np.ndarray], a: int, b: int, permutations: int, seed: int
) -> float:
    """``(k + 1) / (n + 1)`` by shuffling labels, one permutation at a time."""
    generator = np.random.default_rng(seed)
    pools = [np.concatenate(pair) for pair in zip(p, q, strict=True)]
    counts = [len(mine) for mine in p]
    observed = abs(sum(lead(m, a, b) - lead(t, a, b) for m, t in zip(p, q, strict=True)))
    reached = 0
    for _ in range(permutations):
        value = 0.0
        for pool, mine in zip(pools, counts, strict=True):
            order = generator.permutation(len(pool))
            value += lead(pool[order[:mine]], a, b) - lead(pool[order[mine:]], a, b)
        reached += abs(value) >= observed - 2e-12
    return (reached + 1) / (permutations + 1)


def holm(p_values: list[float], size: int | None = None) -> list[float]:
    m = size or len(p_values)
    result, running = [0.0] * len(p_values), 0.0
    for step, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, p_values[i] * (m - step)))
        result[i] = running
    return result


# ----------------------------------------------------------------------------------- null


def deepest_inversion_bound(
    runs: list[PlainRun], families: list[str], version: str, alpha: float
) -> float:
    """Greatest of ``min(upper lead of a over b in p, upper lead of b over a in q)``."""
    bounded = len(runs) * len(families) * (len(families) - 1)
    upper: dict[tuple[str, int, int], float] = {}
    for run in runs:
        windows = window_rows(run, families, version)
        for a in range(len(families)):
            for b in range(len(families)):
                if a == b:
                    continue
                mean, variance, below = 0.0, 0.0, 0.0
                for rows in windows:
                    n, share = len(rows), lead(rows, a, b)
                    rest = rows[:, a] - rows[:, b] - share * rows[:, -1]
                    own = (rest / rows[:, -1].mean()).var(ddof=0) / (n - 1) / len(windows) ** 2
                    mean, variance = mean + share / len(windows), variance + own
                    below += own**2 / (n - 1)
                margin = 0.0
                if variance > 0:
                    t = stats.t.isf(alpha / bounded, variance**2 / below)
                    margin = float(t) * variance**0.5
                upper[run.pattern, a, b] = mean + margin
    return max(
        min(upper[p.pattern, a, b], upper[q.pattern, b, a])
        for p, q in combinations(runs, 2)
        for a in range(len(families))
        for b in range(len(families))
        if a != b
    )


# --------------------------------------------------------------------------- interference


class PlainSurface:
    """A penalised tensor of quadratic B-splines with coefficients >= 0, by scipy's solver."""

    def __init__(self, x: np.ndarray, y: np.ndarray, t: np.ndarray, rule: Row) -> None:
        self.axes = [self._axis(v, n, rule["degree"]) for v, n in
                     ((x, rule["tokens_basis"]), (y, rule["requests_basis"]))]  # fmt: skip
        design, sizes = self._design(x, y), [axis[1] for axis in self.axes]
        second = [np.diff(np.eye(n), n=min(2, n - 1), axis=0) if n > 1 else np.zeros((1, 1))
                  for n in sizes]  # fmt: skip
        roots = [np.kron(second[0], np.eye(sizes[1])), np.kron(np.eye(sizes[0]), second[1])]
        trace = sum(float((root**2).sum()) for root in roots)
        weights, old = np.ones(len(t)), np.zeros(design.shape[1])
        for _ in range(rule["iterations_max"]):
            heavy = np.sqrt(weights)[:, None]
            information = float(((design * heavy) ** 2).sum())
            rows = [design * heavy]
            if trace:
                rows += [root * (rule["penalty"] * information / trace) ** 0.5 for root in roots]
            rows.append(np.eye(design.shape[1]) * (1e-10 * information / design.shape[1]) ** 0.5)
            matrix = np.concatenate(rows)
            target = np.zeros(len(matrix))
            target[: len(t)] = t * heavy[:, 0]
            self.coefficients = optimize.nnls(matrix, target, maxiter=10_000)[0]
            rest = np.abs(t - design @ self.coefficients)
            scale = float(np.median(rest)) / stats.norm.ppf(0.75)
            moved = float(np.abs(self.coefficients - old).max())
            if scale == 0 or moved <= rule["tolerance"] * float(self.coefficients.max()):
                break
            old = self.coefficients
            weights = np.minimum(1.0, rule["huber_k"] * scale / np.maximum(rest, 1e-300))
        self.points = np.unique(np.column_stack([x, y]), axis=0)

    @staticmethod
    def _axis(values: np.ndarray, size: int, degree: int) -> tuple[Any, int]:
        size = min(size, len(np.unique(values)))
        degree = min(degree, size - 1)
        low, high = float(values.min()), float(values.max())
        if size == 1:
            return None, 1
        width = (high - low) / (size - degree)
        knots = low + width * np.arange(-degree, size + 1)
        return interpolate.BSpline(knots, np.eye(size), degree, extrapolate=False), size

    def _design(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        parts = []
        for values, (spline, size) in zip((x, y), self.axes, strict=True):
            if spline is None:
                parts.append(np.ones((len(values), 1)))
                continue
            ends = spline.t[spline.k], spline.t[size]
            inside = np.clip(np.asarray(values, float), ends[0], np.nextafter(ends[1], ends[0]))
            parts.append(spline(inside))
        size = parts[0].shape[1] * parts[1].shape[1]
        return np.einsum("ia,ib->iab", *parts).reshape(len(x), size)

    def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._design(x, y) @ self.coefficients

    def holds(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """In the convex hull: no half plane of its facets excludes the point."""
        wanted = np.column_stack([x, y]).astype(float)
        if np.linalg.matrix_rank(self.points - self.points[0]) < 2:
            low, high = self.points.min(axis=0), self.points.max(axis=0)
            span = (high - low).astype(float)
            along = (wanted - low) @ span / max(float(span @ span), 1.0)
            off = np.abs((wanted - low) - along[:, None] * span).max(axis=1)
            return (off < 1e-9) & (along > -1e-12) & (along < 1 + 1e-12)
        hull = spatial.ConvexHull(self.points)
        sides = wanted @ hull.equations[:, :2].T + hull.equations[:, 2]
        return (sides <= 1e-9).all(axis=1)


def interference(run: PlainRun, group: list[PlainRun], rule: Row) -> Row:
    """``I_mix`` and step residual of one run from the pure steps of all other patterns."""

    def columns(rows: list[Row], part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = np.array([row[f"{part}_tokens"] for row in rows], int)
        y = np.array([row[f"{part}_requests"] for row in rows], int)
        return x, y, np.array([row["ns"] / 1e6 for row in rows])

    def pure(rows: list[Row], part: str) -> list[Row]:
        other = "decode" if part == "prefill" else "prefill"
        return [r for r in rows if r[f"{part}_tokens"] > 0 and r[f"{other}_tokens"] == 0]

    others = [row for other in group if other.pattern != run.pattern for row in other.steps]
    idle = [r["ns"] / 1e6 for other in group for r in other.steps
            if r["prefill_tokens"] + r["decode_tokens"] == 0]  # fmt: skip
    surfaces = {part: PlainSurface(*columns(pure(others, part), part), rule)
                for part in ("prefill", "decode")
                if len(pure(others, part)) >= rule["pure_steps_min"]}  # fmt: skip
    alpha = float(np.median(idle)) if idle else None
    mixed = [r for r in run.steps if r["prefill_tokens"] > 0 and r["decode_tokens"] > 0]
    add, seen = np.zeros(len(mixed)), np.full(len(mixed), len(surfaces) == 2)
    for part, surface in surfaces.items():
        x, y, _ = columns(mixed, part)
        add, seen = add + surface(x, y), seen & surface.holds(x, y)
    times = np.array([row["ns"] / 1e6 for row in mixed])
    found: Row = {"alpha_ms": alpha, "supported": int(seen.sum()), "mixed": len(mixed)}
    excess, base = [], []
    found["I_mix"] = None
    if alpha is not None and len(surfaces) == 2:
        add = add - alpha
        found["I_mix"] = float((times - add)[seen].sum() / add[seen].sum())
        excess.append(float((times - add)[seen].sum()))
        base.append(float(add[seen].sum()))
    for part, surface in surfaces.items():
        x, y, t = columns(pure(run.steps, part), part)
        inside = surface.holds(x, y)
        there = surface(x, y)
        excess.append(float((t - there)[inside].sum()))
        base.append(float(there[inside].sum()))
        found[f"pure_{part}"] = int(inside.sum())
    return {**found, "step_residual": sum(excess) / sum(base) if sum(base) else None}
