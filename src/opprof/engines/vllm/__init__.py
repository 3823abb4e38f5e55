"""The vLLM plugin: entry point ``opprof`` of the group ``vllm.general_plugins``.

vLLM calls :func:`register` once in every process it starts (API server, engine core, workers, model
inspection). It does nothing unless ``VLLM_OPPROF_DIR`` is set. vLLM swallows an exception raised
while this module is imported, and none raised by the call: so nothing is imported up here, and an
engine that does not fit is refused inside the call, before the model loads.
"""

from __future__ import annotations

import os

DIRECTORY_VARIABLE = "VLLM_OPPROF_DIR"


def register() -> None:
    """Check that this vLLM fits and hook it; a no-op without ``VLLM_OPPROF_DIR``.

    Raises:
        RuntimeError: this vLLM is untested or differs from the tested one, and
            ``OPPROF_ALLOW_UNTESTED=1`` is not set.
    """
    if not os.environ.get(DIRECTORY_VARIABLE):
        return
    from opprof.engines.vllm.plugin import activate

    activate()
