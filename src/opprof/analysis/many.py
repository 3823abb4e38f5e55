"""Several runs in parallel processes; the results do not depend on how many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from opprof.analysis.results import RunAnalysis
from opprof.protocol import Protocol


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
    """
    from opprof.analysis.run import analyze_run

    workers = min(len(runs), jobs or os.cpu_count() or 1)
    if workers <= 1:
        results = []
        for run in runs:
            results.append(analyze_run(run, protocol, mapping=mapping))
            advance()
        return results
    # A forkserver child holds none of this process's threads (progress display, callers' own).
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(analyze_run, run, protocol, mapping=mapping) for run in runs]
        for future in futures:
            future.add_done_callback(lambda _: advance())
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
