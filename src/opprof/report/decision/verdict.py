"""The outcomes with their reasons, the criteria they rest on, and what could not be judged."""

from __future__ import annotations

from opprof.artifacts.decision import Contrast, DecidedComparison, Decision
from opprof.report.blocks import Block, Cell, Section, Table, Text
from opprof.report.decision.cells import met_cell, verdict_cell
from opprof.report.formats import NULL, number, points
from opprof.report.tables.cells import names, text
from opprof.words import plural


def verdict_part(decision: Decision, trouble: tuple[str, ...]) -> Section:
    """Return red flags, outcomes, criteria, NOT EVALUABLE lists and the methods' assumptions."""
    blocks: list[Block] = []
    if decision.sanity.red_flags:
        blocks.append(
            Text(tuple(decision.sanity.red_flags), "fail", bullets=True, heading="Red flags")
        )
    stops = tuple(decision.compound.evidence.stop_conditions)
    if stops:
        blocks.append(Text(stops, "fail", bullets=True, heading="Stop conditions of the matrix"))
    if trouble:
        blocks.append(Text(trouble, "warn", bullets=True, heading="Before you read on"))
    blocks += [_outcomes(decision), _criteria_h1a(decision), _criteria_h1b(decision)]
    blocks += _not_evaluable(decision)
    blocks.append(
        Text(tuple(decision.notes), bullets=True, heading="What the methods assume, as measured")
    )
    lead = (
        f"Kind of decision: {decision.label}. From each outcome follow the links: criterion, "
        "comparison, windows, active steps, artefact."
    )
    return Section("decision", f"Decision: {decision.compound.outcome}", lead, tuple(blocks))


def _outcomes(decision: Decision) -> Table:
    parts = (
        ("compound hypothesis", decision.compound, "#decision-criteria-h1a"),
        ("H1a, composition", decision.h1a, "#decision-criteria-h1a"),
        ("H1b, rectangular-benchmark miss", decision.h1b, "#decision-criteria-h1b"),
    )
    rows = tuple(
        (
            Cell(name, tone="strong"),
            verdict_cell(part.outcome, href),
            text("; ".join(part.reasons)),
        )
        for name, part, href in parts
    )
    return Table("decision-outcomes", "Outcomes", names("hypothesis", "outcome", "reasons"), rows)


def _criteria_h1a(decision: Decision) -> Table:
    evidence, null = decision.h1a.evidence, decision.h1a.evidence.null
    judged = [item for item in decision.inversions if item.evaluable]
    met = [item for item in judged if item.gap_criteria_met]
    rejected = [i for i in met if i.holm_p is not None and i.holm_p <= evidence.alpha]
    passing = [item for item in rejected if item.classifiable]
    gap, least = evidence.gap_share_min, evidence.classifiable_min
    registered = len(evidence.patterns) + len(evidence.not_evaluable)
    rows = [
        (
            text("1 and 2: lead in both windows, reversed in both windows of the other"),
            text("" if gap is None else f"at least {points(gap).lstrip('+')} pp in each"),
            text(_of(met, judged), _named(met)),
            met_cell(bool(met) if judged else None),
            Cell("comparisons", href="#h1a-met"),
        ),
        (
            text("3: window-stratified permutation test, Holm over all tested pairs"),
            text(f"corrected p at most {evidence.alpha:g}"),
            text(f"{len(rejected)} of those {len(met)}", _named(rejected)),
            met_cell(bool(rejected) if judged else None),
            Cell("comparisons", href="#h1a-met"),
        ),
        (
            text("4: classifiable kernel time in all four windows"),
            text("" if least is None else f"at least {least:.0%}"),
            text(f"{len(passing)} of those {len(rejected)}", _named(passing)),
            met_cell(bool(passing) if judged else None),
            Cell("windows", href="#h1a-met"),
        ),
        (
            text("null: one top family in both windows of every primary pattern"),
            text("never “other”, ties within one point count"),
            text(", ".join(null.common_top) or "none"),
            met_cell(null.same_top),
            Cell("top families", href="#h1a-tops"),
        ),
        (
            text("null: every simultaneous upper bound below the gap"),
            text("" if gap is None else f"below {points(gap).lstrip('+')} pp"),
            text(
                NULL
                if null.greatest_bound is None
                else f"greatest {points(null.greatest_bound)} pp of {null.bounded} leads"
            ),
            met_cell(null.bounds_below),
            Cell("bounds", href="#h1a-bounds"),
        ),
        (
            text("null: the matrix is complete"),
            text("every registered pattern evaluable"),
            text(f"{len(evidence.patterns)} of {registered}"),
            met_cell(null.evaluable, "; ".join(null.reasons)),
            Cell("what is missing", href="#decision-cells"),
        ),
    ]
    return Table(
        "decision-criteria-h1a",
        "H1a: confirmed when one comparison meets 1 to 4; the null needs its three lines",
        names("criterion", "the protocol asks", "found", "met", "follow"),
        tuple(rows),
    )


