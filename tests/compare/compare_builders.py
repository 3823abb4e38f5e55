"""Small kernels artefacts for tests: families in, a whole ``Kernels`` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opprof.artifacts.common import Provenance, RunIdentity, SanityBlock
from opprof.artifacts.comparison import ComparisonRule
from opprof.artifacts.kernels import (
    Alternative,
    AttentionSplit,
    FamilyTime,
    Kernels,
    Window,
    WindowFamilies,
)
from opprof.compare import RunInput

HASHES = {"v1": "1" * 64, "v2": "2" * 64}
PROVENANCE = Provenance(
    inputs={},
    protocol_id=None,
    protocol_sha256=None,
    mapping_version="v2",
    mapping_sha256=HASHES["v2"],
    code_version="0",
    code_sha256="0" * 64,
)
FAMILIES = [
    "moe_router", "collective", "attention", "moe_gemm", "sampler", "dense_gemm",
    "norm_elementwise", "kv_memory", "other",
]  # fmt: skip
RULE = ComparisonRule(
    mapping_pinned="v2",
    tie_share=0.01,
    inversion_gap_share=0.05,
    classifiable_min=0.7,
    families=FAMILIES,
    windows=2,
    baseline_config="C00",
    primary_config="C00",
    primary_load_point="moderate",
)

Families = Mapping[str, int]
Cells = Mapping[tuple[int, int], Families]
"""(window, rank) to nanoseconds by family."""


def cells(*windows: Families) -> dict[tuple[int, int], Families]:
    """One rank, one mapping of families for each window."""
    return {(index, 0): families for index, families in enumerate(windows)}


def entry(
    pattern: str,
    families: Cells,
    *,
    v1: Cells | None = None,
    config: str = "C00",
    load_point: str = "moderate",
    role: str = "primary",
    rejected: Sequence[tuple[int, int]] = (),
    breakdown_valid: bool | None = True,
    simulated: bool = False,
    drain_quarantined: bool | None = False,
    metrics: Mapping[str, float | None] | None = None,
    source: str | None = None,
) -> RunInput:
    """Return a run whose v2 windows are ``families``; with ``v1``, also under that table."""
    suffix = "" if role == "primary" else f"-{role}"
    name = f"{pattern}-{config}-{load_point}{suffix}"
    windows = [
        Window(**_window(key, ns, "v2", rejected), steps=[], alternatives={})
        for key, ns in families.items()
    ]
    alternatives = {}
    if v1 is not None:
        alternatives["v1"] = Alternative(
            mapping_version="v1",
            mapping_sha256=HASHES["v1"],
            windows=[WindowFamilies(**_window(k, ns, "v1", rejected)) for k, ns in v1.items()],
        )
    kernels = Kernels(
        schema=1,
        run=RunIdentity(
            name=name,
            pattern=pattern,
            config=config,
            load_point=load_point,
            role=role,
            simulated=simulated,
            drain_quarantined=drain_quarantined,
        ),
        mapping_version="v2",
        mapping_sha256=HASHES["v2"],
        windows=windows,
        alternatives=alternatives,
        breakdown_valid=breakdown_valid,
        breakdown_reasons=[],
        representativeness=None,
        gates=[],
        sanity=SanityBlock(families=[], red_flags=[]),
        provenance=PROVENANCE,
    )
    return RunInput(kernels=kernels, source=source or f"runs/{name}", metrics=metrics or {})


def _window(
    key: tuple[int, int],
    families: Families,
    version: str,
    rejected: Sequence[tuple[int, int]],
) -> dict[str, object]:
    total = sum(families.values())
    unknown = families.get("other", 0) + families.get("graph_replay_opaque", 0)
    bad = key in rejected
    return {
        "window": key[0],
        "rank": key[1],
        "mapping_version": version,
        "trace": f"traces/window{key[0]}-rank{key[1]}.pt.trace.json.gz",
        "profiler_steps": list(range(2, 10)),
        "annotations": 8,
        "kernel_events": len(families),
        "kernel_ns": total,
        "prologue_events": 0,
        "prologue_ns": 0,
        "classified_fraction": 1 - unknown / total if total else 0.0,
        "families": {
            name: FamilyTime(ns=ns, share=ns / total if total else 0.0, events=1)
            for name, ns in families.items()
        },
        "attention": AttentionSplit(prefill=0, decode=families.get("attention", 0), mixed=0),
        "by_mode": {},
        "top_unmatched": [],
        "accepted": not bad,
        "reasons": ["nine annotations"] if bad else [],
    }
