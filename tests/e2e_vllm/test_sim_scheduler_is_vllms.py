"""The embedded engine's scheduler and graph dispatch against vLLM 0.24.0's own classes.

Random loads (chunking, scarce blocks with preemption, shared prefixes, aborts) drive both; every
step must schedule the same tokens of the same requests, see the same queue, blocks and prefix hits,
and end the same requests in the same order. Runs where vLLM is installed and skips elsewhere.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(sys.prefix) / "tiny-qwen3"
if not MODEL.is_dir():
    pytest.skip("no vLLM environment", allow_module_level=True)

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm")

from vllm import SamplingParams  # noqa: E402
from vllm.config import CompilationMode, CUDAGraphMode  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched import async_scheduler, scheduler  # noqa: E402
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

from opprof.engines.sim.batch import Batch, Limits, SimRequest  # noqa: E402
from opprof.engines.sim.blocks import BlockPool  # noqa: E402
from opprof.engines.sim.config import block_contents  # noqa: E402
from opprof.engines.sim.graphs import Dispatcher, capture_sizes  # noqa: E402
from opprof.engines.sim.scheduler import Scheduler  # noqa: E402

if vllm.__version__.split("+")[0] != "0.24.0":
    pytest.skip("the engine models vLLM 0.24.0", allow_module_level=True)

BLOCK = 16
SEQS, BUDGET, LENGTH = 24, 192, 1024
REQUESTS = 150


@dataclass(frozen=True)
class Load:
    """One random load."""

    blocks: int
    depth: int
    shared: bool
    aborts: bool
    burst: int


LOADS = {
    "wide": Load(400, 2, shared=True, aborts=False, burst=4),
    "scarce": Load(60, 2, shared=False, aborts=False, burst=6),
    "scarce, shared": Load(60, 2, shared=True, aborts=False, burst=6),
    "scarce, shared, aborts": Load(90, 2, shared=True, aborts=True, burst=6),
    "one step in flight": Load(60, 1, shared=True, aborts=True, burst=6),
}


def real_scheduler(load: Load) -> Any:
    """vLLM's scheduler over an imaginary cache."""
    arguments = EngineArgs(
        model=str(MODEL),
        load_format="dummy",
        max_model_len=LENGTH,
        max_num_seqs=SEQS,
        max_num_batched_tokens=BUDGET,
        enable_prefix_caching=True,
        block_size=BLOCK,
    )
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = load.blocks
    config.scheduler_config.async_scheduling = load.depth > 1
    kind = async_scheduler.AsyncScheduler if load.depth > 1 else scheduler.Scheduler
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=load.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        log_stats=True,
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


