"""What the artefacts of one run say that a campaign's rules need, gathered and not judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from opprof.analysis.results import RunAnalysis
from opprof.artifacts.common import Gate
from opprof.artifacts.run import LoadPoint, Result, Role, Timeline
from opprof.artifacts.sanity import Sanity
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes

T = TypeVar("T")
_LIMIT_BYTES = 64 << 20
_CLEAN_GATES = frozenset({"clean_requests", "request_failures"})


class RunFacts(Struct, frozen=True):
    """One attempt at one run, as its artefacts tell it."""

    run: str
    """Its name, from the timeline."""
    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    time_scale: float
    simulated: bool
    gates: list[Gate]
    """Of client, analysis and controller; a name may occur from two sources."""
    red_flags: list[str]
    """Of every sanity block of the run, by source; an artefact that cannot be read is one too."""
    accepted: bool | None
    """The client's verdict; null without a result."""
    drain_quarantined: bool | None
    missing: list[str]
    """Artefacts that a finished run has and this one has not."""

    @property
    def measured(self) -> bool:
        """Whether the protocol counts it among its measured runs: primary and confirmation."""
        return self.role in ("primary", "confirmation")

    @property
    def failed(self) -> list[Gate]:
        """Gates with the outcome ``fail``."""
        return [gate for gate in self.gates if gate.outcome == "fail"]

    @property
    def clean_failure(self) -> bool:
        """Whether a request of the clean window failed, or none completed in it."""
        return any(gate.name in _CLEAN_GATES for gate in self.failed)

    @property
    def unrepresentative(self) -> bool:
        """Whether a profile window differs from its clean segment beyond the registered bound."""
        return any(gate.name == "representativeness" for gate in self.failed)


class MatrixFacts(Struct, frozen=True):
    """Where the whole campaign stands. Runs are counted once, whatever their attempts."""

    planned: int
    """Measured runs of the protocol in force: primary and confirmation, no burn-in."""
    measured: int
    """Those that have ended with a measurement."""
    quarantined: int
    """Measured runs flagged drain-quarantined."""
    clean_failed: int
    """Measured runs of which any attempt had a failure in its clean window."""
    finished: bool
    """No further run will start."""
    public_bytes: int | None = None
    """Of the campaign's folder; null where it was not looked at."""
    private_bytes: int | None = None
    free_bytes: int | None = None
    gpu_seconds: float | None = None
    """Consumed, prior use included, with the running attempts' time."""


def facts_of(
    folder: Path, *, analysis: RunAnalysis | None = None, gates: Sequence[Gate] = ()
) -> RunFacts:
    """Gather the facts of a run directory.

    Args:
        folder: The run directory.
        analysis: Its analysis where that is at hand; else ``analysis/sanity.json``, which holds
            every gate of it, is read if it is there.
        gates: What the controller itself has judged (host, effective configuration, hashes).

    Raises:
        InputError: no timeline.
        SchemaError: the timeline does not fit its schema.
    """
    timeline = _read(folder, "client/timeline.json", Timeline)
    if timeline is None:
        raise InputError("no run directory: client/timeline.json is missing", path=folder)
    missing: list[str] = []
    damaged: list[str] = []

    def optional(name: str, kind: type[T]) -> T | None:
        try:
            value = _read(folder, name, kind)
        except InputError as error:
            # The other artefacts still count: what they say must not be lost with this one.
            damaged.append(f"damaged: {name}: {error.reason}")
            return None
        if value is None:
            missing.append(name)
        return value

    result = optional("client/result.json", Result)
    blocks = {"client": optional("client/sanity.json", Sanity)}
    if analysis is not None:
        blocks["analysis"] = analysis.sanity
    elif timeline.role != "burnin":
        blocks["analysis"] = optional("analysis/sanity.json", Sanity)
    found = {name: block for name, block in blocks.items() if block is not None}
    flags = [f"{name}: {flag}" for name, block in found.items() for flag in block.red_flags]
    return RunFacts(
        run=timeline.run_name,
        pattern=timeline.pattern,
        config=timeline.config,
        load_point=timeline.load_point,
        role=timeline.role,
        time_scale=timeline.time_scale,
        simulated=timeline.simulated,
        gates=[gate for block in found.values() for gate in block.gates] + list(gates),
        red_flags=flags + damaged,
        accepted=None if result is None else result.accepted,
        drain_quarantined=None if result is None else result.drain_quarantined,
        missing=missing,
    )


def _read(folder: Path, name: str, kind: type[T]) -> T | None:
    path = folder / name
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
