"""Kineto traces: a profiler window as steps, kernels, launches, scopes, and its join."""
