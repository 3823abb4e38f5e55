"""Calibration by simulation: coverage, false positives, power, and what dependent steps do.

    PYTHONPATH=src nice -n 10 python bench/calibration.py [PART ...] [--repeats N] [--seed S]

Parts: coverage, h1a, sensitivity, residual, h1b, power, bounds, verdicts. Each prints rates with
their 95 % Wilson interval; ``docs/statistics.md`` holds a run's figures. One core, no file written.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations

import msgspec
import numpy as np

from opprof.decision.decide import decide
from opprof.decision.planted import (
    SHARES,
    Plan,
    Truth,
    ar1,
    inverted,
    planted_facts,
    planted_provenance,
    step_nanoseconds,
)
from opprof.protocol import Protocol, load_protocol
from opprof.statistics.bootstrap import (
    BlockPlan,
    block_starts,
    percentile_interval,
    ratio,
    resampled_sums,
    two_sided_p,
)
from opprof.statistics.bounds import leads, upper_bounds
from opprof.statistics.distributions import normal_quantile, wilson_interval
from opprof.statistics.draws import Stream
from opprof.statistics.multiplicity import holm
from opprof.statistics.permutation import WindowSteps, permutation_test
from opprof.statistics.sensitivity import blocked_p, windows_p

Generator = np.random.Generator
PATTERNS, WINDOWS, STEPS = 11, 2, 8
GAP, ALPHA = 0.05, 0.05
CLOSE = {**SHARES, "attention": 0.32, "moe_gemm": 0.32}
"""Two families of equal share: the null in which chance can turn the ranking over most easily."""


def main() -> None:
    """Run the parts asked for, all by default."""
    parts: dict[str, Callable[[int, Generator], None]] = {
        "coverage": coverage,
        "h1a": h1a_false_positives,
        "sensitivity": sensitivity,
        "residual": residual,
        "h1b": h1b_false_positives,
        "power": power,
        "bounds": bounds,
        "verdicts": verdicts,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *parts])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20260714)
    options = parser.parse_args()
    for name in options.parts or parts:
        started = time.monotonic()
        print(f"## {name}, {options.repeats} repeats, seed {options.seed}", flush=True)
        parts[name](options.repeats, np.random.default_rng(options.seed))
        print(f"   {time.monotonic() - started:.0f} s", flush=True)


def rate(count: int, n: int) -> str:
    """A rate with its 95 % interval."""
    low, high = wilson_interval(count, n, normal_quantile(0.975))
    return f"{count / n:.3f} [{low:.3f}, {high:.3f}]"


# ------------------------------------------------------------------------------ coverage


def coverage(repeats: int, generator: Generator) -> None:
    """95 % intervals of a ratio of sums over 240 one-second bins of AR(1) data."""
    for correlation in (0.0, 0.3, 0.6, 0.8, 0.9):
        for circular in (False, True):
            hits = sum(
                covers(correlation, circular, index, generator) for index in range(5 * repeats)
            )
            name = "circular" if circular else "moving"
            print(f"   AR(1) {correlation}: {name} covers {rate(hits, 5 * repeats)}", flush=True)


def covers(correlation: float, circular: bool, index: int, generator: Generator) -> bool:
    """Whether one series' interval holds the true ratio of 0.1."""
    drawn = ar1(240, 2, correlation, generator)
    denominator = 100.0 + 10.0 * drawn[:, 1]
    numerator = 0.1 * denominator + 2.0 * drawn[:, 0]
    plan = BlockPlan(240, 5, circular)
    starts = block_starts(plan, 1000, Stream(index, "coverage"))
    sums = resampled_sums(np.column_stack([numerator, denominator]), plan, starts)
    found = percentile_interval(ratio(sums[:, 0], sums[:, 1]), 0.95)
    return found.low <= 0.1 <= found.high


# --------------------------------------------------------------------------------- H1a


def draw_windows(truth: Truth, generator: Generator, steps: int = STEPS) -> list[WindowSteps]:
    """The active steps of one pattern, families in the order of its shares."""
    found = []
    for _ in range(WINDOWS):
        rows = np.array(
            [list(step.values()) for step in step_nanoseconds(truth, steps, generator)], float
        )
        found.append(WindowSteps(rows, rows.sum(axis=1)))
    return found


