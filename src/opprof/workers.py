"""The same work on several items in worker processes: what comes out does not depend on how many.

An interrupt is the parent's to answer: workers never see it, are ended, and nothing stays behind. A
worker ends when its parent is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from opprof.errors import EnvironmentFailure

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Shared = TypeVar("_Shared")

_LOOK_S = 0.2
"""How often a waiting parent looks for a signal."""


def run_many(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    *,
    jobs: int,
    done: Callable[[_Result], None] = lambda _: None,
) -> list[_Result]:
    """Do the work on every item and return the results in the items' order.

    Args:
        work: can be pickled; it must write nothing that outlives being ended in the middle.
        items: can be pickled.
        jobs: worker processes, at most one per item; 1 works in this process.
        done: hears each result, in the items' order, in the caller's thread.

    Raises:
        Exception: what the work raises for the first item, in order, that it fails on.
        EnvironmentFailure: a worker process was killed from outside.
        KeyboardInterrupt: SIGINT or SIGTERM came.
    """
    workers = min(len(items), jobs)
    if workers <= 1:
        return _here(work, items, done)
    # A forkserver child holds none of this process's threads (progress display, callers' own).
    context = multiprocessing.get_context("forkserver")
    _start_forkserver()
    pool = _Pool(workers, context, _end_with_parent)
    return _pooled(pool, work, items, done)


def run_many_sharing(
    work: Callable[[_Shared, _Item], _Result],
    shared: _Shared,
    items: Sequence[_Item],
    *,
    jobs: int,
    done: Callable[[_Result], None] = lambda _: None,
) -> list[_Result]:
    """As :func:`run_many`, but with something large that all workers read and none copies.

    Workers are forked, so that ``shared`` need not be picklable and its memory is there once; a
    caller must hold no locks in other threads.
    """
    workers = min(len(items), jobs)
    if workers <= 1:
        return _here(partial(work, shared), items, done)
    pool = _Pool(workers, multiprocessing.get_context("fork"), _take_shared, (shared,))
    return _pooled(pool, partial(_with_shared, work), items, done)


@dataclass(frozen=True)
class _Pool:
    workers: int
    context: BaseContext
    initializer: Callable[..., None]
    arguments: tuple[Any, ...] = ()


def _here(
    work: Callable[[_Item], _Result], items: Sequence[_Item], done: Callable[[_Result], None]
) -> list[_Result]:
    results = []
    for item in items:
        results.append(work(item))
        done(results[-1])
    return results


def _pooled(
    kind: _Pool,
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    done: Callable[[_Result], None],
) -> list[_Result]:
    results = []
    others = set(multiprocessing.active_children())
    with (
        _held_signals() as interrupted,
        ProcessPoolExecutor(
            kind.workers,
            mp_context=kind.context,
            initializer=kind.initializer,
            initargs=kind.arguments,
        ) as pool,
    ):
        try:
            for future in [pool.submit(work, item) for item in items]:
                results.append(_result(future, interrupted))
                done(results[-1])
        except BrokenProcessPool as error:
            reason = "a worker process was killed (memory?); try fewer with --jobs"
            raise EnvironmentFailure(reason) from error
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            # Waited for: a pool let go of while it ends may do so in the interpreter's own exit.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return results


def _result(future: Future[_Result], interrupted: threading.Event) -> _Result:
    """Wait for one result.

    Raises:
        KeyboardInterrupt: a signal came meanwhile.
    """
    while not interrupted.is_set():
        if wait([future], timeout=_LOOK_S).done:
            return future.result()
    raise KeyboardInterrupt


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


_inherited: list[Any] = []
"""In a forked worker: what all workers share."""


def _take_shared(shared: object) -> None:
    """In a forked worker: leave signals to the parent, as a forkserver's children do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _inherited[:] = [shared]
    _end_with_parent()


def _with_shared(work: Callable[[Any, _Item], _Result], item: _Item) -> _Result:
    return work(_inherited[0], item)


def _end_with_parent() -> None:
    """In a worker: end when the parent is gone. A killed parent tells nobody, and a pool's worker
    would wait for its next task for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
