"""Runs and a protocol to one decision: the order of work, and nothing else.

::

    facts ─ matrix ─┬─ comparison (gaps, ranking) ─ permutation, Holm, null ─ H1a ─┐
                    └─ clean series ─ spline fits ─ resamples ─ contrasts ─── H1b ─┴─ compound
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from opprof.artifacts.common import Provenance
from opprof.artifacts.comparison import Comparison
from opprof.artifacts.decision import (
    SCHEMA,
    Contrast,
    Decision,
    Estimate,
    H1aEvidence,
    H1bEvidence,
    InterferenceFit,
    Reproduction,
    RunIntervals,
    TableVerdict,
)
from opprof.compare import RunInput, compare_runs, comparison_rule
from opprof.decision import h1a, h1b, notes, side, verdicts
from opprof.decision.design import Matrix, build_matrix
from opprof.decision.facts import RunFacts
from opprof.decision.interference import CellFit, fit_group, fit_record
from opprof.decision.metrics import BOOTSTRAPPED_WASTE, FACTORIAL, SIGNED
from opprof.decision.null import null_evidence
from opprof.decision.resample import Resampled, ResampleTask, resample_many
from opprof.decision.sanity import sanity_block, table_sanity
from opprof.decision.series import CleanSeries, Missing
from opprof.protocol import Protocol


def decide(
    runs: Sequence[RunFacts],
    protocol: Protocol,
    provenance: Provenance,
    *,
    exploratory: bool,
    rehearsed: bool = False,
    tolerated: frozenset[str] = frozenset(),
    absent: Mapping[str, str] | None = None,
    stop: str | None = None,
    jobs: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> Decision:
    """Decide H1a, H1b and the compound hypothesis.

    The result depends on the runs and the protocol only, not on their order or on ``jobs`` (worker
    processes that resample). ``rehearsed`` says that no campaign was run and nothing is registered:
    it changes the label alone. ``tolerated`` names gates whose failure only marks a run (a
    rehearsal runs on scaled time). ``absent`` says of planned runs why they are not there, ``stop``
    why a campaign stands still (a note, no verdict). ``advance`` is called after each run's
    resampling.

    Raises:
        InputError: no run, two runs with one identity, measured and simulated runs together, or an
            artefact that contradicts itself.
    """
    matrix = build_matrix(protocol, runs, tolerated, absent or {})
    comparison = _compare(matrix, provenance)
    fits = _fit(matrix)
    matrix = _with_fit_reasons(matrix, fits)
    intervals, kept = _resample(matrix, fits, jobs, advance)
    tables = {v: _table(comparison, v, matrix) for v in _versions(comparison)}
    main = tables[comparison.mapping_version]
    contrasts = _h1b_evidence(matrix, kept)
    sanity = sanity_block(main, contrasts.contrasts, intervals)
    # Nothing is built on data that cannot be true (protocol, "Data sanity block contract").
    stops = [f"red flag in the decision's own numbers: {flag}" for flag in sanity.red_flags]
    stops += [] if exploratory else verdicts.stop_conditions(matrix)
    first = verdicts.verdict_h1a(matrix, _h1a_evidence(comparison, main, matrix), stops)
    second = verdicts.verdict_h1b(matrix, contrasts, stops)
    simulated = any(facts.run.simulated for facts in matrix.facts.values())
    return Decision(
        schema=SCHEMA,
        label=verdicts.decision_label(
            matrix.file, exploratory=exploratory, simulated=simulated, rehearsed=rehearsed
        ),
        exploratory=exploratory,
        simulated=simulated,
        h1a=first,
        h1b=second,
        compound=verdicts.verdict_compound(matrix, first, second, stops),
        inversions=main.comparisons,
        alternatives={v: t for v, t in tables.items() if v != comparison.mapping_version},
        explored={v: h1a.explored_comparisons(comparison, v, matrix) for v in tables}
        if exploratory
        else {},
        disagreements=notes.table_disagreements(tables, comparison.mapping_version)
        + list(comparison.disagreements),
        runs=list(matrix.statuses.values()),
        cells=side.registered_cells(matrix),
        intervals=intervals,
        interference=_fit_records(fits, intervals),
        factorial=side.factorial_effects(matrix, kept),
        confirmations=side.confirmation_deltas(matrix),
        parallelism=side.parallelism(matrix),
        warmup_branch=side.warmup_branch(matrix),
        notes=[
            *([] if stop is None else [stop]),
            *notes.decision_notes(matrix),
            *notes.dependence_note(intervals),
        ],
        sanity=sanity,
        provenance=provenance,
        rank_spreads=[row for row in comparison.rank_spreads if row.ranks > 1],
        rankings=main.rankings,
        tau=main.tau,
    )


def _compare(matrix: Matrix, provenance: Provenance) -> Comparison:
    entries = [
        RunInput(facts.kernels, facts.source, metrics={}, red_flags=facts.red_flags)
        for facts in matrix.facts.values()
    ]
    return compare_runs(entries, comparison_rule(matrix.file), provenance)


def _versions(comparison: Comparison) -> list[str]:
    return [comparison.mapping_version, *comparison.alternatives]


def _fit(matrix: Matrix) -> dict[str, CellFit]:
    """Fit every group of valid primary runs under one config and load point."""
    groups: dict[tuple[str, str, float], dict[str, RunFacts]] = {}
    for key, facts in matrix.facts.items():
        usable = not matrix.run_reasons(key) and isinstance(facts.series, CleanSeries)
        if key[3] == "primary" and usable:
            place = (key[1], key[2], facts.run.time_scale)
            groups.setdefault(place, {})[facts.run.name] = facts
    found: dict[str, CellFit] = {}
    for members in groups.values():
        series = {
            name: (facts.run, facts.series)
            for name, facts in members.items()
            if isinstance(facts.series, CleanSeries)
        }
        found |= fit_group(series, matrix.file)
    return found


def _with_fit_reasons(matrix: Matrix, fits: Mapping[str, CellFit]) -> Matrix:
    """Put why a fit gave no ``I_mix`` where the analysis could only say who may compute it."""
    every = dict(matrix.facts)
    for key, facts in every.items():
        fit = fits.get(facts.run.name)
        if fit is not None and fit.i_mix_reason is not None:
            missing = {**facts.missing_waste, "I_mix": fit.i_mix_reason}
            every[key] = replace(facts, missing_waste=missing)
    return replace(matrix, facts=every)


def _resample(
    matrix: Matrix, fits: dict[str, CellFit], jobs: int, advance: Callable[[], None]
) -> tuple[list[RunIntervals], dict[str, dict[str, Resampled]]]:
    """Resample every run; keep what contrasts and factorial need."""
    intervals = []
    kept: dict[str, dict[str, Resampled]] = {}
    every = {
        key: fits[facts.run.name].series if facts.run.name in fits else facts.series
        for key, facts in matrix.facts.items()
    }
    tasks = [
        ResampleTask(
            matrix.facts[key].run.name,
            series,
            matrix.file.statistics,
            matrix.seed,
            frozenset(_keep(matrix, key)),
        )
        for key, series in every.items()
        if isinstance(series, CleanSeries)
    ]
    done = resample_many(tasks, jobs, advance)
    for key, series in every.items():
        facts = matrix.facts[key]
        name = facts.run.name
        marks = [*matrix.statuses[key].invalid_reasons, *matrix.statuses[key].marks]
        if isinstance(series, Missing):
            intervals.append(
                RunIntervals(name, None, None, _plain(facts, series.reason), list(SIGNED), marks)
            )
            advance()
            continue
        estimates, resamples = done[name]
        if resamples:
            kept[name] = resamples
        plan = series.plan(circular=False)
        intervals.append(
            RunIntervals(name, plan.bins, plan.drawn_blocks, estimates, list(SIGNED), marks)
        )
    return intervals, kept


def _keep(matrix: Matrix, key: tuple[str, str, str, str]) -> set[str]:
    """Metrics whose resamples are needed again."""
    cells, keep = matrix.file.cells, set()
    if key == matrix.primary(key[0]):
        keep |= {*BOOTSTRAPPED_WASTE, h1b.EFFICIENCY, h1b.RESIDUAL}
    configs = {cells.baseline_config, *cells.sentinel_configs}
    if key[0] in cells.sentinel_patterns and key[1] in configs and key[3] == "primary":
        keep |= set(FACTORIAL)
    return keep


def _plain(facts: RunFacts, reason: str) -> dict[str, Estimate]:
    """Values without intervals, each with the reason."""
    values = {**facts.metrics, **facts.waste}
    return {name: Estimate(value=value, reason=reason) for name, value in values.items()}


def _fit_records(
    fits: dict[str, CellFit], intervals: Sequence[RunIntervals]
) -> list[InterferenceFit]:
    by_run = {item.run: item.metrics for item in intervals}
    return [fit_record(fit, by_run[name]) for name, fit in fits.items()]


def _table(comparison: Comparison, version: str, matrix: Matrix) -> TableVerdict:
    """H1a's comparisons, null and tau under one mapping table."""
    comparisons = h1a.primary_comparisons(comparison, version, matrix)
    table = h1a.table_of(comparison, version)
    load = matrix.file.load
    primary = (load.primary_config, load.primary_load_point, "primary")
    found = TableVerdict(
        mapping_version=version,
        mapping_sha256=table.mapping_sha256,
        tested=sum(1 for item in comparisons if item.holm_p is not None),
        met_gaps=sum(1 for item in comparisons if item.evaluable and item.gap_criteria_met),
        accepted=[item for item in comparisons if item.accepted],
        comparisons=comparisons,
        null=null_evidence(comparison, version, matrix),
        tau=[row for row in table.tau if (row.config, row.load_point, row.role) == primary],
        rankings=[
            row for row in table.windows if (row.config, row.load_point, row.role) == primary
        ],
    )
    return msgspec.structs.replace(found, sanity=table_sanity(found))


