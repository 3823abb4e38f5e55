"""H1a: the four criteria for every pair of patterns and families, under one mapping table.

Source: protocol, "Operator shares and bottleneck ranking", "Decision rule", A-P3-7. Criteria 1, 2
and 4 come from :mod:`opprof.compare`; this adds the permutation test, Holm and who may take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec

from opprof.artifacts.comparison import Comparison, Inversion, TableComparison
from opprof.artifacts.decision import DecidedComparison
from opprof.decision.design import Key, Matrix
from opprof.decision.stepwise import lead_correlation, window_steps
from opprof.protocol.model import Statistics
from opprof.statistics.distributions import normal_quantile, wilson_interval
from opprof.statistics.draws import Stream
from opprof.statistics.multiplicity import holm
from opprof.statistics.permutation import PermutationResult, WindowSteps, permutation_test
from opprof.statistics.sensitivity import blocked_p, windows_p


@dataclass(frozen=True)
class Tested:
    """One pair's permutation results, or why there are none."""

    result: PermutationResult | None
    order: Sequence[str]
    """The families in the order of the result's columns."""
    reason: str | None
    windows: Sequence[WindowSteps] = ()
    """Both patterns' windows, the first pattern's first."""
    blocked: Sequence[float] | None = None
    """Exact p of each pair of families with neighbouring steps exchanged in pairs."""

    def row(self, family_a: str, family_b: str) -> int:
        """The result's row of two families, in any order."""
        wanted = {self.order.index(family_a), self.order.index(family_b)}
        assert self.result is not None
        return next(i for i, pair in enumerate(self.result.pairs) if set(pair) == wanted)


def table_inversions(comparison: Comparison, version: str) -> list[Inversion]:
    """Return a table's comparisons of every group."""
    if version == comparison.mapping_version:
        return comparison.inversions
    return comparison.alternatives[version].inversions


def table_of(comparison: Comparison, version: str) -> Comparison | TableComparison:
    """Return what carries a table's windows and tau."""
    if version == comparison.mapping_version:
        return comparison
    return comparison.alternatives[version]


def obstacles(matrix: Matrix, pattern: str, version: str) -> list[str]:
    """Why a pattern takes no part in H1a under a mapping table; empty when it does."""
    found = matrix.h1a_reasons(pattern)
    if found:
        return found
    kernels = matrix.facts[matrix.primary(pattern)].kernels
    steps = window_steps(kernels, version, matrix.file.ranking.families)
    return [f"{pattern}: {steps}"] if isinstance(steps, str) else []


def primary_comparisons(
    comparison: Comparison, version: str, matrix: Matrix
) -> list[DecidedComparison]:
    """Return every registered comparison of the primary load point, Holm-corrected."""
    families = matrix.file.ranking.families
    load = matrix.file.load
    found = {
        (item.pattern_p, item.pattern_q, frozenset((item.family_a, item.family_b))): item
        for item in table_inversions(comparison, version)
        if (item.config, item.load_point, item.role)
        == (load.primary_config, load.primary_load_point, "primary")
    }
    apart = {
        (pair.pattern_p, pair.pattern_q): pair.reasons
        for pair in comparison.pattern_pairs
        if (pair.config, pair.load_point, pair.role)
        == (load.primary_config, load.primary_load_point, "primary")
    }
    records: list[DecidedComparison] = []
    for p, q in combinations(matrix.patterns, 2):
        keys = matrix.primary(p), matrix.primary(q)
        reasons = [each for side in (p, q) for each in obstacles(matrix, side, version)]
        reasons += apart.get((p, q), [])
        tested = permute_pair(matrix, keys[0], keys[1], version)
        if tested.reason is not None and not reasons:
            reasons = [tested.reason]
        reasons = list(dict.fromkeys(reasons))
        for pair in combinations(families, 2):
            item = found.get((p, q, frozenset(pair)))
            item = item or _absent(p, q, pair, keys[0])
            records.append(_record(item, tested, reasons, matrix.marks(*keys)))
    return _accept(records, matrix.file.statistics)


