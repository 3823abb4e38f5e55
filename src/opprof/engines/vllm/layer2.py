"""Layer 2, in the worker processes: repeated windows, step annotations, graph statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from opprof.engines.vllm.capture import STEP_ATTRIBUTE


def hook_profiler(module: ModuleType) -> None:
    """Make every profiler start build a fresh schedule, where vLLM does not do it itself."""
    wrapper = module.TorchProfilerWrapper
    if "profile" in wrapper._start.__code__.co_names:
        return  # This vLLM rebuilds its profiler in _start.
    wrapper.__init__, wrapper._start = repair_windows(wrapper.__init__, wrapper._start)


def repair_windows(
    original_init: Callable[..., None], original_start: Callable[..., None]
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return ``__init__`` and ``_start`` with which a second start is as good as the first.

    vLLM 0.24 builds one ``torch.profiler.profile`` with ``repeat=1`` and starts it again, which
    returns without an error and never writes a trace. From the second start on, a throw-away
    wrapper is built by vLLM's own ``__init__`` with the same arguments, and its profiler taken.
    """

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self._opprof_arguments = (args, kwargs)
        self._opprof_started = False

    @functools.wraps(original_start)
    def _start(self: Any) -> None:
        if self._opprof_started and self._uses_schedule:
            args, kwargs = self._opprof_arguments
            fresh = object.__new__(type(self))
            original_init(fresh, *args, **kwargs)
            self.profiler = fresh.profiler
            self._warmup_steps_remaining = fresh._warmup_steps_remaining
        self._opprof_started = True
        original_start(self)

    return __init__, _start


class Nested:
    """Two context managers as one: ``inner`` opens inside ``outer``."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Any, inner: Any) -> None:
        self._outer = outer
        self._inner = inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
        finally:
            self._outer.__exit__(kind, error, trace)


def hook_worker(module: ModuleType) -> None:
    """Open ``opprof_step_<i>`` inside vLLM's own annotation of a step."""
    module.Worker.annotate_profile = wrap_annotate(module.Worker.annotate_profile)


def wrap_annotate(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Worker.annotate_profile`` with the step's Layer-1 index as a second annotation."""

    @functools.wraps(original)
    def annotate_profile(self: Any, scheduler_output: Any) -> Any:
        # The original steps the profiler first: opened before that, the annotation would shift by
        # one step at the window's edge.
        outer = original(self, scheduler_output)
        step = getattr(scheduler_output, STEP_ATTRIBUTE, None)
        profiler = self.profiler
        if step is None or not profiler or not profiler._running:
            return outer
        return Nested(outer, profiler.annotate_context_manager(f"opprof_step_{step}"))

    return annotate_profile


def hook_worker_base(module: ModuleType) -> None:
    """Switch on the graph statistics of every step, without the server's flag (and its table)."""
    base = module.WorkerBase
    original = base.__init__

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        vllm_config.observability_config.cudagraph_metrics = True
        original(self, vllm_config, *args, **kwargs)

    base.__init__ = __init__


def hook_v2_runner(module: ModuleType) -> None:
    """Give the V2 model runner's outputs the graph statistics of the V1 runner, where they lack."""
    if hasattr(module, "CUDAGraphStat"):
        return  # This vLLM fills them itself.
    from vllm.compilation.cuda_graph import CUDAGraphStat

    runner = module.GPUModelRunner
    names = vars(module)
    names["dispatch_cg_and_sync_dp"], runner.sample_tokens = add_graph_stats(
        names["dispatch_cg_and_sync_dp"], runner.sample_tokens, CUDAGraphStat
    )


def add_graph_stats(
    original_dispatch: Callable[..., Any],
    original_sample: Callable[..., Any],
    stat_type: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ``dispatch_cg_and_sync_dp`` and ``sample_tokens`` that pass the dispatch on.

    Each executed step dispatches once and then samples, in the same thread.
    """
    last: list[tuple[int, Any]] = []

    @functools.wraps(original_dispatch)
    def dispatch(
        manager: Any, num_reqs: int, num_tokens: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        description, across = original_dispatch(manager, num_reqs, num_tokens, *args, **kwargs)
        last[:] = [(num_tokens, description)]
        return description, across

    @functools.wraps(original_sample)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        dispatched = last.pop() if last else None
        result = original_sample(self, *args, **kwargs)
        # An asynchronous result holds the output; shared empty outputs have no sampled requests.
        output = getattr(result, "model_runner_output", result)
        if dispatched is not None and output is not None and getattr(output, "req_ids", None):
            tokens, description = dispatched
            output.cudagraph_stats = stat_type(
                num_unpadded_tokens=tokens,
                num_padded_tokens=description.num_tokens,
                num_paddings=description.num_tokens - tokens,
                runtime_mode=str(description.cg_mode),
            )
        return result

    return dispatch, sample_tokens


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "vllm.profiler.wrapper": hook_profiler,
    "vllm.v1.worker.worker_base": hook_worker_base,
    "vllm.v1.worker.gpu_worker": hook_worker,
    "vllm.v1.worker.gpu.model_runner": hook_v2_runner,
}
