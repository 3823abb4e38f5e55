"""One rehearsal of a protocol: every run and its analysis, then the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.analysis.load import LoadedRun, load_runs
from opprof.artifacts.common import Gate
from opprof.artifacts.decision import Decision
from opprof.artifacts.sanity import Sanity
from opprof.decision.decide import decide
from opprof.decision.facts import RunFacts
from opprof.decision.load import REHEARSAL_GATES, provenance, run_facts
from opprof.files import read_bytes
from opprof.protocol import Protocol
from opprof.rehearsal.campaign import CampaignReport, rehearse_campaign
from opprof.rehearsal.truth import Truth
from opprof.words import plural

_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Once:
    """The runs of one rehearsal, analysed."""

    campaign: CampaignReport
    found: list[LoadedRun]
    """In the order of ``campaign.runs``."""
    gates: list[list[Gate]]
    """Of each of ``found``: the analysis' and those of the client's that it has no name for."""

    @property
    def all_gates(self) -> list[Gate]:
        """The gates of all runs."""
        return [gate for gates in self.gates for gate in gates]


def rehearse_once(
    protocol: Protocol,
    data: bytes,
    truth: Truth,
    runs: Path,
    *,
    seed: int,
    jobs: int,
    advance: Callable[[str], None] = lambda _line: None,
) -> Once:
    """Rehearse the protocol into folders below ``runs`` and analyse them.

    ``data``: the protocol's bytes. ``jobs``: worker processes; nothing depends on it.

    Raises:
        InputError: the protocol cannot be rehearsed.
        StateConflict: a run folder exists already.
        EnvironmentFailure: a worker process was killed from outside.
    """
    campaign = rehearse_campaign(protocol, data, truth, runs, seed=seed, jobs=jobs, advance=advance)
    folders = [run.folder for run in campaign.runs]
    found = load_runs(folders, protocol, jobs=jobs) if folders else []
    advance(f"{plural(len(found), 'run')} analysed")
    return Once(campaign, found, gates_of(found))


def decide_once(
    once: Once, protocol: Protocol, *, jobs: int
) -> tuple[list[RunFacts], Decision | None]:
    """Return what a decision reads of the runs, and the decision; None when no run was made."""
    facts = [run_facts(item, protocol) for item in once.found]
    if not facts:
        return facts, None
    decision = decide(
        facts,
        protocol,
        provenance(facts, once.found, protocol),
        exploratory=False,
        rehearsed=True,
        tolerated=REHEARSAL_GATES,
        jobs=jobs,
    )
    return facts, decision


def gates_of(found: Sequence[LoadedRun]) -> list[list[Gate]]:
    """Return each analysed run's gates, and the client's that the analysis has no name for.

    Raises:
        InputError: the client's ``sanity.json`` cannot be read.
    """
    names = {gate.name for item in found for gate in item.analysis.sanity.gates}
    gates = []
    for item in found:
        path = item.source / "client" / "sanity.json"
        client = msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=Sanity)
        own = [gate for gate in client.gates if gate.name not in names]
        gates.append([*item.analysis.sanity.gates, *own])
    return gates
