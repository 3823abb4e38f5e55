"""Tables of a protocol file that are about the campaign and about changes: order, places, costs,
amendments, approvals, freezing. See :mod:`opprof.protocol.model` for the whole file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from opprof.protocol.base import (
    CountInt,
    Date,
    Fraction,
    Hours,
    Large,
    LargeOrZero,
    Parts,
    PositiveInt,
    Ratio,
    Seconds,
    SecondsOrZero,
    Sha256,
    Table,
)

Repeats = Annotated[
    int, Meta(ge=0, le=10, description="what fails more often is no accident any more")
]


class Confirmations(Table, frozen=True):
    """Layer-1-only repeats, in their fixed order."""

    patterns: list[str]
    config: str
    load_point: Literal["saturation", "moderate"]


class Burnin(Table, frozen=True):
    """Unmeasured compile warm-up, one per configuration."""

    pattern: str
    seconds: Seconds


class Colocation(Table, frozen=True):
    """A-P3-1: the co-location validity check."""

    pattern: str
    config: str
    backgrounds_eight: list[str]
    backgrounds_four: list[str]
    top_families: PositiveInt
    throughput_error_max: Ratio
    share_error_max: Fraction
    profile_windows: Parts | None = None
    """Windows of a target's moderate run; they are no cells of the matrix."""


class Placement(Table, frozen=True):
    """A-P3-1: GPUs, disjoint CPU masks and NUMA nodes."""

    gpus: Annotated[int, Meta(ge=1, le=1024, description="no host has more GPUs")]
    cpu_map: list[str]
    numa_nodes: list[Annotated[int, Meta(ge=0, le=1023, description="Linux knows 1024 NUMA nodes")]]
    idle_gpu_bytes_max: LargeOrZero | None = None
    """What a driver without any process may hold on a GPU that counts as idle (stop 2)."""


class Budget(Table, frozen=True):
    """Costs and hard stops."""

    startup_s: SecondsOrZero
    profile_window_s: SecondsOrZero
    shutdown_s: SecondsOrZero
    confirmation_s: Seconds
    gpu_hours_max: Annotated[float, Meta(gt=0, le=1e6, description="a million hours are a century")]
    gpu_hours_used: Hours
    gpu_hours_estimate: Hours
    wall_hours_estimate: Hours
    public_bytes_max: Large
    private_bytes_max: Large
    free_space_bytes_min: LargeOrZero
    parallel_wall_hours_estimate: tuple[Hours, Hours] | None = None
    """Expected wall time of the matrix at full width, from and to (A-P3-1)."""
    public_bytes_estimate: Large | None = None
    """Expected size of the public artefacts; the stop is ``public_bytes_max``."""


class StopCondition(Table, frozen=True):
    """One of the conditions at which the matrix stands still until somebody has looked."""

    number: Annotated[int, Meta(ge=1, le=10)]
    """Which of the specification's ten conditions it is; one that is not listed stops nothing."""
    text: str
    superseded: str = ""
    """The part of the text that an amendment took away or changed, and which."""


class Reruns(Table, frozen=True):
    """What may be repeated exactly, once; every attempt stays in the report."""

    infrastructure_max: Repeats
    """Reruns of a run after an infrastructure or profile-artefact failure."""
    unrepresentative_max: Repeats
    """Reruns of a load point whose profiler windows were not representative."""


class Expected(Table, frozen=True):
    """The protocol's own arithmetic, recomputed by ``opprof protocol check``."""

    patterns: CountInt
    configs: CountInt
    cells: CountInt
    tp1_cells: CountInt
    primary_runs: CountInt
    confirmation_runs: CountInt
    measured_runs: CountInt
    burnins: CountInt
    windows: CountInt
    trace_files: CountInt
    clean_s_per_run: Annotated[float, Meta(ge=0)]
    primary_run_s: Annotated[float, Meta(ge=0)]


class AmendedValue(Table, frozen=True):
    """One key that an amendment changed, with both values as the file writes them."""

    key: str
    """Key path; rows of ``patterns`` and ``configs`` by id: ``patterns.P10.drain_budget_s``."""
    new: Any
    old: Any = None
    """Left out where the key was not there before (TOML has no null)."""


class Amendment(Table, frozen=True):
    """A dated change; the key is id and title together, since one id occurs twice.

    The optional fields are those of ``opprof protocol amend``; the amendments that a draft brings
    along were made before anything was frozen and have none.
    """

    id: str
    title: str
    date: Date
    changes: list[str]
    summary: str
    reason: str = ""
    previous_sha256: Sha256 | None = None
    """Of the protocol file that this amendment changed."""
    rejudge: bool = False
    """Completed runs are judged again from their kept raw data; nothing is rerun."""
    values: list[AmendedValue] = field(default_factory=list)
    supersedes: list[str] = field(default_factory=list)
    """Clauses, amendments (id and title) that this one replaces where they disagree."""


class PartialMatrix(Table, frozen=True):
    """A-P3-7: what a frozen, incomplete matrix may support."""

    measured_runs: CountInt
    incomplete_cells: list[tuple[str, str]]
    h1a_patterns: list[str]
    not_evaluable_contrasts: list[tuple[str, str]]


class OpenDecision(Table, frozen=True):
    """A decision that must be approved before a start."""

    number: PositiveInt
    blocking: bool
    text: str
    approved: str | None = None
    """Date of the approval."""
    approved_by: str = ""


class Freeze(Table, frozen=True):
    """What a protocol was frozen with; whatever differs in an installation is refused."""

    date: Date
    draft_sha256: Sha256
    """Of the draft's bytes; undoing the amendments and the freezing yields them again."""
    code_version: str
    code_sha256: Sha256
    """Of the whole package; told, and not refused: a campaign binds its own at its start."""
    client_sha256: Sha256
    hooks_sha256: Sha256
    """Of the plugin's tables of hooked functions (the specification's patch hashes)."""
    mappings: dict[str, Sha256]
    """Version of every mapping table that the protocol names to the table's SHA-256."""
    plugin_sha256: Sha256 | None = None
    approved: list[PositiveInt] = field(default_factory=list)
    """Open decisions that were approved in freezing."""
    seal: Sha256 | None = None
    """SHA-256 of this file with the seal itself written as 64 zeros: finds any changed byte."""
