"""The hooks on vLLM's own scheduler classes, without a model: steps in flight, aborts, preemption.

Runs where vLLM is installed (``scripts/vllm_cpu_env.sh``; the model folder is beside it) and skips
elsewhere. Every step is compared with vLLM's own ``compute_iteration_details`` and with a count of
recomputed tokens that knows nothing of the plugin.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(sys.prefix) / "tiny-qwen3"
if not MODEL.is_dir():
    pytest.skip("no vLLM environment", allow_module_level=True)

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched import async_scheduler, scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402
from vllm.v1.utils import compute_iteration_details  # noqa: E402

from opprof.artifacts.layer1 import Step  # noqa: E402
from opprof.engines.recorder.assemble import Assembler  # noqa: E402
from opprof.engines.recorder.handle import Recorder  # noqa: E402
from opprof.engines.recorder.ring import FLAG, FLAG_ON  # noqa: E402
from opprof.engines.vllm import layer1  # noqa: E402
from opprof.engines.vllm.capture import Capture  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))

from engine_fakes import header  # noqa: E402

BLOCK = 16
layer1.hook_scheduler(scheduler)


def make_scheduler(kind: type, blocks: int, *, log_stats: bool = True) -> Any:
    """Build a real scheduler over an imaginary cache of ``blocks`` blocks of 16 tokens."""
    arguments = EngineArgs(
        model=str(MODEL),
        load_format="dummy",
        max_model_len=1024,
        max_num_seqs=24,
        max_num_batched_tokens=192,
        enable_prefix_caching=True,
        block_size=BLOCK,
    )
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    config.scheduler_config.async_scheduling = kind is async_scheduler.AsyncScheduler
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        log_stats=log_stats,
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def make_request(name: str, draw: random.Random, hasher: Any) -> Any:
    """A request of random prompt and output length."""
    prompt = [draw.randrange(300, 4000) for _ in range(draw.randrange(4, 300))]
    parameters = SamplingParams(max_tokens=draw.randrange(2, 60), ignore_eos=True)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=parameters,
        pooling_params=None,
        block_hasher=hasher,
    )


def result_of(made: Any, output: Any) -> Any:
    """What a worker would answer: one token for each request whose prompt is complete."""
    names = list(output.num_scheduled_tokens)
    tokens = []
    for name in names:
        request = made.requests.get(name)
        samples = request is None or name not in output.unfinished
        tokens.append([7] if samples else [])
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def waiting_of(made: Any) -> int:
    """Waiting requests as the version's own ``make_stats()`` counts them."""
    if hasattr(made, "skipped_waiting"):
        return len(made.waiting)
    return len(made.waiting) + len(made.kv_holding_waiting) - len(made.deferred_waiting)


