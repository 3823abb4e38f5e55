"""What an attempt needs and what comes out of it: values that can travel to another host.

An executor gets an :class:`AttemptSpec` and a :class:`Journal` and returns an :class:`Outcome`.
All paths of the spec are paths of the host that executes it; an executor that places runs on other
hosts puts protocol, manifest and saturation result there first, and brings the run directory back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from msgspec import Struct

from opprof.artifacts.campaign import Campaign, Phase, ProcessRecord, Slot, Stop
from opprof.artifacts.common import Gate, SanityBlock
from opprof.artifacts.engine import EngineReport
from opprof.artifacts.environment import ModelFingerprint, Versions
from opprof.artifacts.run import LoadPoint, Role
from opprof.campaign.processes import Ended
from opprof.errors import EnvironmentFailure

Fault = Literal["", "infrastructure", "semantic", "interrupted"]


class AttemptSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One attempt at one run."""

    campaign: Campaign
    run: str
    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    number: int
    slot: Slot
    folder: str
    """The run directory; must not exist."""
    logs: str
    """Prefix of the logs of client and analysis, which lie outside the run directory."""
    protocol: str
    """The frozen protocol in force."""
    manifest: str
    manifest_sha256: str
    saturation: str | None
    """``client/result.json`` of the saturation run that a moderate rate comes from."""
    launch: list[str]
    """The server's words; what is filled for the run alone is still open."""
    environment: dict[str, str]
    """The server's own variables, open in the same way."""
    model: str
    """As the server knows it."""
    source_hashes: dict[str, str]
    """What the attempt is made from, by name."""
    shutdown_timeout_s: float
    """The protocol's, which the server was started with: how long SIGTERM leaves it to drain."""
    expected_s: float
    """How long the run is planned to take."""
    unrepresentative_before: int
    """Earlier complete attempts at this run whose profile windows were not representative."""
    redacted: dict[str, str]
    """Private path to the name that stands for it in every record but ``commands.log``."""
    first_engine: EngineReport | None = None
    """What the campaign's first server of the configuration said of itself."""
    first_cache_key: str | None = None
    versions: Versions | None = None
    model_files: ModelFingerprint | None = None
    not_available: dict[str, str] = {}
    """Why versions or model files are not known."""
    background: bool = False
    """Load beside a co-location target, until it is told to stop; not measured."""


class Outcome(Struct, frozen=True, forbid_unknown_fields=True):
    """How an attempt ended."""

    checks: dict[str, Gate]
    """The seven (``CheckName``), and every further gate that failed."""
    reason: str
    """Empty for a complete attempt."""
    fault: Fault
    accepted: bool | None
    drain_quarantined: bool | None
    gpu_seconds: float
    """From the server's launch until its GPUs were free again, times its GPUs."""
    signal_wall_ns: int | None
    stops: list[Stop] = []
    """Hard-stop conditions that the attempt met."""
    clean_failure: bool = False
    """A request of the clean window failed."""
    unrepresentative: bool = False
    sanity: SanityBlock | None = None
    """Over the state's own numbers; the controller adds it (:mod:`opprof.campaign.audit`)."""


@dataclass
class Facts:
    """What is known of the attempt so far."""

    client_exit: int | None = None
    client_timed_out: bool = False
    analysis_exit: int | None = None
    analysis_refusal: str = ""
    """What the analysis said of an input that kept it from its end; empty otherwise."""
    scan_exit: int | None = None
    server_exit: int | None = None
    server_died: bool = False
    server_failed: bool = False
    """It never became healthy."""
    server_killed: bool = False
    port: int = 0
    launched_mono_ns: int | None = None
    load_begun: bool = False
    """What belongs to a measured interval can be asked for; before it, ``fault`` says it all."""
    freed_mono_ns: int | None = None
    signal_wall_ns: int | None = None
    log_bytes_at_kill: int | None = None
    """Length of the server's log when it had to be killed; what follows is no fault of the run."""
    engine_gates: list[Gate] = field(default_factory=list)
    engine_fields: dict[str, Any] = field(default_factory=dict)
    contamination: str = ""
    """What was seen on the GPUs that is not the campaign's; the load was broken off for it."""
    fault: str = ""
    """Why the attempt broke off; empty when every phase was reached."""


class Journal(Protocol):
    """Where an attempt reports; each call returns when the report is on disk at the controller."""

    async def phase(self, phase: Phase, reason: str = "") -> None:
        """The attempt enters a phase."""

    async def started(self, process: ProcessRecord) -> None:
        """A child waits at its gate."""

    async def ended(self, process: ProcessRecord) -> None:
        """A child's exit status is known."""

    async def signalled(self, wall_ns: int) -> None:
        """The server was told to end."""


class PlaceLost(EnvironmentFailure):
    """The host of an attempt is gone; the run restarts elsewhere from its fresh-server boundary."""


class Meeting(Protocol):
    """How the runs of one co-location round wait for each other."""

    async def may_load(self, run: str) -> None:
        """Return when the run's client may start."""

    async def loads(self, run: str) -> None:
        """A run's client has completed a request."""

    async def until_over(self) -> None:
        """Return when a background has to stop."""

    async def leave(self, run: str) -> None:
        """A run's load has ended."""


class Halt:
    """Whether a cancelled attempt may take its time to end its processes."""

    def __init__(self) -> None:
        self._hurry = asyncio.Event()

    @property
    def now(self) -> bool:
        """True once nothing may be waited for any more."""
        return self._hurry.is_set()

    @now.setter
    def now(self, value: bool) -> None:
        if value:
            self._hurry.set()
        else:
            self._hurry.clear()

    async def hurried(self) -> None:
        """Return when nothing may be waited for any more."""
        await self._hurry.wait()


@dataclass(frozen=True)
class CleanedUp:
    """What was found of an earlier controller."""

    ended: list[Ended]
    """Its processes that had outlived it."""
    lines: list[str]
    """What else there is to tell."""


class RunExecutor(Protocol):
    """Executes one attempt on its slot.

    Cancelling :meth:`execute` ends the attempt's processes and keeps its folder.
    """

    async def execute(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: Meeting | None = None
    ) -> Outcome:
        """Run the attempt to its end.

        ``meeting``: the round of the co-location check that it belongs to; all runs of a round have
        one host.

        Raises:
            PlaceLost: the host is gone; others may go on.
            EnvironmentFailure: the place itself failed otherwise (disk full), not the run.
        """
        ...

    async def clean_up(self, campaign: str) -> CleanedUp:
        """End what an earlier controller left behind, and bring home what it left elsewhere."""
        ...
