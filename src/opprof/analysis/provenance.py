"""Hashes of inputs and of this package's own sources (invariant F3)."""

from __future__ import annotations

from opprof._version import __version__
from opprof.analysis.gates_client import drain_quarantine
from opprof.analysis.inputs import RunInputs
from opprof.artifacts.common import Provenance, RunIdentity
from opprof.code_hash import code_sha256
from opprof.files import sha256_file
from opprof.protocol import Protocol


def identity(inputs: RunInputs, protocol: Protocol | None) -> RunIdentity:
    """Name the run from its timeline and result, never from its folder.

    Whether its drain is quarantined is the bound protocol's verdict where it can be had.
    """
    timeline, result = inputs.timeline, inputs.result
    pattern = None if protocol is None else protocol.pattern(timeline.pattern)
    drain = drain_quarantine(timeline, pattern, result).outcome
    marked = None if result is None else result.drain_quarantined
    return RunIdentity(
        name=timeline.run_name,
        pattern=timeline.pattern,
        config=timeline.config,
        load_point=timeline.load_point,
        role=timeline.role,
        time_scale=timeline.time_scale,
        simulated=timeline.simulated,
        drain_quarantined=marked if drain == "not_evaluable" or result is None else drain == "fail",
    )


def provenance(
    inputs: RunInputs,
    protocol: Protocol | None,
    mapping_version: str | None,
    mapping_sha256: str | None,
) -> Provenance:
    """Hash every input of the run and name what judged it."""
    return Provenance(
        inputs={name: sha256_file(path) for name, path in inputs.files().items()},
        protocol_id=None if protocol is None else protocol.file.id,
        protocol_sha256=None if protocol is None else protocol.sha256,
        mapping_version=mapping_version,
        mapping_sha256=mapping_sha256,
        code_version=__version__,
        code_sha256=code_sha256(),
    )
