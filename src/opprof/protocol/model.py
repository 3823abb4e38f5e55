"""The protocol file as frozen Structs: one class per table of ``protocols/*.toml``.

Source: the Phase 3 protocol with its amendments. No field that decides anything has a default:
a protocol that leaves a threshold out is refused, never completed from code.

Format history
    schema 1    first. Added since, all optional: ``[freeze]``, ``[[stops]]``, ``[reruns]``,
                the server's environment and shutdown timeout, an amendment's reason, values,
                predecessor and what it supersedes, who approved a decision, expected wall time at
                full width and public size; ``amendments`` and ``open_decisions`` may be left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from opprof.protocol.base import (
    CountInt,
    Date,
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    Sha256,
    Table,
)
from opprof.protocol.campaign_tables import (
    AmendedValue,
    Amendment,
    Budget,
    Burnin,
    Colocation,
    Confirmations,
    Expected,
    Freeze,
    OpenDecision,
    PartialMatrix,
    Placement,
    Reruns,
    StopCondition,
)

__all__ = [
    "SCHEMA",
    "AmendedValue",
    "Amendment",
    "Budget",
    "Burnin",
    "Cells",
    "Colocation",
    "Config",
    "Confirmations",
    "Expected",
    "Feature",
    "Freeze",
    "Gates",
    "H1b",
    "InterferenceRule",
    "Layer1",
    "Layer2",
    "Load",
    "MappingRule",
    "NullRule",
    "OpenDecision",
    "PartialMatrix",
    "Pattern",
    "Pinned",
    "Placement",
    "PrivateSource",
    "ProtocolFile",
    "Ranking",
    "RepresentativenessRule",
    "Reruns",
    "Seeds",
    "Server",
    "Statistics",
    "StopCondition",
    "TimelinePlan",
    "WasteRule",
    "Workload",
]

SCHEMA = 1
ID_LENGTH_MAX = 64
"""Names of runs, files and kernel names are made of ids, two to a name; the kernel has limits."""


class Pinned(Table, frozen=True):
    """What the experiment is bound to; checked against the effective configuration."""

    engine: str
    engine_version: str
    engine_commit: str
    recorder: str
    model: str
    dtype: str
    hardware: str
    moe_backend_expected: str


class Seeds(Table, frozen=True):
    """Raw seeds; every artefact that used one names it."""

    workload: CountInt
    execution_order: CountInt
    statistics: CountInt


class Pattern(Table, frozen=True):
    """One row of the pattern-cell table."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*$", max_length=ID_LENGTH_MAX)]
    cell: str
    input: str
    output: str
    prefix: Literal["none", "high", "natural"]
    arrival: Annotated[str, Meta(pattern=r"^(steady|burst:[1-9][0-9]*)$")]
    drain_budget_s: Positive
    warmup_rule: Literal["completions", "completions_or_stabilized"]
    manifest: str
    """Exact generator arguments, with ``${PRIVATE}`` for the site's folder."""


class Workload(Table, frozen=True):
    """What every request of every manifest has in common."""

    num_requests: PositiveInt
    max_common_prefix_tokens: CountInt
    temperature: NonNegative
    ignore_eos: bool


class PrivateSource(Table, frozen=True):
    """The private trace's identity and parity precheck ("Private real-trace anchor")."""

    sha256: Sha256
    bytes: PositiveInt
    rows: PositiveInt
    selected_rows: PositiveInt
    input_tokens_sum: PositiveInt
    output_tokens_sum: PositiveInt
    tokenizer_exact_min: Fraction
    tokenizer_error_max_tokens: CountInt


