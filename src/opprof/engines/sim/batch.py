"""What passes between engine and scheduler: requests, chunks, batches, settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


class SimRequest:
    """One request; token ids only as the contents of its prompt's whole blocks."""

    __slots__ = (
        "admitted",
        "base",
        "blocks",
        "cached_blocks",
        "computed",
        "contents",
        "decode_tick",
        "decoding",
        "epoch",
        "key",
        "last_tick",
        "max_tokens",
        "name",
        "outputs",
        "prompt_tokens",
        "sink",
    )

    def __init__(
        self,
        name: object,
        prompt_tokens: int,
        max_tokens: int,
        contents: Sequence[object] = (),
        sink: object = None,
    ) -> None:
        self.name = name
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.contents = contents
        self.sink = sink
        self.key = 0
        self.epoch = 0
        self.admitted = False
        self.base = prompt_tokens
        """Tokens to compute before the next output: prompt, and outputs lost by preemption."""
        self.computed = 0
        self.cached_blocks = 0
        self.outputs = 0
        """Output tokens that had been delivered when the request was last (re)started."""
        self.blocks: list[int] = []
        self.decoding = False
        self.decode_tick = 0
        """Tick of its first decode token."""
        self.last_tick = 0
        """Tick of its last decode token."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of prefill (or of recomputation) in one step."""

    request: SimRequest
    epoch: int
    start: int
    """Tokens of the request that had been computed before."""
    tokens: int
    is_last: bool
    resumed: bool
    """Recomputation after a preemption; vLLM's annotation counts it as generation."""


@dataclass(slots=True)
class Batch:
    """What one ``schedule()`` decided, with all that Layer 1 and the cost model need of it."""

    step: int
    tick: int
    total_tokens: int
    chunks: list[Chunk]
    decodes: int
    decode_context: int
    """Summed context of the decoding requests, this step's token included."""
    context_sum: int
    context_max: int
    context_bins: dict[int, int]
    """bit_length(context - 1) to requests."""
    used_blocks: int
    kv_usage: float
    waiting: int
    running: int
    preempted: int
    resumed: int
    recomputed: int
    prefix_queries: int
    prefix_hits: int
    finishing: list[tuple[SimRequest, int]] = field(default_factory=list)
    """Requests (with epoch) whose last token this step makes."""

    @property
    def requests(self) -> int:
        """Scheduled requests."""
        return self.decodes + len(self.chunks)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the completion of a step gives to requests."""

    first: list[SimRequest]
    finished: list[SimRequest]


@dataclass(frozen=True, slots=True)
class Limits:
    """The scheduler's settings, by vLLM's names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int
    chunked_prefill: bool = True