class Oracle:
    """Counts without the plugin what each step was."""

    def __init__(self) -> None:
        self.expected: list[dict[str, Any]] = []
        self._reached: dict[str, int] = {}
        self._preempted: set[str] = set()

    def saw(self, made: Any, output: Any) -> None:
        """Note one scheduler output."""
        split = compute_iteration_details(output)
        cached = output.scheduled_cached_reqs
        before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        before |= {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        # The V2 runner is handed a resumed request as a new one.
        back = self._preempted & output.num_scheduled_tokens.keys()
        self._preempted -= back
        self._preempted |= output.preempted_req_ids or set()
        again = 0
        for name, count in output.num_scheduled_tokens.items():
            end = before[name] + count
            again += max(0, min(end, self._reached.get(name, 0)) - before[name])
            self._reached[name] = max(end, self._reached.get(name, 0))
        self.expected.append(
            {
                "prefill_requests": split.num_ctx_requests,
                "prefill_tokens": split.num_ctx_tokens,
                "decode_requests": split.num_generation_requests,
                "decode_tokens": split.num_generation_tokens,
                "recomputed_tokens": again,
                "context_len_sum": sum(before.values()) + output.total_num_scheduled_tokens,
                "running": len(made.running),
                "waiting": waiting_of(made),
                "preempted": len(output.preempted_req_ids or ()),
                "resumed_requests": len(back),
            }
        )


def make_hasher() -> Any:
    """Return the block hasher of the prefix cache."""
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    return get_request_block_hasher(BLOCK, function)


def drive(made: Any, tmp_path: Path, *, depth: int, seed: int) -> tuple[list[Step], Oracle]:
    """Run random requests with ``depth`` steps in flight and random aborts to the end."""
    recorder = Recorder(tmp_path / "engine-0.jsonl", header())
    recorder._ended = False
    recorder._words[FLAG] = FLAG_ON
    made._opprof = Capture(recorder, made, compute_iteration_details)
    draw, oracle, assembler = random.Random(seed), Oracle(), Assembler()
    hasher = make_hasher()
    flying: deque[Any] = deque()
    steps: list[Step] = []
    number = 0
    for turn in range(4000):  # noqa: B007 - asserted on below
        if number < 60 and draw.random() < 0.4:
            for _ in range(draw.randrange(1, 5)):
                made.add_request(make_request(f"r{number}", draw, hasher))
                number += 1
        if made.running and draw.random() < 0.02:
            victim = draw.choice(made.running).request_id
            made.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
        if made.has_requests() and len(flying) < depth:
            output = made.schedule()
            output.unfinished = {
                name for name in output.num_scheduled_tokens if made.requests[name].is_prefill_chunk
            }
            oracle.saw(made, output)
            flying.append(output)
            if len(flying) < depth:
                continue
        elif not flying:
            if number >= 60:
                break
            continue
        output = flying.popleft()
        made.update_from_output(output, result_of(made, output))
        for kind, payload in recorder._ring.drain(everything=True):
            steps += list(assembler.feed(kind, payload))
    assert recorder.failure is None, recorder.failure
    assert turn < 3999, "the requests never finished"
    assert assembler.open_steps == 0
    return steps, oracle


def compare(steps: list[Step], oracle: Oracle) -> None:
    """Assert that every recorded step is what the oracle saw."""
    assert len(steps) == len(oracle.expected)
    for step, expected in zip(steps, oracle.expected, strict=True):
        preempted = expected.pop("preempted")
        assert step.preemptions == preempted, (step, preempted)
        for name, value in expected.items():
            assert getattr(step, name) == value, (name, value, step)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("depth", "blocks"), [(2, 400), (2, 40), (3, 40)])
def test_async_scheduler(tmp_path: Path, depth: int, blocks: int, seed: int) -> None:
    made = make_scheduler(async_scheduler.AsyncScheduler, blocks)
    steps, oracle = drive(made, tmp_path, depth=depth, seed=seed)
    compare(steps, oracle)
    assert sum(step.prefix_queries or 0 for step in steps) > 0
    if blocks == 40:
        assert sum(step.preemptions for step in steps) > 0
        assert sum(step.recomputed_tokens for step in steps) > 0


@pytest.mark.parametrize("seed", range(2))
def test_requests_resumed_for_the_v2_runner(tmp_path: Path, seed: int) -> None:
    made = make_scheduler(async_scheduler.AsyncScheduler, 40)
    made.use_v2_model_runner = True
    steps, oracle = drive(made, tmp_path, depth=2, seed=seed)
    compare(steps, oracle)
    assert sum(step.resumed_requests for step in steps) > 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("blocks", [400, 40])
def test_sync_scheduler(tmp_path: Path, blocks: int, seed: int) -> None:
    made = make_scheduler(scheduler.Scheduler, blocks)
    steps, oracle = drive(made, tmp_path, depth=1, seed=seed)
    compare(steps, oracle)


def test_hidden_counters(tmp_path: Path) -> None:
    made = make_scheduler(scheduler.Scheduler, 200, log_stats=False)
    steps, _ = drive(made, tmp_path, depth=1, seed=1)
    assert {step.prefix_queries for step in steps} == {None}


def test_forced_preemption_is_counted(tmp_path: Path) -> None:
    made = make_scheduler(scheduler.Scheduler, 400)
    recorder = Recorder(tmp_path / "engine-0.jsonl", header())
    recorder._ended = False
    recorder._words[FLAG] = FLAG_ON
    made._opprof = Capture(recorder, made, None)
    draw = random.Random(3)
    made.add_request(make_request("r0", draw, make_hasher()))
    first = made.schedule()
    first.unfinished = set()
    made.update_from_output(first, result_of(made, first))
    assert made.reset_prefix_cache(reset_running_requests=True)
    second = made.schedule()
    second.unfinished = set()
    made.update_from_output(second, result_of(made, second))
    assembler = Assembler()
    steps = [
        step
        for kind, payload in recorder._ring.drain(everything=True)
        for step in assembler.feed(kind, payload)
    ]
    assert [step.preemptions for step in steps] == [0, 1]
    assert steps[1].recomputed_tokens == first.total_num_scheduled_tokens
