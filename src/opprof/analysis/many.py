"""Several runs in parallel processes; the results do not depend on how many."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from opprof.analysis.results import RunAnalysis
from opprof.errors import EnvironmentFailure
from opprof.protocol import Protocol

_LOOK_S = 0.2
"""How often a waiting parent looks for a signal."""


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

    workers = min(len(runs), jobs or os.cpu_count() or 1)
    if workers <= 1:
        results = []
        for run in runs:
            results.append(analyze_run(run, protocol, mapping=mapping))
            advance()
        return results
    # A forkserver child holds none of this process's threads (progress display, callers' own).
    context = multiprocessing.get_context("forkserver")
    _start_forkserver()
    others = set(multiprocessing.active_children())
    with (
        _held_signals() as interrupted,
        ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool,
    ):
        try:
            futures = [pool.submit(analyze_run, run, protocol, mapping=mapping) for run in runs]
            for future in futures:
                future.add_done_callback(lambda _: advance())
            _wait(futures, interrupted)
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            reason = "a worker process was killed (memory?); try fewer with --jobs"
            raise EnvironmentFailure(reason) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Workers write nothing, so that ending them in the middle loses only their work.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _wait(futures: Sequence[Future[RunAnalysis]], interrupted: threading.Event) -> None:
    """Return when all are done or one has failed.

    Raises:
        KeyboardInterrupt: a signal came meanwhile.
    """
    done = False
    while not done:
        if interrupted.is_set():
            raise KeyboardInterrupt
        found = wait(futures, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        done = not found.not_done or any(future.exception() for future in found.done)


@contextmanager
def _held_signals() -> Iterator[threading.Event]:
    """Hold SIGINT and SIGTERM back: an exception in the middle of the pool's own locks hangs it.

    Yields the event that a signal sets. Outside the main thread no signal arrives, and nothing is
    changed.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A signal that its sender meant to be ignored or fatal stays so.
    held = {number: old for number, old in before.items() if callable(old)}
    for number in held:
        signal.signal(number, lambda *_: event.set())
    try:
        yield event
    finally:
        for number, old in held.items():
            signal.signal(number, old)


def _start_forkserver() -> None:
    """Start it with SIGINT blocked, which its children inherit: Ctrl-C is the parent's to answer.

    Otherwise every worker of the terminal's foreground group prints a traceback of its own.
    """
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker: end when the parent is gone. A killed parent tells nobody, and a pool's worker
    would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
