"""What may be planted in the engine, as values; the rehearsal's truth file is read elsewhere.

Every effect has one place in the engine and leaves all else alone, so that a planted truth is known
exactly: family times are redistributed inside a step's own total, dispatch is changed with or
without its cost, steps are slowed by a factor.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opprof.artifacts.layer1 import GraphMode
from opprof.engines.sim.cost import PARTS, families_of
from opprof.engines.sim.graphs import Dispatch

FAMILY_PARTS: dict[str, tuple[str, ...]] = {
    "moe_gemm": ("moe_gemm",),
    "attention": ("attention",),
    "dense_gemm": ("dense_gemm", "lm_head"),
    "norm_elementwise": ("norm",),
    "moe_router": ("moe_router",),
}
"""Families that may be planted, and the parts that carry them."""

NULL_SHARES: dict[str, float] = {
    "moe_gemm": 0.50,
    "attention": 0.22,
    "dense_gemm": 0.12,
    "norm": 0.08,
    "moe_router": 0.04,
    "moe_gate": 0.0,
    "lm_head": 0.02,
    "sampler": 0.005,
    "other": 0.005,
    "collective": 0.01,
}
"""Parts of every step when all patterns are to have one composition."""


@dataclass(frozen=True)
class Lead:
    """``family`` leads ``other`` by ``gap`` (share units) in every step."""

    family: str
    other: str
    gap: float


@dataclass(frozen=True)
class Neighbour:
    """A co-located neighbour slows every step by ``factor`` inside ``[from_ns, to_ns)``."""

    factor: float
    from_ns: int = 0
    to_ns: int = 1 << 62


@dataclass(frozen=True)
class Effects:
    """What one engine has planted; the default is nothing."""

    lead: Lead | None = None
    same_shares: bool = False
    padding: float = 0.0
    """Least slack of every graph's bucket: 1 - unpadded/bucket, up to the next captured size."""
    padding_costs: bool = True
    """Padded tokens take time, as real ones do."""
    miss_rate: float = 0.0
    """Share of steps that miss their graph."""
    miss_costs: bool = True
    """A missed graph takes an eager launch."""
    interference: float = 0.0
    """Mixed steps take this much longer than their parts."""
    interference_costs: bool = True
    """False: pure steps give back what mixed ones took, so that no useful time is lost."""
    slowdown: float = 1.0
    """Factor on every step: the efficiency loss that goes with a waste."""
    opaque: bool = False
    """Graph replays leave no kernel records."""
    window_stall_ns: int = 0
    """The start call of a profile window blocks this much longer, so a backlog fills the window."""
    dropped_steps: frozenset[int] = frozenset()
    neighbour: Neighbour | None = None
    oom_step: int | None = None
    """The engine dies when this step is submitted."""

    def dispatch(self, plain: Dispatch, tokens: int, draw: float, sizes: Sequence[int]) -> Dispatch:
        """Return the dispatch with planted padding or misses.

        ``draw`` is uniform in [0, 1); a padded bucket is a captured one of ``sizes`` (ascending).
        """
        if draw < self.miss_rate:
            return Dispatch("NONE", 0)
        if self.padding and plain.mode != "NONE":
            at = bisect_left(sizes, math.ceil(tokens / (1.0 - self.padding)))
            if at < len(sizes):
                return Dispatch(plain.mode, max(plain.bucket_tokens, sizes[at]))
        return plain

    def shares(self, parts: dict[str, float], mode: GraphMode) -> dict[str, float]:
        """Return the parts with planted composition; their sum stays."""
        if self.same_shares:
            total = sum(parts.values())
            parts = {name: NULL_SHARES[name] * total for name in PARTS}
        return parts if self.lead is None else _with_lead(parts, mode, self.lead)


def _with_lead(parts: Mapping[str, float], mode: GraphMode, lead: Lead) -> dict[str, float]:
    """Split the two families' common time anew, so that they differ by the gap."""
    families = families_of(dict(parts), mode)
    total = sum(parts.values())
    both = families[lead.family] + families[lead.other]
    # At least the gap must be there to be split; what is missing comes from all others alike.
    need = min(total, max(both, lead.gap * total * 1.05))
    rest = (total - need) / (total - both) if total > both else 1.0
    result = {name: value * rest for name, value in parts.items()}
    # The router's GEMM belongs to one of the two GEMM families, and goes with it.
    if ("moe_gemm" if mode == "NONE" else "dense_gemm") in (lead.family, lead.other):
        result["moe_gate"] = 0.0
    wanted = {
        lead.family: (need + lead.gap * total) / 2,
        lead.other: (need - lead.gap * total) / 2,
    }
    for family, ms in wanted.items():
        first, *others = FAMILY_PARTS[family]
        for name in others:
            result[name] = 0.0
        result[first] = ms
    return result