def _h1a_evidence(comparison: Comparison, main: TableVerdict, matrix: Matrix) -> H1aEvidence:
    statistics = matrix.file.statistics
    version = main.mapping_version
    reasons = {p: h1a.obstacles(matrix, p, version) for p in matrix.patterns}
    return H1aEvidence(
        mapping_version=version,
        patterns=[p for p, found in reasons.items() if not found],
        not_evaluable={p: found for p, found in reasons.items() if found},
        registered=len(main.comparisons),
        evaluable=sum(1 for item in main.comparisons if item.evaluable),
        tested=main.tested,
        met_gaps=main.met_gaps,
        accepted=main.accepted,
        alpha=statistics.alpha,
        permutations=statistics.permutations,
        seed=matrix.seed,
        statistic=statistics.permutation_statistic,
        sides=statistics.permutation_sides,
        strengthening=[
            Reproduction(record, accepted)
            for record, accepted in h1a.reproductions(comparison, version, matrix, main.comparisons)
        ],
        null=main.null,
        notes=notes.h1a_notes(main),
        gap_share_min=matrix.file.ranking.inversion_gap_share,
        classifiable_min=matrix.file.gates.classifiable_min,
    )


def _h1b_evidence(matrix: Matrix, kept: h1b.Kept) -> H1bEvidence:
    contrasts = h1b.decide_contrasts(matrix, kept)
    thresholds = matrix.file.h1b.thresholds
    return H1bEvidence(
        contrasts=contrasts,
        not_evaluable={_name(c): c.reasons for c in contrasts if not c.evaluable},
        passing=[_name(c) for c in contrasts if c.passes],
        thresholds=dict(thresholds),
        alpha=matrix.file.statistics.alpha,
        resamples=matrix.file.statistics.bootstrap_resamples,
        seed=matrix.seed,
        correction_families={metric: len(contrasts) for metric in thresholds},
        raggedness=h1b.raggedness(matrix),
        all_below=_all_below(contrasts),
        notes=notes.h1b_notes(contrasts),
    )


def _name(contrast: Contrast) -> str:
    return f"{contrast.irregular} vs {contrast.control}"


def _all_below(contrasts: Sequence[Contrast]) -> bool | None:
    """Whether every metric of every contrast is known and below its threshold."""
    metrics = [metric for contrast in contrasts for metric in contrast.metrics]
    if any(m.difference is not None and m.difference >= (m.threshold or 0.0) for m in metrics):
        return False
    return None if any(m.difference is None for m in metrics) else True
