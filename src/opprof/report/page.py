"""The page in reading order: which figure, table and sentence stands where, without markup."""

from __future__ import annotations

from msgspec import Struct

from opprof.artifacts.common import SanityBlock
from opprof.artifacts.comparison import Comparison
from opprof.report.blocks import Block, Cell, Figure, Fold, Gates, Section, Terms, Text
from opprof.report.cells import cells_section
from opprof.report.decision.beside import beside_part, runs_part
from opprof.report.decision.h1a import h1a_part
from opprof.report.decision.h1b import h1b_part
from opprof.report.decision.verdict import verdict_part
from opprof.report.figures import load as load_figures
from opprof.report.figures import shares as share_figures
from opprof.report.figures import steps as step_figures
from opprof.report.inputs import ReportInput, RunView, flags_of
from opprof.report.sanity import report_sanity
from opprof.report.tables import load, represent, runs, shares, waste
from opprof.report.tables import ranking as ranking_tables
from opprof.report.tables.cells import run_cell
from opprof.report.text import ranking, verdict
from opprof.report.text.glossary import GLOSSARY
from opprof.words import plural


class Page(Struct, frozen=True):
    """The whole report as values."""

    title: str
    banner: str
    """Shown on top when any run is simulated; empty otherwise."""
    sections: tuple[Section, ...]
    sanity: SanityBlock
    """Over everything the page shows."""


def build_page(report: ReportInput) -> Page:
    """Arrange the report: verdict first, then evidence, then gates, sanity and provenance."""
    decided = decision_sections(report)
    evidence = run_sections(report)
    own = report_sanity(report, (*decided, *evidence))
    overview = (verdict_section(report, own),) if report.runs else ()
    return Page(
        title=report.title,
        banner=_banner(report),
        sections=(
            *decided,
            *overview,
            *evidence,
            sanity_section(report, own),
            provenance_section(report),
            glossary_section(),
        ),
        sanity=own,
    )


def decision_sections(report: ReportInput) -> tuple[Section, ...]:
    """Return the decision from outcome to raw number; nothing without one."""
    decision = report.decision
    if decision is None:
        return ()
    return (
        verdict_part(decision, report.decision_trouble),
        h1a_part(decision, report),
        h1b_part(decision),
        beside_part(decision),
        runs_part(decision),
    )


def run_sections(report: ReportInput) -> tuple[Section, ...]:
    """Return the evidence of the runs themselves; nothing without runs."""
    if not report.runs:
        return ()
    return (
        shares_section(report),
        modes_section(report),
        *(ranking_section(part) for part in report.compared),
        *(cells_section(part) for part in report.compared),
        load_section(report),
        steps_section(report),
        waste_section(report),
        represent_section(report),
        device_section(report),
        gates_section(report),
    )


def _banner(report: ReportInput) -> str:
    if report.decision is not None and report.decision.simulated and not report.runs:
        return "SIMULATED – the decision rests on runs of the embedded engine. No measurement."
    simulated = [run for run in report.runs if run.identity.simulated]
    if not simulated:
        return ""
    if len(simulated) == len(report.runs):
        return (
            "SIMULATED – every run on this page was written by the embedded engine. No measurement."
        )
    return f"Contains SIMULATED runs ({len(simulated)} of {len(report.runs)}): no measurements."


def verdict_section(report: ReportInput, own: SanityBlock) -> Section:
    """Red flags, then invalid runs, then what limited the GPU, then the table of runs."""
    blocks: list[Block] = []
    red = verdict.red_flag_sentences(report, own.red_flags)
    if red:
        blocks.append(Text(red, tone="fail", bullets=True, heading="Red flags"))
    invalid = verdict.invalid_sentences(report)
    if invalid:
        blocks.append(Text(invalid, tone="fail", bullets=True, heading="Invalid runs"))
    standing = verdict.standing_sentences(report)
    if standing:
        blocks.append(Text(standing, tone="warn", bullets=True, heading="Before you read on"))
    limits = verdict.limit_sentences(report)
    blocks.append(Text(limits, bullets=True, heading="What the GPU spent its time on"))
    change = ranking.ranking_sentences(report)
    blocks.append(Text(change, bullets=True, heading="Does the ranking change between patterns?"))
    mapping = verdict.mapping_sentences(report)
    if mapping:
        blocks.append(Text(mapping, bullets=True, heading="Where the mapping tables disagree"))
    blocks.append(runs.overview("runs", report))
    return Section("verdict", "Verdict", verdict.headline(report), tuple(blocks))


