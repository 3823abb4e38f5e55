"""A comparison as compact tables: shares and places, inversions met, sentences, ratios."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from opprof.artifacts.comparison import Comparison, Inversion, WindowRanking
from opprof.cli.console import console
from opprof.cli.tables import (
    new_table,
    number,
    percent,
    print_table,
    protocol_line,
    short_family,
)
from opprof.protocol import Protocol


def print_comparison(comparison: Comparison, protocol: Protocol | None) -> None:
    """Print what ranks where in every window, then the pairs, then every deviation in words."""
    out = console()
    out.print(protocol_line(protocol))
    # Anomalies come first (protocol, "Data sanity block contract").
    for flag in comparison.sanity.red_flags:
        out.print(Text(f"RED FLAG: {flag}", style="bold red"))
    for cell in comparison.cells:
        name = f"{cell.pattern}/{cell.config}"
        for flag in cell.sanity.red_flags:
            if flag not in comparison.sanity.red_flags:
                out.print(Text(f"RED FLAG: {name}: {flag}", style="bold red"))
        for gate in cell.gates:
            if gate.outcome == "fail":
                out.print(f"{name}: {gate.name}: {gate.reason}", markup=False)
    for run in comparison.runs:
        if run.run.simulated:
            out.print(Text(f"{run.run.name}: SIMULATED, not a measurement", style="bold red"))
        if run.marks:
            out.print(f"{run.run.name}: marked {', '.join(run.marks)}", markup=False)
    print_table(out, _windows(comparison))
    out.print("w: window; r: rank; families within the tie rule of the protocol share a place")
    if comparison.pattern_pairs:
        out.print(_pairs(comparison))
        _print_inversions(comparison)
    else:
        out.print("No two patterns to compare at one config, load point and role")
    for sentence in comparison.disagreements:
        out.print(sentence, markup=False)
    for unpaired in comparison.unpaired:
        out.print(f"{unpaired.run}: {unpaired.reason}", markup=False)


def _windows(comparison: Comparison) -> Table:
    families = list(comparison.windows[0].families) if comparison.windows else []
    table = new_table(
        f"Share in % and (place) by window, mapping {comparison.mapping_version}",
        ["run", "w", "r"],
        [short_family(name) for name in families],
    )
    for window in comparison.windows:
        table.add_row(*_window_row(window, families))
    return table


def _window_row(window: WindowRanking, families: Sequence[str]) -> list[str]:
    cells = []
    for name in families:
        ranked = window.families.get(name)
        place = "" if ranked is None or ranked.place is None else f" ({ranked.place})"
        cells.append(percent(None if ranked is None else ranked.share) + place)
    return [window.run, str(window.window), str(window.rank), *cells]


def _pairs(comparison: Comparison) -> Table:
    table = new_table(
        "Pattern pairs",
        ["config", "load", "p", "q", "evaluable"],
        ["tau-b", "gap criteria met", "of"],
    )
    for pair in comparison.pattern_pairs:
        key = (pair.config, pair.load_point, pair.role, pair.pattern_p, pair.pattern_q)
        records = [item for item in comparison.inversions if _key(item) == key]
        taus = [
            tau.tau_b
            for tau in comparison.tau
            if (tau.config, tau.load_point, tau.role, tau.pattern_p, tau.pattern_q) == key
            and tau.tau_b is not None
        ]
        spread = f"{number(min(taus))} to {number(max(taus))}" if taus else "-"
        table.add_row(
            pair.config,
            pair.load_point,
            pair.pattern_p,
            pair.pattern_q,
            "yes" if pair.evaluable else "NO: " + "; ".join(pair.reasons),
            spread,
            str(sum(bool(item.gap_criteria_met) for item in records)),
            str(len(records)),
        )
    return table


def _print_inversions(comparison: Comparison) -> None:
    out = console()
    tables = {comparison.mapping_version: comparison.inversions}
    tables |= {name: other.inversions for name, other in comparison.alternatives.items()}
    for version, inversions in tables.items():
        met = [item for item in inversions if item.gap_criteria_met]
        out.print(f"Under {version}: {len(met)} of {len(inversions)} comparisons meet the gap rule")
        for item in met:
            text = (
                f"  {item.config} {item.load_point}: {item.family_a} leads {item.family_b} by "
                f"{_points(item.gaps_p)} points in {item.pattern_p}, trails by "
                f"{_points(item.gaps_q)} in {item.pattern_q}"
            )
            out.print(text, markup=False)


def _key(item: Inversion) -> tuple[str, str, str, str, str]:
    return (item.config, item.load_point, item.role, item.pattern_p, item.pattern_q)


def _points(gaps: Sequence[float | None]) -> str:
    return "/".join(percent(gap) for gap in gaps)
