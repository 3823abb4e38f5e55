"""The engine's settings, by vLLM's names, and how it describes itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from opprof._version import __version__
from opprof.artifacts.engine import EngineProvenance, EngineReport, WorkerReport
from opprof.artifacts.layer1 import EngineConfig, Header
from opprof.code_hash import code_sha256
from opprof.engines.sim import ENGINE_NAME
from opprof.engines.sim.batch import Limits
from opprof.engines.sim.cost import CostFile
from opprof.engines.sim.graphs import capture_sizes
from opprof.errors import InputError

DEFAULT_MAX_NUM_SEQS = 1024
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192
"""vLLM 0.24.0's defaults of an OpenAI server on a device of at least 70 GiB."""
DEFAULT_MAX_MODEL_LEN = 40960
"""Of the model that the cost file was fitted to."""
FLUSH_INTERVAL_S = 1.0
MODELLED_VERSION = "0.24.0"
"""The vLLM whose rules the engine keeps; it stands where a real engine's version does, so that a
rehearsal fails no gate for it. The engine's name and ``simulated`` say what wrote the stream."""


@dataclass(frozen=True)
class ProfilerConfig:
    """What the specification uses of ``--profiler-config``."""

    trace_dir: Path
    warmup: int
    active: int


@dataclass(frozen=True)
class SimConfig:
    """One engine."""

    model: str
    tensor_parallel_size: int = 1
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
    chunked_prefill: bool = True
    prefix_caching: bool = True
    async_scheduling: bool = True
    max_model_len: int = DEFAULT_MAX_MODEL_LEN
    kv_blocks: int | None = None
    """vLLM's ``num_gpu_blocks``, its null block included; None: as many as the cost file saw."""
    enforce_eager: bool = False
    """No graphs: nothing is captured, every step is launched kernel by kernel."""
    step_annotations: bool = True
    """Write ``opprof_step_<i>``, as the plugin does; without it the join goes by order and time."""
    profiler: ProfilerConfig | None = None

    def check(self, cost: CostFile) -> None:
        """Refuse settings that vLLM refuses, and sizes that the cost file does not know.

        Raises:
            InputError: names the flag.
        """
        known = ", ".join(cost.kv_blocks)
        if str(self.tensor_parallel_size) not in cost.kv_blocks:
            raise InputError(
                f"--tensor-parallel-size {self.tensor_parallel_size}: the cost model knows {known}"
            )
        if self.max_num_seqs < 1:
            raise InputError(f"--max-num-seqs {self.max_num_seqs} must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} must be at least "
                f"--max-num-seqs {self.max_num_seqs}"
            )
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise InputError(
                f"without chunked prefill --max-num-batched-tokens {self.max_num_batched_tokens} "
                f"must be at least --max-model-len {self.max_model_len}"
            )
        if self.blocks(cost) * cost.block_tokens < self.max_model_len:
            raise InputError("the KV cache does not hold one sequence of --max-model-len")

    def blocks(self, cost: CostFile) -> int:
        """Return the number of KV blocks that hold tokens: vLLM keeps one, the null block."""
        if self.kv_blocks is not None:
            return self.kv_blocks - 1
        return cost.kv_blocks[str(self.tensor_parallel_size)]

    def limits(self, cost: CostFile) -> Limits:
        """Return what the scheduler needs."""
        return Limits(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            cost.block_tokens,
            self.chunked_prefill,
        )

    @property
    def sizes(self) -> list[int]:
        """Captured bucket sizes."""
        if self.enforce_eager:
            return []
        return capture_sizes(self.max_num_seqs, self.max_num_batched_tokens)

    def describe(self) -> EngineConfig:
        """Return the effective configuration."""
        return EngineConfig(
            model=self.model,
            dtype="bfloat16",
            tensor_parallel_size=self.tensor_parallel_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            chunked_prefill=self.chunked_prefill,
            prefix_caching=self.prefix_caching,
            async_scheduling=self.async_scheduling,
            cudagraph_mode="NONE" if self.enforce_eager else "FULL_AND_PIECEWISE",
            cudagraph_capture_sizes=self.sizes,
            attention_backend="FLASH_ATTN",
            moe_backend="TRITON",
        )

    def header(self) -> Header:
        """Return line 1 of the Layer-1 stream, labelled simulated."""
        return Header(
            schema=1,
            engine=ENGINE_NAME,
            engine_version=MODELLED_VERSION,
            flush_interval_s=FLUSH_INTERVAL_S,
            config=self.describe(),
            simulated=True,
        )

    def report(self, cost: CostFile) -> EngineReport:
        """Return ``engine-config.json``, labelled simulated."""
        profiler = self.profiler
        schedule = {}
        if profiler is not None:
            schedule = {"wait": 0, "warmup": profiler.warmup, "active": profiler.active}
        return EngineReport(
            schema=1,
            engine=ENGINE_NAME,
            engine_index=0,
            config=self.describe(),
            scheduler_class="opprof.engines.sim.scheduler.Scheduler",
            step_function="opprof.engines.sim.engine.SimEngine",
            batches_in_flight=2 if self.async_scheduling else 1,
            max_model_len=self.max_model_len,
            long_prefill_token_threshold=0,
            kv_cache_blocks=self.blocks(cost) + 1,
            kv_block_tokens=cost.block_tokens,
            kv_cache_dtype="bfloat16",
            pipeline_parallel_size=1,
            data_parallel_size=1,
            moe_backend_requested=None,
            v2_model_runner=False,
            prefix_counters=True,
            shutdown_timeout_s=0,
            profiler_dir=None if profiler is None else str(profiler.trace_dir),
            profiler_schedule=schedule,
            workers=[
                WorkerReport(
                    rank=rank,
                    device=f"simulated {cost.device}",
                    model_runner="opprof-sim",
                    attention_backends={"FLASH_ATTN": cost.layers},
                    moe_backends={"TRITON": cost.layers},
                    compile_cache_key=None,
                )
                for rank in range(self.tensor_parallel_size)
            ],
            workers_error=None,
            provenance=EngineProvenance(
                opprof_version=__version__,
                plugin_sha256=code_sha256(),
                engine_version=MODELLED_VERSION,
                tested=True,
                differences=[],
                hooked={},
                python="",
                torch=None,
            ),
            simulated=True,
        )


def block_contents(tokens: bytes, block_tokens: int) -> list[bytes]:
    """Cut 4-byte token ids into whole blocks."""
    size = 4 * block_tokens
    return [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]


def text_contents(text: bytes, prompt_tokens: int, block_tokens: int) -> list[bytes]:
    """Stand-in contents for a prompt that is text: equal beginnings give equal blocks.

    The embedded engine has no tokenizer: the text is cut into as many pieces as the prompt has
    whole blocks; pieces are equal exactly where both the text so far and its scale are.
    """
    blocks = prompt_tokens // block_tokens
    if not blocks:
        return []
    each = max(1, len(text) * block_tokens // prompt_tokens)
    return [
        hashlib.blake2b(text[at * each : (at + 1) * each], digest_size=16).digest()
        for at in range(blocks)
    ]