def shares_section(report: ReportInput) -> Section:
    """Family shares under the deciding table, beside it under every other one."""
    blocks: list[Block] = []
    bars = [bar for run in report.runs for bar in share_figures.window_bars(run, None)]
    table = shares.by_window("shares-table", report, None)
    deciding = sorted({run.kernels.mapping_version for run in report.runs if run.kernels})
    title = f"Operator families under the deciding mapping ({', '.join(deciding)})"
    blocks.append(share_figures.stacked("shares", title, bars, table, ()) if bars else table)
    for version in sorted({v for run in report.runs for v in run.other_mappings}):
        other = [bar for run in report.runs for bar in share_figures.window_bars(run, version)]
        beside = shares.by_window(f"shares-{version}-table", report, version)
        heading = f"The same windows under mapping {version}"
        if other:
            blocks.append(share_figures.stacked(f"shares-{version}", heading, other, beside, ()))
    ranks = shares.over_ranks("ranks", report)
    if ranks is not None:
        blocks.append(ranks)
    blocks.append(shares.attention("attention", report))
    lead = (
        "One bar per window and rank: summed GPU kernel time of the eight active steps by family. "
        "Two windows of one run can differ much; a single one is never the answer."
    )
    return Section("families", "Operator families", lead, tuple(blocks))


def modes_section(report: ReportInput) -> Section:
    """Family shares by graph mode, for modes with enough active steps."""
    table = shares.by_mode("modes-table", report)
    bars = [bar for run in report.runs for bar in share_figures.mode_bars(run)]
    title = "Operator families by graph mode"
    block = share_figures.stacked("modes", title, bars, table, ()) if bars else table
    lead = (
        "Steps replayed from a CUDA graph and eager steps do different work; a mode appears when "
        "it has at least eight active steps over the two windows."
    )
    return Section("graph-modes", "By graph mode", lead, (block,))


def ranking_section(report: ReportInput) -> Section:
    """Inversions under every mapping table, places, tau-b, ratios and their geometric means."""
    lead = (
        "An inversion needs two families to swap their order between two patterns, by the "
        "protocol's margin in both windows of each; a permutation test and enough classified "
        "kernel time complete the rule."
    )
    comparison, tag = report.comparison, report.tag
    ident, title = f"ranking{tag}", report.titled("Ranking and inversions")
    if comparison is None:
        reason = f"The runs were not compared: {report.comparison_reason}."
        return Section(ident, title, lead, (Text((reason,), tone="ne"),))
    blocks: list[Block] = [ranking_tables.pairs(f"pairs{tag}", report, comparison.pattern_pairs)]
    unpaired = tuple(f"{row.run}: {row.reason}" for row in comparison.unpaired)
    if unpaired:
        blocks.append(Text(unpaired, tone="ne", bullets=True, heading="Not compared"))
    for index, group in enumerate(ranking.groups(comparison)):
        blocks.extend(_group_blocks(report, comparison, index, group))
    told = verdict.mapping_notes(report) + ranking.disagreement_sentences(report)
    if told:
        heading = f"Where the mapping tables disagree: {plural(len(told), 'finding')}"
        blocks.append(Fold(heading, (Text(tuple(dict.fromkeys(told)), bullets=True),)))
    blocks.append(
        Fold(
            "Places of the families in every window",
            (ranking_tables.places(f"places{tag}", report, comparison.windows),),
        )
    )
    ratios = ranking_tables.ratios(f"ratios{tag}", report, comparison)
    means = ranking_tables.aggregates(f"aggregates{tag}", report, comparison)
    blocks.append(
        Fold("Ratios to the baseline config and their means", (ratios, means), printed=False)
    )
    return Section(ident, title, lead, tuple(blocks))


def _group_blocks(
    report: ReportInput, comparison: Comparison, index: int, group: ranking.Group
) -> list[Block]:
    blocks: list[Block] = []
    tables = [(f"deciding mapping {comparison.mapping_version}", comparison.inversions)]
    for version, other in comparison.alternatives.items():
        tables.append((f"mapping {version}", other.inversions))
    for number, (name, rows) in enumerate(tables):
        mine = [row for row in rows if ranking.group_of(row) == group]
        if not mine:
            continue
        caption = f"Inversions, {ranking.group_name(group)}, {name}"
        ident = f"inversions-{index}-{number}{report.tag}"
        blocks.append(ranking_tables.matrix(ident, caption, report, mine, turned=True))
        rest = ranking_tables.matrix(f"{ident}-rest", caption, report, mine, turned=False)
        summary = f"Pairs of families whose order holds, {ranking.group_name(group)}, {name}"
        blocks.append(Fold(summary, (rest,), printed=False))
    for rank in sorted({row.rank for row in comparison.tau if ranking.group_of(row) == group}):
        ident = f"tau-{index}-{rank}{report.tag}"
        blocks.append(ranking_tables.tau(ident, report, group, comparison.tau, rank))
    return blocks


def load_section(report: ReportInput) -> Section:
    """Throughput and latency as the client saw them."""
    rates = load.throughput("throughput-table", report)
    times = load.latency("latency-table", report)
    blocks: list[Block] = [
        load_figures.throughput("throughput", report, rates) or rates,
        load_figures.latency("latency", report, times) or times,
    ]
    parts = load.segments("segments", report)
    if parts is not None:
        blocks.append(Fold("Throughput by clean segment", (parts,)))
    lead = (
        "Completions inside the clean union count, whenever they were admitted. Latencies are "
        "given from the scheduled time (what a user waits) and from the admitted time."
    )
    return Section("load", "Throughput and latency", lead, tuple(blocks))


