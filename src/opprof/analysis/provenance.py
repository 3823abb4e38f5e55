"""Hashes of inputs and of this package's own sources (invariant F3)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from opprof._version import __version__
from opprof.analysis.gates_client import drain_quarantine
from opprof.analysis.inputs import RunInputs
from opprof.artifacts.common import Provenance, RunIdentity
from opprof.code_hash import code_sha256
from opprof.files import sha256_file
from opprof.protocol import Protocol

_EMBEDDED_ENGINE = "opprof-sim"
_TRACE_LABEL = b'"opprofSimulated"'
_TRACE_HEAD_BYTES = 4096
_HEAD_BYTES = 1 << 20


class _Head(msgspec.Struct):
    simulated: bool = False
    engine: str = ""


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
        simulated=bool(simulation_labels(inputs)),
        drain_quarantined=marked if drain == "not_evaluable" or result is None else drain == "fail",
    )


def simulation_labels(inputs: RunInputs) -> list[str]:
    """Return the files that say that the run is simulated; one is enough, whatever others say.

    A label can get lost on the way (a file made anew, a field dropped by a script), so every place
    that carries one is asked: timeline, result, stream header, engine report, environment, traces.
    """
    found = []
    timeline, result = inputs.timeline, inputs.result
    if timeline.simulated or timeline.virtual:
        found.append("client/timeline.json")
    if result is not None and result.simulated:
        found.append("client/result.json")
    files = [inputs.stream, inputs.stream.with_name("engine-config.json")]
    for path in [*files, inputs.root / "environment.json"]:
        if _head_is_simulated(path):
            found.append(path.name)
    found += [trace.path.name for trace in inputs.traces if _trace_is_simulated(trace.path)]
    return found


def _head_is_simulated(path: Path) -> bool:
    """Look at a stream's first line, or at a whole small JSON file."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        data = stream.readline() if path.suffix == ".jsonl" else stream.read(_HEAD_BYTES)
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.MsgspecError:
        return False
    return head.simulated or head.engine == _EMBEDDED_ENGINE


def _trace_is_simulated(path: Path) -> bool:
    """Look at a trace's head; one that cannot be read is judged where its events are read."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            return _TRACE_LABEL in stream.read(_TRACE_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False


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