def h1a_matrix(truths: list[Truth], generator: Generator) -> tuple[bool, bool, float]:
    """One matrix of patterns: any rejection, any acceptance, rate of single tests below alpha.

    Exact p-values stand in for the drawn ones, which would only add their Monte-Carlo error.
    """
    patterns = [draw_windows(truth, generator) for truth in truths]
    p_values: list[float] = []
    met: list[bool] = []
    for p, q in combinations(range(len(patterns)), 2):
        found = permutation_test(patterns[p], patterns[q], permutations=1, stream=Stream(0))
        assert found.exact_p is not None
        p_values += found.exact_p.tolist()
        first, second = leads_by_window(patterns[p]), leads_by_window(patterns[q])
        met += [turned(first[:, a, b], second[:, a, b]) for a, b in found.pairs]
    corrected = holm(p_values)
    rejected = [p <= ALPHA for p in corrected]
    accepted = any(r and m for r, m in zip(rejected, met, strict=True))
    return any(rejected), accepted, float(np.mean(np.array(p_values) <= ALPHA))


def leads_by_window(windows: list[WindowSteps]) -> np.ndarray:
    """Lead of every family over every other, float64[windows, families, families]."""
    shares = np.array([w.family_ns.sum(axis=0) / w.total_ns.sum() for w in windows])
    return shares[:, :, None] - shares[:, None, :]


def turned(first: np.ndarray, second: np.ndarray) -> bool:
    """The gap criteria in either orientation."""
    one = (first >= GAP).all() and (second <= -GAP).all()
    return bool(one or ((first <= -GAP).all() and (second >= GAP).all()))


def h1a_false_positives(repeats: int, generator: Generator) -> None:
    """Eleven patterns without any difference, with independent and with correlated steps."""
    for shares, name, noise, correlation in (
        (SHARES, "as planted", 0.08, 0.0),
        (CLOSE, "two families equal", 0.4, 0.0),
        (CLOSE, "two families equal", 0.4, 0.2),
        (CLOSE, "two families equal", 0.4, 0.5),
        (CLOSE, "two families equal", 0.08, 0.5),
        (SHARES, "as planted", 0.4, 0.9),
    ):
        truth = Truth(shares=shares, share_noise=noise, step_correlation=correlation)
        found = [h1a_matrix([truth] * PATTERNS, generator) for _ in range(repeats)]
        print(
            f"   {name}, noise {noise}, step correlation {correlation}:"
            f" any Holm rejection {rate(sum(f[0] for f in found), repeats)},"
            f" any inversion accepted {rate(sum(f[1] for f in found), repeats)},"
            f" single tests at 5 % {np.mean([f[2] for f in found]):.3f}",
            flush=True,
        )


def sensitivity(repeats: int, generator: Generator) -> None:
    """Two patterns without difference: the registered test and those beside it, at 5 %."""
    for shares, noise, correlation in (
        (CLOSE, 0.4, 0.0),
        (CLOSE, 0.4, 0.2),
        (CLOSE, 0.4, 0.5),
        (CLOSE, 0.4, 0.9),
    ):
        truth = Truth(shares=shares, share_noise=noise, step_correlation=correlation)
        counts, tests, met, kept = np.zeros(3, int), 0, 0, np.zeros(2, int)
        for _ in range(repeats):
            p, q = draw_windows(truth, generator), draw_windows(truth, generator)
            single = permutation_test(p, q, permutations=1, stream=Stream(0))
            pairs = blocked_p(p, q)
            first, second = leads_by_window(p), leads_by_window(q)
            assert single.exact_p is not None
            assert pairs is not None
            for row, (a, b) in enumerate(single.pairs):
                windows = windows_p(first[:, a, b].tolist(), second[:, a, b].tolist())
                assert windows is not None
                found = np.array([single.exact_p[row], pairs[row], windows]) <= ALPHA
                counts += found
                tests += 1
                if turned(first[:, a, b], second[:, a, b]) and found[0]:
                    met += 1
                    kept += found[1:]
        rates = ", ".join(
            f"{name} {count / tests:.3f}"
            for name, count in zip(("steps", "step pairs", "windows"), counts, strict=True)
        )
        print(
            f"   noise {noise}, step correlation {correlation}: single tests at 5 %: {rates};"
            f" of {met} that also met the gap rule, step pairs keep {kept[0]}, windows {kept[1]}",
            flush=True,
        )


# --------------------------------------------------------------------------------- H1b


