"""Repeats of a rehearsal under other seeds: shares of outcomes and failed gates, with intervals.

A repeat is a whole rehearsal and nothing less: the same client, engine, streams, traces, analysis
and decision. Its seed is its own, so ``opprof rehearse --seed SEED`` shows any repeat by itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opprof.artifacts.decision import Decision
from opprof.artifacts.rehearsal import Rate, Repeat, Repeats
from opprof.engines.sim.seeds import run_seed
from opprof.protocol import Protocol
from opprof.rehearsal.measures import Measures, measures, spreads
from opprof.rehearsal.once import Once, decide_once, rehearse_once
from opprof.rehearsal.truth import Expectation, Truth
from opprof.statistics.distributions import normal_quantile, wilson_interval
from opprof.workers import run_many

_LEVEL = 0.95
_PARTS = ("H1a", "H1b", "compound")
_SHARED_MEMORY = Path("/dev/shm")
_PLENTY = 4
UNDECIDED = "undecided"
"""Outcome of a repeat in which no run could be made."""


@dataclass(frozen=True)
class Made:
    """One repeat: its outcomes and gates, and what the decision used of each run."""

    row: Repeat
    measures: Measures


@dataclass(frozen=True)
class _Work:
    """One repeat, as it travels to a worker process."""

    protocol: Protocol
    data: bytes
    truth: Truth
    seed: int
    folder: Path
    """Where its runs may lie while it goes; removed by whoever made it."""

    def run(self) -> Made:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            once = rehearse_once(
                self.protocol, self.data, self.truth, Path(name) / "runs", seed=self.seed, jobs=1
            )
            _, decision = decide_once(once, self.protocol, jobs=1)
        return Made(_row(self.seed, once, decision), measures(once.found, decision))


def repeat_seed(seed: int, number: int) -> int:
    """Return the seed of repeat ``number`` of a rehearsal under ``seed``."""
    return run_seed(seed, f"repeat {number}")


def make_repeats(
    protocol: Protocol,
    data: bytes,
    truth: Truth,
    *,
    seed: int,
    repeats: int,
    jobs: int,
    each_bytes: int,
    advance: Callable[[str], None],
) -> list[Made]:
    """Rehearse the protocol ``repeats`` times; ``data`` are its bytes.

    ``each_bytes``: how large the run directories of one rehearsal are, about.

    Raises:
        InputError: the protocol cannot be rehearsed.
        EnvironmentFailure: a worker process was killed from outside.
    """
    made = 0

    def tell(_: Made) -> None:
        nonlocal made
        made += 1
        if made % max(1, repeats // 10) == 0:
            advance(f"{made} of {repeats} repeats")

    with tempfile.TemporaryDirectory(
        prefix="opprof-repeats-", dir=_memory(jobs * each_bytes)
    ) as name:
        work = [
            _Work(protocol, data, truth, repeat_seed(seed, number), Path(name))
            for number in range(repeats)
        ]
        return run_many(_Work.run, work, jobs=jobs, done=tell)


def _memory(needed_bytes: int) -> Path | None:
    """Where the runs of repeats lie: in memory where there is plenty, as nobody keeps them.

    On a disk a repeat waits as long as it works. None: the ordinary temporary folder.
    """
    if "TMPDIR" in os.environ or not os.access(_SHARED_MEMORY, os.W_OK):
        return None
    free = shutil.disk_usage(_SHARED_MEMORY).free
    return _SHARED_MEMORY if free > _PLENTY * needed_bytes else None


def rate(count: int, trials: int) -> Rate:
    """Return a share with its 95 % Wilson interval."""
    if trials == 0:
        return Rate(count, trials, None, None, None)
    low, high = wilson_interval(count, trials, normal_quantile((1 + _LEVEL) / 2))
    return Rate(count, trials, count / trials, low, high)


def _row(seed: int, once: Once, decision: Decision | None) -> Repeat:
    outcomes = dict.fromkeys(_PARTS, UNDECIDED)
    if decision is not None:
        verdicts = (decision.h1a.outcome, decision.h1b.outcome, decision.compound.outcome)
        outcomes = dict(zip(_PARTS, verdicts, strict=True))
    failed: dict[str, list[str]] = {}
    for run, gates in zip(once.campaign.runs, once.gates, strict=True):
        # The label that everything is simulated fails by design.
        names = {gate.name for gate in gates if gate.outcome == "fail" and gate.name != "simulated"}
        if names:
            failed[run.folder.name] = sorted(names)
    return Repeat(
        seed=seed,
        outcomes=outcomes,
        runs=len(once.campaign.runs),
        refused=[run.folder.name for run in once.campaign.runs if not run.accepted],
        failed_gates=failed,
    )


def summarise(found: Sequence[Made], expect: Expectation) -> Repeats:
    """Count outcomes, failed gates and refusals, each share with its interval."""
    rows = [item.row for item in found]
    trials = len(rows)
    wanted = {part: value for part in _PARTS if (value := getattr(expect, part)) is not None}
    recovered = None
    if wanted:
        hits = sum(all(row.outcomes[p] == value for p, value in wanted.items()) for row in rows)
        recovered = rate(hits, trials)
    runs = sum(row.runs for row in rows)
    gates = Counter(name for row in rows for names in row.failed_gates.values() for name in names)
    return Repeats(
        repeats=trials,
        outcomes={part: _rates((row.outcomes[part] for row in rows), trials) for part in _PARTS},
        recovered=recovered,
        gates={name: rate(count, runs) for name, count in sorted(gates.items())},
        refused=rate(sum(len(row.refused) for row in rows), runs),
        spread=spreads([item.measures for item in found]),
        rows=rows,
    )


def _rates(names: Iterable[str], trials: int) -> dict[str, Rate]:
    return {name: rate(count, trials) for name, count in sorted(Counter(names).items())}
