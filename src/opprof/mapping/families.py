"""The operator families: their names, their order and their priorities.

Source: protocol, "Kernel-to-operator-family mapping"; contract, section 4.
"""

from __future__ import annotations

OTHER = "other"
"""Kernels that no rule matches."""

GRAPH_REPLAY_OPAQUE = "graph_replay_opaque"
"""Device time of a graph replay without visible child kernels; no table ever assigns it."""

FAMILY_PRIORITY: dict[str, int] = {
    "moe_router": 1,
    "collective": 2,
    "attention": 3,
    "moe_gemm": 4,
    "sampler": 5,
    "dense_gemm": 6,
    "norm_elementwise": 7,
    "kv_memory": 8,
    OTHER: 9,
}
"""Family to priority; 1 is tried first and 9 is the fallthrough."""

FAMILIES: tuple[str, ...] = (*FAMILY_PRIORITY, GRAPH_REPLAY_OPAQUE)
"""Every family that a window can report, in the order in which reports list them."""

RULE_FAMILIES: tuple[str, ...] = tuple(name for name in FAMILY_PRIORITY if name != OTHER)
"""The families that a rule may assign."""

UNCLASSIFIED: tuple[str, ...] = (OTHER, GRAPH_REPLAY_OPAQUE)
"""The families that count as not classified; both stay in every denominator."""