class Config(Table, frozen=True):
    """One server configuration with the values that must be effective."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=ID_LENGTH_MAX)]
    tensor_parallel_size: PositiveInt
    max_num_seqs: PositiveInt
    max_num_batched_tokens: PositiveInt
    flags: list[str]
    purpose: str


class Server(Table, frozen=True):
    """The common server command and its fixed settings.

    ``command`` and ``environment`` are templates: ``check_commands.RUN_VARIABLES`` are filled for
    each run, the others by the site. Flags of the configuration, address, port and
    ``--shutdown-timeout`` are added by the campaign.
    """

    chunked_prefill: bool
    prefix_caching: bool
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    shutdown_timeout_s: Positive | None = None
    """A-P3-5: positive, so that SIGTERM drains the engine; None leaves it to the campaign."""


class Cells(Table, frozen=True):
    """Which configurations each pattern runs under."""

    baseline_config: str
    sentinel_patterns: list[str]
    sentinel_configs: list[str]
    extra: list[tuple[str, str]]


class Load(Table, frozen=True):
    """Load points (protocol, "Unit of analysis and load points")."""

    saturation_max_concurrency: PositiveInt
    moderate_rate_fraction: Annotated[float, Meta(gt=0, lt=1)]
    primary_load_point: Literal["saturation", "moderate"]
    primary_config: str


class TimelinePlan(Table, frozen=True):
    """Phases of a measured run in seconds."""

    warmup_s: NonNegative
    clean_segment_s: Positive
    clean_segments: PositiveInt
    profile_windows: CountInt
    recovery_s: NonNegative
    profile_window_fallback_s: Positive

    @property
    def clean_s(self) -> float:
        """Throughput-accounted seconds of one run."""
        return self.clean_segment_s * self.clean_segments


class Layer2(Table, frozen=True):
    """The profiler's frozen schedule and the join's margin."""

    wait_iterations: CountInt
    warmup_iterations: CountInt
    active_iterations: PositiveInt
    join_margin_min: Annotated[float, Meta(ge=1)]
    kernel_early_max_ms: NonNegative
    kernel_horizon_s: Positive
    kernel_overrun_factor_max: Positive
    moe_layer_scope: Annotated[str, Meta(min_length=1)]

    @property
    def active_steps(self) -> tuple[int, ...]:
        """Expected ``ProfilerStep`` numbers (2..9 for wait 0, warm-up 2, active 8)."""
        first = self.wait_iterations + self.warmup_iterations
        return tuple(range(first, first + self.active_iterations))


class Layer1(Table, frozen=True):
    """A-P3-5: flush interval and the tolerance reported apart."""

    flush_interval_s: Positive
    checkpoint_tolerance_ms: NonNegative


GraphMode = Literal["FULL", "PIECEWISE", "NONE"]


class Gates(Table, frozen=True):
    """Validity gates of one run; units end the names."""

    warmup_completions_min: CountInt
    warmup_stabilized_completions_min: CountInt
    warmup_stabilized_bin_steps_min: CountInt
    warmup_stabilized_drift_max: NonNegative
    prefix_none_hit_ratio_max: Fraction
    offered_rate_error_max: NonNegative
    client_lag_sustained_max_s: NonNegative
    client_lag_sustained_window_s: Positive
    client_cpu_share_max: Positive
    client_loop_delay_p99_max_ms: Positive
    recovery_tolerance: NonNegative
    recovery_rolling_s: Positive
    recovery_zero_median_waiting_max: CountInt
    classifiable_min: Fraction
    mode_active_steps_min: CountInt
    drain_quarantine_share_max: Fraction
    clean_failure_share_max: Fraction
    drain_watchdog_s: Positive
    profile_window_watchdog_s: Positive
    modes_required: list[GraphMode] = field(default_factory=list)
    """Graph modes that each need ``mode_active_steps_min`` active steps over a load point's windows
    (hard stop 7). Absent: none is required, as the specification names none."""


Feature = Literal[
    "scheduled_tokens",
    "prefill_fraction",
    "decode_batch",
    "share_FULL",
    "share_PIECEWISE",
    "share_NONE",
]


class RepresentativenessRule(Table, frozen=True):
    """How a profiler window is compared with its clean segment."""

    smd_max: NonNegative
    features: list[Feature]
    pooled_sd: Literal["root_mean_variance"]
    ddof: Literal[0, 1]
    zero_token_steps: Literal["exclude"]
    adjacent_segment: Literal["last_clean_before"]
    null_draws: CountInt


class MappingRule(Table, frozen=True):
    """Which mapping table decides and which are shown beside it."""

    pinned: str
    alternatives: list[str]
    top_unmatched: PositiveInt


class Ranking(Table, frozen=True):
    """Ranking and the gap part of the inversion rule, in share units (0..1)."""

    tie_share: Fraction
    inversion_gap_share: Fraction
    families: list[str]
    other_may_be_top: bool


class WasteRule(Table, frozen=True):
    """Waste accounting."""

    raggedness_cohorts: list[PositiveInt]
    raggedness_primary: PositiveInt
    interference_min_mixed_steps: CountInt
    moe_scope_share_min: Fraction
    moe_cv_ddof: Literal[0, 1]


class Statistics(Table, frozen=True):
    """Resampling plans (protocol, "Statistical summaries")."""

    block_s: Positive
    bootstrap_resamples: PositiveInt
    permutations: PositiveInt
    alpha: Annotated[float, Meta(gt=0, lt=1)]
    multiplicity: Literal["holm"]
    bin_s: Positive
    blocks_min: PositiveInt
    percentiles: list[Annotated[int, Meta(ge=1, le=99)]]
    permutation_statistic: Literal["mean_window_gap_difference"]
    permutation_sides: Literal["two"]
    permutation_family: Literal["evaluable_primary"]
    near_bar_factor: Annotated[float, Meta(ge=1)]
    monte_carlo_level: Annotated[float, Meta(gt=0, lt=1)]
    contrast_family: Literal["listed"]


class NullRule(Table, frozen=True):
    """What supports the null outcome (protocol, "Decision rule")."""

    bounded_gap: Literal["inversion_depth"]
    bounds_method: Literal["bonferroni_welch_t"]
    top_rule: Literal["common_family"]


class InterferenceRule(Table, frozen=True):
    """Spline fits behind ``I_mix`` and the step-time residual."""

    requests: Literal["component", "step"]
    alpha_patterns: Literal["all"]
    pure_steps_min: PositiveInt
    degree: Annotated[int, Meta(ge=1, le=3)]
    tokens_basis: PositiveInt
    requests_basis: PositiveInt
    penalty: Positive
    huber_k: Positive
    iterations_max: PositiveInt
    tolerance: Positive


class H1b(Table, frozen=True):
    """Frozen contrasts and thresholds (protocol, "Decision rule")."""

    irregular: list[str]
    contrasts: list[tuple[str, str]]
    efficiency_loss_min: Fraction
    direction: Literal["irregular_above_control"]
    residual_rule: Literal["interval_above_zero"]
    thresholds: dict[str, NonNegative]


class ProtocolFile(Table, frozen=True):
    """The whole file."""

    schema: Literal[1]
    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=ID_LENGTH_MAX)]
    title: str
    status: Literal["draft", "frozen"]
    date: Date
    variables: dict[str, str]
    pinned: Pinned
    seeds: Seeds
    patterns: Annotated[list[Pattern], Meta(min_length=1)]
    workload: Workload
    configs: Annotated[list[Config], Meta(min_length=1)]
    server: Server
    cells: Cells
    load: Load
    timeline: TimelinePlan
    layer2: Layer2
    layer1: Layer1
    gates: Gates
    representativeness: RepresentativenessRule
    mapping: MappingRule
    ranking: Ranking
    waste: WasteRule
    statistics: Statistics
    null: NullRule
    interference: InterferenceRule
    h1b: H1b
    confirmations: Confirmations
    burnin: Burnin
    placement: Placement
    budget: Budget
    expected: Expected
    amendments: list[Amendment] = field(default_factory=list)
    open_decisions: list[OpenDecision] = field(default_factory=list)
    colocation: Colocation | None = None
    private_source: PrivateSource | None = None
    partial_matrix: PartialMatrix | None = None
    stops: list[StopCondition] = field(default_factory=list)
    reruns: Reruns | None = None
    freeze: Freeze | None = None
