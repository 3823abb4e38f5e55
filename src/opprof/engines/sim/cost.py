"""Step time by operator part, from coefficients fitted to real runs (``data/h200.json``).

Every part is a closed form with a physical reading; ``n`` are the step's padded tokens, ``t`` the
tensor-parallel size. Times are milliseconds inside the forms and integer nanoseconds outside.

==============  =========================================================================
moe_gemm        ``a + (1 + d*(t-1))/t * hypot(b*E(n), c*n)``: reading the weights of the experts
                that are hit, ``E(n) = X*(1 - (1 - k/X)^n)`` of ``X`` with ``k`` a token; or
                computing. Narrower slices are less efficient (``d``)
moe_gate        ``a + b*n``: the router's own GEMM
dense_gemm      ``a + hypot(b, c*n)/t``: QKV and output projections
lm_head         ``(a + b*rows)/t``
attention       ``a + f*n/t + (b*D + c*U + d*S)/t`` when all are decodes: KV tokens read once
                (U), shared ones read again (S), cache writes; with prefill among them the kernel
                gives each decode a whole tile (``h``): ``a + f*n/t + (g*P + e*Q + h*D + c*U +
                d*S)/t`` of P prefill tokens and Q query-context products
moe_router      ``a + b*n``; the smallest bucket has one kernel less a layer (``small``)
norm            ``a + b*n + c*n/t``: norms, rotary and sum; the experts' activation
sampler         ``a + b*rows``
other           ``a`` inside graphs (copies), ``b`` outside
collective      ``a + b*n`` for t > 1: the transfer alone. A rank that waits for another's launches
                waits inside the collective; the engine knows how long (``kineto.py``)
==============  =========================================================================
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from opprof.artifacts.layer1 import GraphMode

PARTS = (
    "moe_gemm",
    "moe_gate",
    "dense_gemm",
    "lm_head",
    "attention",
    "moe_router",
    "norm",
    "sampler",
    "other",
    "collective",
)
SMALL_ROUTER_TOKENS = 4
"""Up to this bucket the router aligns blocks inside its one kernel."""

Coefficients = tuple[float, ...]


class StepShape(Struct, frozen=True, gc=False):
    """What the cost of a step depends on."""

    mode: GraphMode
    padded_tokens: int
    rows: int
    """Requests, hence rows of logits."""
    decodes: int
    decode_context: int
    """Summed context of the decodes."""
    unique_context: int
    """KV tokens of the decodes that lie in distinct blocks; at most ``decode_context``."""
    prefill_product: float
    """Sum over prefill chunks of tokens times their mean context."""


class HostTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """The host's share of a step; milliseconds."""

    between_ms: float
    """From a step's completion to the next submission, fixed part."""
    between_request_ms: float
    between_sigma: float
    """Standard deviation of its logarithm."""
    launch_ms: dict[str, float]
    """Engine-thread time from a submission to its last launch, by graph mode; one process."""
    launch_worker_ms: dict[str, float]
    """The same in a worker process (tensor parallel): the engine thread does not wait for it, the
    worker's next launch does."""
    launch_request_ms: float
    """Further launch time for each request of a step: its inputs are put together."""
    launch_sigma: dict[str, float]
    first_kernel_ms: float
    """From the submission to the step's first kernel on an idle GPU."""
    gap_ms: dict[str, float]
    """Time between the kernels of a step, summed, by graph mode."""


class FrontendTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """The API server's loop (``opprof/rehearsal/frontend.py``); milliseconds of its processor."""

    rounds: int
    """Turns of the loop between a request's parsing and its submission."""
    wire_ms: float
    """Socket or pipe, each way."""
    take_ms: float
    """A token, taken from the engine."""
    stream_ms: float
    """A token, sent to the client."""
    finish_ms: float
    """The end of an answer."""
    request_ms: float
    """Parsing a request."""
    prompt_token_ms: float
    """Parsing a token of its prompt."""
    submit_ms: float
    """Handing a request to the engine."""


class ProfilerTimes(Struct, frozen=True, forbid_unknown_fields=True):
    """What profiling costs; milliseconds."""

    start_ms: float
    host_factor: float
    """On launches and on the time between steps while a window is open."""
    save_step_ms: float
    save_request_ms: float
    """Writing the trace, for each request of each active step."""
    save_eager_ms: float
    """Writing the trace, for each active step that is not one graph."""
    stop_ms: float
    stop_save_fraction: float
    """Further time of the stop call, as a fraction of the writing time."""


class NoiseModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Standard deviations of logarithms."""

    step_sigma: float
    """All parts of a step alike."""
    part_sigma: float
    """Each part of a step."""
    drift_sigma: float
    """Clocks of the GPU, drifting with ``drift_s``."""
    drift_s: float


class CostFile(Struct, frozen=True, forbid_unknown_fields=True):
    """``data/h200.json``: coefficients, and how well they fit what they were fitted to."""

    schema: Literal[1]
    device: str
    model: str
    engine: str
    layers: int
    experts: int
    experts_per_token: int
    kv_blocks: dict[str, int]
    """By tensor-parallel size."""
    block_tokens: int
    fitted_runs: list[str]
    held_out_run: str
    parts: dict[str, Coefficients]
    host: HostTimes
    frontend: FrontendTimes
    profiler: ProfilerTimes
    noise: NoiseModel
    residuals: dict[str, dict[str, float]]
    """Run to family to mean relative error of the family's time over the windows' steps."""
    assumed: list[str]
    """Coefficients that no run can tell, with the assumption."""


@lru_cache(maxsize=4)
def load_cost(name: str = "h200") -> CostFile:
    """Return the packaged cost file ``name``."""
    data = resources.files("opprof.engines.sim").joinpath(f"data/{name}.json").read_bytes()
    return msgspec.json.decode(data, type=CostFile)


class CostModel:
    """Times of a step's parts; pure."""

    def __init__(self, file: CostFile, tensor_parallel_size: int) -> None:
        self.file = file
        self.ranks = tensor_parallel_size
        self._experts = lru_cache(maxsize=16384)(self._hit_experts)

    def part_ms(self, shape: StepShape) -> dict[str, float]:
        """Return the milliseconds of every part of one step on one rank, in order of ``PARTS``."""
        parts, n, t = self.file.parts, shape.padded_tokens, self.ranks
        a, b, c, d = parts["moe_gemm"]
        moe = a + math.hypot(b * self._experts(n), c * n) * (1.0 + d * (t - 1)) / t
        a, b = parts["moe_gate"]
        gate = a + b * n
        a, b, c = parts["dense_gemm"]
        dense = a + math.hypot(b, c * n) / t
        a, b = parts["lm_head"]
        head = (a + b * shape.rows) / t
        a, b, small = parts["moe_router"]
        router = small if n <= SMALL_ROUTER_TOKENS else a + b * n
        a, b, c = parts["norm"]
        norm = a + b * n + c * n / t
        a, b = parts["sampler"]
        sampler = a + b * shape.rows
        graph, eager = parts["other"]
        other = eager if shape.mode == "NONE" else graph
        a, b = parts["collective"]
        collective = a + b * n if t > 1 else 0.0
        attention = self.attention_ms(shape)
        times = (moe, gate, dense, head, attention, router, norm, sampler, other, collective)
        return dict(zip(PARTS, times, strict=True))

    def attention_ms(self, shape: StepShape) -> float:
        """Return the attention time, cache writes included."""
        decode, mixed = self.file.parts["attention"], self.file.parts["attention_mixed"]
        a, b, c, d, f = decode
        t, n, decodes = self.ranks, shape.padded_tokens, shape.decodes
        shared = max(0, shape.decode_context - shape.unique_context)
        own = shape.decode_context - shared
        read = c * own + d * shared
        if shape.rows == decodes:
            return a + (f * n + b * decodes + read) / t
        g, e, h = mixed
        prefill = g * max(0, n - decodes) + e * shape.prefill_product
        return a + (f * n + prefill + h * decodes + read) / t

    def _hit_experts(self, tokens: int) -> float:
        experts, each = self.file.experts, self.file.experts_per_token
        return experts * (1.0 - (1.0 - each / experts) ** tokens)


def families_of(part_ms: dict[str, float], mode: GraphMode) -> dict[str, float]:
    """Return the parts as operator families of mapping ``v2``.

    Outside graphs the router's GEMM lies below ``vllm::moe_forward`` and counts as ``moe_gemm``;
    inside one it has no scope and counts as ``dense_gemm``.
    """
    eager = mode == "NONE"
    gate = part_ms["moe_gate"]
    return {
        "moe_router": part_ms["moe_router"],
        "collective": part_ms["collective"],
        "attention": part_ms["attention"],
        "moe_gemm": part_ms["moe_gemm"] + (gate if eager else 0.0),
        "sampler": part_ms["sampler"],
        "dense_gemm": part_ms["dense_gemm"] + part_ms["lm_head"] + (0.0 if eager else gate),
        "norm_elementwise": part_ms["norm"],
        "kv_memory": 0.0,
        "other": part_ms["other"],
    }
