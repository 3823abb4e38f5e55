"""One run directory to its four artefacts: the order of work, and nothing else.

::

    inputs ─ layer1 (stream, client) ─┬─ windows (traces, join, families) ─┬─ kernels ─┐
                                      └─ representativeness ───────────────┴─ waste ───┴─ sanity
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from opprof.analysis import sanity
from opprof.analysis.clock import clocks_agree
from opprof.analysis.gates import NO_PROTOCOL
from opprof.analysis.inputs import RunInputs, read_inputs
from opprof.analysis.kernels import judge_representativeness, kernels_artefact, profile_gates
from opprof.analysis.layer1 import Layer1Side, layer1_artefact, read_layer1
from opprof.analysis.provenance import identity, provenance
from opprof.analysis.results import RunAnalysis
from opprof.analysis.waste import (
    I_MIX_REASON,
    MoeVariation,
    moe_variation,
    raggedness,
    step_waste,
    waste_by_mode,
)
from opprof.analysis.window_tables import WindowTables, build_windows
from opprof.analysis.windows import read_windows
from opprof.artifacts import sanity as sanity_format
from opprof.artifacts import waste as waste_format
from opprof.artifacts.common import Outcome, Provenance, RunIdentity, SanityBlock
from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste
from opprof.errors import InputError
from opprof.mapping import BUILTIN_VERSIONS, MappingTable, load_table
from opprof.protocol import Protocol
from opprof.rules.sanity import block
from opprof.telemetry.timeline import intervals_of

_COHORTS = (32, 64, 128)
"""Contract, section 5: the names R32, R64 and R128 stand in every ``waste.json``."""


def analyze_run(
    root: Path, protocol: Protocol | None, *, mapping: str | None = None
) -> RunAnalysis:
    """Analyse one run directory.

    Args:
        root: the run directory (contract, section 1).
        protocol: what judges it; None leaves gates that need a threshold not evaluable.
        mapping: version or file of the table that decides; None takes the protocol's pinned one.

    Raises:
        InputError, SchemaError: the directory or one of its text files cannot be used at all. A
            trace that cannot be read makes its window invalid instead.
    """
    inputs = read_inputs(root)
    deciding, others = load_tables(protocol, mapping)
    side = read_layer1(inputs, protocol)
    ranks = side.stream.header.config.tensor_parallel_size
    read = read_windows(inputs, side.columns, ranks, protocol)
    profiles = {item.index: item for item in intervals_of(inputs.timeline, "profile")}
    read = clocks_agree(read, profiles)
    tables = build_windows(read, side.columns, deciding, others, protocol)
    judged = judge_representativeness(inputs, side, read, protocol)
    gates = profile_gates(inputs, tables.windows, judged, ranks, protocol)
    run = identity(inputs, protocol)
    origin = provenance(inputs, protocol, deciding.version, deciding.sha256)
    layer1 = layer1_artefact(side, run, origin)
    kernels = kernels_artefact(run, origin, tables, deciding, others, judged, gates)
    waste = _waste(run, origin, inputs, side, tables, protocol)
    return RunAnalysis(
        layer1=layer1,
        kernels=kernels,
        waste=waste,
        sanity=_sanity(run, origin, layer1, kernels, waste),
        unusable=tuple(reason for item in read if item.unusable for reason in item.reasons),
    )


def load_tables(
    protocol: Protocol | None, mapping: str | None
) -> tuple[MappingTable, list[MappingTable]]:
    """Return the deciding table and every other table that is shown beside it.

    Raises:
        InputError: a table cannot be read, or has the version of another one.
    """
    names = list(BUILTIN_VERSIONS)
    if protocol is not None:
        rule = protocol.file.mapping
        names = [rule.pinned, *rule.alternatives, *names]
    tables = [load_table(name) for name in dict.fromkeys(names)]
    chosen = load_table(mapping) if mapping is not None else tables[0]
    for table in tables:
        if table.version == chosen.version and table.sha256 != chosen.sha256:
            reason = (
                f"calls itself {chosen.version!r}, which is another table; give it its own name"
            )
            raise InputError(reason, path=mapping)
    return chosen, [table for table in tables if table.version != chosen.version]


def _waste(
    run: RunIdentity,
    origin: Provenance,
    inputs: RunInputs,
    side: Layer1Side,
    tables: WindowTables,
    protocol: Protocol | None,
) -> Waste:
    sizes = side.stream.header.config.cudagraph_capture_sizes
    ratios = step_waste(side.columns, side.clean_rows, sizes)
    moe = _moe(tables, protocol)
    from_manifest = None if inputs.manifest is None else inputs.manifest.raggedness
    ragged, missing = raggedness(from_manifest, _COHORTS)
    not_available = dict(ratios.not_available, **missing, I_mix=I_MIX_REASON)
    if moe.cv is None:
        not_available["CV_moe"] = moe.reason or NO_PROTOCOL
    return Waste(
        schema=waste_format.SCHEMA,
        run=run,
        padding_fraction=ratios.padding_fraction,
        padded_tokens_per_useful_token=ratios.padded_tokens_per_useful_token,
        graph_miss_rate=ratios.graph_miss_rate,
        eligible_miss_rate=ratios.eligible_miss_rate,
        overflow_rate=ratios.overflow_rate,
        bucket_slack=ratios.bucket_slack,
        r32=ragged["R32"],
        r64=ragged["R64"],
        r128=ragged["R128"],
        i_mix=None,
        cv_moe=moe.cv,
        e_token_per_ms=ratios.e_token_per_ms,
        padded_tokens_hist=ratios.padded_tokens_hist,
        padded_tokens_per_scheduled_token=ratios.padded_tokens_per_scheduled_token,
        by_mode=waste_by_mode(side.columns, side.clean_rows, sizes, moe),
        not_available=not_available,
        counts=ratios.counts,
        cv_moe_by_rank=moe.by_rank,
        gates=[],
        sanity=block(sanity.waste_families(ratios), []),
        provenance=origin,
    )


def _moe(tables: WindowTables, protocol: Protocol | None) -> MoeVariation:
    if protocol is None:
        return MoeVariation(None, NO_PROTOCOL, {}, {}, None)
    rule = protocol.file.waste
    return moe_variation(
        tables.moe_steps, scope_share_min=rule.moe_scope_share_min, ddof=rule.moe_cv_ddof
    )


def _sanity(
    run: RunIdentity, origin: Provenance, layer1: Layer1Summary, kernels: Kernels, waste: Waste
) -> Sanity:
    """Collect every gate and every sanity block of the run."""
    gates = [*layer1.gates, *kernels.gates, *waste.gates]
    blocks = {"layer1": layer1.sanity, "kernels": kernels.sanity, "waste": waste.sanity}
    flags = [f"{name}: {flag}" for name, block in blocks.items() for flag in block.red_flags]
    outcomes = {gate.outcome for gate in gates}
    outcome: Outcome = "pass" if outcomes == {"pass"} else "not_evaluable"
    if "fail" in outcomes or flags:
        outcome = "fail"
    return Sanity(
        schema=sanity_format.SCHEMA,
        run=run,
        outcome=outcome,
        red_flags=flags,
        gates=gates,
        sanity=SanityBlock(
            [
                msgspec.structs.replace(family, name=f"{name}.{family.name}")
                for name, block in blocks.items()
                for family in block.families
            ],
            flags,
        ),
        provenance=origin,
    )
