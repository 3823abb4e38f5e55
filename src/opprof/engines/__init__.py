"""Layer-1 producers: the recorder that every engine shares, and the plugin for vLLM."""
