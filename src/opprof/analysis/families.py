"""Operator families of one window under one mapping table: pure sums over a trace's tallies.

Source: protocol, "Kernel-to-operator-family mapping" and "CUDA-graph mode segmentation"; contract,
section 4. Opaque replays are a family of their own in every denominator and in no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opprof.artifacts.kernels import (
    FAMILIES,
    OPAQUE,
    AttentionSplit,
    FamilyTime,
    ModeTime,
    UnmatchedKernel,
)
from opprof.mapping import MappingTable
from opprof.trace.model import Tally, WindowTrace

_UNCLASSIFIED = (FAMILIES[-1], OPAQUE)


@dataclass(frozen=True)
class StepFamilies:
    """One active step: kernels by family, and what the joined Layer-1 record says of it."""

    families: Mapping[str, Tally]
    mode: str | None
    """None without a join, or where the record's graph mode is missing or contradictory."""
    attention_kind: str | None


def step_families(trace: WindowTrace, table: MappingTable) -> list[dict[str, Tally]]:
    """Return each active step's tallies by family, opaque replays included."""
    found = trace.families(table.classify)
    for families, step in zip(found, trace.steps, strict=True):
        if step.opaque.events:
            families[OPAQUE] = step.opaque
    return found


def family_times(steps: Sequence[Mapping[str, Tally]]) -> dict[str, FamilyTime]:
    """Sum the steps' families; every family of the mapping is listed, the opaque one where it is.

    ``share = ns / sum of ns``; 0.0 without any kernel time.
    """
    total_ns = sum(tally.ns for step in steps for tally in step.values())
    names = [*FAMILIES]
    if any(OPAQUE in step for step in steps):
        names.append(OPAQUE)
    times = {}
    for name in names:
        tallies = [step[name] for step in steps if name in step]
        ns = sum(tally.ns for tally in tallies)
        times[name] = FamilyTime(
            ns=ns,
            share=ns / total_ns if total_ns else 0.0,
            events=sum(tally.events for tally in tallies),
        )
    return times


def classified_fraction(times: Mapping[str, FamilyTime]) -> float:
    """``1 - (other + opaque) / all``; 0.0 without any kernel time."""
    total_ns = sum(time.ns for time in times.values())
    if not total_ns:
        return 0.0
    unknown_ns = sum(times[name].ns for name in _UNCLASSIFIED if name in times)
    return (total_ns - unknown_ns) / total_ns


def attention_split(steps: Sequence[StepFamilies]) -> AttentionSplit:
    """Attention nanoseconds by the joined step's kind; a mixed step's stay mixed (K5)."""
    sums = {"prefill": 0, "decode": 0, "mixed": 0}
    for step in steps:
        attention = step.families.get("attention")
        if attention is not None and step.attention_kind is not None:
            sums[step.attention_kind] += attention.ns
    return AttentionSplit(**sums)


def mode_times(
    steps: Sequence[StepFamilies], load_point_steps: Mapping[str, int], steps_min: int | None
) -> dict[str, ModeTime]:
    """Segment the window by graph mode.

    ``load_point_steps``: active steps of each mode over all windows of the load point on this rank;
    ``steps_min``: how many make a mode reported apart; None (no protocol) reports none.
    """
    found = {}
    for mode in sorted({step.mode for step in steps if step.mode is not None}):
        of_mode = [step.families for step in steps if step.mode == mode]
        times = family_times(of_mode)
        found[mode] = ModeTime(
            active_steps=len(of_mode),
            reported=steps_min is not None and load_point_steps.get(mode, 0) >= steps_min,
            kernel_ns=sum(time.ns for time in times.values()),
            families=times,
        )
    return found


def unmatched_kernels(trace: WindowTrace, table: MappingTable, limit: int) -> list[UnmatchedKernel]:
    """Return the names that no rule matched, most time first, at most ``limit``."""
    sums: dict[str, list[int]] = {}
    scopes: dict[str, set[str]] = {}
    for step in trace.steps:
        for (name_id, scope_id), tally in step.kernels.items():
            name, chain = trace.names[name_id], trace.scopes[scope_id]
            if table.classify(name, chain) != FAMILIES[-1]:
                continue
            entry = sums.setdefault(name, [0, 0])
            entry[0] += tally.ns
            entry[1] += tally.events
            if chain:
                scopes.setdefault(name, set()).add(" > ".join(chain))
    ranked = sorted(sums, key=lambda name: (-sums[name][0], name))[:limit]
    return [
        UnmatchedKernel(
            name=name, ns=sums[name][0], events=sums[name][1], scopes=sorted(scopes.get(name, ()))
        )
        for name in ranked
    ]


def layer_nanoseconds(
    trace: WindowTrace, table: MappingTable, position: int, family: str
) -> tuple[tuple[int, ...], int]:
    """Return the family's nanoseconds of each layer scope of one step, and those below none.

    ``position``: index of the active step. Layers are listed by their number.
    """
    step = trace.steps[position]
    layers: dict[int, int] = {}
    for (name_id, scope_id, layer), ns in step.layers.items():
        if table.classify(trace.names[name_id], trace.scopes[scope_id]) == family:
            layers[layer] = layers.get(layer, 0) + ns
    total_ns = sum(
        tally.ns
        for (name_id, scope_id), tally in step.kernels.items()
        if table.classify(trace.names[name_id], trace.scopes[scope_id]) == family
    )
    ordered = tuple(layers[layer] for layer in sorted(layers))
    return ordered, total_ns - sum(ordered)
