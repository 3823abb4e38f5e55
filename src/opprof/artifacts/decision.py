"""``decision.json``: H1a, H1b and the compound verdict with every number (contract, section 6).

Sources: protocol, "Statistical summaries", "Decision rule", A-P3-7.

Format history
    schema 1    first.

Shares, gaps and rates are fractions. Nothing is imputed: what cannot be evaluated is null with the
reason beside it, and it is listed all the same.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, Sha256
from opprof.artifacts.comparison import RankSpread, TauPair, WindowRanking

SCHEMA = 1

VerdictOutcome = Literal[
    "CONFIRMED", "REFUTED / NULL SUPPORTED", "INCONCLUSIVE", "PARTIAL", "INVALID"
]


class Estimate(Struct, frozen=True, forbid_unknown_fields=True):
    """A value with its bootstrap interval; the circular variant stands beside as sensitivity."""

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    circular_low: float | None = None
    circular_high: float | None = None
    undefined_resamples: int = 0
    """Resamples without a value (an empty denominator); they only widen the interval."""
    reason: str | None = None
    """Why the value or its interval is null."""
    bin_correlation: float | None = None
    """Correlation of neighbouring bins' contributions to a ratio. Well above 0 the interval is too
    narrow (docs/statistics.md tells by how much)."""


class RunStatus(Struct, frozen=True, forbid_unknown_fields=True):
    """What a run may be used for."""

    run: RunIdentity
    source: str
    valid: bool
    """No gate that reaches the whole run failed and no red flag is up."""
    invalid_reasons: list[str]
    breakdown_valid: bool
    """The operator breakdown may be used: windows accepted, complete and representative."""
    breakdown_reasons: list[str]
    marks: list[str]
    """Drain quarantine, scaled durations, simulation, tolerated gates."""
    not_evaluable_gates: list[str]
    """Gates that could not be judged: neither a pass nor a failure."""


class RunIntervals(Struct, frozen=True, forbid_unknown_fields=True):
    """Layer-1 and end-to-end metrics of one run with moving-block intervals."""

    run: str
    bins: int | None
    blocks: int | None
    """Blocks drawn for one resample."""
    metrics: dict[str, Estimate]
    signed: list[str]
    """Metrics that may be negative."""
    marks: list[str]


class DecidedComparison(Struct, frozen=True, forbid_unknown_fields=True):
    """One registered comparison of two patterns and two families, evaluable or not."""

    pattern_p: str
    pattern_q: str
    family_a: str
    family_b: str
    gaps_p: list[float | None]
    """Lead of ``family_a`` over ``family_b`` in each window of ``pattern_p``."""
    gaps_q: list[float | None]
    """Lead of ``family_b`` over ``family_a`` in each window of ``pattern_q``."""
    gap_criteria_met: bool | None
    permutation_p: float | None
    """Registered test: two-sided, ``(k + 1) / (n + 1)``."""
    holm_p: float | None
    """null outside the tested family."""
    classifiable: bool | None
    accepted: bool | None
    """All four criteria; null when not evaluable."""
    config: str
    load_point: str
    role: str
    evaluable: bool
    reasons: list[str] = []
    marks: list[str] = []
    statistic: float | None = None
    """Mean over windows of the lead's difference, p less q."""
    reached: int | None = None
    """k: permutations at least as extreme."""
    permutation_interval: list[float] | None = None
    """Monte-Carlo interval of p, for every p near its Holm bar."""
    exact_p: float | None = None
    """Over every joint labelling of both windows."""
    exact_holm_p: float | None = None
    one_sided_p: float | None = None
    """The other sidedness: in the observed direction."""
    pooled_p: float | None = None
    """The other statistic: shares pooled over both windows."""
    step_correlation: float | None = None
    """Correlation of neighbouring steps' leads, mean over patterns and windows, where the gap
    criteria are met. The test assumes 0; eight steps estimate it low."""
    blocked_p: float | None = None
    """Sensitivity: pairs of neighbouring steps exchanged together, every labelling counted."""
    windows_p: float | None = None
    """Sensitivity: the windows as the only replicates (Welch's t on their leads)."""


class Reproduction(Struct, frozen=True, forbid_unknown_fields=True):
    """Gap criteria met outside the primary comparison: strengthening evidence, never required."""

    comparison: DecidedComparison
    primary_accepted: bool
    """The same inversion is accepted in the primary comparison."""


class LeadBound(Struct, frozen=True, forbid_unknown_fields=True):
    """Simultaneous upper bound of one pair of patterns and an ordered pair of families."""

    pattern_p: str
    pattern_q: str
    family_a: str
    family_b: str
    bound: float


class NullEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """What speaks for the null: one top family, and no gap that could be material."""

    evaluable: bool
    reasons: list[str]
    tops: dict[str, list[list[str]]]
    """Pattern to the families in first place, ties included, in each window."""
    common_top: list[str]
    """Families in first place in every window of every pattern."""
    same_top: bool | None
    bounds: list[LeadBound]
    """The greatest bound of each pattern pair, greatest first."""
    greatest_bound: float | None
    bounds_below: bool | None
    bounded: int
    """Leads that are bounded simultaneously."""
    alpha: float
    share_difference_bound: float | None
    """The other reading: greatest bound of one family's difference between two patterns."""
    supported: bool | None


class TableVerdict(Struct, frozen=True, forbid_unknown_fields=True):
    """H1a under one mapping table."""

    mapping_version: str
    mapping_sha256: Sha256
    tested: int
    met_gaps: int
    accepted: list[DecidedComparison]
    comparisons: list[DecidedComparison]
    null: NullEvidence
    tau: list[TauPair]
    rankings: list[WindowRanking] = []
    """Places of the families in every primary window, ties within one point shared."""
    sanity: SanityBlock | None = None
    """Over this table's own numbers; null in decisions that were written before tables had one."""


class H1aEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything H1a rests on; ``inversions`` of the decision lists every comparison."""

    mapping_version: str
    patterns: list[str]
    """Patterns of the formal comparison that are evaluable."""
    not_evaluable: dict[str, list[str]]
    """Pattern to the reasons why it takes no part."""
    registered: int
    evaluable: int
    tested: int
    met_gaps: int
    accepted: list[DecidedComparison]
    alpha: float
    permutations: int
    seed: int
    statistic: str
    sides: str
    strengthening: list[Reproduction]
    null: NullEvidence
    notes: list[str]
    gap_share_min: float | None = None
    """Criteria 1 and 2: the least lead in every window."""
    classifiable_min: float | None = None
    """Criterion 4: the least classified fraction of every window."""


class ContrastMetric(Struct, frozen=True, forbid_unknown_fields=True):
    """One waste metric of one frozen contrast."""

    metric: str
    irregular: float | None
    control: float | None
    difference: float | None
    """Irregular less control."""
    threshold: float | None
    exceeds_threshold: bool | None
    low: float | None = None
    """Uncorrected interval of the difference."""
    high: float | None = None
    corrected_low: float | None = None
    """Interval at the level of the metric's step in Holm's procedure."""
    corrected_high: float | None = None
    corrected_level: float | None = None
    circular_low: float | None = None
    circular_high: float | None = None
    p_value: float | None = None
    holm_p: float | None = None
    excludes_zero: bool | None = None
    passes: bool | None = None
    deterministic: bool = False
    """From the manifest alone: no interval exists and none is needed."""
    signed: bool = False
    undefined_resamples: int = 0
    reason: str | None = None


class Association(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a contrast coincides with less useful tokens or slower steps."""

    efficiency_loss: Estimate
    """``1 - E_irregular / E_control``; signed."""
    efficiency_loss_met: bool | None
    residual_irregular: float | None
    residual_control: float | None
    residual: Estimate
    """Step-time residual, irregular less control; signed."""
    residual_met: bool | None
    met: bool | None
    residual_corrected_low: float | None = None
    """Sensitivity: the residual's interval with Bonferroni's correction over all contrasts."""
    residual_corrected_high: float | None = None
    residual_corrected_met: bool | None = None


class Contrast(Struct, frozen=True, forbid_unknown_fields=True):
    """One frozen contrast of an irregular cell with its rectangular control."""

    irregular: str
    control: str
    evaluable: bool
    reasons: list[str]
    marks: list[str]
    metrics: list[ContrastMetric]
    association: Association | None
    passing_metrics: list[str]
    passes: bool | None


class InterferenceFit(Struct, frozen=True, forbid_unknown_fields=True):
    """Leave-one-pattern-out fit behind one cell's ``I_mix`` and step-time residual."""

    pattern: str
    config: str
    load_point: str
    fitted_patterns: list[str]
    prefill_steps: int
    decode_steps: int
    zero_token_steps: int
    alpha_ms: float | None
    converged: bool | None
    mixed_supported: int
    mixed_unsupported: int
    pure_supported: int
    pure_unsupported: int
    i_mix: Estimate
    """Signed; the interval conditions on the fit."""
    step_residual: Estimate
    """Signed; the interval conditions on the fit."""
    other_reading_supported: int
    """Supported mixed steps if N were the other reading of "scheduled requests"."""


