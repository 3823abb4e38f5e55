"""Tables: marks on every run, reasons for every null, ratios beside absolutes, gates in order."""

from __future__ import annotations

import msgspec
import report_samples as samples

from opprof.artifacts.common import Gate
from opprof.report.blocks import Cell, Figure, Gates, Table, Text, walk
from opprof.report.formats import NBSP
from opprof.report.inputs import ReportInput, flags_of
from opprof.report.page import build_page
from opprof.report.sanity import share_flags
from opprof.report.tables import load, ranking, represent, runs, shares, waste
from opprof.report.tables.cells import run_cell

SAMPLE = samples.sample()
BLOCKS = [block for section in build_page(SAMPLE).sections for block in walk(section.blocks)]
TABLES = {block.ident: block for block in BLOCKS if isinstance(block, Table)}


def column(table: Table, label: str) -> list[Cell]:
    index = [c.label for c in table.columns].index(label)
    return [row[index] for row in table.rows]


def plain(text: str) -> str:
    return text.replace(NBSP, " ")


def test_rows_are_as_wide_as_their_heads() -> None:
    for table in TABLES.values():
        assert {len(row) for row in table.rows} <= {len(table.columns)}, table.ident


def test_quarantined_and_invalid_runs_are_marked_wherever_they_are_named() -> None:
    label = SAMPLE.runs[3].label
    seen = 0
    for table in TABLES.values():
        marked = {flag.label for flag in table.flags}
        for row in table.rows:
            named = [cell for cell in row if cell.text.startswith("P09")]
            if named:
                seen += 1
                found = {flag.label for cell in row for flag in cell.flags}
                assert {"INVALID", "QUARANTINED"} <= found, table.ident
            assert all(cell.flags for cell in named if cell.text == label)
        if label in table.caption:
            assert {"INVALID", "QUARANTINED"} <= marked, table.ident
    assert seen > 30
    for figure in (block for block in BLOCKS if isinstance(block, Figure)):
        if label in figure.title:
            assert {"INVALID", "QUARANTINED"} <= {flag.label for flag in figure.flags}


def test_simulated_and_scaled_runs_are_marked_wherever_they_are_named() -> None:
    odd = samples.view(
        samples.identity("P02", simulated=True, time_scale=0.05), [samples.DECODE] * 2
    )
    page = build_page(ReportInput((odd, SAMPLE.runs[0])))
    assert "SIMULATED" in page.banner
    cells = [
        cell
        for section in page.sections
        for block in walk(section.blocks)
        if isinstance(block, Table)
        for row in block.rows
        for cell in row
        if cell.text == odd.label
    ]
    assert len(cells) > 20
    assert all({"SIMULATED", "TIME × 0.05"} <= {f.label for f in c.flags} for c in cells)


def test_every_null_of_the_waste_table_names_its_reason() -> None:
    table = waste.waste("w", SAMPLE)
    nulls = [cell for row in table.rows for cell in row if cell.text == "n/a"]
    assert nulls and all(cell.title and cell.sub.startswith(f"note{NBSP}") for cell in nulls)
    assert table.notes[:3] == (
        "note 1: no complete cohort of 128",
        "note 2: 2 supported mixed steps, 30 are needed",
        "note 3: no layer scope in the trace",
    )


def test_missing_waste_artefact_is_said() -> None:
    bare = msgspec.structs.replace(SAMPLE.runs[0], waste=None)
    table = waste.waste("w", ReportInput((bare,)))
    assert table.notes[0] == "note 1: the run has no waste.json"


def test_ratios_stand_below_absolute_values() -> None:
    cells = column(load.throughput("t", SAMPLE), "completed")[:5]
    assert [(cell.text, cell.sub) for cell in cells] == [
        ("31", "reference"),
        ("4", "reference"),
        ("3.4", "×0.850"),
        ("4", f"no{NBSP}C00{NBSP}run"),
        ("9", "reference"),
    ]


def test_latency_stands_from_both_starting_points() -> None:
    table = load.latency("l", SAMPLE)
    assert [cell.text for cell in column(table, "from")][:2] == ["scheduled", "admitted"]
    scheduled, admitted = column(table, "TTFT p50")[:2]
    assert scheduled.sort is not None and admitted.sort is not None
    assert scheduled.sort > admitted.sort


def test_modes_with_too_few_steps_are_withheld() -> None:
    table = shares.by_mode("m", SAMPLE)
    for row in table.rows:
        withheld = [cell for cell in row if cell.text == "withheld"]
        assert bool(withheld) == (row[1].text == "FULL")


