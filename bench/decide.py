"""Time and memory of a whole decision, and of the same work in scipy and arch, in one run.

    PYTHONPATH=src python bench/decide.py [--jobs 2] [--limit-s 60] [--limit-mb 1000]

The matrix is planted: 48 primary and 4 confirmation runs, 240 bins, eight active steps a window,
all 1,980 comparisons under both mapping tables, 100,000 permutations and resamples. The peers do a
small part of that work, named in the output, and their time is scaled to the whole; a peer that
cannot be imported is skipped with a word (arch is in no extra: give an interpreter that has it).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import time
from collections.abc import Callable

import msgspec
import numpy as np

from opprof.decision.decide import decide
from opprof.decision.planted import Plan, Truth, inverted, planted_facts, planted_provenance
from opprof.decision.resample import resample_run
from opprof.decision.series import CleanSeries
from opprof.decision.stepwise import window_steps
from opprof.protocol import Protocol, load_protocol
from opprof.protocol.design import cells
from opprof.statistics.bootstrap import BlockPlan, block_starts, ratio, resampled_sums
from opprof.statistics.draws import Stream
from opprof.statistics.permutation import WindowSteps, permutation_test

PATTERN_PAIRS, FAMILY_PAIRS = 55, 36
SCIPY_CALLS, ARCH_RESAMPLES = 3, 4_000


def main() -> None:
    """Print one line a measurement; exit 1 when the whole decision misses a limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=60.0)
    parser.add_argument("--limit-mb", type=float, default=1000.0)
    options = parser.parse_args()
    protocol = whole_protocol()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    permutation(protocol)
    bootstrap(protocol)
    seconds, megabytes = whole(protocol, options.jobs)
    if seconds > options.limit_s or megabytes > options.limit_mb:
        raise SystemExit(f"over {options.limit_s:g} s or {options.limit_mb:g} MB")


def whole_protocol() -> Protocol:
    """The packaged protocol without its partial matrix."""
    packaged = load_protocol("phase3")
    assert packaged is not None
    file = msgspec.structs.replace(packaged.file, partial_matrix=None)
    return Protocol(file, packaged.sha256, packaged.source)


def whole(protocol: Protocol, jobs: int) -> tuple[float, float]:
    """Decide a whole campaign; seconds and megabytes (the workers' peak counted for each)."""
    file = protocol.file
    keys = [(p, c, load, "primary") for p, c in cells(file) for load in ("saturation", "moderate")]
    again = file.confirmations
    keys += [(p, again.config, again.load_point, "confirmation") for p in again.patterns]
    truths = {"P03": inverted(Truth(), "attention", "moe_gemm"), "P06": Truth(padding=0.2)}
    facts = planted_facts(
        file, truths, np.random.default_rng(1), keys=keys, plan=Plan(steps_a_bin=40)
    )
    started, used = time.monotonic(), cpu_seconds()
    decision = decide(facts, protocol, planted_provenance(), exploratory=False, jobs=jobs)
    seconds, cpu = time.monotonic() - started, cpu_seconds() - used
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    megabytes = own + (child * jobs if jobs > 1 else 0)
    print(
        f"whole decision: {len(keys)} runs, {len(decision.inversions)} comparisons, two tables:"
        f" {seconds:.1f} s, {cpu:.1f} CPU s outside the workers, {megabytes:.0f} MB at most,"
        f" {jobs} workers;"
        f" {decision.compound.outcome}"
    )
    return seconds, megabytes


