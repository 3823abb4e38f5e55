"""The gap part of the inversion rule: criteria 1, 2 and 4 for every registered comparison.

Source: protocol, "Operator shares and bottleneck ranking". The permutation test (criterion 3) comes
later and fills ``permutation_p``, ``holm_p`` and ``accepted``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from opprof.artifacts.comparison import ComparisonRule, Inversion
from opprof.compare.values import RunShares, exact
from opprof.mapping.families import FAMILIES, GRAPH_REPLAY_OPAQUE


def ranked_families(rule: ComparisonRule | None) -> tuple[str, ...]:
    """Return the families that have a place: the rule's, else all that a table can assign."""
    if rule is None:
        return tuple(name for name in FAMILIES if name != GRAPH_REPLAY_OPAQUE)
    return tuple(name for name in FAMILIES if name in rule.families)


def registered_comparisons(
    p: RunShares, q: RunShares, rule: ComparisonRule | None, *, evaluable: bool
) -> list[Inversion]:
    """Return one record for every pair of families, met or not, in the order of the families.

    ``evaluable`` is :attr:`PatternPair.evaluable`: when false the gaps are shown and not judged.
    """
    least: Fraction | None = None
    classifiable: bool | None = None
    if rule is not None and evaluable:
        least = exact(rule.inversion_gap_share)
        classifiable = is_classifiable(p, rule) and is_classifiable(q, rule)
    return [
        compare_families(p, q, pair, least=least, classifiable=classifiable)
        for pair in combinations(ranked_families(rule), 2)
    ]


def compare_families(
    p: RunShares,
    q: RunShares,
    families: tuple[str, str],
    *,
    least: Fraction | None,
    classifiable: bool | None,
) -> Inversion:
    """Return the record of two patterns and two families; ``least`` None judges nothing.

    ``family_a`` is the family with the greater mean share in ``p`` (over windows and ranks; the
    earlier one in the order of families when they are equal). An inversion can only be met in this
    orientation, since a lead in every window is a lead of the mean.
    """
    first, second = families
    ahead = p.mean_share(first) >= p.mean_share(second)
    family_a, family_b = (first, second) if ahead else (second, first)
    gaps_p = [p.lead(window, family_a, family_b) for window in p.window_ids]
    gaps_q = [q.lead(window, family_b, family_a) for window in q.window_ids]
    met = None
    if least is not None:
        met = leads_everywhere(gaps_p, least) and leads_everywhere(gaps_q, least)
    return Inversion(
        pattern_p=p.run.pattern,
        pattern_q=q.run.pattern,
        family_a=family_a,
        family_b=family_b,
        gaps_p=_floats(gaps_p),
        gaps_q=_floats(gaps_q),
        gap_criteria_met=met,
        permutation_p=None,
        holm_p=None,
        classifiable=classifiable,
        accepted=None,
        config=p.run.config,
        load_point=p.run.load_point,
        role=p.run.role,
    )


def leads_everywhere(gaps: Sequence[Fraction | None], least: Fraction) -> bool:
    """Whether every window has a lead of at least ``least`` (inclusive); false without windows."""
    return bool(gaps) and all(gap is not None and gap >= least for gap in gaps)


def is_classifiable(entry: RunShares, rule: ComparisonRule) -> bool:
    """Criterion 4 for one run: every window and rank has enough classified time (inclusive)."""
    least = exact(rule.classifiable_min)
    fractions = [window.classified for window in entry.windows]
    return all(fraction is not None and fraction >= least for fraction in fractions)


def _floats(gaps: Sequence[Fraction | None]) -> list[float | None]:
    return [None if gap is None else float(gap) for gap in gaps]