def reproductions(
    comparison: Comparison, version: str, matrix: Matrix, primary: Iterable[DecidedComparison]
) -> list[tuple[DecidedComparison, bool]]:
    """Return comparisons outside the primary one that meet the gap criteria, tested one by one.

    Strengthening evidence: no Holm family, never accepted, never required.
    """
    accepted = {_inversion(item) for item in primary if item.accepted}
    load = matrix.file.load
    cache: dict[tuple[Key, Key], Tested] = {}
    found = []
    for item in table_inversions(comparison, version):
        place = (item.config, item.load_point, item.role)
        if place == (load.primary_config, load.primary_load_point, "primary"):
            continue
        if not item.gap_criteria_met:
            continue
        p: Key = (item.pattern_p, *place)
        q: Key = (item.pattern_q, *place)
        if (p, q) not in cache:
            cache[p, q] = permute_pair(matrix, p, q, version)
        tested = cache[p, q]
        reasons = list(dict.fromkeys(matrix.breakdown_reasons(p) + matrix.breakdown_reasons(q)))
        record = _record(item, tested, reasons, matrix.marks(p, q))
        found.append((record, _inversion(record) in accepted))
    return found


def explored_comparisons(
    comparison: Comparison, version: str, matrix: Matrix
) -> list[DecidedComparison]:
    """Return every comparison outside the primary one with its p-value, whatever the gates say.

    Holm corrects within each config and load point. Nothing is accepted: for looking, not deciding.
    """
    load = matrix.file.load
    primary = (load.primary_config, load.primary_load_point, "primary")
    cache: dict[tuple[Key, Key], Tested] = {}
    groups: dict[tuple[str, str, str], list[DecidedComparison]] = {}
    for item in table_inversions(comparison, version):
        place = (item.config, item.load_point, item.role)
        if place == primary:
            continue
        p: Key = (item.pattern_p, *place)
        q: Key = (item.pattern_q, *place)
        if (p, q) not in cache:
            cache[p, q] = permute_pair(matrix, p, q, version)
        reasons = ["exploratory", *matrix.breakdown_reasons(p), *matrix.breakdown_reasons(q)]
        record = _record(item, cache[p, q], list(dict.fromkeys(reasons)), matrix.marks(p, q))
        groups.setdefault(place, []).append(record)
    return [record for group in groups.values() for record in _corrected(group)]


def _corrected(group: Sequence[DecidedComparison]) -> list[DecidedComparison]:
    known = [item for item in group if item.permutation_p is not None]
    adjusted = iter(holm([_number(item.permutation_p) for item in known]))
    return [
        item if item.permutation_p is None else msgspec.structs.replace(item, holm_p=next(adjusted))
        for item in group
    ]


def permute_pair(matrix: Matrix, p: Key, q: Key, version: str) -> Tested:
    """Run the permutation test of one pair of runs for all pairs of families.

    The streams are keyed by the pair and not by the mapping table: both tables meet the same
    permutations.
    """
    families = matrix.file.ranking.families
    sides = []
    if apart := matrix.apart(p, q):
        return Tested(None, families, apart[0])
    for key in (p, q):
        if key not in matrix.facts:
            return Tested(None, families, f"{key[0]} is missing")
        steps = window_steps(matrix.facts[key].kernels, version, families)
        if isinstance(steps, str):
            return Tested(None, families, f"{key[0]}: {steps}")
        sides.append(steps)
    if len(sides[0]) != len(sides[1]):
        return Tested(None, families, f"{p[0]} and {q[0]} have unequal numbers of windows")
    stream = Stream(matrix.seed, "permutation", *p[1:], p[0], q[0])
    permutations = matrix.file.statistics.permutations
    result = permutation_test(sides[0], sides[1], permutations=permutations, stream=stream)
    blocked = blocked_p(sides[0], sides[1])
    return Tested(
        result,
        families,
        None,
        [*sides[0], *sides[1]],
        None if blocked is None else blocked.tolist(),
    )


