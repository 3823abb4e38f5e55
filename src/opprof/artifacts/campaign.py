"""A campaign directory: what was started, where every run stands, what it cost (A-P3-1 to -4).

Format history
    schema 1    first. Added since: an attempt's ``sanity`` and ``stops``, the controller's
                ``hosts`` and ``stop``, a stop's ``attempts``, a transition's ``mono_ns``,
                ``boot_id`` and ``wall_step_s``, a charge's ``protocol_sha256``.

``<campaign>/campaign.json`` is immutable; ``state/<run>.json`` holds one :class:`RunRecord` a
planned run and is replaced whole (write, fsync, rename); ``ledger.jsonl`` grows by one
:class:`Charge` a line; ``controller.json`` tells who owns the campaign; ``stop.json`` why it stands
still. Times named ``wall`` are nanoseconds of CLOCK_REALTIME.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Gate, SanityBlock, Sha256
from opprof.artifacts.environment import Topology
from opprof.artifacts.run import LoadPoint, Role

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]
WallNs = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]

Phase = Literal[
    "pending",
    "starting",
    "serving",
    "loading",
    "draining",
    "cleaning",
    "checking",
    "complete",
    "failed",
    "interrupted",
]
"""Where a run stands. ``starting``: server process launched, not healthy. ``serving``: healthy, its
effective configuration is being checked. ``loading``: the client runs. ``draining``: the server was
told to end. ``cleaning``: its processes and GPU memory are being waited for. ``checking``: analysis
and the seven checks. The last three are final for an attempt."""

CheckName = Literal["client", "layer1", "layer2", "sanity", "command", "clock_load", "gpu_memory"]
"""A-P3-2: a run is complete only after all seven."""

EngineKind = Literal["vllm", "sim", "sim-virtual"]


class Campaign(Struct, frozen=True, forbid_unknown_fields=True):
    """``campaign.json``: what the campaign is bound to; a resume refuses whatever differs."""

    schema: Literal[1]
    id: str
    """Marks every process of the campaign (environment variable ``OPPROF_CAMPAIGN``)."""
    protocol_id: str
    protocol_sha256: Sha256
    """Of the frozen protocol that it was started with; amendments lie in ``protocols/``."""
    engine: EngineKind
    variables: dict[str, str]
    """Values of the protocol's ``${VARIABLES}``."""
    manifests: dict[str, Sha256]
    """Pattern to the SHA-256 of its manifest; the manifests lie in the private folder."""
    time_scale: Annotated[float, Meta(gt=0)]
    seed: Count
    """Seed of the embedded engine; no meaning for a real one."""
    hosts: list[str]
    """Names of the engine hosts; one unless an executor places runs on more."""
    executor: Literal["local", "ray"]
    options: dict[str, Any]
    """Every further option of ``opprof campaign start``."""
    code_version: str
    code_sha256: Sha256
    created_wall_ns: WallNs
    simulated: bool = False


class ProcessRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that the controller started; never signalled unless both numbers still fit."""

    role: Literal["controller", "server", "client", "analysis", "worker"]
    host: str
    pid: Annotated[int, Meta(ge=1)]
    start_ticks: Count
    """Field 22 of ``/proc/PID/stat``: with the pid it names one process for ever (one boot)."""
    boot_id: str
    pgid: Annotated[int, Meta(ge=1)]
    command: list[str]
    started_wall_ns: WallNs
    ended_wall_ns: WallNs | None = None
    exit_status: int | None = None
    """As ``subprocess``: negative for a signal; null while running or when nobody saw the end."""


class Slot(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run executes (A-P3-1): host, GPUs, port and CPU mask."""

    host: str
    gpus: list[Count]
    """Physical indices; more than one for tensor parallelism."""
    gpu_uuids: list[str]
    port: Annotated[int, Meta(ge=0, le=65535)]
    cpus: str
    """Mask as ``taskset -c`` writes it; empty where the protocol gives none."""
    wave: Count
    width: Count = 0
    """GPU slots of the host that were authorised together: the placement regime (A-P3-1). A
    moderate run takes its rate from a saturation run of the same regime only; 0: not recorded."""


class Transition(Struct, frozen=True, forbid_unknown_fields=True):
    """One change of phase."""

    phase: Phase
    wall_ns: WallNs
    reason: str = ""
    mono_ns: Count | None = None
    """CLOCK_MONOTONIC of the controller's machine: GPU time is charged by it."""
    boot_id: str = ""
    """Boot within which ``mono_ns`` can be compared."""
    wall_step_s: float = 0.0
    """By how much the wall clock was set since the transition before; 0 where both clocks agree."""