class Raggedness(Struct, frozen=True, forbid_unknown_fields=True):
    """``R_k`` of one contrast at every cohort size, deterministic from the manifests."""

    irregular: str
    control: str
    differences: dict[str, float | None]


class H1bEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything H1b rests on."""

    contrasts: list[Contrast]
    not_evaluable: dict[str, list[str]]
    """Contrast to reasons."""
    passing: list[str]
    thresholds: dict[str, float]
    alpha: float
    resamples: int
    seed: int
    correction_families: dict[str, int]
    """Waste metric to the number of contrasts its Holm correction counts."""
    raggedness: list[Raggedness]
    all_below: bool | None
    """Every contrast is evaluable and below every threshold; null when not everything is."""
    notes: list[str]


class CompoundEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """How the two parts combine."""

    h1a: VerdictOutcome
    h1b: VerdictOutcome
    complete_matrix: bool
    missing_cells: list[str]
    stop_conditions: list[str]


class VerdictH1a(Struct, frozen=True, forbid_unknown_fields=True):
    """H1a, composition."""

    outcome: VerdictOutcome
    reasons: list[str]
    evidence: H1aEvidence


class VerdictH1b(Struct, frozen=True, forbid_unknown_fields=True):
    """H1b, rectangular-benchmark miss."""

    outcome: VerdictOutcome
    reasons: list[str]
    evidence: H1bEvidence


class VerdictCompound(Struct, frozen=True, forbid_unknown_fields=True):
    """The compound hypothesis."""

    outcome: VerdictOutcome
    reasons: list[str]
    evidence: CompoundEvidence


class FactorialEffect(Struct, frozen=True, forbid_unknown_fields=True):
    """Scheduler effects of one metric on one sentinel at one load point."""

    pattern: str
    load_point: str
    metric: str
    scale: str
    """``difference``, or ``log_ratio`` for positive metrics (its exponential is a ratio)."""
    cells: dict[str, float | None]
    """Config to absolute value."""
    ratios: dict[str, float | None]
    """Config to value over the baseline's."""
    main_mns: Estimate
    main_mbt: Estimate
    interaction: Estimate
    reason: str | None = None


class ConfirmationDelta(Struct, frozen=True, forbid_unknown_fields=True):
    """One metric of a Layer-1-only repeat against the cell's first run; nothing is removed."""

    pattern: str
    config: str
    load_point: str
    metric: str
    first: float | None
    repeat: float | None
    absolute: float | None
    relative: float | None
    reason: str | None = None


class Parallelism(Struct, frozen=True, forbid_unknown_fields=True):
    """Tensor-parallel cell beside its baseline: descriptive, no scaling claim."""

    pattern: str
    config: str
    load_point: str
    metric: str
    value: float | None
    baseline_config: str
    baseline_value: float | None
    ratio: float | None


class Decision(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"h1a": "H1a", "h1b": "H1b"},
):
    """The artefact."""

    schema: int
    label: str
    """What kind of decision this is, in words."""
    exploratory: bool
    simulated: bool
    h1a: VerdictH1a
    h1b: VerdictH1b
    compound: VerdictCompound
    inversions: list[DecidedComparison]
    """Every registered comparison of the primary load point under the deciding table."""
    alternatives: dict[str, TableVerdict]
    """The same under every other table."""
    explored: dict[str, list[DecidedComparison]]
    """Exploratory only: mapping version to every comparison outside the primary load point, with
    raw p-values corrected within each load point; never accepted."""
    disagreements: list[str]
    runs: list[RunStatus]
    cells: dict[str, str]
    """Registered run to ``evaluable`` or the reason why it is NOT EVALUABLE."""
    intervals: list[RunIntervals]
    interference: list[InterferenceFit]
    factorial: list[FactorialEffect]
    confirmations: list[ConfirmationDelta]
    parallelism: list[Parallelism]
    warmup_branch: dict[str, Gate]
    """Warm-up gate of every run whose pattern may pass by stabilisation (A-P3-6)."""
    notes: list[str]
    sanity: SanityBlock
    provenance: Provenance
    rank_spreads: list[RankSpread] = []
    """Families over the ranks of each window of a tensor-parallel run; never summed."""
    rankings: list[WindowRanking] = []
    """Places of the families in every primary window under the deciding table."""
    tau: list[TauPair] = []
    """Kendall's tau-b between the primary windows under the deciding table; no criterion."""