def steps_section(report: ReportInput) -> Section:
    """Step timelines, durations by mode and composition by interval."""
    blocks: list[Block] = []
    durations = load.step_durations("durations-table", report)
    blocks.append(step_figures.durations_by_mode("durations", report, durations) or durations)
    for number, run in enumerate(report.runs):
        blocks.extend(_timeline_blocks(number, run))
    lead = (
        "What the engine did, step by step, and how the profiler's windows and their recovery lie "
        "beside the clean time."
    )
    return Section("steps", "Engine steps", lead, tuple(blocks))


def _timeline_blocks(number: int, run: RunView) -> list[Block]:
    table = load.intervals(f"steps-{number}-table", run)
    figure: Figure | None = step_figures.timeline(f"steps-{number}", run, table)
    composition = load.composition(f"composition-{number}", run)
    folded = Fold(f"Composition of {run.label} by interval", (composition,))
    if figure is not None:
        return [figure, folded]
    reason = f"No step timeline of {run.label}: {run.steps_reason}."
    return [Text((reason,), tone="ne"), folded]


def waste_section(report: ReportInput) -> Section:
    """Waste ratios with their null reasons, and the distribution of padding."""
    blocks: tuple[Block, ...] = (
        waste.waste("waste-table", report),
        Fold(
            "Distribution of padded tokens per graph-hit step",
            (waste.padding_distribution("padding", report),),
            printed=False,
        ),
    )
    lead = "Work that served nobody, from clean steps only; a missing value names its reason."
    return Section("waste", "Waste", lead, blocks)


def represent_section(report: ReportInput) -> Section:
    """The representativeness gate and what it does by itself."""
    blocks: tuple[Block, ...] = (
        represent.verdicts("represent-table", report),
        Fold("Means and deviations of every feature", (represent.features("smd", report),)),
    )
    lead = (
        "A profile window must look like the clean time beside it. Beside each verdict stands how "
        "often the gate fails when nothing at all has changed."
    )
    return Section("represent", "Representativeness", lead, blocks)


def device_section(report: ReportInput) -> Section:
    """Times kept out of the shares, and kernels no rule matched."""
    blocks: list[Block] = [
        shares.fill("fill-table", report),
        shares.device("device-table", report),
    ]
    for number, run in enumerate(report.runs):
        table = shares.unmatched(f"unmatched-{number}", run)
        blocks.append(Fold(f"Unmatched kernels of {run.label}", (table,), open=False))
    lead = "Reported beside the shares and never inside them."
    return Section("device", "Device time and unmatched kernels", lead, tuple(blocks))


def gates_section(report: ReportInput) -> Section:
    """All gates by run, failures first."""
    blocks = tuple(
        Gates(f"gates-{number}", _gate_title(run), run.gates)
        for number, run in enumerate(report.runs)
    )
    lead = (
        "Every gate of every run, failures first. “Not evaluable” means that the gate could not "
        "look, because its input is absent or no protocol is bound: neither pass nor fail."
    )
    return Section("gates", "Gates", lead, blocks)


def _gate_title(run: RunView) -> Cell:
    return run_cell(run)


def sanity_section(report: ReportInput, own: SanityBlock) -> Section:
    """The sanity blocks of every run and of this page."""
    blocks: list[Block] = []
    for number, run in enumerate(report.runs):
        caption = f"Sanity block of {run.label}"
        table = runs.sanity(f"sanity-{number}", caption, run.sanity_blocks(), flags_of(run))
        flags = Text(tuple(run.red_flags), tone="fail", bullets=True, heading="Red flags")
        blocks.append(Fold(caption, (flags, table) if run.red_flags else (table,)))
    if report.decision is not None:
        caption = "Sanity block of the decision"
        parts = [("decision", report.decision.sanity)]
        parts += [
            (f"mapping {version}", table.sanity)
            for version, table in report.decision.alternatives.items()
            if table.sanity is not None
        ]
        blocks.append(Fold(caption, (runs.sanity("sanity-decision", caption, parts),)))
    table = runs.sanity("sanity-report", "Sanity block of this report", [("report", own)])
    blocks.append(
        Fold("Sanity block of this report: its tables and figures", (table,), printed=False)
    )
    lead = (
        "Count, finite, missing, range and distinct values of every family of numbers; the same "
        "as JSON in this file's script element with the id “sanity”."
    )
    return Section("sanity-blocks", "Data sanity", lead, tuple(blocks))


def provenance_section(report: ReportInput) -> Section:
    """Hashes of protocol, mapping, code and every input file."""
    blocks: list[Block] = [runs.provenance("provenance-table", report)]
    for number, run in enumerate(report.runs):
        table = runs.inputs(f"inputs-{number}", run)
        blocks.append(Fold(f"Input files of {run.label}", (table,), printed=False))
    if report.decision is not None:
        table = runs.origin("inputs-decision", "decision", report.decision.provenance)
        blocks.append(Fold("Artefacts that the decision was made from", (table,), printed=False))
    lead = "What these figures were made from; the same hashes give the same page."
    return Section("provenance", "Provenance", lead, tuple(blocks))


def glossary_section() -> Section:
    """A line per term."""
    return Section("glossary", "Glossary", "", (Terms(GLOSSARY),))
