"""``analysis/kernels.json``: operator families by window, rank and step (contract, section 4).

All ``ns`` are integer sums of kernel durations in nanoseconds; ``share = ns / kernel_ns`` of the
eight active steps, prologue left out of numerator and denominator. Ranks are never summed.
"""

from __future__ import annotations

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, Sha256

SCHEMA = 1

FAMILIES = (
    "moe_router",
    "collective",
    "attention",
    "moe_gemm",
    "sampler",
    "dense_gemm",
    "norm_elementwise",
    "kv_memory",
    "other",
)
"""Operator families in the mapping's priority order; ``other`` takes what no rule matches."""

OPAQUE = "graph_replay_opaque"
"""Device time of a graph replay without visible child kernels; never a family of its kernels."""


class FamilyTime(Struct, frozen=True, forbid_unknown_fields=True):
    """One operator family's kernels in the active steps."""

    ns: int
    share: float
    """``ns / kernel_ns``; 0.0 when there is no kernel time."""
    events: int


class AttentionSplit(Struct, frozen=True, forbid_unknown_fields=True):
    """Attention nanoseconds by the joined step's kind; mixed is never force-split."""

    prefill: int
    decode: int
    mixed: int


class ModeTime(Struct, frozen=True, forbid_unknown_fields=True):
    """The active steps of one graph runtime mode in one window."""

    active_steps: int
    reported: bool
    """True when the mode has enough active steps over the load point's windows (protocol: 8)."""
    kernel_ns: int
    families: dict[str, FamilyTime]


class UnmatchedKernel(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel name that no rule matched."""

    name: str
    ns: int
    events: int
    scopes: list[str] = []


class ActiveStep(Struct, frozen=True, forbid_unknown_fields=True):
    """One active profiler step."""

    profiler_step: int
    layer1_step: int | None
    """null when the join is invalid."""
    mode: str | None
    kernel_ns: int
    families: dict[str, int]
    """Family to nanoseconds."""
    kernel_events: int = 0
    attention_kind: str | None = None
    """``prefill``, ``decode`` or ``mixed`` by the joined step's tokens; null without a join."""
    moe_layer_cv: float | None = None
    """Coefficient of variation of MoE GEMM time over layers (protocol, "MoE/ragged proxy")."""
    moe_layers: int = 0
    """Layer scopes that carried MoE GEMM time."""


class DeviceTime(Struct, frozen=True, forbid_unknown_fields=True):
    """Times reported beside composition shares and never inside them, in nanoseconds."""

    launch_cpu_ns: int
    """CPU time of kernel and graph launch calls made in the active steps."""
    launch_events: int
    cuda_runtime_ns: int
    """All CUDA runtime and driver API time in the active steps, launches included."""
    cuda_runtime_events: int
    memcpy_ns: int
    memcpy_events: int
    memset_ns: int
    memset_events: int
    busy_union_ns: int
    """Union over streams of the active steps' kernels, copies and memsets: device-busy time."""
    streams: int
    kernel_union_ns: int | None = None
    """The same union of the kernels alone."""


class WindowFamilies(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One logical profiler window on one rank under one mapping table."""

    window: int
    rank: int
    mapping_version: str
    trace: str
    """Path inside the run directory."""
    profiler_steps: list[int]
    annotations: int
    kernel_events: int
    """Of the active steps."""
    kernel_ns: int
    prologue_events: int
    prologue_ns: int
    classified_fraction: float
    """1 - (other + graph_replay_opaque) / kernel_ns; 0.0 when there is no kernel time."""
    families: dict[str, FamilyTime]
    attention: AttentionSplit
    by_mode: dict[str, ModeTime]
    top_unmatched: list[UnmatchedKernel]
    accepted: bool
    """Integrity of the window alone; representativeness is ``Kernels.breakdown_valid``."""
    reasons: list[str]
    classifiable: bool | None = None
    """other + opaque within the protocol's limit; null when no protocol is bound."""
    outside_events: int = 0
    """Kernels launched outside every active step."""
    outside_ns: int = 0
    dropped_events: int = 0
    """Kernel records with impossible times, dropped and counted (FIELD-CASES 3 and 8)."""
    join_method: str | None = None
    """``annotation`` or ``order``; null when the join is invalid."""
    join_margin: float | None = None
    """Second best over best timing residual of the join by order; null for an exact join."""
    device: DeviceTime | None = None
    step_family_ns: list[dict[str, int]] = []
    """Family to nanoseconds of each active step, in order: what the permutation test labels."""


class Window(WindowFamilies, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One window under the deciding mapping, with its steps and the other tables' results."""

    steps: list[ActiveStep]
    alternatives: dict[str, WindowFamilies]
    """Mapping version to the same window under that table, without steps."""


class Alternative(Struct, frozen=True, forbid_unknown_fields=True):
    """All windows of the run under another mapping table, without steps."""

    mapping_version: str
    mapping_sha256: Sha256
    windows: list[WindowFamilies]


class SmdFeature(Struct, frozen=True, forbid_unknown_fields=True):
    """Standardised mean difference of one feature between a window and its clean segment."""

    feature: str
    mean_profile: float | None
    mean_clean: float | None
    sd_profile: float | None
    sd_clean: float | None
    pooled_sd: float | None
    smd: float | None
    """null for a constant feature, which is judged by exact equality."""
    constant: bool
    outcome: str
    """``pass``, ``fail`` or ``not_evaluable``."""


class WindowRepresentativeness(Struct, frozen=True, forbid_unknown_fields=True):
    """The representativeness gate of one window."""

    window: int
    clean_segment: int | None
    profile_steps: int
    clean_steps: int
    features: list[SmdFeature]
    outcome: str
    reason: str


class NullRate(Struct, frozen=True, forbid_unknown_fields=True):
    """How often the gate fails by itself: windows drawn from the run's own clean steps."""

    draws: int
    seed: int
    steps_per_window: int
    any_feature_failure_rate: float
    """Share of single windows that fail."""
    load_point_failure_rate: float
    """Share of window pairs (as many as the load point has) of which at least one fails."""
    by_feature: dict[str, float]


class Representativeness(Struct, frozen=True, forbid_unknown_fields=True):
    """Profiler representativeness of a load point (protocol, "Layer 2")."""

    windows: list[WindowRepresentativeness]
    null_rate: NullRate | None
    null_rate_reason: str | None = None


class Kernels(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact."""

    schema: int
    run: RunIdentity
    mapping_version: str
    mapping_sha256: Sha256
    windows: list[Window]
    alternatives: dict[str, Alternative]
    """Mapping version to the same windows under it."""
    breakdown_valid: bool | None
    """Every window passes the representativeness gate; null where it cannot be judged."""
    breakdown_reasons: list[str]
    representativeness: Representativeness | None
    gates: list[Gate]
    sanity: SanityBlock
    provenance: Provenance
    mapping_notes: list[str] = []
    """Plain sentences wherever two mapping tables disagree."""