def test_ranks_have_mean_and_range_and_no_sum() -> None:
    table = shares.over_ranks("r", SAMPLE)
    assert table is not None
    cell = column(table, "collective")[0]
    assert (plain(cell.text), plain(cell.sub)) == ("20.3 %", "18.0–22.6 %")
    assert shares.over_ranks("r", ReportInput(SAMPLE.runs[:1])) is None


def test_device_time_is_apart_and_missing_times_say_why() -> None:
    table = shares.device("d", SAMPLE)
    assert column(table, "memcpy")[0].text == "2.1"
    window = msgspec.structs.replace(SAMPLE.runs[0].windows[0], device=None)
    assert SAMPLE.runs[0].kernels is not None
    kernels = msgspec.structs.replace(SAMPLE.runs[0].kernels, windows=[window])
    bare = msgspec.structs.replace(SAMPLE.runs[0], kernels=kernels)
    cell = column(shares.device("d", ReportInput((bare,))), "memcpy")[0]
    assert (cell.text, cell.title) == ("n/a", "this window's artefact has no device times")


def test_kernel_time_stands_beside_clean_step_duration_by_mode_and_rank() -> None:
    table = shares.fill("f", SAMPLE)
    assert [cell.text for cell in column(table, "graph mode")] == ["NONE"] * 6
    assert column(table, "active steps")[0].text == "2"
    median, clean = column(table, "kernels median")[0], column(table, "clean step median")[0]
    assert (median.text, clean.text) == ("150", "152")
    assert plain(column(table, "of it in kernels")[0].text) == "98.7 %"
    assert column(table, "clean steps")[0].text == "180"


def test_null_failure_rate_stands_beside_each_verdict() -> None:
    table = represent.verdicts("v", SAMPLE)
    assert {cell.text for cell in column(table, "verdict")} == {"✓ pass", "✗ fail"}
    assert {plain(c.text) for c in column(table, "fails by itself, window")} == {"97.0 %"}
    assert {plain(c.text) for c in column(table, "fails by itself, load point")} == {"99.8 %"}
    features = represent.features("f", SAMPLE)
    assert {"+0.11", "+1.37", "equal"} == {cell.text for cell in column(features, "SMD")} - {
        "+0.02"
    }
    smd = column(table, "SMD scheduled tokens")
    assert (smd[2].text, plain(smd[2].sub), smd[2].tone) == ("+1.37", "itself 81 %", "fail")


def test_inversion_matrix_under_both_tables() -> None:
    deciding, other = TABLES["inversions-0-0"], TABLES["inversions-0-1"]
    assert "deciding mapping v2" in deciding.caption and "mapping v1" in other.caption
    cell = column(deciding, "P01 – P08")[0]
    assert cell.text == "◐ gap criteria met" and "permutation test open" in cell.sub
    assert "P01: MoE GEMM +29.0, +26.5 pp" in plain(cell.sub)
    assert SAMPLE.comparison is not None
    shown = sum(
        len(row) - 1
        for name in ("inversions-0-0", "inversions-0-0-rest")
        for row in TABLES[name].rows
    )
    assert shown == len(SAMPLE.comparison.inversions)


def test_every_state_of_an_inversion_looks_different() -> None:
    assert SAMPLE.comparison is not None
    row = next(row for row in SAMPLE.comparison.inversions if row.gap_criteria_met)
    states = [
        msgspec.structs.replace(row, accepted=True),
        row,
        msgspec.structs.replace(row, accepted=False, classifiable=True),
        msgspec.structs.replace(row, classifiable=False),
        msgspec.structs.replace(row, gap_criteria_met=None),
        msgspec.structs.replace(row, gap_criteria_met=False),
        msgspec.structs.replace(row, gap_criteria_met=False, gaps_q=[-0.1, -0.1]),
    ]
    seen = [
        cell.text
        for state in states
        for turned in (True, False)
        for line in ranking.matrix("m", "c", SAMPLE, [state], turned=turned).rows
        for cell in line[1:]
    ]
    assert len(set(seen)) == len(states)


def test_every_cell_ends_with_its_sanity_block() -> None:
    assert SAMPLE.comparison is not None
    cells = SAMPLE.comparison.cells
    overview = TABLES["cells-table"]
    assert len(overview.rows) == len(cells) == 5
    for number, cell in enumerate(cells):
        assert overview.rows[number][0].href == f"#cell-{number}-sanity"
        block = TABLES[f"cell-{number}-sanity"]
        assert [row[1].text for row in block.rows] == [f.name for f in cell.sanity.families]
        figures = TABLES[f"cell-{number}-figures"]
        assert [c.label for c in figures.columns[1:]] == list(cell.runs)
    windows = column(overview, "windows as planned")
    assert {cell.text for cell in windows} <= {"✓ pass", "✗ fail", "? not evaluable"}


