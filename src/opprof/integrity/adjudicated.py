"""Verdicts on kept data under a later protocol (A-P3-5, A-P3-6): their hashes and their effect."""

from __future__ import annotations

from dataclasses import replace

from opprof.artifacts.campaign import CheckName, RunRecord
from opprof.code_hash import code_sha256
from opprof.integrity.checks import Checks
from opprof.integrity.derived import Known, check_derived

JUDGED_AGAIN: frozenset[CheckName] = frozenset({"client", "layer1", "layer2", "sanity"})
"""Checks that a later protocol may pass with the same data; what happened on the machine
(commands, clocks and load, GPU memory) stays as it was."""
_ARTEFACT = "adjudication.json"


def accepted_later(state: RunRecord) -> bool:
    """Tell whether the last verdict on kept data accepts the run."""
    return bool(state.adjudications) and state.adjudications[-1].accepted


def check_adjudications(checks: Checks, state: RunRecord, known: Known) -> None:
    """Recompute what every later verdict on a run names; its protocol must be the campaign's."""
    attempt = state.attempt
    for verdict in state.adjudications:
        path = checks.root / verdict.artefact / _ARTEFACT
        subject = checks.subject(path)
        if ".." in path.parts or attempt is None:
            checks.add("adjudication", subject, "fail", "lies outside of the campaign")
            continue
        if verdict.protocol_sha256 not in known.protocols:
            reason = "is a verdict under a protocol that is none of the campaign's"
            checks.add("adjudication", subject, "fail", reason, seen=verdict.protocol_sha256)
        # A later version of the code may judge; that it is another one is said, and no failure.
        later = replace(known, codes=known.codes | {code_sha256()}, binding=False)
        check_derived(checks, path, later, run=checks.root / attempt.folder)
