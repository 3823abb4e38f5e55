"""Plain sentences beside the numbers: disagreements, Monte-Carlo doubts, assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opprof.artifacts.decision import Contrast, DecidedComparison, RunIntervals, TableVerdict
from opprof.decision.design import Matrix
from opprof.decision.metrics import BOOTSTRAPPED_WASTE

_WATCHED = (*BOOTSTRAPPED_WASTE, "E_token_per_ms", "step_residual")


def table_disagreements(tables: Mapping[str, TableVerdict], deciding: str) -> list[str]:
    """Say where another mapping table would decide otherwise; empty when none would."""
    found = []
    for version, table in tables.items():
        if version == deciding:
            continue
        mine = {_key(item) for item in tables[deciding].accepted}
        theirs = {_key(item) for item in table.accepted}
        found += [f"accepted under {deciding} only: {_words(key)}" for key in sorted(mine - theirs)]
        found += [f"accepted under {version} only: {_words(key)}" for key in sorted(theirs - mine)]
    return found


def h1a_notes(table: TableVerdict) -> list[str]:
    """Say where the drawn and the exact p-value, or the other choices, would decide otherwise."""
    found = []
    for item in table.comparisons:
        if item.holm_p is None or not item.gap_criteria_met:
            continue
        name = f"{item.pattern_p}/{item.pattern_q} {item.family_a}/{item.family_b}"
        accepted = bool(item.accepted)
        alpha = table.null.alpha
        if item.exact_holm_p is not None and (item.exact_holm_p <= alpha) != (item.holm_p <= alpha):
            found.append(
                f"{name}: drawn Holm p {item.holm_p:.3g} and exact {item.exact_holm_p:.3g} lie on"
                f" two sides of {alpha:g}; the drawn one decides"
            )
        if accepted and item.step_correlation is not None:
            found.append(
                f"{name}: leads of neighbouring steps correlate by {item.step_correlation:+.2f};"
                " the test assumes 0, and a positive value makes its p too small"
            )
        if accepted and item.windows_p is not None and item.windows_p > alpha:
            found.append(
                f"{name}: with the windows as the only replicates p = {item.windows_p:.3g}: the"
                " difference between patterns is not told from that between windows"
            )
        if accepted and item.blocked_p is not None and item.blocked_p > alpha:
            found.append(
                f"{name}: with neighbouring steps exchanged in pairs p = {item.blocked_p:.3g}"
            )
        bar = alpha / max(table.tested, 1)
        if accepted and item.pooled_p is not None and item.pooled_p > bar:
            found.append(
                f"{name}: with shares pooled over both windows p = {item.pooled_p:.3g}, above the"
                f" first Holm bar {bar:.3g}"
            )
    return found


def h1b_notes(contrasts: Sequence[Contrast]) -> list[str]:
    """Say what stands between a material waste and a qualifying contrast."""
    found = []
    for item in contrasts:
        name = f"{item.irregular} vs {item.control}"
        if item.evaluable and item.passing_metrics and item.passes is None:
            found.append(f"{name}: material waste, but its association could not be measured")
        for metric in item.metrics:
            if metric.undefined_resamples:
                found.append(
                    f"{name}: {metric.metric} is undefined in {metric.undefined_resamples}"
                    " resamples, which widen its interval"
                )
    return found


def decision_notes(matrix: Matrix) -> list[str]:
    """Say what the methods assume, with the rates measured in ``bench/calibration.py``."""
    statistics = matrix.file.statistics
    found = [
        "Active steps of one window are treated as exchangeable between patterns. Neighbouring"
        " steps are not. In simulated matrices without effect (docs/statistics.md) independent"
        " steps gave a Holm rejection in 4 to 8 %; a step correlation of 0.5 gave one in 95 % and"
        " more, and an accepted inversion in 0 % of calm and 15 % of noisy matrices (24 % at 0.9):"
        " the gap criteria protect the verdict, the p-value alone does not.",
        "Beside every p stand two tests that decide nothing. Without effect a test at 5 % fired in"
        " 5, 10, 25 and 59 % at step correlations of 0, 0.2, 0.5 and 0.9; with neighbouring steps"
        " exchanged in pairs in 5, 8, 15 and 44 %; with the windows as the only replicates in 2 to"
        " 3 % throughout. Only the last holds whatever happens inside a window, and it has little"
        " power: an inversion that also passes it does not rest on single steps.",
        f"Intervals are percentile intervals of a moving-block bootstrap ({statistics.block_s:g} s"
        " blocks). In simulation 95 % intervals covered 94 % without dependence, 92 % at a"
        " correlation of 0.3 from one second to the next, 89 % at 0.6, 73 % at 0.8 and 63 % at 0.9."
        " The circular variant stands beside.",
        "Bounds of the null speak of the steps that were profiled. In simulation some bound lay"
        " below its truth in 2 to 6 % of matrices with even steps, but in 90 % where one step in"
        " eight was a prefill ten times longer, and always at a step correlation of 0.9.",
        "A material waste that slows nothing was still associated with a positive residual in about"
        " one simulated matrix of ten to five: read the size of the residual, and whether it stays"
        " above zero at the corrected level that stands beside it.",
        "I_mix and step-time residuals condition on their fit: their intervals hold the sampling of"
        " steps, not the choice of the surface. They are associations, not causes.",
        "R64 comes from the manifest alone and has no interval. CV_moe is resampled from its active"
        " steps, which are no independent server replicates.",
    ]
    if matrix.file.partial_matrix is not None:
        found.append(
            "The matrix is frozen as partial (A-P3-7): confirmation is possible, refutation is not."
            " Missing results are NOT EVALUABLE and never imputed."
        )
    return found


def dependence_note(intervals: Sequence[RunIntervals]) -> list[str]:
    """Say how strongly neighbouring seconds depend in what H1b rests on."""
    found = [
        (estimate.bin_correlation, metric, run.run)
        for run in intervals
        for metric, estimate in run.metrics.items()
        if metric in _WATCHED and estimate.bin_correlation is not None
    ]
    if not found:
        return []
    worst, metric, run_name = max(found)
    values = sorted(value for value, _, _ in found)
    return [
        "Neighbouring seconds of the decided runs correlate by"
        f" {values[len(values) // 2]:+.2f} in the median and {worst:+.2f} at most ({metric} of"
        f" {run_name}), over waste ratios, efficiency and residuals: the coverage above says what"
        " that costs."
    ]


def _key(item: DecidedComparison) -> tuple[str, str, str, str]:
    return (item.pattern_p, item.pattern_q, item.family_a, item.family_b)


def _words(key: tuple[str, str, str, str]) -> str:
    return f"{key[2]} over {key[3]} in {key[0]}, reversed in {key[1]}"
