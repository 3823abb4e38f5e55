"""A test plugin: forces asynchronous scheduling on the CPU platform, which switches it off.

Worker side only: the output class that copies from a CUDA stream gets a CPU stand-in. The engine's
scheduler, batch queue and the plugin under test are unmodified.
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Install the two changes when the test's variable is set."""
    if os.environ.get("OPPROF_TEST_FORCE_ASYNC") != "1":
        return
    from opprof.engines.vllm.importhook import after_import

    after_import("vllm.platforms.cpu", _force_async)
    after_import("vllm.v1.worker.gpu_model_runner", _cpu_outputs)


def _force_async(module: Any) -> None:
    platform = module.CpuPlatform
    original = platform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    platform.check_and_update_config = classmethod(check_and_update_config)


class _Ready:
    """An event that has happened."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _cpu_outputs(module: Any) -> None:
    base = module.AsyncModelRunnerOutput

    class CpuAsyncOutput(base):  # type: ignore[misc]
        """The same fields without a copy stream."""

        def __init__(
            self,
            model_runner_output: Any,
            sampled_token_ids: Any,
            logprobs_tensors: Any,
            invalid_req_indices: list[int],
            async_output_copy_stream: Any,
            vocab_size: int,
            **_: Any,
        ) -> None:
            self._output = model_runner_output
            self._invalid = invalid_req_indices
            self._tokens = sampled_token_ids
            self.sampled_token_ids_cpu = sampled_token_ids
            self.async_copy_ready_event = _Ready()

        def get_output(self) -> Any:
            tokens = self._tokens.tolist()
            for index in self._invalid:
                tokens[index].clear()
            self._output.sampled_token_ids = tokens
            return self._output

    module.AsyncGPUModelRunnerOutput = CpuAsyncOutput
    module.GPUModelRunner._get_or_create_async_output_copy_stream = lambda self: None