def residual(repeats: int, generator: Generator) -> None:
    """One material waste that slows nothing: how often its association is found all the same."""
    protocol = whole_protocol(2000, 2000, ["attention", "moe_gemm"])
    quiet = Truth(share_noise=0.02, r64=0.1, drift=0.02)
    truths = {row.id: quiet for row in protocol.file.patterns}
    truths["P06"] = replace(quiet, padding=0.2)
    plain = corrected = 0
    for _ in range(repeats):
        facts = planted_facts(protocol.file, truths, generator, plan=Plan(bins=60, steps_a_bin=20))
        decision = decide(facts, protocol, planted_provenance(), exploratory=False)
        found = [
            item.association
            for item in decision.h1b.evidence.contrasts
            if item.passing_metrics and item.association is not None
        ]
        plain += any(item.met for item in found)
        corrected += any(item.efficiency_loss_met or item.residual_corrected_met for item in found)
    print(f"   registered rule {rate(plain, repeats)}, at the corrected level"
          f" {rate(corrected, repeats)}", flush=True)  # fmt: skip


def whole_protocol(resamples: int, permutations: int, families: list[str]) -> Protocol:
    """The packaged protocol, whole, with fewer resamples and families."""
    packaged = load_protocol("phase3")
    assert packaged is not None
    file = packaged.file
    statistics = msgspec.structs.replace(
        file.statistics, bootstrap_resamples=resamples, permutations=permutations
    )
    file = msgspec.structs.replace(
        file,
        statistics=statistics,
        ranking=msgspec.structs.replace(file.ranking, families=families),
        partial_matrix=None,
    )
    return Protocol(file, packaged.sha256, packaged.source)


def contrast_p(
    truths: tuple[Truth, Truth], generator: Generator, index: int, resamples: int = 2000
) -> tuple[float, float]:
    """Difference of padding between two runs of 48 blocks, and its bootstrap p-value."""
    from opprof.decision.planted import planted_series

    values, drawn = [], []
    for side, truth in enumerate(truths):
        series = planted_series(truth, Plan(), generator)
        columns = np.column_stack([series.sums["padded_tokens"], series.sums["bucket_tokens"]])
        plan = series.plan(circular=False)
        starts = block_starts(plan, resamples, Stream(index, str(side)))
        sums = resampled_sums(columns, plan, starts)
        drawn.append(ratio(sums[:, 0], sums[:, 1]))
        values.append(columns[:, 0].sum() / columns[:, 1].sum())
    return values[0] - values[1], two_sided_p(drawn[0] - drawn[1])


def h1b_false_positives(repeats: int, generator: Generator) -> None:
    """Eight contrasts of one waste family without any difference, by the drift's dependence."""
    for correlation in (0.0, 0.5, 0.8, 0.95):
        truth = Truth(drift=0.1, drift_correlation=correlation)
        rejected = passed = 0
        for index in range(repeats):
            found = [contrast_p((truth, truth), generator, 8 * index + i) for i in range(8)]
            corrected = holm([p for _, p in found])
            rejections = [p <= ALPHA for p in corrected]
            rejected += any(rejections)
            passed += any(r and d > 0.05 for r, (d, _) in zip(rejections, found, strict=True))
        print(
            f"   drift correlation {correlation}: any of 8 intervals off zero"
            f" {rate(rejected, repeats)}, any over its threshold too {rate(passed, repeats)}",
            flush=True,
        )


