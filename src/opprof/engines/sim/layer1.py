"""Layer 1 of the embedded engine, through the same stream writer as the plugin's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opprof.artifacts.layer1 import Graph, Header, Step
from opprof.engines.recorder.stream import StreamWriter
from opprof.engines.sim.batch import Batch
from opprof.engines.sim.graphs import Dispatch

FLUSH_FRACTION = 0.8
"""Of the flush interval, as the plugin's writer: a checkpoint is never older than the interval."""


class StepRecorder:
    """Writes one line a step; ``now_ns`` and ``wall_ns`` are the engine's clocks."""

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        drop: frozenset[int] = frozenset(),
    ) -> None:
        self._stream = StreamWriter(path, header, wall_ns=wall_ns, mono_ns=now_ns)
        self.flush_ns = round(header.flush_interval_s * FLUSH_FRACTION * 1e9)
        """A line waits at most this long for its flush."""
        self._drop = drop
        self._dropped = 0
        self.is_open = True

    def record(
        self,
        batch: Batch,
        dispatch: Dispatch | None,
        submit_ns: int,
        complete_ns: int,
        *,
        profiled: bool,
    ) -> None:
        """Take one completed step; a planted drop is counted as the plugin's recorder does."""
        if batch.step in self._drop:
            self._dropped += 1
        else:
            self._stream.append(build_step(batch, dispatch, submit_ns, complete_ns, profiled))

    def flush(self) -> None:
        """Write what is buffered."""
        if self.is_open:
            self._stream.flush(dropped=self._dropped)

    def close(self) -> None:
        """End the stream cleanly, with its footer."""
        if self.is_open:
            self.is_open = False
            self._stream.flush(dropped=self._dropped)
            self._stream.close()

    def abandon(self, reason: str, *, open_steps: int) -> None:
        """End the stream as a crash does."""
        if self.is_open:
            self.is_open = False
            self._stream.abandon(reason, open_steps=open_steps)


def build_step(
    batch: Batch, dispatch: Dispatch | None, submit_ns: int, complete_ns: int, profiled: bool
) -> Step:
    """Return the line; prefill and decode split as vLLM's annotation splits them."""
    prefill = [chunk.tokens for chunk in batch.chunks if not chunk.resumed]
    prefill_tokens = sum(prefill)
    graph = None
    if dispatch is not None:
        graph = Graph(
            mode=dispatch.mode,
            hit=dispatch.mode != "NONE",
            unpadded_tokens=batch.total_tokens,
            bucket_tokens=dispatch.bucket_tokens,
        )
    bins = batch.context_bins
    return Step(
        step=batch.step,
        submit_mono_ns=submit_ns,
        complete_mono_ns=complete_ns,
        model_executed=batch.total_tokens > 0,
        scheduled_requests=batch.requests,
        prefill_requests=len(prefill),
        prefill_tokens=prefill_tokens,
        decode_requests=batch.requests - len(prefill),
        decode_tokens=batch.total_tokens - prefill_tokens,
        prefill_chunks=prefill,
        context_len_hist={str(1 << bits): bins[bits] for bits in sorted(bins)},
        context_len_sum=batch.context_sum,
        context_len_max=batch.context_max,
        waiting=batch.waiting,
        running=batch.running,
        deferred=0,
        preemptions=batch.preempted,
        kv_usage=batch.kv_usage,
        prefix_queries=batch.prefix_queries,
        prefix_hits=batch.prefix_hits,
        graph=graph,
        resumed_requests=batch.resumed,
        recomputed_tokens=batch.recomputed,
        profiled=profiled,
    )
