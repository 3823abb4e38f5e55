"""A small protocol and planted matrices for the decision's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from opprof.artifacts.common import Gate
from opprof.artifacts.decision import Decision
from opprof.decision.decide import decide
from opprof.decision.design import Key
from opprof.decision.facts import GateReach, RunFacts
from opprof.decision.planted import Plan, Truth, planted_facts, planted_provenance
from opprof.protocol import Protocol, load_protocol

SMALL = Plan(active_steps=6, bins=60, steps_a_bin=30)
FAMILIES = ["attention", "moe_gemm", "dense_gemm"]


def protocol(*, partial: bool = False, **statistics: object) -> Protocol:
    """The packaged protocol with three families and few resamples; partial as A-P3-7 or whole."""
    packaged = load_protocol("phase3")
    assert packaged is not None
    file = packaged.file
    changes: dict[str, object] = {"bootstrap_resamples": 600, "permutations": 6000, **statistics}
    rule = msgspec.structs.replace(file.statistics, **changes)
    file = msgspec.structs.replace(
        file,
        statistics=rule,
        ranking=msgspec.structs.replace(file.ranking, families=FAMILIES),
        partial_matrix=file.partial_matrix if partial else None,
    )
    return Protocol(file, packaged.sha256, packaged.source)


def facts(
    bound: Protocol,
    truths: Mapping[str, Truth],
    *,
    seed: int = 1,
    keys: Sequence[Key] | None = None,
    default: Truth | None = None,
) -> list[RunFacts]:
    """Planted facts; every pattern without a truth has ``default``."""
    every = {row.id: truths.get(row.id, default or Truth()) for row in bound.file.patterns}
    return planted_facts(bound.file, every, np.random.default_rng(seed), plan=SMALL, keys=keys)


def decided(bound: Protocol, runs: Sequence[RunFacts], *, exploratory: bool = False) -> Decision:
    """Decide planted facts."""
    return decide(runs, bound, planted_provenance(), exploratory=exploratory)


def with_gate(entry: RunFacts, name: str, reach: str, outcome: str = "fail") -> RunFacts:
    """The same run with one more gate."""
    gate = Gate(name, outcome, f"{name} says so")  # type: ignore[arg-type]
    return msgspec_replace(entry, gates=[*entry.gates, GateReach(gate, reach)])


def msgspec_replace(entry: RunFacts, **changes: object) -> RunFacts:
    """Replace fields of a frozen dataclass."""
    from dataclasses import replace

    return replace(entry, **changes)  # type: ignore[arg-type]


def of(runs: Sequence[RunFacts], pattern: str) -> int:
    """Position of a pattern's run."""
    return next(i for i, entry in enumerate(runs) if entry.run.pattern == pattern)
