"""``analysis/sanity.json``: every gate of a run and the sanity blocks of its other artefacts."""

from __future__ import annotations

from msgspec import Struct

from opprof.artifacts.common import Gate, Outcome, Provenance, RunIdentity, SanityBlock

SCHEMA = 1


class Sanity(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact. ``outcome`` is ``fail`` when any gate fails or any red flag is up."""

    schema: int
    run: RunIdentity
    outcome: Outcome
    red_flags: list[str]
    gates: list[Gate]
    sanity: SanityBlock
    """The families of all artefacts of the run, prefixed by the artefact's name."""
    provenance: Provenance
