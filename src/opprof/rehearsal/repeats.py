"""Repeats of a design on the fast path: shares of outcomes with their 95 % intervals.

Populations are made once, one long run for each primary cell; a repeat draws from them and decides.
Repeats are numbered and each has its own random stream, so results do not depend on how many
processes share them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import msgspec

from opprof.artifacts.rehearsal import Rate, Repeats
from opprof.decision.decide import decide
from opprof.decision.facts import RunFacts
from opprof.decision.load import REHEARSAL_GATES
from opprof.engines.sim.cost import load_cost
from opprof.protocol import Protocol
from opprof.rehearsal.campaign import Cell, end_with_parent, moderate_rate, planned_run
from opprof.rehearsal.fast import FastCell, draw_run
from opprof.rehearsal.population import Population, ShapeKeeper, read_population
from opprof.rehearsal.run import rehearse_run
from opprof.rehearsal.source import plan_manifest
from opprof.rehearsal.truth import Expectation, Truth
from opprof.statistics.distributions import normal_quantile, wilson_interval

POPULATION_WINDOWS = 24
"""Windows of a population run: 276 different pairs for the protocol's two."""
_RESAMPLES = 1000
_PERMUTATIONS_MIN = 2000
_LEVEL = 0.95


@dataclass(frozen=True)
class _Work:
    """What every worker process needs."""

    cells: tuple[FastCell, ...]
    others: tuple[RunFacts, ...]
    """Runs that no repeat draws anew."""
    protocol: Protocol
    seed: int


@dataclass(frozen=True)
class _Outcome:
    """One repeat."""

    verdicts: dict[str, str]
    failed: tuple[tuple[str, ...], ...]
    """Failed gates of each primary run."""


def rate(count: int, trials: int) -> Rate:
    """Return a share with its 95 % Wilson interval."""
    if trials == 0:
        return Rate(count, trials, None, None, None)
    low, high = wilson_interval(count, trials, normal_quantile((1 + _LEVEL) / 2))
    return Rate(count, trials, count / trials, low, high)


def repeat_design(
    protocol: Protocol,
    protocol_bytes: bytes,
    truth: Truth,
    facts: Sequence[RunFacts],
    saturation: Mapping[str, Path],
    *,
    seed: int,
    repeats: int,
    jobs: int,
    advance: Callable[[str], None],
) -> Repeats | str:
    """Repeat the decision; a text says why the design cannot be repeated.

    ``facts``: of the whole rehearsal's runs. ``saturation``: pattern to the ``result.json`` that
    its primary moderate rate comes from.
    """
    load = protocol.file.load
    primary = {
        item.run.pattern: item
        for item in facts
        if (item.run.config, item.run.load_point, item.run.role)
        == (load.primary_config, load.primary_load_point, "primary")
    }
    cells = []
    for pattern, base in sorted(primary.items()):
        path = saturation.get(pattern)
        population = _population(protocol, protocol_bytes, truth, pattern, path, base, seed)
        if isinstance(population, str):
            return f"{base.run.name}: {population}"
        cells.append(FastCell(base, population))
        advance(f"population of {base.run.name}: {len(population.windows)} windows")
    if not cells:
        return "no primary run was rehearsed"
    others = tuple(item for item in facts if item not in primary.values())
    fast = _fast_protocol(protocol, len(cells))
    work = _Work(tuple(cells), others, fast, seed)
    outcomes = list(_run_all(work, repeats, jobs))
    return _summary(outcomes, truth.file.expect, fast, cells)


def _fast_protocol(protocol: Protocol, patterns: int) -> Protocol:
    """Fewer resamples: enough for every Holm bar, and few enough for hundreds of repeats."""
    statistics = protocol.file.statistics
    families = len(protocol.file.ranking.families)
    tests = patterns * (patterns - 1) // 2 * families * (families - 1) // 2
    permutations = max(_PERMUTATIONS_MIN, round(4 * tests / statistics.alpha))
    fewer = msgspec.structs.replace(
        statistics,
        bootstrap_resamples=min(statistics.bootstrap_resamples, _RESAMPLES),
        permutations=min(statistics.permutations, permutations),
    )
    return replace(protocol, file=msgspec.structs.replace(protocol.file, statistics=fewer))


