"""Run directories and finished analyses to the facts of a decision: the package's only edge."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from opprof._version import __version__
from opprof.analysis.bound import other_protocol
from opprof.analysis.gates import CATALOGUE, invalidates
from opprof.analysis.load import LoadedRun, load_runs, run_metrics
from opprof.analysis.results import RunAnalysis
from opprof.analysis.write import encode
from opprof.artifacts.common import Gate, Provenance
from opprof.artifacts.decision import Decision
from opprof.code_hash import code_sha256
from opprof.decision.campaign import CampaignRuns, read_campaign, stored_analysis
from opprof.decision.decide import decide
from opprof.decision.facts import GateReach, RunFacts
from opprof.decision.series import read_series
from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.protocol import Protocol

REHEARSAL_GATES = frozenset({"time_scale"})
"""Gates that a rehearsal on scaled time fails by design."""

_WASTE = {
    "padding_fraction": "padding_fraction",
    "padded_tokens_per_useful_token": "padded_tokens_per_useful_token",
    "graph_miss_rate": "graph_miss_rate",
    "eligible_miss_rate": "eligible_miss_rate",
    "overflow_rate": "overflow_rate",
    "bucket_slack": "bucket_slack",
    "R32": "r32",
    "R64": "r64",
    "R128": "r128",
    "CV_moe": "cv_moe",
    "E_token_per_ms": "e_token_per_ms",
}
"""Contract name to field. ``I_mix`` is this package's own."""


@dataclass(frozen=True)
class Decided:
    """A decision with the analyses it rests on."""

    decision: Decision
    runs: list[LoadedRun]


def decide_campaign(
    root: Path,
    *,
    jobs: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Decided:
    """Decide a campaign under the protocol that it holds itself.

    Analyses that lie in the runs are used where they were made under that protocol from the files
    that are there; all others are made anew. A simulated campaign may run on scaled time.

    Raises:
        InputError, SchemaError: the campaign cannot be used, or no measured run is complete.
    """
    campaign = read_campaign(root)
    protocol = campaign.protocol
    if not campaign.folders:
        raise InputError("no measured run is complete", path=root)
    stored = {run: stored_analysis(run, protocol) for run in campaign.folders}
    waiting = [run for run, found in stored.items() if found is None]
    made = load_runs(waiting, protocol, jobs=jobs, advance=advance) if waiting else []
    for _ in range(len(stored) - len(waiting)):
        advance()
    found = sorted([*(item for item in stored.values() if item is not None), *made],
                   key=lambda item: item.source.name)  # fmt: skip
    facts = [_in_campaign(run_facts(item, protocol), campaign) for item in found]
    decision = decide(
        facts,
        protocol,
        provenance(facts, found, protocol),
        exploratory=not campaign.registered,
        tolerated=REHEARSAL_GATES if campaign.campaign.simulated else frozenset(),
        absent=campaign.absent,
        stop=campaign.stop,
        jobs=jobs or os.cpu_count() or 1,
        advance=advance,
    )
    return Decided(decision, found)


def _in_campaign(facts: RunFacts, campaign: CampaignRuns) -> RunFacts:
    """Add what the campaign's state knows of the run."""
    name = facts.run.name
    kernels = facts.kernels
    if name in campaign.quarantined and not facts.run.drain_quarantined:
        run = msgspec.structs.replace(facts.run, drain_quarantined=True)
        kernels = msgspec.structs.replace(kernels, run=run)
    return replace(facts, kernels=kernels, marks=campaign.marks.get(name, ()))


def decide_paths(
    paths: Sequence[Path],
    protocol: Protocol,
    *,
    exploratory: bool,
    rehearsal: bool = False,
    jobs: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Decided:
    """Analyse or read every run that the paths name or hold, and decide.

    Args:
        paths: run directories, finished analyses, or folders that hold several.
        protocol: what judges.
        exploratory: true for a list of runs that no campaign vouches for.
        rehearsal: tolerates gates that scaled time fails by design; such runs stay marked.
        jobs: worker processes; the result does not depend on it.
        advance: called once for each finished piece of work.

    Raises:
        InputError, SchemaError: a folder cannot be used, or was analysed under another protocol.
    """
    found = load_runs(paths, protocol, jobs=jobs, advance=advance)
    facts = [run_facts(item, protocol) for item in found]
    decision = decide(
        facts,
        protocol,
        provenance(facts, found, protocol),
        exploratory=exploratory,
        tolerated=REHEARSAL_GATES if rehearsal else frozenset(),
        jobs=jobs or os.cpu_count() or 1,
        advance=advance,
    )
    return Decided(decision, found)


def run_facts(loaded: LoadedRun, protocol: Protocol) -> RunFacts:
    """Return what a decision needs of one run; its stream is read again for the time bins.

    Raises:
        InputError: the analysis was made under another protocol.
    """
    analysis = loaded.analysis
    reason = other_protocol(analysis.sanity.provenance, protocol, required=True)
    if reason:
        raise InputError(reason, path=loaded.source)
    sizes = _capture_sizes(analysis)
    return RunFacts(
        kernels=analysis.kernels,
        source=loaded.source.name,
        gates=[GateReach(gate, _reach(gate)) for gate in analysis.sanity.gates],
        red_flags=analysis.sanity.red_flags,
        waste={name: getattr(analysis.waste, field) for name, field in _WASTE.items()},
        missing_waste=analysis.waste.not_available,
        metrics=run_metrics(analysis),
        series=read_series(_run_root(loaded.source), sizes, protocol.file.statistics),
        inputs=_hashes(analysis),
    )


def _run_root(source: Path) -> Path:
    """The run directory: the source itself, or the folder around its ``analysis``."""
    if not (source / "client").is_dir() and (source.parent / "client").is_dir():
        return source.parent
    return source


def _reach(gate: Gate) -> str:
    """What the gate's failure takes away; an unknown gate of an older analysis takes the run."""
    return invalidates(gate) if gate.name in CATALOGUE else "run"


def _capture_sizes(analysis: RunAnalysis) -> list[int]:
    sizes = analysis.layer1.engine_config.get("cudagraph_capture_sizes", [])
    return [int(size) for size in sizes]


def _hashes(analysis: RunAnalysis) -> dict[str, str]:
    return {
        name: sha256_bytes(encode(getattr(analysis, name)))
        for name in ("layer1", "kernels", "waste", "sanity")
    }


def provenance(
    facts: Sequence[RunFacts], found: Sequence[LoadedRun], protocol: Protocol
) -> Provenance:
    """Name the hashes of every artefact that was read."""
    first = found[0].analysis.kernels if found else None
    return Provenance(
        inputs={
            f"{item.run.name}/{name}.json": digest
            for item in facts
            for name, digest in item.inputs.items()
        },
        protocol_id=protocol.file.id,
        protocol_sha256=protocol.sha256,
        mapping_version=None if first is None else first.mapping_version,
        mapping_sha256=None if first is None else first.mapping_sha256,
        code_version=__version__,
        code_sha256=code_sha256(),
    )
