"""What of a vLLM step is copied, on the scheduler's thread. Knows vLLM's field names, imports none
of its modules, and computes nothing that the writer process can.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from opprof.engines.recorder.handle import Recorder

STEP_ATTRIBUTE = "opprof_step"
"""On the scheduler output: pairs the step, and reaches every worker with it."""
FIRST_CHECKS = 64
CHECK_EVERY = 1024
"""The split is compared with vLLM's own on the first steps, then once in so many."""
HIDDEN = -1

logger = logging.getLogger("vllm.opprof")
_monotonic_ns = time.monotonic_ns

Depths = Callable[[Any], tuple[int, int]]
"""Of a scheduler: requests waiting, and requests deferred."""


def depths_skipped(scheduler: Any) -> tuple[int, int]:
    """Queue depths of the layout of 0.24: what one pass skipped waits in a queue of its own."""
    return len(scheduler.waiting), len(scheduler.skipped_waiting)


def depths_deferred(scheduler: Any) -> tuple[int, int]:
    """Queue depths of the layout of 0.32: deferred requests stay in the waiting queues."""
    deferred = len(scheduler.deferred_waiting)
    return len(scheduler.waiting) + len(scheduler.kv_holding_waiting) - deferred, deferred


def choose_depths(scheduler: Any) -> Depths:
    """Return the adapter for a scheduler's queues.

    Raises:
        RuntimeError: the layout is unknown.
    """
    if hasattr(scheduler, "skipped_waiting"):
        return depths_skipped
    if hasattr(scheduler, "deferred_waiting") and hasattr(scheduler, "kv_holding_waiting"):
        return depths_deferred
    raise RuntimeError("the scheduler's waiting queues have an unknown layout")


class Capture:
    """The step hooks of one scheduler."""

    __slots__ = ("_depths", "_engine_split", "_marks", "_preemptions", "recorder")

    def __init__(
        self,
        recorder: Recorder,
        scheduler: Any,
        engine_split: Callable[[Any], Any] | None = None,
    ) -> None:
        """``engine_split`` is vLLM's ``compute_iteration_details``, for the self-check."""
        self.recorder = recorder
        self._depths = choose_depths(scheduler)
        self._engine_split = engine_split
        self._preemptions = 0
        # Of preempted requests: tokens that had been computed when they lost their blocks.
        self._marks: dict[str, int] = {}

    def prefix_counters(self, scheduler: Any) -> tuple[int, int]:
        """Return the cumulative prefix queries and hits in tokens, before ``schedule()``."""
        stats = scheduler.kv_cache_manager.prefix_cache_stats
        return (HIDDEN, HIDDEN) if stats is None else (stats.queries, stats.hits)

    def submitted(self, scheduler: Any, output: Any, queries: int, hits: int) -> None:
        """Record what ``schedule()`` returned; ``queries`` and ``hits`` as they were before it.

        Raises:
            RuntimeError: scheduled requests are neither new nor cached.
        """
        now = _monotonic_ns()
        cached = output.scheduled_cached_reqs
        new = output.scheduled_new_reqs
        counts = output.num_scheduled_tokens
        total = output.total_num_scheduled_tokens
        computed = cached.num_computed_tokens
        outputs = cached.num_output_tokens
        size = len(computed)
        if size + len(new) != len(counts):
            raise RuntimeError("scheduled requests are neither new nor cached")
        scheduled: list[int] | None
        if not new and total == size and all(outputs):
            scheduled, new_computed, new_scheduled = None, [], []
        else:
            if cached.resumed_req_ids:
                scheduled = [counts[name] for name in cached.req_ids]
            else:
                # Running requests are scheduled first, in the order of the cached ones.
                scheduled = list(counts.values())[:size]
            new_computed = [request.num_computed_tokens for request in new]
            new_scheduled = [counts[request.req_id] for request in new]
        resumed = recomputed = 0
        if self._marks:
            resumed, recomputed = self._recomputed(scheduler, output)
        preemptions, self._preemptions = self._preemptions, 0
        manager = scheduler.kv_cache_manager
        if queries >= 0:
            stats = manager.prefix_cache_stats
            queries, hits = stats.queries - queries, stats.hits - hits
        waiting, deferred = self._depths(scheduler)
        step = self.recorder.submit(
            now,
            total,
            computed,
            outputs,
            scheduled,
            new_computed,
            new_scheduled,
            manager.usage,
            queries,
            hits,
            waiting,
            len(scheduler.running),
            deferred,
            preemptions,
            resumed,
            recomputed,
        )
        output.opprof_step = step
        if step < FIRST_CHECKS or step % CHECK_EVERY == 0:
            self._check(step, output, scheduled)

    def completed(self, output: Any, result: Any) -> None:
        """Record that ``update_from_output()`` was entered with this scheduler output."""
        now = _monotonic_ns()
        step = getattr(output, STEP_ATTRIBUTE, None)
        if step is None:
            return
        stat = result.cudagraph_stats
        if stat is None:
            self.recorder.complete(step, now, None, 0, 0)
        else:
            self.recorder.complete(
                step, now, stat.runtime_mode, stat.num_unpadded_tokens, stat.num_padded_tokens
            )

    def preempted(self, request: Any) -> None:
        """Note a request that is about to lose its blocks."""
        self._preemptions += 1
        mark = request.num_computed_tokens
        name = request.request_id
        self._marks[name] = max(mark, self._marks.get(name, 0))

    def fail(self, error: BaseException) -> None:
        """End the recording because of a fault of the recorder; the engine goes on."""
        if self.recorder.failure is None:
            logger.error("opprof: recording ended by a fault of the recorder", exc_info=error)
        self.recorder.fail(f"{type(error).__name__}: {error}")

    def _recomputed(self, scheduler: Any, output: Any) -> tuple[int, int]:
        """Return resumed requests and tokens scheduled again, of marked requests in this step."""
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        # The V2 runner gets a resumed request as a new one.
        resumed.update(
            request.req_id for request in output.scheduled_new_reqs if request.req_id in self._marks
        )
        tokens = 0
        for name, mark in list(self._marks.items()):
            request = scheduler.requests.get(name)
            if request is None:
                del self._marks[name]
                continue
            count = output.num_scheduled_tokens.get(name)
            if count is None:
                continue
            after = request.num_computed_tokens
            tokens += max(0, min(after, mark) - (after - count))
            if after >= mark:
                del self._marks[name]
        return len(resumed), tokens

    def _check(self, step: int, output: Any, scheduled: list[int] | None) -> None:
        if self.recorder.died():
            raise RuntimeError("the writer process is gone")
        cached = output.scheduled_cached_reqs
        if scheduled is not None:
            looked_up = [output.num_scheduled_tokens[name] for name in cached.req_ids]
            if looked_up != scheduled:
                raise RuntimeError(f"step {step}: requests are not scheduled in the known order")
        if self._engine_split is not None:
            own = self._engine_split(output)
            self.recorder.check(
                step,
                (own.num_ctx_requests, own.num_ctx_tokens),
                (own.num_generation_requests, own.num_generation_tokens),
            )
