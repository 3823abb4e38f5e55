"""The engine core: vLLM's step loop over a passed clock, with the host's and the device's time.

One engine thread schedules, launches and takes results, as ``step_with_batch_queue`` does: up to
two steps are in flight; step n+1 is submitted before step n completes. In one process the thread
is blocked while it launches, so an eager launch delays the completion of the step before; with
tensor parallelism worker processes launch, one step after the other. The device runs steps in
order; a step ends when its kernels have run and its last launch has been made, on the slowest rank:
the others wait for it inside their collectives.

Nothing here knows a client or a file: requests come in through :meth:`SimEngine.add` and tokens
leave through their sinks.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from opprof.engines.sim.batch import Batch, Delivered, SimRequest
from opprof.engines.sim.blocks import BlockPool
from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.cost import CostFile, CostModel, StepShape
from opprof.engines.sim.effects import Effects
from opprof.engines.sim.graphs import Dispatch, Dispatcher
from opprof.engines.sim.layer1 import StepRecorder
from opprof.engines.sim.profiler import CapturedStep, Profiler
from opprof.engines.sim.scheduler import Scheduler

MS = 1_000_000
_PAY_BACK = 0.5
"""Largest part of a pure step that pays back planted interference."""
_EMPTY_NS = 100_000
"""A worker's time for a step that runs no model."""
_COPY_NS = 100_000
"""From a step's last kernel to its tokens on the host."""


class EngineTimer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Make sure that the callback is not called any more."""


class EngineClock(Protocol):
    """Time and timers of one single-threaded loop; the load client's clocks fit."""

    def now_ns(self) -> int:
        """Current time."""

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> EngineTimer:
        """Call back at or after ``due_ns``."""


class Sink(Protocol):
    """Where a request's tokens go."""

    def first(self, at_ns: int) -> None:
        """The first token is there."""

    def finished(self, at_ns: int) -> None:
        """The last token is there."""

    def failed(self, at_ns: int) -> None:
        """The engine has died."""


@dataclass(slots=True)
class _Flight:
    """One step between submission and completion."""

    batch: Batch
    dispatch: Dispatch | None
    submit_ns: int
    end_ns: int
    profiled: bool


@dataclass(slots=True)
class Counters:
    """For ``/metrics``."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Host:
    """The engine thread's loop."""

    running: bool = False
    stopped: bool = False
    stall_until_ns: int = 0
    calls: deque[tuple[str, Callable[[bool], None]]] = field(default_factory=deque)


