"""Compact tables for a terminal or a pipe; the numbers come from the artefacts as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from opprof.analysis.results import RunAnalysis
from opprof.artifacts.common import Gate
from opprof.artifacts.kernels import FAMILIES, OPAQUE, Window
from opprof.cli.console import console
from opprof.protocol import Protocol

_UNBOUNDED = 10_000
_LEGEND = (
    "hit: prompt tokens from the prefix cache; pad: padding in CUDA-graph replays; miss: steps "
    "without a graph; FULL, PIECE(WISE), NONE: graph modes of the steps. w: window; r: rank; ok: "
    "trace accepted; rep: representativeness gate; ms: kernel time. More words: docs/glossary.md"
)
_OUTCOME_STYLE = {"pass": "green", "fail": "bold red", "not_evaluable": "yellow"}


def number(value: float | None, digits: int = 2) -> str:
    """Format a number, or a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """Format a share (0..1) in percent, or a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}"


def protocol_line(protocol: Protocol | None) -> str:
    """Say which protocol judged the numbers."""
    if protocol is None:
        return "protocol none: gates that need a threshold are not evaluable"
    return f"protocol {protocol.file.id} ({protocol.file.status}) sha256 {protocol.sha256[:12]}"


def print_analysis(
    results: Sequence[RunAnalysis], folders: Sequence[Path], protocol: Protocol | None
) -> None:
    """Print red flags and failed gates first, then throughput, waste and family shares."""
    out = console()
    out.print(protocol_line(protocol))
    for result in results:
        if result.run.simulated:
            out.print(Text(f"{result.run.name}: SIMULATED, not a measurement", style="bold red"))
        for flag in result.sanity.red_flags:
            out.print(Text(f"{result.run.name}: RED FLAG {flag}", style="bold red"))
    out.print(_gates_table(results))
    print_table(out, _runs_table(results))
    print_table(out, _shares_table(results))
    out.print(_LEGEND)
    for result in results:
        for note in result.kernels.mapping_notes:
            out.print(f"{result.run.name}: {note}", markup=False)
    for result, folder in zip(results, folders, strict=True):
        out.print(f"{result.run.name}: {folder}", markup=False)


def new_table(title: str, first: Sequence[str], numeric: Sequence[str]) -> Table:
    """Return an empty table: text columns first, right-aligned ones after."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in first:
        table.add_column(name)
    for name in numeric:
        table.add_column(name, justify="right")
    return table


def print_table(out: Console, table: Table) -> None:
    """Print a table whole: cut by columns where the terminal is too narrow, never in a cell."""
    everything = out.options.update(width=_UNBOUNDED, max_width=_UNBOUNDED)
    if not out.is_terminal:
        needed = Measurement.get(out, everything, table).maximum
        Console(file=out.file, highlight=False, width=max(out.width, needed)).print(table)
        return
    columns = [(column, list(column.cells)) for column in table.columns]
    keys = [pair for pair in columns if pair[0].justify != "right"]
    rest = [pair for pair in columns if pair[0].justify == "right"]
    title, shown = str(table.title), 0
    while shown == 0 or shown < len(rest):
        count = len(rest) - shown
        part = _part(title, [*keys, *rest[shown:]])
        while count > 1 and Measurement.get(out, everything, part).maximum > out.width:
            count -= 1
            part = _part(title, [*keys, *rest[shown : shown + count]])
        out.print(part)
        title, shown = "continued", shown + max(count, 1)


def _part(title: str, columns: Sequence[tuple[Column, list[RenderableType]]]) -> Table:
    part = new_table(title, [], [])
    for column, _ in columns:
        part.add_column(column.header, justify=column.justify)
    for row in zip(*(cells for _, cells in columns), strict=True):
        part.add_row(*row)
    return part


def _gates_table(results: Sequence[RunAnalysis]) -> Table:
    table = new_table("Gates", ["run", "gate", "scope", "outcome", "reason"], [])
    for result in results:
        gates = result.sanity.gates
        passed = sum(gate.outcome == "pass" for gate in gates)
        for gate in gates:
            if gate.outcome == "fail":
                table.add_row(result.run.name, gate.name, gate.scope, _outcome(gate), gate.reason)
        silent = sum(gate.outcome == "not_evaluable" for gate in gates)
        rest = f"{passed} pass, {silent} not evaluable"
        table.add_row(result.run.name, Text(rest, style="dim"), "", "", "")
    return table


def _outcome(gate: Gate) -> Text:
    return Text(gate.outcome, style=_OUTCOME_STYLE[gate.outcome])


def _runs_table(results: Sequence[RunAnalysis]) -> Table:
    numeric = ["req/s", "out tok/s", "TTFT p50 ms", "TPOT p50 ms", "E_token /ms", "tok/step"]
    numeric += ["hit %", "pad %", "miss %", "FULL %", "PIECE %", "NONE %"]
    table = new_table("Clean steps", ["run"], numeric)
    for result in results:
        end, union, waste = result.layer1.end_to_end, result.layer1.clean_union, result.waste
        modes = {} if union is None else union.mode_shares
        table.add_row(
            result.run.name,
            number(None if end is None else end.completed_rps),
            number(None if end is None else end.output_tokens_per_s, 0),
            number(None if end is None else end.from_admitted.ttft_ms.p50, 1),
            number(None if end is None else end.from_admitted.tpot_ms.p50, 2),
            number(waste.e_token_per_ms),
            number(None if union is None else union.tokens_per_step.mean, 1),
            percent(None if union is None else union.prefix_hit_ratio),
            percent(waste.padding_fraction),
            percent(waste.graph_miss_rate),
            *(percent(modes.get(mode)) for mode in ("FULL", "PIECEWISE", "NONE")),
        )
    return table


def _shares_table(results: Sequence[RunAnalysis]) -> Table:
    mapping = results[0].kernels.mapping_version
    names = [*FAMILIES, OPAQUE]
    title = f"Kernel time by family, % of the active steps' kernel time (mapping {mapping})"
    table = new_table(
        title, ["run", "w", "r", "ok", "rep"], ["ms", *(short_family(name) for name in names)]
    )
    for result in results:
        for window in result.kernels.windows:
            table.add_row(*_share_row(result, window, names))
    return table


def _share_row(result: RunAnalysis, window: Window, names: Sequence[str]) -> list[str | Text]:
    accepted = Text("yes", style="green") if window.accepted else Text("NO", style="bold red")
    families = window.families
    # A family that is not listed took no time; without any kernel there are no shares.
    none = 0.0 if families else None
    shares = [percent(families[name].share if name in families else none) for name in names]
    return [
        result.run.name,
        str(window.window),
        str(window.rank),
        accepted,
        _representative(result, window.window),
        number(window.kernel_ns / 1e6),
        *shares,
    ]


def _representative(result: RunAnalysis, window: int) -> Text:
    block = result.kernels.representativeness
    for judged in [] if block is None else block.windows:
        if judged.window == window:
            return Text(judged.outcome, style=_OUTCOME_STYLE[judged.outcome])
    return Text("-")


def short_family(family: str) -> str:
    """Return a family name that fits a table head."""
    return {"norm_elementwise": "norm/elem", OPAQUE: "opaque"}.get(family, family)
