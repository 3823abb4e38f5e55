"""The event-driven scheduler against a plain one that visits every request in every step."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from opprof.engines.sim.batch import Batch, Limits, SimRequest
from opprof.engines.sim.blocks import BlockPool
from opprof.engines.sim.scheduler import Scheduler


class Plain:
    """Continuous batching without calendars and without a prefix cache."""

    def __init__(self, limits: Limits, blocks: int) -> None:
        self.limits, self.blocks = limits, blocks
        self.waiting: list[list[int]] = []
        self.running: list[list[int]] = []  # [id, prompt, output, computed, made]
        self.used: Counter[int] = Counter()

    def step(self) -> dict[int, tuple[int, int]] | None:
        """Return request to (tokens, context); None when blocks run out (not modelled here)."""
        budget, scheduled = self.limits.max_num_batched_tokens, {}
        size = self.limits.block_tokens

        def take(request: list[int]) -> bool:
            nonlocal budget
            number, prompt, output, computed, made = request
            rest = prompt + made - computed
            if made >= output or budget <= 0:
                return True
            tokens = min(rest, budget)
            need = -(-(computed + tokens) // size)
            if sum(self.used.values()) - self.used[number] + need > self.blocks:
                return False
            self.used[number] = max(need, self.used[number])
            request[3] += tokens
            budget -= tokens
            scheduled[number] = (tokens, request[3])
            if request[3] == prompt + made:
                request[4] += 1
            return True

        for request in list(self.running):
            if not take(request):
                return None
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            need = -(-min(request[1], budget) // size)
            if sum(self.used.values()) + need > self.blocks:
                break
            self.running.append(self.waiting.pop(0))
            take(request)
        return scheduled

    def finish(self) -> set[int]:
        done = {r[0] for r in self.running if r[4] >= r[2]}
        self.running = [r for r in self.running if r[0] not in done]
        for number in done:
            del self.used[number]
        return done


requests = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=14
)


@settings(max_examples=150)
@given(
    arrivals=requests,
    seqs=st.integers(1, 8),
    budget=st.integers(8, 64),
    block=st.sampled_from([4, 16]),
)
def test_every_step_schedules_what_the_plain_scheduler_does(
    arrivals: list[tuple[int, int, int]], seqs: int, budget: int, block: int
) -> None:
    limits = Limits(min(seqs, budget), budget, block)
    pool = BlockPool(10_000, caching=True)
    fast, plain = Scheduler(limits, pool), Plain(limits, 10_000)
    pending = sorted(enumerate(arrivals), key=lambda item: item[1][2])
    for turn in range(3000):
        while pending and pending[0][1][2] <= turn:
            number, (prompt, output, _) = pending.pop(0)
            fast.add(SimRequest(number, prompt, output))
            plain.waiting.append([number, prompt, output, 0, 0])
        wanted = plain.step()
        assert wanted is not None
        batch = fast.schedule()
        _same(batch, wanted, fast)
        delivered = fast.complete(batch)
        assert {r.name for r in delivered.finished} == plain.finish()
        assert pool.used == sum(plain.used.values())
        if not pending and not plain.running and not plain.waiting:
            break
    assert pool.used == 0 and not fast.running and not fast.waiting


def _same(batch: Batch, wanted: dict[int, tuple[int, int]], fast: Scheduler) -> None:
    contexts = [context for _, context in wanted.values()]
    assert batch.total_tokens == sum(tokens for tokens, _ in wanted.values())
    assert batch.requests == len(wanted)
    assert batch.context_sum == sum(contexts)
    assert batch.context_max == max(contexts, default=0)
    assert batch.context_bins == Counter((c - 1).bit_length() for c in contexts)
    for chunk in batch.chunks:
        tokens, context = wanted[chunk.request.name]  # type: ignore[index]
        assert (chunk.tokens, chunk.start + chunk.tokens) == (tokens, context)


@settings(max_examples=100)
@given(arrivals=requests, blocks=st.integers(12, 40), depth=st.integers(1, 2))
def test_scarce_blocks_preempt_and_every_request_still_ends(
    arrivals: list[tuple[int, int, int]], blocks: int, depth: int
) -> None:
    pool = BlockPool(blocks * 4, caching=True)
    scheduler = Scheduler(Limits(8, 64, 4), pool)
    for number, (prompt, output, _) in enumerate(arrivals):
        if prompt + output <= blocks * 4:
            scheduler.add(SimRequest(number, prompt, output))
    asked = {r.name: r.max_tokens for r in scheduler.waiting}
    ended, first, flying = [], [], []
    for _ in range(4000):
        if scheduler.has_requests:
            flying.append(scheduler.schedule())
        if flying and (len(flying) >= depth or not scheduler.has_requests):
            delivered = scheduler.complete(flying.pop(0))
            ended += [r.name for r in delivered.finished]
            first += [r.name for r in delivered.first]
        assert 0 <= pool.used <= pool.count
        if not flying and not scheduler.has_requests:
            break
    assert sorted(ended) == sorted(asked) and sorted(first) == sorted(asked)
    assert pool.used == 0


def test_a_shared_prefix_is_computed_once() -> None:
    pool = BlockPool(100, caching=True)
    scheduler = Scheduler(Limits(8, 1000, 16), pool)
    shared = tuple(("p", block) for block in range(4))
    scheduler.add(SimRequest("a", 80, 4, shared))
    first = scheduler.schedule()
    scheduler.add(SimRequest("b", 80, 4, shared))
    second = scheduler.schedule()
    assert (first.prefix_queries, first.prefix_hits) == (80, 0)
    assert (second.prefix_queries, second.prefix_hits) == (80, 64)
    assert [chunk.tokens for chunk in second.chunks] == [16]
    # Four blocks are shared; each request has one of its own, and "a" took a second to decode.
    assert pool.used == 4 + 2 + 1


def test_a_prompt_is_never_wholly_a_hit() -> None:
    scheduler = Scheduler(Limits(8, 1000, 16), BlockPool(100, caching=True))
    contents = tuple(range(4))
    scheduler.add(SimRequest("a", 64, 1, contents))
    scheduler.complete(scheduler.schedule())
    scheduler.add(SimRequest("b", 64, 1, contents))
    assert [chunk.tokens for chunk in scheduler.schedule().chunks] == [16]


def test_reused_blocks_forget_what_they_held() -> None:
    pool = BlockPool(4, caching=True)
    held = pool.allocate(4)
    assert held is not None
    pool.cache(held, 0, ["a", "b", "c", "d"])
    pool.release(held)
    assert len(pool.match(["a", "b", "c", "d"], 4)) == 4
    other = pool.allocate(1)
    # The tail of a freed chain is reused first.
    assert other == [held[3]] and len(pool.match(["a", "b", "c", "d"], 4)) == 3
    assert pool.allocate(4) is None