class Attempt(Struct, frozen=True, forbid_unknown_fields=True):
    """One attempt at a run, from a fresh server on."""

    number: Annotated[int, Meta(ge=1)]
    folder: str
    """Relative to the campaign: ``runs/<run>`` or ``attempts/<run>.<number>``."""
    phase: Phase
    transitions: list[Transition]
    slot: Slot | None
    processes: list[ProcessRecord]
    source_hashes: dict[str, Sha256]
    """What the attempt was made from: protocol, manifest, code, client, launch configuration."""
    checks: dict[str, Gate]
    """By :data:`CheckName`, and every further gate of the controller that failed."""
    reason: str = ""
    fault: Literal["", "infrastructure", "semantic", "interrupted"] = ""
    """Only an infrastructure or profile-artefact fault allows the one exact rerun."""
    gpu_seconds: Seconds = 0.0
    signal_wall_ns: WallNs | None = None
    """When the server was told to end."""
    sanity: SanityBlock | None = None
    """Over this record's own numbers; null until the attempt was judged, and where nobody saw it
    end. A red flag fails the attempt."""
    judged_sha256: Sha256 | None = None
    """Over the folder's files as they were when its checks had passed
    (:func:`opprof.integrity.provenance.listing_sha256`); null for any other attempt."""
    stops: list[Stop] = []
    """Hard stops that it called for, written with its end: as long as no review has released one,
    it stands, whether ``stop.json`` tells of it or not."""


class Adjudication(Struct, frozen=True, forbid_unknown_fields=True):
    """A later verdict on kept raw data (A-P3-5, A-P3-6); the earlier one stays."""

    protocol_sha256: Sha256
    amendment: str
    accepted: bool
    reasons: list[str]
    artefact: str
    """Path of the adjudication relative to the campaign."""


class RunRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """``state/<run>.json``: one planned run with all its attempts."""

    schema: Literal[1]
    run: str
    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    order: Count
    """Place in the protocol's execution order."""
    needs: list[str]
    """Runs that must be complete before: the saturation of a moderate run, the burn-ins."""
    state: Phase
    """Phase of the last attempt; ``pending`` before the first."""
    attempts: list[Attempt]
    accepted: bool | None = None
    """The client's and the analysis' verdict of a complete run under the protocol in force."""
    drain_quarantined: bool | None = None
    adjudications: list[Adjudication] = []

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None


class Charge(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of ``ledger.jsonl`` (A-P3-4)."""

    schema: Literal[1]
    kind: Literal[
        "prior", "reserve", "release", "run", "burnin", "colocation", "retry", "cleanup", "note"
    ]
    run: str
    """Empty for what belongs to no run."""
    attempt: Count
    gpus: Count
    gpu_seconds: float
    """Consumed; for ``reserve`` the conservative reservation, for ``release`` its negative; 0 for a
    ``note``."""
    wall_ns: WallNs
    note: str = ""
    wave: Count = 0
    """Wave of a reservation and of its release; 0 elsewhere."""
    simulated: bool = False
    """GPU time that no GPU spent; a ledger is wholly simulated or not at all."""
    protocol_sha256: Sha256 | None = None
    """Of a further ``prior``: the amended protocol that declares another prior use; the line holds
    the difference, which may be negative."""


class HostUse(Struct, frozen=True, forbid_unknown_fields=True):
    """A host as this life of the controller uses it."""

    topology: Topology
    """With the GPUs that the campaign may use there."""
    width: Annotated[int, Meta(ge=1)] | None
    """GPU slots used at once; null while its co-location check has not authorised any width."""
    lost: bool = False
    """Gone since; no run goes there any more in this life."""


class ControllerRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """``controller.json``: who owns the campaign now."""

    schema: Literal[1]
    campaign: str
    process: ProcessRecord
    session: int
    phase: Literal["running", "stopping", "stopped", "finished", "failed"]
    heartbeat_wall_ns: WallNs
    resumed: Count
    """How often the campaign was resumed before."""
    message: str = ""
    hosts: list[HostUse] = []
    """Empty before the hosts were asked."""
    stop: Stop | None = None
    """What stops the matrix as far as this life knows; a lost ``stop.json`` releases nothing."""


class Stop(Struct, frozen=True, forbid_unknown_fields=True):
    """``stop.json``: the matrix stands still until somebody has looked."""

    schema: Literal[1]
    condition: Annotated[int, Meta(ge=0, le=10)]
    """Number in the protocol's list of ten; 0 for the shares of failed or quarantined runs, the
    co-location gate and a user's request."""
    name: str
    reason: str
    run: str
    wall_ns: WallNs
    numbers: dict[str, Any] = {}
    reviewed: str = ""
    """Who released it, and why (``opprof campaign resume --reviewed TEXT``)."""
    attempts: list[str] = []
    """Attempts that called for it or for what stands beside it, as ``RUN.NUMBER``; empty for a stop
    by the campaign as a whole."""
