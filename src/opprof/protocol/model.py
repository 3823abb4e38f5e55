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
    CONCURRENCY_MAX,
    CountInt,
    Date,
    Draws,
    Factor,
    FitNumber,
    Fraction,
    Inside,
    Large,
    Milliseconds,
    MillisecondsOrNone,
    Parts,
    PartsOrZero,
    PositiveInt,
    PositiveRatio,
    Ratio,
    Seconds,
    SecondsOrZero,
    Sha256,
    Table,
    Tokens,
    TokensOrZero,
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
Seed = Annotated[int, Meta(ge=0)]
Gpus = Annotated[int, Meta(ge=1, le=1024, description="no host has more GPUs")]
Requests = Annotated[
    int, Meta(ge=1, le=10_000_000, description="a client holds its manifest's index in memory")
]
Concurrency = Annotated[
    int,
    Meta(
        ge=1,
        le=CONCURRENCY_MAX,
        description="each is a connection of one client to one server, with a port and a file",
    ),
]
Basis = Annotated[int, Meta(ge=1, le=1_000, description="a spline has one function a knot")]
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

    workload: Seed
    execution_order: Seed
    statistics: Seed


class Pattern(Table, frozen=True):
    """One row of the pattern-cell table."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*$", max_length=ID_LENGTH_MAX)]
    cell: str
    input: str
    output: str
    prefix: Literal["none", "high", "natural"]
    arrival: Annotated[str, Meta(pattern=r"^(steady|burst:[1-9][0-9]*)$")]
    drain_budget_s: Seconds
    warmup_rule: Literal["completions", "completions_or_stabilized"]
    manifest: str
    """Exact generator arguments, with ``${PRIVATE}`` for the site's folder."""


class Workload(Table, frozen=True):
    """What every request of every manifest has in common."""

    num_requests: Requests
    max_common_prefix_tokens: TokensOrZero
    temperature: Annotated[
        float, Meta(ge=0, le=0, description="output work is exact only for greedy decoding")
    ]
    ignore_eos: bool


class PrivateSource(Table, frozen=True):
    """The private trace's identity and parity precheck ("Private real-trace anchor")."""

    sha256: Sha256
    bytes: Large
    rows: Large
    selected_rows: Large
    input_tokens_sum: Large
    output_tokens_sum: Large
    tokenizer_exact_min: Fraction
    tokenizer_error_max_tokens: TokensOrZero


class Config(Table, frozen=True):
    """One server configuration with the values that must be effective."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=ID_LENGTH_MAX)]
    tensor_parallel_size: Gpus
    max_num_seqs: Tokens
    max_num_batched_tokens: Tokens
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
    shutdown_timeout_s: Seconds | None = None
    """A-P3-5: positive, so that SIGTERM drains the engine; None leaves it to the campaign."""


class Cells(Table, frozen=True):
    """Which configurations each pattern runs under."""

    baseline_config: str
    sentinel_patterns: list[str]
    sentinel_configs: list[str]
    extra: list[tuple[str, str]]


class Load(Table, frozen=True):
    """Load points (protocol, "Unit of analysis and load points")."""

    saturation_max_concurrency: Concurrency
    moderate_rate_fraction: Inside
    primary_load_point: Literal["saturation", "moderate"]
    primary_config: str


class TimelinePlan(Table, frozen=True):
    """Phases of a measured run in seconds."""

    warmup_s: SecondsOrZero
    clean_segment_s: Seconds
    clean_segments: Parts
    profile_windows: PartsOrZero
    recovery_s: SecondsOrZero
    profile_window_fallback_s: Seconds

    @property
    def clean_s(self) -> float:
        """Throughput-accounted seconds of one run."""
        return self.clean_segment_s * self.clean_segments


class Layer2(Table, frozen=True):
    """The profiler's frozen schedule and the join's margin."""

    wait_iterations: PartsOrZero
    warmup_iterations: PartsOrZero
    active_iterations: Parts
    join_margin_min: Factor
    kernel_early_max_ms: MillisecondsOrNone
    kernel_horizon_s: Seconds
    kernel_overrun_factor_max: PositiveRatio
    moe_layer_scope: Annotated[str, Meta(min_length=1)]

    @property
    def active_steps(self) -> tuple[int, ...]:
        """Expected ``ProfilerStep`` numbers (2..9 for wait 0, warm-up 2, active 8)."""
        first = self.wait_iterations + self.warmup_iterations
        return tuple(range(first, first + self.active_iterations))


class Layer1(Table, frozen=True):
    """A-P3-5: flush interval and the tolerance reported apart."""

    flush_interval_s: Seconds
    checkpoint_tolerance_ms: MillisecondsOrNone


GraphMode = Literal["FULL", "PIECEWISE", "NONE"]


class Gates(Table, frozen=True):
    """Validity gates of one run; units end the names."""

    warmup_completions_min: CountInt
    warmup_stabilized_completions_min: CountInt
    warmup_stabilized_bin_steps_min: CountInt
    warmup_stabilized_drift_max: Ratio
    prefix_none_hit_ratio_max: Fraction
    offered_rate_error_max: Ratio
    client_lag_sustained_max_s: SecondsOrZero
    client_lag_sustained_window_s: Seconds
    client_cpu_share_max: PositiveRatio
    client_loop_delay_p99_max_ms: Milliseconds
    recovery_tolerance: Ratio
    recovery_rolling_s: Seconds
    recovery_zero_median_waiting_max: CountInt
    classifiable_min: Fraction
    mode_active_steps_min: CountInt
    drain_quarantine_share_max: Fraction
    clean_failure_share_max: Fraction
    drain_watchdog_s: Seconds
    profile_window_watchdog_s: Seconds
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

    smd_max: Ratio
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

    block_s: Seconds
    bootstrap_resamples: Draws
    permutations: Draws
    alpha: Inside
    multiplicity: Literal["holm"]
    bin_s: Seconds
    blocks_min: PositiveInt
    percentiles: list[Annotated[int, Meta(ge=1, le=99)]]
    permutation_statistic: Literal["mean_window_gap_difference"]
    permutation_sides: Literal["two"]
    permutation_family: Literal["evaluable_primary"]
    near_bar_factor: Factor
    monte_carlo_level: Inside
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
    tokens_basis: Basis
    requests_basis: Basis
    penalty: FitNumber
    huber_k: FitNumber
    iterations_max: PositiveInt
    tolerance: FitNumber


class H1b(Table, frozen=True):
    """Frozen contrasts and thresholds (protocol, "Decision rule")."""

    irregular: list[str]
    contrasts: list[tuple[str, str]]
    efficiency_loss_min: Fraction
    direction: Literal["irregular_above_control"]
    residual_rule: Literal["interval_above_zero"]
    thresholds: dict[str, Ratio]


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
