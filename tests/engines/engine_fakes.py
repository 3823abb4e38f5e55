"""Headers, configurations and fake vLLM objects for the recorder's tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opprof.artifacts.layer1 import EngineConfig, Header

CONFIG = EngineConfig(
    model="tiny",
    dtype="bfloat16",
    tensor_parallel_size=1,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    chunked_prefill=True,
    prefix_caching=True,
    async_scheduling=True,
    cudagraph_mode="FULL_AND_PIECEWISE",
    cudagraph_capture_sizes=[1, 2, 4],
    attention_backend="FLASH_ATTN",
    moe_backend="TRITON",
)


def header(interval_s: float = 1.0) -> Header:
    """A header of the tests' engine."""
    return Header(
        schema=1,
        engine="fake",
        engine_version="1",
        flush_interval_s=interval_s,
        config=CONFIG,
    )


@dataclass
class NewRequest:
    """Like vLLM's ``NewRequestData``, as far as the plugin reads it."""

    req_id: str
    num_computed_tokens: int = 0


@dataclass
class Cached:
    """Like vLLM's ``CachedRequestData``."""

    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class Output:
    """Like vLLM's ``SchedulerOutput``."""

    scheduled_new_reqs: list[NewRequest]
    scheduled_cached_reqs: Cached
    num_scheduled_tokens: dict[str, int]

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the step."""
        return sum(self.num_scheduled_tokens.values())


@dataclass
class PrefixStats:
    """Like vLLM's ``PrefixCacheStats``."""

    queries: int = 0
    hits: int = 0


@dataclass
class KVManager:
    """Like vLLM's ``KVCacheManager``."""

    usage: float = 0.25
    prefix_cache_stats: PrefixStats | None = field(default_factory=PrefixStats)


@dataclass
class Request:
    """Like vLLM's ``Request``."""

    request_id: str
    num_computed_tokens: int = 0


@dataclass
class Stat:
    """Like vLLM's ``CUDAGraphStat``."""

    num_unpadded_tokens: int
    num_padded_tokens: int
    runtime_mode: str


@dataclass
class Result:
    """Like vLLM's ``ModelRunnerOutput``."""

    cudagraph_stats: Stat | None = None


class Scheduler:
    """Like vLLM's ``Scheduler`` of 0.24: hands out prepared outputs."""

    _opprof: Any = None

    def __init__(self, outputs: list[Output] | None = None) -> None:
        self.waiting: list[Any] = []
        self.skipped_waiting: list[Any] = []
        self.running: list[Any] = []
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = KVManager()
        self.outputs = outputs or []
        self.updates: list[tuple[Any, Any]] = []

    def schedule(self, throttle_prefills: bool = False) -> Output:
        """The next prepared output; looks up ten prefix tokens and finds four."""
        stats = self.kv_cache_manager.prefix_cache_stats
        if stats is not None:
            stats.queries += 10
            stats.hits += 4
        return self.outputs.pop(0)

    def update_from_output(
        self, scheduler_output: Output, model_runner_output: Result
    ) -> dict[int, str]:
        """Remember the call."""
        self.updates.append((scheduler_output, model_runner_output))
        return {0: "outputs"}

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        request.num_computed_tokens = 0


def decode_output(count: int, computed: int = 100) -> Output:
    """A step of ``count`` decodes of one token, each with ``computed`` tokens before."""
    names = [f"r{number}" for number in range(count)]
    cached = Cached(names, [computed] * count, [5] * count)
    return Output([], cached, dict.fromkeys(names, 1))
