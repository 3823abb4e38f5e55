"""Several runs in parallel processes; the results do not depend on how many."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from opprof.analysis.results import RunAnalysis
from opprof.protocol import Protocol
from opprof.workers import run_many


def analyze_many(
    runs: Sequence[Path],
    protocol: Protocol | None,
    *,
    mapping: str | None = None,
    jobs: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[RunAnalysis]:
    """Analyse the runs, in their order.

    Args:
        runs: run directories.
        protocol: what judges them; None leaves gates that need a threshold not evaluable.
        mapping: version or file of the table that decides; None takes the protocol's pinned one.
        jobs: worker processes; None takes one per core, at most one per run.
        advance: called once for each finished run.

    Raises:
        OpprofError: of the first run, in the given order, that cannot be analysed.
        EnvironmentFailure: a worker process was killed from outside.
    """
    from opprof.analysis.run import analyze_run

    return run_many(
        partial(analyze_run, protocol=protocol, mapping=mapping),
        runs,
        jobs=jobs or os.cpu_count() or 1,
        done=lambda _: advance(),
    )