class SimEngine:
    """One engine with its scheduler, device and recorder."""

    def __init__(
        self,
        config: SimConfig,
        cost: CostFile,
        clock: EngineClock,
        *,
        seed: int,
        recorder: StepRecorder | None = None,
        profiler: Profiler | None = None,
        effects: Effects | None = None,
    ) -> None:
        config.check(cost)
        self.config = config
        self.cost = cost
        self.model = CostModel(cost, config.tensor_parallel_size)
        self.pool = BlockPool(config.blocks(cost), caching=config.prefix_caching)
        self.scheduler = Scheduler(config.limits(cost), self.pool)
        self.counters = Counters()
        self.dead = False
        self.on_step: Callable[[Batch, Delivered, int], None] = _nobody
        self._clock = clock
        self._recorder = recorder
        self._profiler = profiler
        self._effects = effects or Effects()
        self._dispatcher = Dispatcher(config.sizes, config.max_num_seqs)
        self._random = random.Random(seed)
        self._depth = 2 if config.async_scheduling else 1
        self._flights: deque[_Flight] = deque()
        self._host = _Host()
        self._device_free_ns = 0
        self._launcher_free_ns = 0
        self._flush_pending = False
        self._debt_ms = 0.0
        self._drift = 0.0
        self._drift_at_ns = clock.now_ns()

    # ------------------------------------------------------------------ from outside

    def add(self, request: SimRequest) -> None:
        """Queue a request; the loop wakes when it was idle."""
        self.scheduler.add(request)
        self._wake()

    def abort(self, request: SimRequest) -> None:
        """Forget a request whose client has left; its sink hears nothing more."""
        self.scheduler.abort(request)
        self._wake()

    def control(self, call: str, done: Callable[[bool], None]) -> None:
        """Ask for ``start`` or ``stop`` of a profile window; handled between two steps."""
        self._host.calls.append((call, done))
        self._wake()

    def stall(self, length_ns: int) -> None:
        """Let the engine thread hang for ``length_ns`` (planted)."""
        self._host.stall_until_ns = self._clock.now_ns() + length_ns

    def kill(self, reason: str) -> None:
        """End at once, as a kill does: the stream gets no footer."""
        self.dead = True
        if self._recorder is not None:
            self._recorder.abandon(reason, open_steps=len(self._flights))

    def stop(self) -> None:
        """End the recording cleanly; call it when nothing is outstanding."""
        self._host.stopped = True
        if self._recorder is not None:
            self._recorder.close()

    @property
    def is_idle(self) -> bool:
        """Nothing queued, running or in flight."""
        return not (self.scheduler.has_requests or self._flights)

    # ------------------------------------------------------------------ the loop

    def _wake(self) -> None:
        if not self._host.running and not self._host.stopped and not self.dead:
            self._host.running = True
            self._clock.call_at(self._clock.now_ns(), self._turn)

    def _again(self, at_ns: int) -> None:
        self._clock.call_at(max(at_ns, self._host.stall_until_ns), self._turn)

    def _turn(self) -> None:
        """One round of the engine thread."""
        now_ns = self._clock.now_ns()
        if now_ns < self._host.stall_until_ns:
            self._again(now_ns)
            return
        if self._host.calls:
            self._again(self._control(now_ns, *self._host.calls.popleft()))
            return
        free_ns = now_ns
        if self.scheduler.has_requests:
            flight, free_ns = self._submit(now_ns)
            if self.dead:
                return
            waits = not self._flights or self._flights[0].end_ns > free_ns
            self._flights.append(flight)
            if flight.batch.total_tokens and len(self._flights) < self._depth and waits:
                self._again(free_ns)
                return
        elif not self._flights:
            self._host.running = False
            return
        oldest = self._flights.popleft()
        due_ns = max(free_ns, oldest.end_ns)
        self._clock.call_at(due_ns, lambda: self._complete(oldest))

    def _complete(self, flight: _Flight) -> None:
        now_ns = self._clock.now_ns()
        if self.dead:
            return
        batch = flight.batch
        delivered = self.scheduler.complete(batch)
        for request in delivered.first:
            request.sink.first(now_ns)  # type: ignore[attr-defined]
        for request in delivered.finished:
            request.sink.finished(now_ns)  # type: ignore[attr-defined]
        self._count(batch, delivered)
        if self._recorder is not None:
            self._recorder.record(
                batch, flight.dispatch, flight.submit_ns, now_ns, profiled=flight.profiled
            )
            if not self._flush_pending:
                self._flush_pending = True
                self._clock.call_at(now_ns + self._recorder.flush_ns, self._flush)
        self.on_step(batch, delivered, now_ns)
        host = self.cost.host
        pause = host.between_ms + host.between_request_ms * batch.requests
        pause *= self._spread(host.between_sigma) * self._host_factor()
        self._again(now_ns + round(pause * MS))

    def _flush(self) -> None:
        self._flush_pending = False
        if self._recorder is not None:
            self._recorder.flush()

    def _count(self, batch: Batch, delivered: Delivered) -> None:
        counters = self.counters
        counters.steps += batch.total_tokens > 0
        counters.generation_tokens += batch.decodes + len(delivered.first)
        counters.prompt_tokens += sum(request.prompt_tokens for request in delivered.first)
        counters.finished += len(delivered.finished)
        counters.prefix_queries += batch.prefix_queries
        counters.prefix_hits += batch.prefix_hits
        counters.preemptions += batch.preempted

    # ------------------------------------------------------------------ one step's times

    def _submit(self, now_ns: int) -> tuple[_Flight, int]:
        """Schedule and launch a step; return it, and when the engine thread is free again."""
        batch = self.scheduler.schedule()
        profiled = self._profiler is not None and self._profiler.is_open
        if batch.step == self._effects.oom_step:
            self._die(now_ns)
            return _Flight(batch, None, now_ns, now_ns, profiled), now_ns
        begin_ns = self._launcher_at(now_ns)
        stall_ns = 0 if self._profiler is None else self._profiler.step(begin_ns)
        if not batch.total_tokens:
            end_ns = max(begin_ns, self._device_free_ns) + stall_ns
            self._launcher_free_ns = begin_ns + stall_ns + _EMPTY_NS
            if self._profiler is not None:
                self._profiler.capture_empty(batch.step, begin_ns)
            return _Flight(batch, None, now_ns, end_ns, profiled), now_ns + stall_ns
        dispatch, shape = self._dispatch(batch)
        parts, launch_ms = self._planned_ms(shape)
        pace = self._pace(max(sum(parts.values()), launch_ms), batch)
        parts = self._parts(parts, shape, pace)
        kernel_ns = round(sum(parts.values()) * MS)
        gap_ns = round(self.cost.host.gap_ms[dispatch.mode] * MS)
        launched_ns = begin_ns + stall_ns + self._launch_ns(launch_ms * pace, shape)
        self._launcher_free_ns = launched_ns
        start_ns = begin_ns + stall_ns + round(self.cost.host.first_kernel_ms * MS)
        start_ns = max(start_ns, self._device_free_ns)
        end_ns = max(start_ns + kernel_ns + gap_ns, launched_ns + _COPY_NS)
        self._device_free_ns = end_ns
        if self._profiler is not None and self._profiler.is_active:
            self._profiler.capture(
                CapturedStep(
                    batch=batch,
                    dispatch=dispatch,
                    parts_ms=parts,
                    submit_ns=begin_ns,
                    launched_ns=launched_ns,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    opaque=self._effects.opaque and dispatch.mode != "NONE",
                )
            )
        blocks = self.config.tensor_parallel_size == 1
        free_ns = launched_ns if blocks else now_ns + stall_ns
        return _Flight(batch, dispatch, now_ns, end_ns + _COPY_NS, profiled), free_ns

    def _dispatch(self, batch: Batch) -> tuple[Dispatch, StepShape]:
        effects, tokens = self._effects, batch.total_tokens
        plain = self._dispatcher(tokens, uniform_decode=tokens == batch.requests)
        draw = self._random.random() if effects.miss_rate else 1.0
        dispatch = effects.dispatch(plain, tokens, draw, self._dispatcher.sizes)
        paid = dispatch
        if dispatch.mode == "NONE" and not effects.miss_costs:
            paid = plain
        padded = paid.bucket_tokens or tokens
        if effects.padding and not effects.padding_costs:
            padded = plain.bucket_tokens or tokens
        product = sum(chunk.tokens * (chunk.start + chunk.tokens / 2) for chunk in batch.chunks)
        shape = StepShape(
            mode=paid.mode,
            padded_tokens=padded,
            rows=batch.requests,
            decodes=batch.decodes,
            decode_context=batch.decode_context,
            unique_context=min(batch.decode_context, batch.used_blocks * self.cost.block_tokens),
            prefill_product=product,
        )
        return dispatch, shape

    def _planned_ms(self, shape: StepShape) -> tuple[dict[str, float], float]:
        """Return the parts' and the launch's milliseconds without noise or anything planted."""
        host = self.cost.host
        one_process = self.config.tensor_parallel_size == 1
        launch_ms = (host.launch_ms if one_process else host.launch_worker_ms)[shape.mode]
        return self.model.part_ms(shape), launch_ms + host.launch_request_ms * shape.rows

    def _pace(self, step_ms: float, batch: Batch) -> float:
        """Return the factor of all that is planted on a step of ``step_ms``.

        It is on kernels and launch alike: a step that waits for its launches takes as much longer
        as one that waits for its kernels.
        """
        effects = self._effects
        pace = effects.slowdown
        if effects.interference:
            pace *= self._interfered(step_ms, mixed=bool(batch.decodes and batch.chunks))
        neighbour = effects.neighbour
        if neighbour is not None and neighbour.from_ns <= self._clock.now_ns() < neighbour.to_ns:
            pace *= neighbour.factor
        return pace

    def _parts(self, parts: dict[str, float], shape: StepShape, pace: float) -> dict[str, float]:
        """Return the parts' milliseconds with noise and everything planted."""
        effects, noise = self._effects, self.cost.noise
        profiled = self._profiler is not None and self._profiler.is_active
        factor = self._spread(noise.step_sigma) * self._drifted() * pace
        if effects.lead is not None or effects.same_shares:
            parts = effects.shares(parts, shape.mode)
        if profiled:
            return {
                name: value * factor * self._spread(noise.part_sigma)
                for name, value in parts.items()
            }
        return {name: value * factor for name, value in parts.items()}

    def _interfered(self, step_ms: float, *, mixed: bool) -> float:
        """Return the factor of planted interference; pure steps pay back where it costs nothing."""
        effects = self._effects
        if mixed:
            if not effects.interference_costs:
                self._debt_ms += effects.interference * step_ms
            return 1.0 + effects.interference
        paid = min(self._debt_ms, _PAY_BACK * step_ms)
        self._debt_ms -= paid
        return 1.0 - paid / step_ms

    def _launcher_at(self, now_ns: int) -> int:
        """Return when the launcher hears of a call: a worker may still launch the step before."""
        if self.config.tensor_parallel_size == 1:
            return now_ns
        return max(now_ns, self._launcher_free_ns)

    def _launch_ns(self, launch_ms: float, shape: StepShape) -> int:
        spread = self._spread(self.cost.host.launch_sigma[shape.mode])
        return round(launch_ms * spread * self._host_factor() * MS)

    def _host_factor(self) -> float:
        is_open = self._profiler is not None and self._profiler.is_recording
        return self.cost.profiler.host_factor if is_open else 1.0

    def _spread(self, sigma: float) -> float:
        return math.exp(self._random.gauss(0.0, sigma))

    def _drifted(self) -> float:
        """Return the clocks' slow factor: an Ornstein-Uhlenbeck process in the logarithm."""
        noise, now_ns = self.cost.noise, self._clock.now_ns()
        kept = math.exp(-(now_ns - self._drift_at_ns) / (noise.drift_s * 1e9))
        spread = noise.drift_sigma * math.sqrt(max(0.0, 1.0 - kept * kept))
        self._drift = self._drift * kept + self._random.gauss(0.0, 1.0) * spread
        self._drift_at_ns = now_ns
        return math.exp(self._drift)

    # ------------------------------------------------------------------ control and death

    def _control(self, now_ns: int, call: str, done: Callable[[bool], None]) -> int:
        """Start or stop a window; return when the engine thread is free again."""
        profiler = self._profiler
        if profiler is None:
            done(False)
            return now_ns
        begin_ns = self._launcher_at(now_ns)
        if call == "start":
            end_ns = begin_ns + profiler.start(begin_ns) + self._effects.window_stall_ns
        else:
            end_ns = begin_ns + profiler.stop(begin_ns)
        good = call == "start" or not profiler.refuses
        self._clock.call_at(end_ns, lambda: done(good))
        return end_ns

    def _die(self, now_ns: int) -> None:
        """Out of memory: everything outstanding fails and the stream ends without a footer."""
        self.dead = True
        if self._recorder is not None:
            self._recorder.abandon(
                "engine error: OutOfMemoryError: simulated", open_steps=len(self._flights) + 1
            )
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            request.sink.failed(now_ns)  # type: ignore[attr-defined]


def _nobody(_batch: Batch, _delivered: Delivered, _now_ns: int) -> None:
    """Default hook: nobody listens."""
