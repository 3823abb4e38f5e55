"""Seeds of runs: every run of one seed has random numbers of its own."""

from __future__ import annotations

import hashlib


def run_seed(seed: int, name: str) -> int:
    """Return the seed of one run: its own stream for every name, whatever runs beside it."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")
