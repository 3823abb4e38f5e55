"""vLLM's effective configuration, from its objects and never from its log."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from opprof._version import __version__
from opprof.artifacts.engine import EngineProvenance, EngineReport, WorkerReport
from opprof.artifacts.layer1 import EngineConfig
from opprof.engines.vllm.fit import Fit

RPC_TIMEOUT_S = 60.0


def plugin_sha256() -> str:
    """Return the SHA-256 over the plugin's own sources: sorted relative name, NUL, bytes."""
    root = Path(__file__).parents[2]
    files = [path for path in (root / "engines").rglob("*") if path.suffix in (".py", ".json")]
    files += [root / "artifacts" / "layer1.py", root / "artifacts" / "engine.py"]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def engine_index(vllm_config: Any) -> int:
    """Return the data-parallel index of the engine; 0 without data parallelism."""
    return int(getattr(vllm_config.parallel_config, "data_parallel_index", 0) or 0)


def describe_worker(worker: Any) -> dict[str, Any]:
    """Describe one worker; runs inside it, called by name through ``collective_rpc``."""
    compilation = worker.vllm_config.compilation_config
    attention: Counter[str] = Counter()
    experts: Counter[str] = Counter()
    for layer in compilation.static_forward_context.values():
        backend = getattr(layer, "attn_backend", None)
        if backend is not None and hasattr(backend, "get_name"):
            attention[backend.get_name()] += 1
        moe = _moe_backend(layer)
        if moe is not None:
            experts[moe] += 1
    runner = type(worker.model_runner)
    key = Path(compilation.cache_dir).name if getattr(compilation, "cache_dir", "") else None
    return {
        "rank": int(worker.rank),
        "device": str(worker.device),
        "model_runner": f"{runner.__module__}.{runner.__name__}",
        "attention_backends": dict(attention),
        "moe_backends": dict(experts),
        "compile_cache_key": key,
    }


def _moe_backend(layer: Any) -> str | None:
    """Return the expert back end of a layer (``TRITON``, or the quantisation method's name)."""
    holder = getattr(layer, "routed_experts", layer)
    method = getattr(holder, "quant_method", None)
    is_moe = hasattr(layer, "routed_experts") or hasattr(layer, "moe_config")
    if method is None or not is_moe:
        return None
    # A modular kernel wraps the method that chose the back end.
    for candidate in (method, getattr(method, "old_quant_method", None)):
        backend = getattr(candidate, "unquantized_backend", None)
        if backend is not None:
            return str(getattr(backend, "name", backend))
    return type(method).__name__


def ask_workers(executor: Any) -> tuple[list[WorkerReport], str | None]:
    """Return one report a rank, and why there is none when the workers cannot be asked."""
    try:
        answers = executor.collective_rpc(describe_worker, timeout=RPC_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - any fault of the RPC: the report says so instead
        return [], f"{type(error).__name__}: {error}"
    return [WorkerReport(**answer) for answer in answers], None


def stream_config(vllm_config: Any, workers: list[WorkerReport]) -> EngineConfig:
    """Return the configuration that the stream's header carries."""
    scheduler, compilation = vllm_config.scheduler_config, vllm_config.compilation_config
    model, cache = vllm_config.model_config, vllm_config.cache_config
    return EngineConfig(
        model=str(model.served_model_name or model.model),
        dtype=str(model.dtype).removeprefix("torch."),
        tensor_parallel_size=vllm_config.parallel_config.tensor_parallel_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        prefix_caching=bool(cache.enable_prefix_caching),
        async_scheduling=bool(scheduler.async_scheduling),
        cudagraph_mode=_name(compilation.cudagraph_mode) or "NONE",
        cudagraph_capture_sizes=list(compilation.cudagraph_capture_sizes or []),
        attention_backend=_joined(report.attention_backends for report in workers),
        moe_backend=_joined(report.moe_backends for report in workers),
    )


def describe_engine(core: Any, fit: Fit) -> EngineReport:
    """Return everything that ``engine-config.json`` holds."""
    vllm_config = core.vllm_config
    scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
    parallel, profiler = vllm_config.parallel_config, vllm_config.profiler_config
    workers, error = ask_workers(core.model_executor)
    is_torch = profiler is not None and profiler.profiler == "torch"
    return EngineReport(
        schema=1,
        engine="vllm",
        engine_index=engine_index(vllm_config),
        config=stream_config(vllm_config, workers),
        scheduler_class=type(core.scheduler).__name__,
        step_function=core.step_fn.__name__,
        batches_in_flight=core.batch_queue_size,
        max_model_len=vllm_config.model_config.max_model_len,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        kv_cache_blocks=cache.num_gpu_blocks or 0,
        kv_block_tokens=cache.block_size or 0,
        kv_cache_dtype=str(cache.cache_dtype),
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        moe_backend_requested=_name(
            getattr(getattr(vllm_config, "kernel_config", None), "moe_backend", None)
        ),
        v2_model_runner=bool(getattr(vllm_config, "use_v2_model_runner", False)),
        prefix_counters=core.scheduler.kv_cache_manager.prefix_cache_stats is not None,
        shutdown_timeout_s=int(vllm_config.shutdown_timeout),
        profiler_dir=profiler.torch_profiler_dir if is_torch else None,
        profiler_schedule={
            "wait": profiler.wait_iterations,
            "warmup": profiler.warmup_iterations,
            "active": profiler.active_iterations,
        }
        if is_torch
        else {},
        workers=workers,
        workers_error=error,
        provenance=_provenance(fit),
    )


def _provenance(fit: Fit) -> EngineProvenance:
    torch = sys.modules.get("torch")
    return EngineProvenance(
        opprof_version=__version__,
        plugin_sha256=plugin_sha256(),
        engine_version=fit.version,
        tested=fit.tested,
        differences=fit.differences,
        hooked=fit.hashes,
        python=platform.python_version(),
        torch=None if torch is None else str(torch.__version__),
    )


def _name(value: Any) -> str | None:
    """Return an enumeration's member name, or the text of anything else; None stays None."""
    return None if value is None else str(getattr(value, "name", value))


def _joined(counts: Any) -> str | None:
    names = sorted({name for report in counts for name in report})
    return "+".join(names) or None
