"""Plain sentences wherever two mapping tables disagree: top family, gap, inversion."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Return plain sentences wherever two tables disagree on a window, a gap or an inversion.

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
    """One sentence for each family of a run that leads others under one of the tables only."""
    sentences = []
    views = ((deciding, other, first, second), (other, deciding, second, first))
    families = ranked_families(rule)
    for here, there, run, twin in views:
        for ahead in families:
            behind = [
                _lead_text(run, twin, ahead, name, there.mapping_version)
                for name in families
                if _leads(run, ahead, name, rule) and not _leads(twin, ahead, name, rule)
            ]
            if behind:
                sentences.append(
                    f"{run.run.name}: only under {here.mapping_version} {ahead} leads by at least"
                    f" {100 * rule.inversion_gap_share:g} points in every window: "
                    + "; ".join(behind)
                    + "."
                )
    return sentences


def _leads(entry: RunShares, ahead: str, behind: str, rule: ComparisonRule) -> bool:
    gaps = [entry.lead(window, ahead, behind) for window in entry.window_ids]
    return leads_everywhere(gaps, exact(rule.inversion_gap_share))


def _lead_text(run: RunShares, twin: RunShares, ahead: str, behind: str, other: str) -> str:
    def points(entry: RunShares) -> str:
        gaps = [entry.lead(window, ahead, behind) for window in entry.window_ids]
        # Adding 0.0 turns the -0.0 of a small negative lead into 0.0.
        texts = [None if gap is None else round(100 * float(gap), 1) + 0.0 for gap in gaps]
        return ", ".join("unknown" if value is None else f"{value:.1f}" for value in texts)

    return f"{behind} by {points(run)} ({points(twin)} under {other})"


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