class Both:
    """The two schedulers side by side."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load = load
        self.real = real_scheduler(load)
        # One of vLLM's blocks is the null block.
        self.pool = BlockPool(load.blocks - 1, caching=True)
        self.sim = Scheduler(Limits(SEQS, BUDGET, BLOCK), self.pool)
        self.draw = random.Random(seed)
        self.requests: dict[str, SimRequest] = {}
        self.flying: deque[tuple[Any, Batch]] = deque()
        self.prefixes = [self.tokens(self.draw.randrange(16, 200)) for _ in range(4)]
        function = get_hash_fn_by_name("sha256")
        init_none_hash(function)
        self.hasher = get_request_block_hasher(BLOCK, function)
        self.seen = {"steps": 0, "preempted": 0, "hits": 0, "mixed": 0, "resumed": 0}

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(1000, 4000) for _ in range(count)]

    def add(self) -> None:
        name = f"r{len(self.requests)}"
        most = min(LENGTH, (self.load.blocks - 1) * BLOCK)
        prompt = self.tokens(self.draw.randrange(1, 300))
        if self.load.shared and self.draw.random() < 0.7:
            prompt = self.draw.choice(self.prefixes) + prompt[: self.draw.randrange(1, 100)]
        outputs = self.draw.choice([1, 2, 3, 17, self.draw.randrange(1, 90)])
        prompt = prompt[: most - outputs]
        self.real.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=outputs, ignore_eos=True),
                pooling_params=None,
                block_hasher=self.hasher,
            )
        )
        contents = block_contents(array("i", prompt).tobytes(), BLOCK)
        self.requests[name] = SimRequest(name, len(prompt), outputs, contents)
        self.sim.add(self.requests[name])

    def abort(self) -> None:
        victim = self.draw.choice([*self.real.running, *self.real.waiting]).request_id
        self.real.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        self.sim.abort(self.requests[victim])

    def schedule(self) -> None:
        stats = self.real.kv_cache_manager.prefix_cache_stats
        before = (stats.hits, stats.preempted_hits)
        output = self.real.schedule()
        computed = dict(
            zip(
                output.scheduled_cached_reqs.req_ids,
                output.scheduled_cached_reqs.num_computed_tokens,
                strict=True,
            )
        ) | {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        output.made = {name for name in computed if not self.real.requests[name].is_prefill_chunk}
        batch = self.sim.schedule()
        wanted = {
            name: (count, computed[name] + count)
            for name, count in output.num_scheduled_tokens.items()
        }
        assert self.scheduled(batch) == wanted
        assert list(self.scheduled(batch)) == list(wanted), "the order differs"
        contexts = [context for _, context in wanted.values()]
        assert batch.total_tokens == output.total_num_scheduled_tokens
        assert batch.context_sum == sum(contexts)
        assert batch.context_max == max(contexts, default=0)
        assert sum(batch.context_bins.values()) == batch.requests == len(wanted)
        preempted = [str(name) for name in output.preempted_req_ids or ()]
        assert batch.preempted == len(preempted)
        assert [r.request_id for r in self.real.running] == [r.name for r in self.sim.running]
        assert [r.request_id for r in self.real.waiting] == [r.name for r in self.sim.waiting]
        assert (batch.running, batch.waiting) == (len(self.real.running), len(self.real.waiting))
        free = self.real.kv_cache_manager.block_pool.get_num_free_blocks()
        assert self.pool.free == free
        assert batch.kv_usage == pytest.approx(self.real.kv_cache_manager.usage)
        new_hits = sum(r.num_computed_tokens for r in output.scheduled_new_reqs)
        assert batch.prefix_hits == new_hits
        self.seen["steps"] += 1
        self.seen["preempted"] += len(preempted)
        self.seen["hits"] += stats.hits - before[0] + stats.preempted_hits - before[1]
        self.seen["mixed"] += bool(batch.decodes and batch.chunks)
        self.seen["resumed"] += batch.resumed
        self.flying.append((output, batch))

    def scheduled(self, batch: Batch) -> dict[Any, tuple[int, int]]:
        """Request to (tokens, context) in order of the running queue."""
        chunks = {c.request.name: (c.tokens, c.start + c.tokens) for c in batch.chunks}
        found = {}
        for request in self.sim.running:
            if request.name in chunks:
                found[request.name] = chunks[request.name]
            elif request.decode_tick and request.decode_tick <= batch.tick <= request.last_tick:
                found[request.name] = (1, request.base + batch.tick - request.decode_tick + 1)
        return found

    def complete(self) -> None:
        output, batch = self.flying.popleft()
        names = list(output.num_scheduled_tokens)
        alive = {name for name in names if name in self.real.requests}
        # Tokens nobody else makes, so that only a request itself can find its outputs again.
        sampled = [[int(name[1:]) + 5000] if name in output.made else [] for name in names]
        self.real.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        delivered = self.sim.complete(batch)
        finished = {name for name in alive if name not in self.real.requests}
        assert {r.name for r in delivered.finished} == finished
        assert [r.request_id for r in self.real.running] == [r.name for r in self.sim.running]
        assert [r.request_id for r in self.real.waiting] == [r.name for r in self.sim.waiting]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", LOADS)
def test_every_step_is_vllms(name: str, seed: int) -> None:
    load = LOADS[name]
    both = Both(load, seed)
    for turn in range(20_000):  # noqa: B007 - asserted on below
        if len(both.requests) < REQUESTS and both.draw.random() < 0.3:
            for _ in range(both.draw.randrange(1, load.burst)):
                both.add()
        if load.aborts and both.real.running and both.draw.random() < 0.03:
            both.abort()
        assert both.sim.has_requests == both.real.has_requests()
        if both.real.has_requests() and len(both.flying) < load.depth:
            both.schedule()
            # As the engine core: a step that runs nothing is never overtaken.
            if len(both.flying) < load.depth and both.flying[-1][1].total_tokens:
                continue
        elif not both.flying:
            if len(both.requests) >= REQUESTS:
                break
            continue
        both.complete()
    assert turn < 19_999, "the requests never finished"
    assert both.pool.used == 0 and both.seen["steps"] > 200 and both.seen["mixed"] > 20
    if load.blocks < 100:
        assert both.seen["preempted"] > 0
        assert both.seen["resumed"] > 0
    if load.shared:
        assert both.seen["hits"] > 0


@pytest.mark.parametrize("budget", [64, 500, 2048, 8192])
@pytest.mark.parametrize("seqs", [3, 24, 64, 255, 256, 1024])
def test_capture_sizes_and_dispatch_are_vllms(seqs: int, budget: int) -> None:
    if budget < seqs:
        pytest.skip("vLLM refuses it")
    config = EngineArgs(
        model=str(MODEL),
        load_format="dummy",
        max_model_len=64,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
    ).create_engine_config()
    compilation = config.compilation_config
    # On a CPU vLLM captures nothing; the rule is asked for as a GPU's worker asks.
    compilation.mode = CompilationMode.VLLM_COMPILE
    compilation.splitting_ops = None
    compilation.set_splitting_ops_for_v1(all2all_backend="allgather_reducescatter")
    compilation.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    compilation.cudagraph_capture_sizes = None
    compilation.max_cudagraph_capture_size = None
    config._set_cudagraph_sizes()
    sizes = capture_sizes(seqs, budget)
    assert sorted(compilation.cudagraph_capture_sizes) == sizes
    real = CudagraphDispatcher(config)
    real.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, 1)
    ours = Dispatcher(sizes, seqs)
    for tokens in range(1, min(budget, 700) + 1):
        for uniform in (True, False):
            if uniform and tokens > seqs:
                continue
            mode, descriptor = real.dispatch(tokens, uniform_decode=uniform)
            found = ours(tokens, uniform_decode=uniform)
            assert found.mode == mode.name, (tokens, uniform)
            bucket = descriptor.num_tokens if mode != CUDAGraphMode.NONE else 0
            assert found.bucket_tokens == bucket, (tokens, uniform)
