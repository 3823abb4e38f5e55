"""The embedded engine: vLLM's interfaces without a GPU, always labelled simulated."""

ENGINE_NAME = "opprof-sim"
DIRECTORY_VARIABLE = "VLLM_OPPROF_DIR"
