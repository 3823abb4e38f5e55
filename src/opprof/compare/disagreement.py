"""Plain sentences wherever two mapping tables disagree: top family, gap, inversion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from opprof.artifacts.comparison import ComparisonRule, Inversion, TableComparison, WindowRanking
from opprof.compare.inversions import leads_everywhere, ranked_families
from opprof.compare.values import RunShares, exact


def disagreements(
    deciding: TableComparison,
    other: TableComparison,
    deciding_runs: Sequence[RunShares],
    other_runs: Sequence[RunShares],
    rule: ComparisonRule | None,
) -> list[str]:
    """Return one sentence for each run, family pair or comparison on which two tables disagree.

    The runs are the same ones in the same order. A gap disagrees when one table has a family lead
    by the protocol's gap in every window and the other does not, or has the other family lead.
    """
    sentences = _tops(deciding, other)
    if rule is not None:
        for first, second in zip(deciding_runs, other_runs, strict=True):
            sentences += _gaps(deciding, other, first, second, rule)
    return sentences + _inversions(deciding, other)


def _tops(deciding: TableComparison, other: TableComparison) -> list[str]:
    counterpart = {(row.run, row.window, row.rank): row for row in other.windows}
    sentences = []
    for row in deciding.windows:
        twin = counterpart.get((row.run, row.window, row.rank))
        if twin is None or row.top == twin.top:
            continue
        sentences.append(
            f"{row.run} window {row.window} rank {row.rank}: the top family is"
            f" {_top_text(row)} under {deciding.mapping_version},"
            f" {_top_text(twin)} under {other.mapping_version}."
        )
    return sentences


def _top_text(row: WindowRanking) -> str:
    parts = []
    for name in row.top:
        share = row.families[name].share
        parts.append(name if share is None else f"{name} ({100 * share:.1f} %)")
    return " and ".join(parts) or "unknown"


def _gaps(
    deciding: TableComparison,
    other: TableComparison,
    first: RunShares,
    second: RunShares,
    rule: ComparisonRule,
) -> list[str]:
    sentences = []
    for a, b in combinations(ranked_families(rule), 2):
        here, there = _leader(first, a, b, rule), _leader(second, a, b, rule)
        if here == there:
            continue
        sentences.append(
            f"{first.run.name}: {_lead_text(first, a, b, here, rule)} under"
            f" {deciding.mapping_version}; {_lead_text(second, a, b, there, rule)} under"
            f" {other.mapping_version}."
        )
    return sentences


def _leader(entry: RunShares, a: str, b: str, rule: ComparisonRule) -> str | None:
    """The family that leads by the protocol's gap in every window on every rank, if any."""
    least = exact(rule.inversion_gap_share)
    for ahead, behind in ((a, b), (b, a)):
        gaps = [entry.lead(window, ahead, behind) for window in entry.window_ids]
        if leads_everywhere(gaps, least):
            return ahead
    return None


def _lead_text(entry: RunShares, a: str, b: str, leader: str | None, rule: ComparisonRule) -> str:
    ahead, behind = (b, a) if leader == b else (a, b)
    gaps = [entry.lead(window, ahead, behind) for window in entry.window_ids]
    points = ", ".join("unknown" if gap is None else f"{100 * float(gap):+.1f}" for gap in gaps)
    least = f"{100 * rule.inversion_gap_share:g}"
    if leader is None:
        return f"neither {a} nor {b} leads by {least} points in every window ({a} by {points})"
    return f"{ahead} leads {behind} by at least {least} points in every window ({points})"


def _inversions(deciding: TableComparison, other: TableComparison) -> list[str]:
    counterpart = {_key(row): row for row in other.inversions}
    sentences = []
    for row in deciding.inversions:
        twin = counterpart.get(_key(row))
        if twin is None or bool(row.gap_criteria_met) == bool(twin.gap_criteria_met):
            continue
        met, unmet = (deciding, other) if row.gap_criteria_met else (other, deciding)
        shown = row if row.gap_criteria_met else twin
        sentences.append(
            f"{row.config} {row.load_point}: {shown.family_a} leads {shown.family_b} in"
            f" {row.pattern_p} and trails it in {row.pattern_q} (gap criteria met) under"
            f" {met.mapping_version}, not under {unmet.mapping_version}."
        )
    return sentences


def _key(row: Inversion) -> tuple[object, ...]:
    pair = frozenset((row.family_a, row.family_b))
    return (row.config, row.load_point, row.role, row.pattern_p, row.pattern_q, pair)
