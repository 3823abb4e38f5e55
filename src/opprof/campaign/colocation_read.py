"""The co-location check's run directories, read into the facts that its decision compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opprof._version import __version__
from opprof.artifacts.campaign import EngineKind
from opprof.artifacts.environment import Topology
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.plan import ColocationGate, Regime
from opprof.artifacts.run import Result, Timeline
from opprof.campaign.colocation import ColocationRun, Round, rounds
from opprof.campaign.colocation_gate import (
    BackgroundFact,
    GateContext,
    RegimeFacts,
    TargetRun,
    TargetWindow,
    decide_colocation,
)
from opprof.campaign.costs import Pace
from opprof.campaign.naming import COLOCATION, GATE, gate_file
from opprof.code_hash import code_sha256
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes, write_atomic
from opprof.protocol.load import Protocol

RESULT = "client/result.json"
TIMELINE = "client/timeline.json"
KERNELS = "analysis/kernels.json"

T = TypeVar("T")


@dataclass(frozen=True)
class CheckedPlace:
    """Where and with what the check ran."""

    host: Topology
    engine: EngineKind
    engine_version: str
    pace: Pace


def gate_of(
    campaign: Path,
    protocol: Protocol,
    regimes: Sequence[Regime],
    place: CheckedPlace,
    *,
    wall_ns: int,
) -> ColocationGate:
    """Decide from the run directories of the regimes measured so far, solo first.

    A file that is not there is a fact (the regime cannot be compared); one that cannot be read is
    an error.

    Raises:
        InputError: the protocol has no check, or a run was analysed with another mapping.
        SchemaError: an artefact does not fit its schema.
    """
    facts, mappings = [], set()
    for regime in regimes:
        both = rounds(protocol.file, place.host, regime, place.pace, port_base=0)
        found, mapping = _read_regime(campaign, regime, both, protocol.file.mapping.pinned)
        facts.append(found)
        mappings.add(mapping)
    mappings.discard(None)
    if len(mappings) > 1:
        raise InputError("the check's runs were analysed with different mapping tables")
    context = GateContext(
        protocol_sha256=protocol.sha256,
        host=place.host,
        engine=place.engine,
        engine_version=place.engine_version,
        time_scale=place.pace.time_scale,
        mapping_version=protocol.file.mapping.pinned,
        mapping_sha256=next(iter(mappings), None),
        code_version=__version__,
        code_sha256=code_sha256(),
        wall_ns=wall_ns,
    )
    return decide_colocation(protocol.file, facts, context)


def write_gate(campaign: Path, gate: ColocationGate) -> Path:
    """Write the gate of its host whole or not at all; return its path."""
    path = campaign / gate_file(gate.host)
    write_atomic(path, msgspec.json.format(msgspec.json.encode(gate), indent=1) + b"\n")
    return path


def read_gate(path: Path) -> ColocationGate:
    """Read a gate.

    Raises:
        InputError: it cannot be read.
        SchemaError: it does not fit its schema.
    """
    return _decode(read_bytes(path), path, ColocationGate)


def read_gates(campaign: Path) -> dict[str, ColocationGate]:
    """Return host to gate, of every host that has one.

    Raises:
        InputError, SchemaError: as :func:`read_gate`.
    """
    found = sorted((campaign / COLOCATION).glob(f"*/{GATE}"))
    return {gate.host: gate for gate in map(read_gate, found)}


class _Reader:
    """Reads artefacts below a campaign and remembers the hash of each."""

    def __init__(self, campaign: Path) -> None:
        self._campaign = campaign
        self.inputs: dict[str, str] = {}

    def read(self, folder: str, name: str, kind: type[T]) -> T | None:
        """Return the artefact; None where there is none."""
        path = self._campaign / folder / name
        if not path.exists():
            return None
        data = read_bytes(path)
        self.inputs[f"{folder}/{name}"] = sha256_bytes(data)
        return _decode(data, path, kind)


def _decode(data: bytes, path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit the schema: {error}", path=path) from error


def _read_regime(
    campaign: Path, regime: Regime, both: tuple[Round, Round], pinned: str
) -> tuple[RegimeFacts, str | None]:
    reader = _Reader(campaign)
    targets: list[TargetRun | None] = []
    backgrounds: list[BackgroundFact] = []
    simulated = False
    for each in both:
        target, simulated_run = _read_target(reader, each.target)
        targets.append(target)
        simulated = simulated or simulated_run
        backgrounds += [
            _read_background(reader, background, each) for background in each.backgrounds
        ]
    folder = both[1].target.folder
    kernels = reader.read(folder, KERNELS, Kernels)
    windows: list[TargetWindow] = []
    if kernels is not None:
        if kernels.mapping_version != pinned:
            raise InputError(
                f"was analysed with mapping {kernels.mapping_version}, the protocol pins {pinned}",
                path=campaign / folder / KERNELS,
            )
        windows = [
            TargetWindow(
                accepted=window.accepted,
                reasons=tuple(window.reasons),
                classified_fraction=window.classified_fraction,
                shares={name: time.share for name, time in window.families.items()},
            )
            for window in kernels.windows
        ]
    facts = RegimeFacts(
        regime=regime,
        saturation=targets[0],
        moderate=targets[1],
        windows=tuple(windows),
        backgrounds=tuple(backgrounds),
        inputs=reader.inputs,
        simulated=simulated,
    )
    return facts, None if kernels is None else kernels.mapping_sha256


def _read_target(reader: _Reader, run: ColocationRun) -> tuple[TargetRun | None, bool]:
    result = reader.read(run.folder, RESULT, Result)
    timeline = reader.read(run.folder, TIMELINE, Timeline)
    if result is None:
        return None, False
    rate: Any = result.metrics.get("rate")
    source = rate.get("saturation_result_sha256") if isinstance(rate, dict) else None
    target = TargetRun(
        accepted=result.accepted,
        reasons=tuple(result.reasons),
        completed_rps=result.completed_rps,
        manifest_sha256=result.manifest_sha256,
        result_sha256=reader.inputs[f"{run.folder}/{RESULT}"],
        rate_source_sha256=source,
        needed_ns=None if timeline is None else _span(timeline, ("warmup", "clean", "recovery")),
    )
    return target, result.simulated


def _read_background(reader: _Reader, run: ColocationRun, each: Round) -> BackgroundFact:
    result = reader.read(run.folder, RESULT, Result)
    timeline = reader.read(run.folder, TIMELINE, Timeline)
    if result is None:
        problem = "it has no result"
    else:
        problem = "" if result.accepted else "; ".join(result.reasons) or "it was not accepted"
    return BackgroundFact(
        pattern=run.pattern,
        load_point=each.load_point,
        active_ns=None if timeline is None else _span(timeline, ("warmup",)),
        problem=problem,
    )


def _span(timeline: Timeline, kinds: Sequence[str]) -> tuple[int, int] | None:
    spans = [i for i in timeline.intervals if i.kind in kinds]
    if not spans:
        return None
    return min(i.start_mono_ns for i in spans), max(i.end_mono_ns for i in spans)
