"""Several analysed runs to one comparison: the only place that puts the parts together."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from opprof.artifacts.common import Provenance
from opprof.artifacts.comparison import (
    SCHEMA,
    ComparedRun,
    Comparison,
    ComparisonRule,
    PatternPair,
    RankedFamily,
    RankSpread,
    TableComparison,
    TauPair,
    Unpaired,
    WindowRanking,
)
from opprof.compare.cells import cell_summaries
from opprof.compare.disagreement import disagreements
from opprof.compare.inversions import ranked_families, registered_comparisons
from opprof.compare.pairing import (
    Group,
    check_identities,
    group_runs,
    pattern_pair,
    unpaired_runs,
)
from opprof.compare.ranking import kendall_tau_b, tie_places
from opprof.compare.ratios import metric_ratios, ratio_aggregates, run_metrics
from opprof.compare.sanity import sanity_block
from opprof.compare.values import RunInput, RunShares, WindowShares, exact, run_shares, table_hash
from opprof.errors import InputError
from opprof.mapping.families import FAMILIES


def compare_runs(
    entries: Sequence[RunInput], rule: ComparisonRule | None, provenance: Provenance
) -> Comparison:
    """Compare runs of any number of patterns, configs and load points.

    The result does not depend on the order of ``entries``. Without a rule (no protocol bound)
    shares and gaps are shown and nothing is judged.

    Raises:
        InputError: no run; two runs with one identity; a run without results under the deciding
            table; one table version with two hashes; an artefact that contradicts itself.
    """
    if not entries:
        raise InputError("no runs to compare")
    check_identities(entries)
    entries = sorted(entries, key=lambda entry: entry.kernels.run.name)
    version = _deciding_version(entries, rule)
    hashes = _table_hashes(entries)
    if any(table_hash(entry.kernels, version) is None for entry in entries):
        lacking = next(e for e in entries if table_hash(e.kernels, version) is None)
        raise InputError(f"has no results under mapping table {version!r}", path=lacking.source)
    complete = [v for v in sorted(hashes) if all(table_hash(e.kernels, v) for e in entries)]
    runs = {v: [run_shares(entry, v) for entry in entries] for v in complete}
    tables = {v: _table(v, hashes[v], runs[v], rule) for v in complete}
    deciding = tables[version]
    groups = group_runs(runs[version])
    sentences = []
    for other in complete:
        if other != version:
            sentences += disagreements(deciding, tables[other], runs[version], runs[other], rule)
    metrics = [
        (shares, run_metrics(shares, entry.metrics))
        for shares, entry in zip(runs[version], entries, strict=True)
    ]
    ratios = [] if rule is None else metric_ratios(metrics, rule)
    aggregates = ratio_aggregates(ratios)
    return Comparison(
        schema=SCHEMA,
        rule=rule,
        mapping_version=version,
        mapping_sha256=hashes[version],
        runs=[_compared(entry) for entry in runs[version]],
        unpaired=unpaired_runs(groups) + _partial_tables(entries, hashes, complete),
        pattern_pairs=[pattern_pair(group, p, q, rule) for group in groups for p, q in group.pairs],
        windows=deciding.windows,
        rank_spreads=deciding.rank_spreads,
        tau=deciding.tau,
        inversions=deciding.inversions,
        alternatives={v: tables[v] for v in complete if v != version},
        disagreements=sentences,
        ratios=ratios,
        aggregates=aggregates,
        sanity=sanity_block(deciding, ratios, runs[version]),
        provenance=provenance,
        cells=cell_summaries(metrics, rule),
    )


def _deciding_version(entries: Sequence[RunInput], rule: ComparisonRule | None) -> str:
    if rule is not None:
        return rule.mapping_pinned
    first = entries[0]
    for entry in entries:
        if entry.kernels.mapping_version != first.kernels.mapping_version:
            raise InputError(
                f"{entry.source} was decided by {entry.kernels.mapping_version},"
                f" {first.source} by {first.kernels.mapping_version}; bind a protocol that pins one"
            )
    return first.kernels.mapping_version


def _table_hashes(entries: Sequence[RunInput]) -> dict[str, str]:
    """Return version to hash over all runs; one version must be one table."""
    found: dict[str, tuple[str, str]] = {}
    for entry in entries:
        kernels = entry.kernels
        versions = {kernels.mapping_version, *kernels.alternatives}
        for version in sorted(versions):
            digest = table_hash(kernels, version)
            assert digest is not None
            known, source = found.setdefault(version, (digest, entry.source))
            if known != digest:
                raise InputError(
                    f"mapping table {version!r} has hash {digest[:12]} in {entry.source} and"
                    f" {known[:12]} in {source}; analyse both again with one table"
                )
    return {version: digest for version, (digest, _) in found.items()}


def _partial_tables(
    entries: Sequence[RunInput], hashes: dict[str, str], complete: Sequence[str]
) -> list[Unpaired]:
    """Say which alternative tables are left out because some run lacks them."""
    return [
        Unpaired(
            run=entry.kernels.run.name,
            reason=f"has no results under mapping table {version!r}, which is not compared",
        )
        for version in sorted(set(hashes) - set(complete))
        for entry in entries
        if table_hash(entry.kernels, version) is None
    ]


def _compared(entry: RunShares) -> ComparedRun:
    return ComparedRun(
        run=entry.run,
        source=entry.source,
        windows=list(entry.window_ids),
        ranks=list(entry.ranks),
        breakdown_valid=entry.breakdown_valid,
        marks=list(entry.marks),
    )


def _table(
    version: str, digest: str, runs: Sequence[RunShares], rule: ComparisonRule | None
) -> TableComparison:
    groups = group_runs(runs)
    rankings = {
        (entry.run.name, window.window, window.rank): window_ranking(entry, window, rule)
        for entry in runs
        for window in entry.windows
    }
    inversions = []
    for group in groups:
        for p, q in group.pairs:
            pair: PatternPair = pattern_pair(group, p, q, rule)
            inversions += registered_comparisons(p, q, rule, evaluable=pair.evaluable)
    table = TableComparison(
        mapping_version=version,
        mapping_sha256=digest,
        windows=list(rankings.values()),
        rank_spreads=[row for entry in runs for row in rank_spreads(entry)],
        tau=[row for group in groups for row in tau_pairs(group, rankings)],
        inversions=inversions,
    )
    return msgspec.structs.replace(table, sanity=sanity_block(table, [], runs))


def window_ranking(
    entry: RunShares, window: WindowShares, rule: ComparisonRule | None
) -> WindowRanking:
    """Return one window with its families ranked; ``other`` and opaque replays stay visible."""
    shares = {name: window.share(name) for name in FAMILIES}
    known = {name: share for name, share in shares.items() if share is not None}
    ranked = {name: known[name] for name in ranked_families(rule) if name in known}
    places = tie_places(ranked, exact(rule.tie_share)) if rule is not None else {}
    if rule is None:
        greatest = max(ranked.values(), default=None)
        top = [name for name, share in ranked.items() if share == greatest]
    else:
        top = [name for name, place in places.items() if place == 1]
    classified = window.classified
    judged = rule is not None and classified is not None
    return WindowRanking(
        run=entry.run.name,
        pattern=entry.run.pattern,
        config=entry.run.config,
        load_point=entry.run.load_point,
        role=entry.run.role,
        window=window.window,
        rank=window.rank,
        accepted=window.accepted,
        kernel_ns=window.kernel_ns,
        classified_fraction=None if classified is None else float(classified),
        classifiable=_at_least(classified, rule) if judged else None,
        families={
            name: RankedFamily(
                ns=window.ns(name), share=_float(shares[name]), place=places.get(name)
            )
            for name in FAMILIES
        },
        top=sorted(top, key=lambda name: (-ranked[name], FAMILIES.index(name))),
    )


def rank_spreads(entry: RunShares) -> list[RankSpread]:
    """Return mean, least and greatest share over ranks, for runs that have more than one."""
    if len(entry.ranks) < 2:
        return []
    rows = []
    for window in entry.window_ids:
        items = [item for item in entry.of_window(window) if item.kernel_ns]
        if not items:
            continue
        for family in FAMILIES:
            shares = [Fraction(item.ns(family), item.kernel_ns) for item in items]
            rows.append(
                RankSpread(
                    run=entry.run.name,
                    window=window,
                    family=family,
                    ranks=len(shares),
                    mean_share=float(sum(shares) / len(shares)),
                    min_share=float(min(shares)),
                    max_share=float(max(shares)),
                )
            )
    return rows


def tau_pairs(group: Group, rankings: dict[tuple[str, int, int], WindowRanking]) -> list[TauPair]:
    """Return tau-b for every pair of windows of a group on the same rank.

    Two windows of one pattern are pairs too: how far a pattern agrees with itself is the scale for
    how far two patterns do.
    """
    vectors = [
        (
            entry.run.pattern,
            item.window,
            item.rank,
            rankings[entry.run.name, item.window, item.rank],
        )
        for entry in group.runs
        for item in entry.windows
    ]
    rows = []
    for index, (pattern_p, window_p, rank, first) in enumerate(vectors):
        for pattern_q, window_q, other_rank, second in vectors[index + 1 :]:
            if other_rank != rank:
                continue
            rows.append(
                TauPair(
                    config=group.config,
                    load_point=group.load_point,
                    role=group.role,
                    pattern_p=pattern_p,
                    window_p=window_p,
                    pattern_q=pattern_q,
                    window_q=window_q,
                    rank=rank,
                    tau_b=_tau(first, second),
                )
            )
    return rows


def _tau(first: WindowRanking, second: WindowRanking) -> float | None:
    places = [(here.place, second.families[name].place) for name, here in first.families.items()]
    known = [(x, y) for x, y in places if x is not None and y is not None]
    return kendall_tau_b([x for x, _ in known], [y for _, y in known])


def _at_least(classified: Fraction | None, rule: ComparisonRule | None) -> bool | None:
    if classified is None or rule is None:
        return None
    return classified >= exact(rule.classifiable_min)


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
