"""A campaign's plan on paper, and the co-location gate that authorises its width (A-P3-1).

Format history
    schema 1    first.

``opprof campaign plan --json`` prints a :class:`CampaignPlan`; ``colocation/<host>/gate.json`` of a
campaign is a :class:`ColocationGate`. Nothing in a plan is measured: its GPU-hours are a forecast.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from opprof.artifacts.campaign import EngineKind, Slot
from opprof.artifacts.common import Gate, SanityBlock, Sha256

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]
Hours = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Regime = Literal["solo", "eight", "four"]
"""Of the protocol's table: ``eight`` and ``four`` name its two lists of backgrounds, whatever their
lengths in another protocol."""


class PlannedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """One run of a lane."""

    run: str
    gpus: Annotated[int, Meta(ge=1)]
    expected_s: Seconds
    """As the protocol's budget estimates it, without drain."""
    reserved_s: Seconds
    """With the whole drain allowance and the shutdown's time-out."""


class PlannedLane(Struct, frozen=True, forbid_unknown_fields=True):
    """One cell on its slot; its runs follow each other."""

    slot: Slot
    runs: list[PlannedRun]


class PlannedWave(Struct, frozen=True, forbid_unknown_fields=True):
    """What is launched together."""

    number: Annotated[int, Meta(ge=1)]
    group: Literal["burnin", "matrix", "confirmation"]
    lanes: list[PlannedLane]
    reserved_gpu_hours: Hours
    consumed_before_gpu_hours: Hours
    """Prior use included; the wave is refused if this and the reservation exceed the cap."""
    expected_gpu_hours: Hours
    expected_s: Seconds


class Outlook(Struct, frozen=True, forbid_unknown_fields=True):
    """One forecast of the whole campaign."""

    assumption: str
    waves: Count
    wall_hours: Hours
    queue_wall_hours: Hours
    """If every slot took the next cell at once instead of waiting for the wave's end."""
    gpu_hours: Hours
    """Of the campaign alone."""
    consumed_gpu_hours: Hours
    """With prior use."""
    refusal: str
    """Which wave the budget would refuse, and why; empty for none."""


class ColocationRound(Struct, frozen=True, forbid_unknown_fields=True):
    """One target run of the co-location check with what runs beside it."""

    host: str
    regime: Regime
    load_point: Literal["saturation", "moderate"]
    target: str
    backgrounds: list[str]
    gpus: Count
    expected_s: Seconds
    expected_gpu_hours: Hours
    reserved_gpu_hours: Hours


class CampaignPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """``opprof campaign plan --json``: a forecast, no measurement."""

    schema: Literal[1]
    protocol_id: str
    protocol_sha256: Sha256
    status: Literal["draft", "frozen"]
    hosts: list[str]
    widths: dict[str, Annotated[int, Meta(ge=1)]]
    """Host to the GPU slots of it that are used at once."""
    needs_gate: list[str]
    """Hosts whose width must be authorised by a co-location gate of their own first."""
    time_scale: float
    cells: Count
    measured_runs: Count
    burnins: Count
    gpu_hours_max: Hours
    prior_gpu_hours: Hours
    waves: list[PlannedWave]
    colocation: list[ColocationRound]
    """The checks that are still to be made, host by host, fallback included."""
    outlooks: list[Outlook]
    blocked: dict[str, str]
    """Runs that cannot run on these hosts, with the reason."""
    refusal: str
    """Why not even the first wave could start; empty where it can."""
    simulated: bool = True
    campaign: str = ""
    """Id of the campaign whose rest is planned; empty for a plan from a protocol alone."""
    complete: Count = 0
    """Its runs that are complete."""
    notes: list[str] = []
    """What is assumed, and what the ledger and the state files disagree about."""


class FamilyDifference(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the solo window's top families in both windows."""

    family: str
    share_solo: Share
    share_colocated: Share
    difference: float
    """``share_colocated - share_solo``, in share units."""
    limit: float
    """The magnitude must stay below it."""
    passed: bool


class RegimeVerdict(Struct, frozen=True, forbid_unknown_fields=True):
    """The check at one width against the solo run."""

    regime: Literal["eight", "four"]
    width: Annotated[int, Meta(ge=2)]
    backgrounds: list[str]
    outcome: Literal["pass", "fail", "not_evaluable"]
    """``not_evaluable``: a prerequisite failed, so nothing was compared; it is no failed regime and
    does not lead to the fallback."""
    reasons: list[str]
    saturation_rps: float | None
    """``T_sat`` under this regime: the moderate rate's source."""
    throughput_rps: float | None
    """``T_coloc``: completed requests per second over the clean interval."""
    ratio: float | None
    """``T_coloc / T_solo``."""
    limit: float
    """``abs(ratio - 1)`` must stay below it."""
    families: list[FamilyDifference]
    gates: list[Gate]
    """Prerequisites: runs accepted, windows sound and classifiable, backgrounds active."""


class ColocationGate(Struct, frozen=True, forbid_unknown_fields=True):
    """``colocation/<host>/gate.json``: what the check found there, and the width it authorises."""

    schema: Literal[1]
    outcome: Literal["eight", "four", "stop"]
    reason: str
    authorised_width: Annotated[int, Meta(ge=1)]
    """GPU slots of this host; 1 for ``stop``, which authorises nothing beside serial execution."""
    protocol_id: str
    protocol_sha256: Sha256
    host: str
    gpus: list[int]
    """Physical indices of the slots that the check used, in order; the target's first."""
    gpu_uuids: list[str]
    """Theirs, in the same order; empty texts for slots that are no GPUs."""
    engine: EngineKind
    engine_version: str
    time_scale: Annotated[float, Meta(gt=0)]
    target: str
    """``pattern/config``."""
    solo_saturation_rps: float | None
    solo_throughput_rps: float | None
    """``T_solo``."""
    top_families: list[str]
    """F3 of the solo window, by share, ties in the protocol's order of families."""
    solo_gates: list[Gate]
    regimes: list[RegimeVerdict]
    inputs: dict[str, Sha256]
    """Path relative to the campaign to SHA-256 of everything that it was computed from."""
    mapping_version: str
    mapping_sha256: Sha256 | None
    code_version: str
    code_sha256: Sha256
    created_wall_ns: Count
    simulated: bool
    sanity: SanityBlock