def test_a_cells_red_flag_stands_in_the_verdict_and_beside_the_cells() -> None:
    assert SAMPLE.comparison is not None
    first, *rest = SAMPLE.comparison.cells
    block = msgspec.structs.replace(first.sanity, red_flags=["share: 1.5 is above 1"])
    bad = msgspec.structs.replace(first, sanity=block)
    comparison = msgspec.structs.replace(SAMPLE.comparison, cells=[bad, *rest])
    page = build_page(msgspec.structs.replace(SAMPLE, comparison=comparison))
    for ident in ("verdict", "cells"):
        (section,) = [part for part in page.sections if part.ident == ident]
        lines = [
            line
            for each in section.blocks
            if isinstance(each, Text) and each.heading == "Red flags"
            for line in each.sentences
        ]
        assert any("share: 1.5 is above 1" in line for line in lines), ident


def test_without_a_comparison_there_are_no_cells() -> None:
    page = build_page(msgspec.structs.replace(SAMPLE, comparison=None))
    (section,) = [part for part in page.sections if part.ident == "cells"]
    (told,) = section.blocks
    assert isinstance(told, Text) and told.tone == "ne"


def test_tau_matrix_is_symmetric() -> None:
    table = TABLES["tau-0-0"]
    values = [[cell.text for cell in row[1:]] for row in table.rows]
    assert values == [list(line) for line in zip(*values, strict=True)]
    assert [values[k][k] for k in range(len(values))] == ["·"] * len(values)


def test_gates_come_failures_first_and_once() -> None:
    block = next(b for b in BLOCKS if isinstance(b, Gates) and b.ident == "gates-3")
    assert [gate.outcome for gate in block.gates] == ["fail", "not_evaluable", "pass", "pass"]
    assert len({(gate.scope, gate.name) for gate in block.gates}) == len(block.gates)


def test_not_evaluable_is_neither_valid_nor_invalid() -> None:
    standing = column(runs.overview("o", SAMPLE), "standing")
    assert standing[0].text == "? not fully judged"
    assert standing[3].text == "✗ invalid"
    assert SAMPLE.runs[0].sanity is not None
    passed = [Gate("g", "pass", "fine")]
    layer1 = SAMPLE.runs[0].layer1
    assert layer1 is not None
    clean = msgspec.structs.replace(
        SAMPLE.runs[0],
        layer1=msgspec.structs.replace(layer1, gates=passed),
        sanity=msgspec.structs.replace(SAMPLE.runs[0].sanity, gates=passed),
    )
    assert column(runs.overview("o", ReportInput((clean,))), "standing")[0].text == "✓ valid"


def test_representativeness_alone_invalidates_the_breakdown_and_not_the_run() -> None:
    gate = Gate("representativeness", "fail", "SMD 1.37", scope="window0")
    run = SAMPLE.runs[1]
    assert run.sanity is not None
    sanity = msgspec.structs.replace(run.sanity, gates=[*run.sanity.gates, gate])
    run = msgspec.structs.replace(run, sanity=sanity)
    assert gate in run.failed_gates and not run.invalid
    assert [flag.label for flag in flags_of(run)] == ["BREAKDOWN ✗"]
    unknown = Gate("a_gate_of_tomorrow", "fail", "new")
    sanity = msgspec.structs.replace(sanity, gates=[unknown])
    assert msgspec.structs.replace(run, sanity=sanity).invalid


def test_report_checks_the_shares_it_draws() -> None:
    assert share_flags(SAMPLE) == []
    run = SAMPLE.runs[0]
    assert run.kernels is not None
    window = run.windows[0]
    families = dict(window.families)
    families["attention"] = msgspec.structs.replace(families["attention"], share=1.5)
    broken = msgspec.structs.replace(window, families=families)
    kernels = msgspec.structs.replace(run.kernels, windows=[broken])
    (flag,) = share_flags(ReportInput((msgspec.structs.replace(run, kernels=kernels),)))
    assert flag == "P01-C00-saturation window 0 rank 0: a family share lies outside [0, 1]"


def test_what_tells_a_run_apart_stands_below_its_name() -> None:
    """A folder in the name made the table of runs wider than a window of 1,400 pixels."""
    run = msgspec.structs.replace(SAMPLE.runs[0], note="h200-runs/P01-C00-saturation")
    cell = run_cell(run)
    assert (cell.text, cell.sub) == ("P01 · C00 · saturation", "h200-runs/P01-C00-saturation")
    assert run.label == "P01 · C00 · saturation · h200-runs/P01-C00-saturation"