def _absent(p: str, q: str, families: tuple[str, str], key: Key) -> Inversion:
    """A registered comparison of which a run is missing: listed without numbers."""
    return Inversion(
        pattern_p=p,
        pattern_q=q,
        family_a=families[0],
        family_b=families[1],
        gaps_p=[],
        gaps_q=[],
        gap_criteria_met=None,
        permutation_p=None,
        holm_p=None,
        classifiable=None,
        accepted=None,
        config=key[1],
        load_point=key[2],
        role=key[3],
    )


def _record(
    item: Inversion, tested: Tested, reasons: Sequence[str], marks: Sequence[str]
) -> DecidedComparison:
    record = DecidedComparison(
        **msgspec.structs.asdict(item),
        evaluable=not reasons,
        reasons=list(reasons),
        marks=list(marks),
    )
    result = tested.result
    if result is None:
        return record
    row = tested.row(item.family_a, item.family_b)
    n = result.permutations
    # The result's pairs follow the order of families, the record's the lead in p.
    sign = 1 if tested.order.index(item.family_a) < tested.order.index(item.family_b) else -1
    return msgspec.structs.replace(
        record,
        permutation_p=float(result.p_value[row]),
        statistic=sign * float(result.observed[row]),
        reached=int(result.reached[row]),
        exact_p=None if result.exact_p is None else float(result.exact_p[row]),
        one_sided_p=(int(result.reached_one_sided[row]) + 1) / (n + 1),
        pooled_p=(int(result.reached_pooled[row]) + 1) / (n + 1),
        step_correlation=lead_correlation(tested.windows, *result.pairs[row])
        if item.gap_criteria_met
        else None,
        blocked_p=None if tested.blocked is None else tested.blocked[row],
        windows_p=_windows_p(item),
    )


def _windows_p(item: Inversion) -> float | None:
    """The windows' leads are there already; the second pattern's are given the other way round."""
    first = [gap for gap in item.gaps_p if gap is not None]
    second = [-gap for gap in item.gaps_q if gap is not None]
    if len(first) < len(item.gaps_p) or len(second) < len(item.gaps_q):
        return None
    return windows_p(first, second)


def _accept(records: list[DecidedComparison], rule: Statistics) -> list[DecidedComparison]:
    """Correct the evaluable comparisons together and apply all four criteria."""
    tested = [i for i, item in enumerate(records) if item.evaluable]
    drawn = holm([_number(records[i].permutation_p) for i in tested])
    exact_values = [records[i].exact_p for i in tested]
    exact: Sequence[float | None] = [None] * len(tested)
    if None not in exact_values:
        exact = holm([_number(value) for value in exact_values])
    for i, corrected, exact_corrected in zip(tested, drawn, exact, strict=True):
        item = records[i]
        criteria = (item.gap_criteria_met, item.classifiable, corrected <= rule.alpha)
        records[i] = msgspec.structs.replace(
            item,
            holm_p=corrected,
            exact_holm_p=exact_corrected,
            accepted=all(bool(criterion) for criterion in criteria),
            permutation_interval=_near_bar(item, corrected, rule),
        )
    return records


def _near_bar(item: DecidedComparison, corrected: float, rule: Statistics) -> list[float] | None:
    """Monte-Carlo interval of p where its corrected value lies near alpha."""
    near = rule.alpha / rule.near_bar_factor <= corrected <= rule.alpha * rule.near_bar_factor
    if not near or item.reached is None:
        return None
    z = normal_quantile((1 + rule.monte_carlo_level) / 2)
    return list(wilson_interval(item.reached, rule.permutations, z))


def _number(value: float | None) -> float:
    assert value is not None
    return value


def _inversion(item: DecidedComparison) -> tuple[str, str, str, str]:
    return (item.pattern_p, item.pattern_q, item.family_a, item.family_b)
