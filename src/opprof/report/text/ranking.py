"""Does the ranking of operator families change between patterns? In plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.comparison import Comparison, Inversion, PatternPair, TauPair
from opprof.report.formats import NBSP, listing, number
from opprof.report.inputs import ReportInput
from opprof.report.palette import family
from opprof.words import plural

_SENTENCES_MAX = 4
"""Sentences a group; the matrix has everything."""

Group = tuple[str, str, str]
"""Config, load point and role: runs that may be compared."""


def groups(comparison: Comparison) -> list[Group]:
    """Return the groups with at least one pair of patterns, the primary one first."""
    keys: dict[Group, bool] = {}
    for pair in comparison.pattern_pairs:
        keys.setdefault((pair.config, pair.load_point, pair.role), pair.primary)
    return sorted(keys, key=lambda key: (not keys[key], key))


def group_name(group: Group) -> str:
    """Return ``C00 · moderate``, with the role where it is not primary."""
    config, load_point, role = group
    parts = [config, load_point, *([] if role == "primary" else [role])]
    return " · ".join(parts)


def group_of(row: Inversion | PatternPair | TauPair) -> Group:
    """Return the group that a row belongs to."""
    return (row.config, row.load_point, row.role)


def ranking_sentences(report: ReportInput) -> tuple[str, ...]:
    """Answer the question group by group, and say what stands in the way where it is open.

    Measured and simulated runs on one page have an answer each.
    """
    if not report.parts:
        return _answers(report)
    return tuple(
        f"{part.title.capitalize()}: {_lower_no(sentence)}"
        for part in report.parts
        for sentence in _answers(part)
    )


def _lower_no(sentence: str) -> str:
    """Let ``Not known`` and its like follow a colon; names keep their capitals."""
    return f"n{sentence[1:]}" if sentence.startswith("No") else sentence


def _answers(report: ReportInput) -> tuple[str, ...]:
    comparison = report.comparison
    if comparison is None:
        return (f"Not known: {report.comparison_reason.rstrip('.')}.",)
    if not comparison.pattern_pairs:
        return ("Not known: no two runs share a config, load point and role over two patterns.",)
    if comparison.rule is None:
        other = "the runs were analysed under another protocol than the one that is bound"
        reason = other if report.protocol_trouble else "no protocol is bound"
        return (f"Not judged: {reason}, so gaps are shown and nothing is concluded.",)
    sentences = []
    for group in groups(comparison):
        sentences += _group_sentences(comparison, group)
    if not any(pair.primary for pair in comparison.pattern_pairs):
        rule = comparison.rule
        sentences.append(
            f"No pair belongs to the protocol's primary comparison ({rule.primary_config}, "
            f"{rule.primary_load_point}): what is found elsewhere is supporting evidence only."
        )
    return tuple(sentences)


def _group_sentences(comparison: Comparison, group: Group) -> list[str]:
    assert comparison.rule is not None
    pairs = [pair for pair in comparison.pattern_pairs if group_of(pair) == group]
    rows = [row for row in comparison.inversions if group_of(row) == group]
    name = group_name(group)
    met = [row for row in rows if row.gap_criteria_met]
    judged = [row for row in rows if row.gap_criteria_met is not None]
    margin = number(comparison.rule.inversion_gap_share * 100)
    strongest = sorted(met, key=lambda row: -weakest_gap(row))
    sentences = [f"{name}: {inversion_sentence(row)}" for row in strongest[:_SENTENCES_MAX]]
    if len(met) > _SENTENCES_MAX:
        more = plural(len(met) - _SENTENCES_MAX, "more comparison")
        sentences.append(f"{name}: {more} whose order turns; the matrix lists every one.")
    if judged and not met:
        sentences.append(
            f"{name}: no. In none of {plural(len(judged), 'comparison')} of two patterns and two "
            f"families does the order turn by at least {margin}{NBSP}pp in every window of both."
        )
    blocked = [pair for pair in pairs if not pair.evaluable]
    if blocked:
        sentences.append(_blocked_sentence(name, blocked))
    return sentences


def inversion_sentence(row: Inversion) -> str:
    """Say who leads whom, where, by how much, and which criteria are still open."""
    a, b = family(row.family_a).label, family(row.family_b).label
    text = (
        f"the order turns between {row.pattern_p} and {row.pattern_q}. Under {row.pattern_p} {a} "
        f"leads {b} by {_gaps(row.gaps_p)}, under {row.pattern_q} {b} leads {a} by "
        f"{_gaps(row.gaps_q)}."
    )
    if row.accepted:
        return f"{text} All four criteria are met: an accepted inversion."
    if row.classifiable is False:
        return f"{text} Too much kernel time has no known family (criterion 4): not accepted."
    if row.accepted is None:
        return f"{text} The gap criteria are met; the permutation test (criterion 3) is not done."
    return f"{text} The permutation test does not agree (criterion 3): not accepted."


def weakest_gap(row: Inversion) -> float:
    """Return the smallest lead of a comparison over all its windows."""
    return min((gap for gap in (*row.gaps_p, *row.gaps_q) if gap is not None), default=0.0)


def _gaps(gaps: Sequence[float | None]) -> str:
    shown = ["?" if gap is None else f"{gap * 100:.1f}" for gap in gaps]
    return f"{listing(shown)}{NBSP}pp"


def _blocked_sentence(name: str, blocked: Sequence[PatternPair]) -> str:
    reasons = list(dict.fromkeys(reason for pair in blocked for reason in pair.reasons))
    who = listing([f"{pair.pattern_p} and {pair.pattern_q}" for pair in blocked])
    return f"{name}: not evaluable for {who} ({'; '.join(reasons)})."


def disagreement_sentences(report: ReportInput) -> tuple[str, ...]:
    """Return the sentences of one comparison on mapping tables, each once."""
    if report.comparison is None:
        return ()
    found = [text if text.endswith(".") else f"{text}." for text in report.comparison.disagreements]
    return tuple(dict.fromkeys(found))
