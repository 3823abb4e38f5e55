"""The machine behind a small Protocol: NVML, CPU only, or read from a file."""
