"""Short ways to specs; imported by the tests beside it."""

from __future__ import annotations

from typing import Any

from opprof.workload.parameters import ManifestSpec, build_spec


def make_spec(**changes: Any) -> ManifestSpec:
    flags: dict[str, Any] = {
        "pattern": "T01",
        "kind": "synthetic",
        "output_fixed": 8,
        "arrival": "steady",
        "num_requests": 40,
        "seed": 20260712,
        "max_common_prefix_tokens": 16,
    }
    if not {"input_fixed", "input_mixture", "num_prefixes"} & set(changes):
        flags["input_uniform"] = "20:60"
    return build_spec(**{**flags, **changes})
