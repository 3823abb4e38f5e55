"""A later verdict on kept raw data, beside the earlier one (A-P3-5 drain quarantine, A-P3-6).

Format history
    schema 1    first. ``analysis_gates`` hold the profile windows' gates too.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, Sha256
from opprof.artifacts.run import Result

SCHEMA = 1


class Verdict(Struct, frozen=True, forbid_unknown_fields=True):
    """What one protocol says of a run."""

    protocol_id: str
    protocol_sha256: Sha256
    accepted: bool
    """By client and whole analysis together, profile windows included; nothing that happened on the
    machine (clocks, processes, GPU memory) is judged by it."""
    reasons: list[str]
    """One line a failed gate that costs the run its acceptance."""
    drain_quarantined: bool
    client_gates: list[Gate]
    analysis_gates: list[Gate]


class ChangedGate(Struct, frozen=True, forbid_unknown_fields=True):
    """A gate whose outcome is another one under the later protocol."""

    source: Literal["client", "analysis"]
    name: str
    scope: str
    before: str
    after: str


class AmendmentName(Struct, frozen=True, forbid_unknown_fields=True):
    """An amendment by which the later protocol follows from the earlier one."""

    id: str
    title: str
    date: str


class Adjudication(Struct, frozen=True, forbid_unknown_fields=True):
    """``adjudication.json``: both verdicts on one run; nothing was rerun."""

    schema: Literal[1]
    run: RunIdentity
    """``drain_quarantined`` is the later protocol's."""
    amendments: list[AmendmentName]
    before: Verdict
    """Computed again from the kept data under the protocol that the run was measured under."""
    after: Verdict
    changed: list[ChangedGate]
    stored_accepted: bool
    """What ``client/result.json`` says; it is never overwritten."""
    stored_reasons: list[str]
    reproduced: bool
    """Whether the kept data give the stored client's verdict again under the earlier protocol; if
    not, the later verdict is no acceptance."""
    result: Result
    """``client/result.json`` as the later protocol has it: throughput and figures are the stored
    ones. A moderate rate may be derived from it."""
    sanity: SanityBlock
    provenance: Provenance
    """Inputs are the raw files; the protocol is the later one."""