def cpu_seconds() -> float:
    """CPU time of this process and its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def permutation(protocol: Protocol) -> None:
    """All family pairs of one pattern pair, and scipy's test of one family pair."""
    file = protocol.file
    families = file.ranking.families
    facts = planted_facts(file, {}, np.random.default_rng(2), plan=Plan(bins=10, block_bins=5))
    sides = [window_steps(item.kernels, "v2", families) for item in facts[:2]]
    p, q = ([w for w in side if not isinstance(w, str)] for side in sides)
    count = file.statistics.permutations
    permutation_test(p, q, permutations=100, stream=Stream(1, "warm"))
    mine = best(lambda: permutation_test(p, q, permutations=count, stream=Stream(1, "x")))
    print(
        f"permutation test, one pattern pair, {FAMILY_PAIRS} family pairs, exact too: {mine:.3f} s"
    )
    try:
        from scipy import stats
    except ImportError:
        print("scipy is not here: skipped")
        return
    first, second = joined(p), joined(q)
    table = np.concatenate([first, second])

    def lead(x: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
        def of(rows: np.ndarray, column: int) -> np.ndarray:
            return table[rows, column].sum(axis=axis) / table[rows, -1].sum(axis=axis)

        return of(x, 2) - of(x, 3) - of(y, 2) + of(y, 3)

    def call() -> object:
        rows = np.arange(len(table))
        return stats.permutation_test(
            (rows[: len(first)], rows[len(first) :]),
            lead,
            vectorized=True,
            n_resamples=count,
            batch=10_000,
        )

    theirs = best(call, SCIPY_CALLS)
    pairs = PATTERN_PAIRS * FAMILY_PAIRS
    print(
        f"scipy.stats.permutation_test, one pattern pair, one family pair, unstratified:"
        f" {theirs:.3f} s; {pairs} of them {theirs * pairs:.0f} s against"
        f" {mine * PATTERN_PAIRS:.1f} s:"
        f" {theirs * FAMILY_PAIRS / mine:.0f} times"
    )


def joined(windows: list[WindowSteps]) -> np.ndarray:
    """Both windows' steps below one another: scipy has no strata."""
    return np.concatenate([np.column_stack([w.family_ns, w.total_ns]) for w in windows])


def bootstrap(protocol: Protocol) -> None:
    """All metrics of one run, and arch's moving blocks on the same columns."""
    file = protocol.file
    series = planted_facts(file, {}, np.random.default_rng(3))[0].series
    assert isinstance(series, CleanSeries)
    rule = file.statistics
    every = best(lambda: resample_run("x", series, rule, 1, ()))
    print(f"one run, every metric, moving and circular, percentiles of latencies: {every:.3f} s")
    names = ["padded_tokens", "bucket_tokens", "miss_steps", "executed_steps", "scheduled_tokens",
             "step_ms"]  # fmt: skip
    values = np.column_stack([series.sums[name] for name in names])
    plan = BlockPlan(len(values), 5)

    def mine() -> list[np.ndarray]:
        starts = block_starts(plan, rule.bootstrap_resamples, Stream(1, "x"))
        sums = resampled_sums(values, plan, starts)
        return [ratio(sums[:, i], sums[:, i + 1]) for i in range(0, len(names), 2)]

    own = best(mine)
    try:
        from arch.bootstrap import MovingBlockBootstrap
    except ImportError:
        print(f"three ratios of one run, {rule.bootstrap_resamples} resamples: {own:.3f} s")
        print("arch is not here: skipped")
        return

    def ratios(sample: np.ndarray) -> np.ndarray:
        sums = sample.sum(axis=0)
        return sums[0::2] / sums[1::2]

    theirs = best(lambda: MovingBlockBootstrap(5, values, seed=1).apply(ratios, ARCH_RESAMPLES), 2)
    scaled = theirs * rule.bootstrap_resamples / ARCH_RESAMPLES
    print(
        f"three ratios of one run, {rule.bootstrap_resamples} resamples: {own:.3f} s; arch"
        f" {ARCH_RESAMPLES} in {theirs:.3f} s, so {scaled:.1f} s: {scaled / own:.0f} times"
    )


def best(call: Callable[[], object], rounds: int = 3) -> float:
    """Least seconds of some rounds."""
    seconds = []
    for _ in range(rounds):
        started = time.monotonic()
        call()
        seconds.append(time.monotonic() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
