"""A run directory's client side: timeline, request records, result, manifest (contract, section 1).

Format history
    schema 1    as the contract lists them.

All times are integer nanoseconds of CLOCK_MONOTONIC unless the name says ``wall``; intervals are
half open, ``[start, end)``; zero length is legal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import SanityBlock

SCHEMA = 1
VIRTUAL_CLOCK = "virtual"
"""A timeline's clock that is passed around, and no machine's."""

Count = Annotated[int, Meta(ge=0)]
MonoNs = Annotated[int, Meta(ge=0)]

IntervalKind = Literal["warmup", "clean", "profile", "recovery", "drain"]
LoadPoint = Literal["saturation", "moderate"]
RunState = Literal["running", "complete", "interrupted", "failed"]
Role = Literal["primary", "confirmation", "burnin", "colocation"]


class Interval(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tagged stretch of a run, ``[start_mono_ns, end_mono_ns)``."""

    kind: IntervalKind
    index: Count
    """0, 1, 2 … within the kind."""
    start_mono_ns: MonoNs
    end_mono_ns: MonoNs
    start_call_mono_ns: tuple[MonoNs, MonoNs] | None = None
    """Profile only: just before and just after the call of ``/start_profile``."""
    stop_call_mono_ns: tuple[MonoNs, MonoNs] | None = None
    http_status: tuple[int | None, int | None] | None = None
    """Profile only: status of start and stop; null where no answer came."""


class Timeline(Struct, frozen=True, forbid_unknown_fields=True):
    """``client/timeline.json``: what the client did when; names the run."""

    schema: Literal[1]
    pattern: str
    config: str
    load_point: LoadPoint
    max_concurrency: Annotated[int, Meta(ge=1)]
    rate_rps: Annotated[float, Meta(gt=0)] | None
    """Offered rate; null for the closed loop."""
    clock: str
    intervals: list[Interval]
    role: Role = "primary"
    time_scale: Annotated[float, Meta(gt=0)] = 1.0
    """Declared factor on the protocol's durations; 1.0 is the protocol to the letter."""
    simulated: bool = False
    profile_window_source: str | None = None
    """How a profile window's end was found: ``layer1`` (step count) or ``fixed`` (seconds)."""
    state: RunState | None = None
    """Where the run stands; null in timelines of other producers. A run that was killed says
    ``running`` and has no ``result.json``."""
    state_reason: str | None = None

    @property
    def virtual(self) -> bool:
        """Whether its times are those of a passed clock, comparable with no clock of a machine."""
        return self.clock == VIRTUAL_CLOCK

    @property
    def cell(self) -> str:
        """``pattern/config``, the protocol's cell."""
        return f"{self.pattern}/{self.config}"

    @property
    def run_name(self) -> str:
        """The run's name, from its content and not from its folder (contract, section 8)."""
        suffix = "" if self.role == "primary" else f"-{self.role}"
        return f"{self.pattern}-{self.config}-{self.load_point}{suffix}"


class RequestRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of ``client/requests.jsonl``; never prompt or generated text."""

    request_id: int | str
    scheduled_mono_ns: MonoNs
    """When the schedule wanted the request sent."""
    admitted_mono_ns: MonoNs | None
    """When it was sent; null when it never was."""
    first_token_mono_ns: MonoNs | None
    completed_mono_ns: MonoNs | None
    """When the whole answer was there; null when the request failed or was still running."""
    prompt_tokens: Count | None
    requested_output_tokens: Count
    output_tokens: Count | None
    http_status: int | None
    error: str | None = None
    """A reason code without any text of the request or the answer."""
    ended_mono_ns: MonoNs | None = None
    """When the request ended without a whole answer; null when it completed or is still running."""


class LengthSummary(Struct, frozen=True, forbid_unknown_fields=True):
    """Distribution of a length in tokens."""

    n: Count
    min: Count
    median: float
    p95: float
    max: Count
    sum: Count
    distinct: Count


class ManifestSummary(Struct, frozen=True, forbid_unknown_fields=True):
    """``manifest.sha256``: the manifest's hash and what may be said of it without its contents."""

    schema: Literal[1]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Of the manifest's JSONL bytes."""
    pattern: str
    arrival: str
    """``steady`` or ``burst:N``."""
    prefix: str
    """``none``, ``high`` or ``natural``."""
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    generator: dict[str, Any]
    """Kind, parameters and seed of the generator; no prompt."""
    tokenizer_sha256: str | None = None
    raggedness: dict[str, float | None] | None = None
    """``R_k`` of the arrival-order manifest at cohort sizes 32, 64, 128 (protocol, "Sequence
    raggedness"); null for a size with no complete cohort."""
    private: bool = False


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """``client/result.json``, written last: the run's verdict as the client saw it."""

    schema: Literal[1]
    accepted: bool
    reasons: list[str]
    completed_rps: float | None
    """Completions inside the clean union over its seconds; ``T_sat`` of a saturation run."""
    offered_rps: float | None
    manifest_sha256: str
    pattern: str
    config: str
    load_point: LoadPoint
    role: Role
    drain_quarantined: bool
    metrics: dict[str, Any]
    simulated: bool = False
    sanity: SanityBlock | None = None
    """The block of ``client/sanity.json``; null in results that were written before."""