def power(repeats: int, generator: Generator) -> None:
    """One inverted pattern of eleven, and one wasteful run, by size of the effect."""
    for gap in (0.04, 0.06, 0.08, 0.12):
        for noise, correlation in ((0.08, 0.0), (0.2, 0.0)):
            half = gap / 2
            shares = {**CLOSE, "attention": 0.32 - half, "moe_gemm": 0.32 + half}
            truth = Truth(shares=shares, share_noise=noise, step_correlation=correlation)
            truths = [inverted(truth, "attention", "moe_gemm")] + [truth] * (PATTERNS - 1)
            found = sum(h1a_matrix(truths, generator)[1] for _ in range(repeats // 4))
            print(
                f"   H1a: lead {gap:.2f} turned over, noise {noise}, step correlation"
                f" {correlation}: accepted {rate(found, repeats // 4)}",
                flush=True,
            )
    for padding in (0.05, 0.08, 0.10, 0.12, 0.15):
        base = Truth(drift=0.1)
        found = 0
        for index in range(repeats):
            difference, p = contrast_p((replace(base, padding=padding), base), generator, index)
            found += p <= ALPHA / 8 and difference > 0.05
        print(
            f"   H1b: padding {padding:.2f} against 0.05: passes {rate(found, repeats)}", flush=True
        )


# ------------------------------------------------------------------------------- bounds


def bounds(repeats: int, generator: Generator) -> None:
    """How often a bound lies below its true lead, in any of 9 x 8 leads of 11 patterns."""
    for name, noise, burst, correlation in (
        ("even steps", 0.08, 0.0, 0.0),
        ("noisy steps", 0.4, 0.0, 0.0),
        ("one step in eight is a prefill", 0.08, 0.125, 0.0),
        ("noisy, step correlation 0.9", 0.4, 0.0, 0.9),
    ):
        truth = Truth(share_noise=noise, step_correlation=correlation)
        target = true_leads(truth, burst, generator)
        welch = resampled = 0
        for _ in range(repeats):
            patterns = [burst_windows(truth, burst, generator) for _ in range(PATTERNS)]
            found = [leads(windows) for windows in patterns]
            count = PATTERNS * len(target) * (len(target) - 1)
            uppers = [upper_bounds(item, alpha=ALPHA, bounded=count) for item in found]
            welch += any((upper < target - 1e-12).any() for upper in uppers)
            resampled += any(
                (upper < target - 1e-12).any() for upper in resampled_bounds(patterns, generator)
            )
        print(
            f"   {name}: some bound below the truth, Bonferroni-Welch-t {rate(welch, repeats)},"
            f" resampled maximum {rate(resampled, repeats)}",
            flush=True,
        )


def burst_windows(truth: Truth, burst: float, generator: Generator) -> list[WindowSteps]:
    """Windows in which a share of the steps is a prefill: ten times longer, mostly attention."""
    found = []
    for window in draw_windows(truth, generator):
        prefill = generator.random(len(window.total_ns)) < burst
        rows = window.family_ns * np.where(prefill, 10.0, 1.0)[:, None]
        rows[:, 1] *= np.where(prefill, 3.0, 1.0)
        found.append(WindowSteps(rows, rows.sum(axis=1)))
    return found


def true_leads(truth: Truth, burst: float, generator: Generator) -> np.ndarray:
    """What the leads of eight-step windows are on average."""
    total = [
        leads_by_window(burst_windows(truth, burst, generator)).mean(axis=0) for _ in range(4000)
    ]
    return np.mean(total, axis=0)


def resampled_bounds(
    patterns: list[list[WindowSteps]], generator: Generator, resamples: int = 500
) -> list[np.ndarray]:
    """The method not taken: 95 % point of the greatest standardised deviation over resamples."""
    found = [leads(windows) for windows in patterns]
    greatest = np.zeros(resamples)
    for item, windows in zip(found, patterns, strict=True):
        drawn = np.zeros((resamples, *item.lead.shape))
        for window in windows:
            rows = generator.integers(0, STEPS, (resamples, STEPS))
            shares = window.family_ns[rows].sum(axis=1) / window.total_ns[rows].sum(axis=1)[:, None]
            drawn += (shares[:, :, None] - shares[:, None, :]) / len(windows)
        error = np.where(item.standard_error > 0, item.standard_error, np.inf)
        greatest = np.maximum(greatest, ((item.lead - drawn) / error).max(axis=(1, 2)))
    point = float(np.quantile(greatest, 1 - ALPHA))
    return [item.lead + point * item.standard_error for item in found]


# ----------------------------------------------------------------------------- verdicts


def verdicts(repeats: int, generator: Generator) -> None:
    """The whole decision over planted matrices: how often each truth ends in its verdict."""
    families = ["attention", "moe_gemm", "dense_gemm"]
    protocol = whole_protocol(1000, 6000, families)
    quiet = Truth(share_noise=0.02, r64=0.1, drift=0.02)
    loud = inverted(quiet, "attention", "moe_gemm")
    wasteful = replace(quiet, padding=0.2, slowdown=0.1)
    cases: dict[str, tuple[Mapping[str, Truth], str]] = {
        "no effect": ({}, "REFUTED / NULL SUPPORTED"),
        "inversion": ({"P03": loud}, "PARTIAL"),
        "waste": ({"P06": wasteful}, "PARTIAL"),
        "inversion and waste": ({"P03": loud, "P06": wasteful}, "CONFIRMED"),
        "waste without slower service": ({"P06": replace(quiet, padding=0.2)}, "INCONCLUSIVE"),
    }
    for name, (planted, expected) in cases.items():
        truths = {row.id: planted.get(row.id, quiet) for row in protocol.file.patterns}
        found: dict[str, int] = {}
        for _ in range(repeats):
            facts = planted_facts(
                protocol.file, truths, generator, plan=Plan(bins=60, steps_a_bin=30)
            )
            decision = decide(facts, protocol, planted_provenance(), exploratory=False)
            outcome = decision.compound.outcome
            found[outcome] = found.get(outcome, 0) + 1
        print(
            f"   {name}: {expected} {rate(found.get(expected, 0), repeats)};"
            f" {', '.join(f'{key} {value}' for key, value in sorted(found.items()))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