def _of(found: list[DecidedComparison], judged: list[DecidedComparison]) -> str:
    return f"{len(found)} of {plural(len(judged), 'evaluable comparison')}"


def _named(found: list[DecidedComparison]) -> str:
    return "; ".join(f"{i.pattern_p}/{i.pattern_q} {i.family_a}/{i.family_b}" for i in found[:10])


def _criteria_h1b(decision: Decision) -> Table:
    evidence = decision.h1b.evidence
    usable = [item for item in evidence.contrasts if item.evaluable]
    above = [c for c in usable if any(m.exceeds_threshold for m in c.metrics)]
    material = [c for c in usable if c.passing_metrics]
    slower = [c for c in usable if c.association is not None and c.association.met]
    passing = [c for c in usable if c.passes]
    thresholds = ", ".join(f"{name} {value:g}" for name, value in evidence.thresholds.items())
    none = None if not usable else False
    rows = [
        (
            text("waste above its threshold, irregular less control"),
            text(thresholds),
            _contrasts(above, usable),
            met_cell(bool(above) or none),
            Cell("contrasts", href="#h1b-metrics"),
        ),
        (
            text("and its corrected interval excludes zero (R64: exact)"),
            text(f"Holm within each waste family at {evidence.alpha:g}"),
            _contrasts(material, usable),
            met_cell(bool(material) or none),
            Cell("contrasts", href="#h1b-metrics"),
        ),
        (
            text("association: efficiency at least 5 % worse, or a positive residual"),
            text("interval of the residual above zero"),
            _contrasts(slower, usable),
            met_cell(bool(slower) or none),
            Cell("association", href="#h1b-association"),
        ),
        (
            text("both together in one contrast"),
            text("one is enough"),
            _contrasts(passing, usable),
            met_cell(bool(passing) or none),
            Cell("association", href="#h1b-association"),
        ),
        (
            text("null: every metric of every contrast known and below its threshold"),
            text(f"all {len(evidence.contrasts)} contrasts"),
            text(f"{len(usable)} evaluable"),
            met_cell(evidence.all_below),
            Cell("contrasts", href="#h1b-metrics"),
        ),
    ]
    return Table(
        "decision-criteria-h1b",
        "H1b: confirmed when one contrast is material and slower; the null needs the last line",
        names("criterion", "the protocol asks", "found", "met", "follow"),
        tuple(rows),
    )


def _contrasts(found: list[Contrast], usable: list[Contrast]) -> Cell:
    named = ", ".join(f"{c.irregular} vs {c.control}" for c in found)
    return Cell(f"{number(len(found))} of {plural(len(usable), 'evaluable contrast')}", sub=named)


def _not_evaluable(decision: Decision) -> list[Block]:
    first, second = decision.h1a.evidence.not_evaluable, decision.h1b.evidence.not_evaluable
    lines = [f"H1a, {name}: {'; '.join(reasons)}" for name, reasons in first.items()]
    lines += [f"H1b, {name}: {'; '.join(reasons)}" for name, reasons in second.items()]
    missing = decision.compound.evidence.missing_cells
    if missing:
        lines.append(f"Cells without two usable runs: {', '.join(missing)}.")
    if not lines:
        return []
    heading = "NOT EVALUABLE: never zero, never copied, never imputed"
    return [Text(tuple(lines), "ne", bullets=True, heading=heading)]
