"""The scheduler: continuous batching with chunked prefill, as vLLM V1's, in time O(changes) a step.

What a step does to a decoding request is known when its decoding starts: one token each step, a new
KV block every ``block_tokens`` steps, a new context class at each power of two, an end. So decoding
requests are not visited step by step; they stand in calendars by *tick* (the number of steps that
ran tokens), and a step of 256 decodes costs no more than one of 2.

Rules kept from vLLM 0.24.0: running requests first, in order of admission, then waiting ones, first
come first served, while budget, sequence limit and blocks last; decodes take one token each; the
last running request is preempted when blocks run out, its blocks freed, and it is recomputed from
the head of the queue; requests at their known length are not scheduled again while their last token
is in flight (asynchronous scheduling); a finished request causes one more, maybe empty, schedule.
"""

from __future__ import annotations

from collections import defaultdict, deque
from heapq import heappop, heappush

from opprof.engines.sim.batch import Batch, Chunk, Delivered, Limits, SimRequest
from opprof.engines.sim.blocks import BlockPool


class Scheduler:
    """State of the queue, the running requests and their blocks."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting: deque[SimRequest] = deque()
        self.running: dict[SimRequest, None] = {}
        self.preemptions = 0
        self._flush = False
        self._step = 0
        self._tick = 0
        self._done_tick = 0
        self._known_tick = 0
        """Last completed tick when the last one was scheduled."""
        self._joining: list[SimRequest] = []
        self._prefilling: list[SimRequest] = []
        self._decodes = 0
        self._context = 0
        self._bins: defaultdict[int, int] = defaultdict(int)
        self._ends: dict[int, list[tuple[SimRequest, int]]] = {}
        self._crossings: dict[int, list[tuple[SimRequest, int]]] = {}
        self._phases: list[dict[SimRequest, None]] = [{} for _ in range(limits.block_tokens)]
        self._longest: list[tuple[int, int, int, SimRequest]] = []
        self._late: dict[int, list[tuple[SimRequest, int]]] = {}
        """Tick to preempted requests (with epoch) whose token was in flight in that tick."""
        self._order = 0

    def add(self, request: SimRequest) -> None:
        """Queue a request."""
        request.key = self._order
        self._order += 1
        self.waiting.append(request)

    def abort(self, request: SimRequest) -> None:
        """Take a request out, wherever it is; what is in flight for it is ignored."""
        request.epoch += 1
        if request in self.running:
            if request.decode_tick:
                last = min(self._tick, request.last_tick)
                self._cache_known(request, self._known(request, last))
            if request.decoding:
                self._stop_decoding(request)
            if request in self._prefilling:
                self._prefilling.remove(request)
            if request in self._joining:
                self._joining.remove(request)
            self.pool.release(request.blocks)
            request.blocks = []
            del self.running[request]
            self._flush = True
        elif request in self.waiting:
            self.waiting.remove(request)
            self._flush = True

    @property
    def has_requests(self) -> bool:
        """Whether vLLM's loop would schedule: unfinished requests, or finished ones to flush."""
        return bool(self.waiting or self.running or self._flush)

    # ------------------------------------------------------------------ one schedule

    def schedule(self) -> Batch:
        """Decide the next step."""
        self._flush = False
        tick = self._tick + 1
        step = _Step(self.limits.max_num_batched_tokens)
        self._leave(tick)
        self._join(tick)
        self._give_blocks(tick, step)
        step.budget -= self._decodes
        self._continue_prefills(step)
        if not step.preempted:
            self._admit(step)
        total = self._decodes + sum(chunk.tokens for chunk in step.chunks)
        if total:
            self._tick = tick
            self._known_tick = self._done_tick
            self._context += self._decodes
            self._cross(tick)
        batch = self._batch(tick, total, step)
        self._after(batch)
        self._step += 1
        return batch

    def complete(self, batch: Batch) -> Delivered:
        """Take the step's output: first tokens, finished requests, freed blocks."""
        late: list[tuple[SimRequest, int]] = []
        if batch.total_tokens:
            self._done_tick = batch.tick
            late = [each for each in self._late.pop(batch.tick, ()) if each[0].epoch == each[1]]
        first = [
            chunk.request
            for chunk in batch.chunks
            if chunk.is_last and not chunk.resumed and chunk.epoch == chunk.request.epoch
        ]
        first += [request for request, _ in late if not request.outputs]
        finished = []
        for request, epoch in batch.finishing:
            if request.epoch != epoch:
                continue
            self._cache_known(request, request.prompt_tokens + request.max_tokens - 1)
            self.pool.release(request.blocks)
            request.blocks = []
            del self.running[request]
            finished.append(request)
        finished += [request for request, _ in late if self._take_late(request)]
        self._flush = self._flush or bool(finished)
        return Delivered(first, finished)

    def _take_late(self, request: SimRequest) -> bool:
        """A preempted request's token has come after all; True when it was its last."""
        request.outputs += 1
        request.base += 1
        if request.outputs < request.max_tokens:
            return False
        self.waiting.remove(request)
        return True

    # ------------------------------------------------------------------ decoding requests

    def _leave(self, tick: int) -> None:
        """Take out requests whose last token was in the step before ``tick``."""
        for request, epoch in self._ends.pop(tick, ()):
            if request.epoch == epoch and request.decoding:
                self._stop_decoding(request)

    def _stop_decoding(self, request: SimRequest) -> None:
        """Remove a decoding request from every sum; its blocks stay."""
        request.decoding = False
        self._decodes -= 1
        length = self._length(request)
        self._context -= length
        # A request that joined in this very step stands in the class of its first token already.
        self._bins[max(length - 1, request.base).bit_length()] -= 1
        del self._phases[self._phase(request)][request]

    def _length(self, request: SimRequest) -> int:
        """Context after the last tick that ran."""
        return request.base + self._tick - request.decode_tick + 1

    def _phase(self, request: SimRequest) -> int:
        """The tick, modulo the block size, in which the request needs a block."""
        return (request.decode_tick - request.base) % self.limits.block_tokens

    def _join(self, tick: int) -> None:
        for request in self._joining:
            request.decoding = True
            request.decode_tick = tick
            request.last_tick = tick + request.max_tokens - request.outputs - 2
            self._decodes += 1
            self._context += request.base
            self._bins[(request.base).bit_length()] += 1
            self._phases[self._phase(request)][request] = None
            self._ends.setdefault(request.last_tick + 1, []).append((request, request.epoch))
            self._plan_crossing(request, tick)
            key = request.base - tick
            heappush(self._longest, (-key, request.key, request.epoch, request))
        self._joining.clear()

    def _plan_crossing(self, request: SimRequest, tick: int) -> None:
        """Note the tick in which ``context - 1`` next reaches a power of two."""
        before = request.base + tick - request.decode_tick
        power = 1 << before.bit_length()
        due = tick + power - before
        if due <= request.last_tick:
            self._crossings.setdefault(due, []).append((request, request.epoch))

    def _cross(self, tick: int) -> None:
        for request, epoch in self._crossings.pop(tick, ()):
            if request.epoch == epoch and request.decoding:
                bits = (request.base + tick - request.decode_tick).bit_length()
                self._bins[bits] += 1
                self._bins[bits - 1] -= 1
                self._plan_crossing(request, tick)

    def _give_blocks(self, tick: int, step: _Step) -> None:
        """Give a block to each decoding request whose blocks are full."""
        for request in list(self._phases[tick % self.limits.block_tokens]):
            if not request.decoding:
                continue  # Preempted by one before it.
            blocks = self._allocate(1, request, step)
            if blocks is None:
                continue
            self._cache_outputs(request)
            request.blocks += blocks

    def _cache_outputs(self, request: SimRequest) -> None:
        """The block before is full now; outputs are found again by this request only."""
        full = len(request.blocks)
        if request.cached_blocks < full:
            contents = self._contents(request, request.cached_blocks, full)
            self.pool.cache(request.blocks, request.cached_blocks, contents)
            request.cached_blocks = full

    def _known(self, request: SimRequest, last: int) -> int:
        """Return how many tokens of a decoding request vLLM has offered to the cache.

        A schedule offers what it computes and knows; a completion what is computed and known.
        """
        before = request.base - request.decode_tick
        scheduled = min(before + last + 1, before + self._known_tick + 2)
        return max(scheduled, before + min(self._done_tick, last) + 1)

    def _cache_known(self, request: SimRequest, tokens: int) -> None:
        """The whole blocks of the first ``tokens`` can be found from now on."""
        full = tokens // self.limits.block_tokens
        if full > request.cached_blocks:
            contents = self._contents(request, request.cached_blocks, full)
            self.pool.cache(request.blocks, request.cached_blocks, contents)
            request.cached_blocks = full

    def _contents(self, request: SimRequest, first: int, last: int) -> list[object]:
        known = len(request.contents)
        contents: list[object] = list(request.contents[first : min(last, known)])
        contents += [(request.key, index) for index in range(max(first, known), last)]
        return contents

    # ------------------------------------------------------------------ prefill

    def _continue_prefills(self, step: _Step) -> None:
        for request in list(self._prefilling):
            if step.budget <= 0:
                return
            if request in self._prefilling:
                self._chunk(request, step, preempt=True)

    def _admit(self, step: _Step) -> None:
        limits = self.limits
        while self.waiting and step.budget > 0 and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            # The last token is always computed, so a prompt is never wholly a hit.
            most = (request.base - 1) // limits.block_tokens
            hits = self.pool.match(self._contents(request, 0, most), most)
            computed = len(hits) * limits.block_tokens
            rest = request.base - computed
            if rest > step.budget and not limits.chunked_prefill:
                return
            # The whole sequence must fit, whatever the chunk (vLLM: scheduler_reserve_full_isl).
            need = self._blocks_for(request.base) - len(hits)
            if need + self.pool.idle(hits) > self.pool.free:
                return
            self.waiting.popleft()
            self.pool.touch(hits)
            request.blocks = hits
            request.computed = computed
            request.cached_blocks = len(hits)
            step.resumed += request.outputs > 0
            if not request.admitted:
                step.prefix_queries += request.prompt_tokens
                step.prefix_hits += computed
                request.admitted = True
            self.running[request] = None
            self._prefilling.append(request)
            self._chunk(request, step, preempt=False)

    def _chunk(self, request: SimRequest, step: _Step, *, preempt: bool) -> None:
        """Schedule the next piece of a request's prefill."""
        rest = request.base - request.computed
        tokens = min(rest, step.budget)
        if tokens < rest and not self.limits.chunked_prefill:
            return
        need = self._blocks_for(request.computed + tokens) - len(request.blocks)
        if need > 0:
            blocks = self._allocate(need, request, step) if preempt else self.pool.allocate(need)
            if blocks is None:
                return
            request.blocks += blocks
        is_last = tokens == rest
        step.chunks.append(
            Chunk(request, request.epoch, request.computed, tokens, is_last, request.outputs > 0)
        )
        step.recomputed += tokens if request.outputs else 0
        step.budget -= tokens
        request.computed += tokens
        full = request.computed // self.limits.block_tokens
        if full > request.cached_blocks:
            contents = self._contents(request, request.cached_blocks, full)
            self.pool.cache(request.blocks, request.cached_blocks, contents)
            request.cached_blocks = full
        if is_last:
            self._prefilling.remove(request)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    # ------------------------------------------------------------------ preemption

    def _allocate(self, count: int, request: SimRequest, step: _Step) -> list[int] | None:
        """Allocate, preempting the last running requests; None when ``request`` itself went."""
        while (blocks := self.pool.allocate(count)) is None:
            victim = next(reversed(self.running))
            self._preempt(victim, step)
            if victim is request:
                return None
        return blocks

    def _preempt(self, victim: SimRequest, step: _Step) -> None:
        delivered, flying = victim.outputs, range(0)
        if victim in self._prefilling:
            self._prefilling.remove(victim)
        elif victim.decode_tick:
            # Its first token came with the tick before its first decode. Tokens of steps that have
            # completed are known; those in flight still come, when their steps complete.
            done = max(0, self._done_tick - victim.decode_tick + 2)
            delivered += done
            last = min(self._tick, victim.last_tick)
            flying = range(max(self._done_tick + 1, victim.decode_tick - 1), last + 1)
            self._cache_known(victim, self._known(victim, last))
            if victim.decoding:
                self._stop_decoding(victim)
        for chunk in [chunk for chunk in step.chunks if chunk.request is victim]:
            step.chunks.remove(chunk)
            step.budget += chunk.tokens
        victim.epoch += 1
        for tick in flying:
            self._late.setdefault(tick, []).append((victim, victim.epoch))
        victim.outputs = delivered
        victim.base = victim.prompt_tokens + delivered
        victim.computed = 0
        victim.cached_blocks = 0
        victim.decode_tick = victim.last_tick = 0
        self.pool.release(victim.blocks)
        victim.blocks = []
        del self.running[victim]
        self.waiting.appendleft(victim)
        step.preempted += 1
        self.preemptions += 1

    # ------------------------------------------------------------------ the result

    def _batch(self, tick: int, total: int, step: _Step) -> Batch:
        bins = {bits: count for bits, count in self._bins.items() if count}
        context, longest = self._context, self._longest_decode() if total else 0
        for chunk in step.chunks:
            length = chunk.start + chunk.tokens
            bits = (length - 1).bit_length()
            bins[bits] = bins.get(bits, 0) + 1
            context += length
            longest = max(longest, length)
        if not total:
            bins, context = {}, 0
        return Batch(
            step=self._step,
            tick=tick,
            total_tokens=total,
            chunks=step.chunks,
            decodes=self._decodes if total else 0,
            decode_context=self._context if total else 0,
            context_sum=context,
            context_max=longest,
            context_bins=bins,
            used_blocks=self.pool.used,
            kv_usage=self.pool.usage,
            waiting=len(self.waiting),
            running=len(self.running),
            preempted=step.preempted,
            resumed=step.resumed,
            recomputed=step.recomputed,
            prefix_queries=step.prefix_queries,
            prefix_hits=step.prefix_hits,
        )

    def _longest_decode(self) -> int:
        heap = self._longest
        while heap:
            negative, _, epoch, request = heap[0]
            if request.epoch == epoch and request.decoding:
                return self._tick - negative + 1
            heappop(heap)
        return 0

    def _after(self, batch: Batch) -> None:
        """Requests whose prefill ends here decode from the next step on, or end here."""
        if not batch.total_tokens:
            return
        # Blocks are freed in the order of the schedule: decodes stand before prefills.
        for request, epoch in self._ends.get(batch.tick + 1, ()):
            if request.epoch == epoch and request.decoding:
                batch.finishing.append((request, epoch))
        ends = []
        for chunk in batch.chunks:
            if not chunk.is_last:
                continue
            request = chunk.request
            if request.max_tokens - request.outputs <= 1:
                request.decode_tick, request.last_tick = batch.tick + 1, batch.tick
                ends.append((request, request.epoch))
            else:
                self._joining.append(request)
        batch.finishing += ends


class _Step:
    """What is being decided."""

    __slots__ = (
        "budget",
        "chunks",
        "preempted",
        "prefix_hits",
        "prefix_queries",
        "recomputed",
        "resumed",
    )

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: list[Chunk] = []
        self.preempted = 0
        self.prefix_hits = 0
        self.prefix_queries = 0
        self.recomputed = 0
        self.resumed = 0
