"""``opprof compare``: shares, ranking and the gap part of the inversion rule over several runs.

Sources: protocol, "Operator shares and bottleneck ranking"; contract, sections 4 and 6.

Format history
    schema 1    the deciding table's results on top, every other table's under ``alternatives``.

Shares and gaps are fractions (0.05 is five percentage points). A rank is a tensor-parallel rank:
listed each, with mean and range, and never summed. Where a family stands in the order is its place.
"""

from __future__ import annotations

from msgspec import Struct

from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock, Sha256

SCHEMA = 1


class ComparisonRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What the protocol fixes for a comparison; there is no default for any of it."""

    mapping_pinned: str
    """Version of the table that decides."""
    tie_share: float
    """Families this close to the first of their group share its place."""
    inversion_gap_share: float
    """The least lead that counts, in every window."""
    classifiable_min: float
    """The least classified fraction of every window (criterion 4)."""
    families: list[str]
    """Families that have a place in the ranking and take part in inversions."""
    windows: int
    """Profiler windows of a load point."""
    baseline_config: str
    """The config that ratios refer to."""
    primary_config: str
    primary_load_point: str


class RankedFamily(Struct, frozen=True, forbid_unknown_fields=True):
    """One family in one window."""

    ns: int
    share: float | None
    """null when the window has no kernel time."""
    place: int | None
    """1 is the greatest; ties share a place and the next is skipped (1, 2, 2, 4). null for a family
    that the rule does not rank, and when no rule is bound."""


class WindowRanking(Struct, frozen=True, forbid_unknown_fields=True):
    """One window of one rank, its families ranked."""

    run: str
    pattern: str
    config: str
    load_point: str
    role: str
    window: int
    rank: int
    accepted: bool
    kernel_ns: int
    classified_fraction: float | None
    classifiable: bool | None
    """Criterion 4 for this window; null when no rule is bound or there is no kernel time."""
    families: dict[str, RankedFamily]
    top: list[str]
    """Families in the first place: several when they tie."""


class RankSpread(Struct, frozen=True, forbid_unknown_fields=True):
    """A family's share over the ranks of one window of a tensor-parallel run."""

    run: str
    window: int
    family: str
    ranks: int
    mean_share: float
    min_share: float
    max_share: float

    @property
    def range_share(self) -> float:
        """Greatest less least share."""
        return self.max_share - self.min_share


class TauPair(Struct, frozen=True, forbid_unknown_fields=True):
    """Kendall's tau-b between the places of two windows; descriptive, never a criterion."""

    config: str
    load_point: str
    role: str
    pattern_p: str
    window_p: int
    pattern_q: str
    window_q: int
    rank: int
    tau_b: float | None
    """null when every family of one side shares one place, or no rule is bound."""


class Inversion(Struct, frozen=True, forbid_unknown_fields=True):
    """One registered comparison of two patterns and two families, met or not (contract, 6)."""

    pattern_p: str
    pattern_q: str
    family_a: str
    """The family with the greater mean share in ``pattern_p``; see ``compare/README.md``."""
    family_b: str
    gaps_p: list[float | None]
    """Lead of ``family_a`` over ``family_b`` in each window of ``pattern_p``."""
    gaps_q: list[float | None]
    """Lead of ``family_b`` over ``family_a`` in each window of ``pattern_q``."""
    gap_criteria_met: bool | None
    """Criteria 1 and 2; null when the pair is not evaluable (see ``pattern_pairs``)."""
    permutation_p: float | None
    holm_p: float | None
    classifiable: bool | None
    """Criterion 4."""
    accepted: bool | None
    """All four criteria; null until the permutation test is done."""
    config: str
    load_point: str
    role: str


class PatternPair(Struct, frozen=True, forbid_unknown_fields=True):
    """Two patterns under one config, load point and role, and what stands in the way."""

    config: str
    load_point: str
    role: str
    primary: bool
    """The protocol's primary comparison (its config and load point, role primary)."""
    pattern_p: str
    pattern_q: str
    evaluable: bool
    reasons: list[str]
    """Why not; empty when evaluable."""
    marks: list[str]
    """Failed gates that leave the figures visible."""


class TableComparison(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that depends on the mapping table, under one table."""

    mapping_version: str
    mapping_sha256: Sha256
    windows: list[WindowRanking]
    rank_spreads: list[RankSpread]
    tau: list[TauPair]
    inversions: list[Inversion]
    sanity: SanityBlock | None = None
    """null in comparisons that were written before tables had their own block."""


class ComparedRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that took part."""

    run: RunIdentity
    source: str
    """Where the caller had it from."""
    windows: list[int]
    ranks: list[int]
    breakdown_valid: bool | None
    marks: list[str]


class Unpaired(Struct, frozen=True, forbid_unknown_fields=True):
    """A run that no other run can be compared with, or a table that not every run has."""

    run: str
    reason: str


class MetricRatio(Struct, frozen=True, forbid_unknown_fields=True):
    """An absolute value and its ratio to the same pattern's baseline config."""

    pattern: str
    load_point: str
    role: str
    config: str
    metric: str
    """Unit last in the name."""
    rank: int | None
    """null for a metric of the whole run."""
    value: float | None
    baseline_config: str
    baseline_value: float | None
    ratio: float | None
    reason: str | None
    """Why there is no ratio."""


class RatioAggregate(Struct, frozen=True, forbid_unknown_fields=True):
    """Geometric mean of one metric's ratios over patterns, with every cell it is made of."""

    config: str
    load_point: str
    role: str
    metric: str
    rank: int | None
    geometric_mean: float | None
    cells: dict[str, float | None]
    """Pattern to ratio."""
    reason: str | None
    """Why there is none: a cell that is missing, zero, negative or not finite."""


class CellSummary(Struct, frozen=True, forbid_unknown_fields=True):
    """One pattern/config cell: its load points side by side (protocol, "Unit of analysis")."""

    pattern: str
    config: str
    role: str
    simulated: bool
    time_scale: float
    runs: dict[str, str]
    """Load point to run."""
    windows: dict[str, int]
    """Load point to the logical windows that the run has; ranks of one window count once."""
    metrics: dict[str, dict[str, float | None]]
    """Load point to the run's figures, unit last in the name; those of one rank are left out."""
    gates: list[Gate]
    """``cell_load_points`` and ``cell_windows``."""
    marks: list[str]
    sanity: SanityBlock


class Comparison(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact."""

    schema: int
    rule: ComparisonRule | None
    """null when no protocol is bound: gaps are shown, nothing is judged."""
    mapping_version: str
    mapping_sha256: Sha256
    runs: list[ComparedRun]
    unpaired: list[Unpaired]
    pattern_pairs: list[PatternPair]
    windows: list[WindowRanking]
    rank_spreads: list[RankSpread]
    tau: list[TauPair]
    inversions: list[Inversion]
    alternatives: dict[str, TableComparison]
    disagreements: list[str]
    """Plain sentences wherever an alternative table and the deciding one disagree."""
    ratios: list[MetricRatio]
    aggregates: list[RatioAggregate]
    sanity: SanityBlock
    provenance: Provenance
    cells: list[CellSummary] = []
    """Every cell that any of the runs belongs to; empty in older comparisons."""