def _population(
    protocol: Protocol,
    protocol_bytes: bytes,
    truth: Truth,
    pattern: str,
    saturation: Path | None,
    base: RunFacts,
    seed: int,
) -> Population | str:
    cost, config = load_cost(), protocol.file.load.primary_config
    load_point = protocol.file.load.primary_load_point
    workload_seed = protocol.file.seeds.workload
    manifest = plan_manifest(protocol.file, pattern, workload_seed=workload_seed)
    if not base.kernels.windows:
        return "it has no profile window to start from"
    with tempfile.TemporaryDirectory(prefix="opprof-population-") as name:
        folder = Path(name) / "run"
        cell = Cell(
            protocol_bytes,
            protocol.source,
            pattern,
            config,
            (load_point,),
            "primary",
            truth,
            seed + 1,
            Path(name),
            saturation,
        )
        derived = None
        if load_point == "moderate":
            found = moderate_rate(cell, protocol, manifest, saturation)
            if isinstance(found, str):
                return found
            derived = found
        run = planned_run(protocol, cell, manifest, load_point, derived, folder)
        windows = replace(run.plan.windows, count=POPULATION_WINDOWS)
        run = replace(run, plan=replace(run.plan, windows=windows), write_traces=False)
        keeper = ShapeKeeper()
        rehearse_run(run, cost, folder, on_shape=keeper)
        population = read_population(folder, keeper, protocol, run.config.sizes, run.effects)
    if len(population.windows) < protocol.file.timeline.profile_windows:
        return f"only {len(population.windows)} whole windows were rehearsed"
    return population


# --------------------------------------------------------------------------- repeats

_WORK: list[_Work] = []
"""A worker process's share of the work, set once when it starts."""


def _begin(work: _Work) -> None:
    end_with_parent()
    _WORK[:] = [work]


def _run_all(work: _Work, repeats: int, jobs: int) -> Iterable[_Outcome]:
    if jobs <= 1:
        return [_repeat(work, number) for number in range(repeats)]
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(work,)
    ) as pool:
        return list(pool.map(_repeat_in_worker, range(repeats), chunksize=4))


def _repeat_in_worker(number: int) -> _Outcome:
    return _repeat(_WORK[0], number)


def _repeat(work: _Work, number: int) -> _Outcome:
    import numpy as np

    cost = load_cost()
    generator = np.random.Generator(np.random.PCG64([work.seed, number]))
    drawn = [draw_run(cell, cost, work.protocol, generator) for cell in work.cells]
    decision = decide(
        [*(run.facts for run in drawn), *work.others],
        work.protocol,
        work.cells[0].base.kernels.provenance,
        exploratory=False,
        tolerated=REHEARSAL_GATES,
    )
    verdicts: dict[str, str] = {
        "H1a": decision.h1a.outcome,
        "H1b": decision.h1b.outcome,
        "compound": decision.compound.outcome,
    }
    return _Outcome(verdicts, tuple(tuple(sorted(run.failed_gates)) for run in drawn))


def _summary(
    outcomes: Sequence[_Outcome],
    expect: Expectation,
    protocol: Protocol,
    cells: Sequence[FastCell],
) -> Repeats:
    trials = len(outcomes)
    counted = {
        part: Counter(outcome.verdicts[part] for outcome in outcomes)
        for part in ("H1a", "H1b", "compound")
    }
    wanted = {
        part: value
        for part, value in (("H1a", expect.H1a), ("H1b", expect.H1b), ("compound", expect.compound))
        if value is not None
    }
    recovered = None
    if wanted:
        hits = sum(
            all(outcome.verdicts[part] == value for part, value in wanted.items())
            for outcome in outcomes
        )
        recovered = rate(hits, trials)
    # The label that everything is simulated fails by design.
    gates = Counter(
        name
        for outcome in outcomes
        for run in outcome.failed
        for name in run
        if name != "simulated"
    )
    return Repeats(
        repeats=trials,
        outcomes={
            part: {name: rate(count, trials) for name, count in sorted(counts.items())}
            for part, counts in counted.items()
        },
        recovered=recovered,
        gates={name: rate(count, trials * len(cells)) for name, count in sorted(gates.items())},
        population_windows=min(len(cell.population.windows) for cell in cells),
        resamples=protocol.file.statistics.bootstrap_resamples,
        permutations=protocol.file.statistics.permutations,
    )
