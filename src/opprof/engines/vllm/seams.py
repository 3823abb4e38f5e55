"""The places of vLLM that the plugin hooks or relies on, and why. Data only."""

from __future__ import annotations

from typing import NamedTuple


class Seam(NamedTuple):
    """One definition in vLLM's source."""

    file: str
    """Path below the ``vllm`` package."""
    name: str
    """Qualified name in the file: a function, a class, or ``Class.method``."""
    use: str
    """``hook`` (wrapped or replaced) or ``read`` (its fields or meaning are relied on)."""
    why: str
    only: tuple[str, ...] = ()
    """Versions to which the seam applies; empty for all."""


SEAMS: tuple[Seam, ...] = (
    Seam("v1/core/sched/scheduler.py", "Scheduler.schedule", "hook", "a step begins"),
    Seam("v1/core/sched/scheduler.py", "Scheduler.update_from_output", "hook", "a step ends"),
    Seam("v1/core/sched/scheduler.py", "Scheduler._preempt_request", "hook", "recomputed tokens"),
    Seam("v1/core/sched/scheduler.py", "Scheduler.__init__", "read", "queue layout"),
    Seam(
        "v1/core/sched/scheduler.py",
        "Scheduler._update_after_schedule",
        "read",
        "computed tokens advance before schedule() returns",
    ),
    Seam(
        "v1/core/sched/scheduler.py",
        "Scheduler._make_cached_request_data",
        "read",
        "order and placeholders of cached requests",
    ),
    Seam("v1/core/sched/async_scheduler.py", "AsyncScheduler", "read", "overrides neither seam"),
    Seam("v1/core/sched/output.py", "SchedulerOutput", "read", "carries the step index"),
    Seam("v1/core/sched/output.py", "CachedRequestData", "read", "per-request tokens"),
    Seam("v1/core/sched/output.py", "NewRequestData", "read", "per-request tokens"),
    Seam("v1/core/kv_cache_manager.py", "KVCacheManager.usage", "read", "KV usage"),
    Seam(
        "v1/core/kv_cache_manager.py",
        "KVCacheManager.get_computed_blocks",
        "read",
        "prefix counters",
    ),
    Seam("v1/metrics/stats.py", "PrefixCacheStats", "read", "prefix counters"),
    Seam("v1/utils.py", "compute_iteration_details", "read", "the split of the annotation"),
    Seam("compilation/cuda_graph.py", "CUDAGraphStat", "read", "graph mode and bucket"),
    Seam("v1/engine/core.py", "EngineCore.__init__", "hook", "engines without their own process"),
    Seam("v1/engine/core.py", "EngineCore.step_with_batch_queue", "read", "steps in flight"),
    Seam("v1/engine/core.py", "EngineCore.profile", "hook", "profiler windows"),
    Seam("v1/engine/core.py", "EngineCore.shutdown", "hook", "the stream is closed"),
    Seam("v1/engine/core.py", "EngineCoreProc.run_busy_loop", "hook", "effective configuration"),
    Seam("v1/engine/core.py", "DPEngineCoreProc.run_busy_loop", "hook", "the same, data parallel"),
    Seam("v1/engine/async_llm.py", "AsyncLLM.stop_profile", "hook", "a window's fault is answered"),
    Seam("v1/worker/worker_base.py", "WorkerBase.__init__", "hook", "graph statistics on"),
    Seam("v1/worker/gpu_worker.py", "Worker.annotate_profile", "hook", "opprof_step_<i>"),
    Seam("v1/worker/gpu_worker.py", "Worker.profile", "read", "profiler windows"),
    Seam("profiler/wrapper.py", "WorkerProfiler", "read", "profiler windows"),
    Seam("profiler/wrapper.py", "TorchProfilerWrapper", "hook", "repeated profiler windows"),
    Seam(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner._determine_batch_execution_and_padding",
        "read",
        "graph statistics of the V1 runner",
    ),
    Seam(
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner.sample_tokens",
        "hook",
        "graph statistics of the V2 runner, where it has none",
    ),
    Seam(
        "v1/worker/gpu/dp_utils.py",
        "dispatch_cg_and_sync_dp",
        "hook",
        "graph statistics of the V2 runner",
        ("0.24.0",),
    ),
)
