"""The report's own sanity block, over the numbers that its tables and figures really show.

Source: protocol, "Data sanity block contract": every aggregate table, figure source and final
report ends with one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opprof.artifacts.common import SanityBlock, SanityFamily
from opprof.report.blocks import Block, Figure, Section, Table, walk
from opprof.report.inputs import ReportInput
from opprof.rules.sanity import family, non_finite_flags

_SIGNED_COLUMNS = ("SMD", "I_mix")
_SIGNED_TABLES = ("tau-", "h1a-", "h1b-", "decision-", "cell-")
"""Tables of differences (leads, contrasts, effects, deltas), and of figures that may be signed."""
_SHARE_SLACK = 1e-6
"""Shares are stored as doubles; their sum may miss 1 by rounding alone."""


def report_sanity(report: ReportInput, sections: Iterable[Section]) -> SanityBlock:
    """Summarise every numeric table column and figure trace, and check the shares drawn."""
    families: list[SanityFamily] = []
    for section in sections:
        for block in walk(section.blocks):
            families.extend(_families(block))
    return SanityBlock(
        families=families, red_flags=[*non_finite_flags(families), *share_flags(report)]
    )


def _families(block: Block) -> list[SanityFamily]:
    if isinstance(block, Table):
        return [
            family(
                f"{block.ident}/{column.label}",
                [row[index].sort for row in block.rows],
                unit=column.unit,
                signed=column.label.startswith(_SIGNED_COLUMNS)
                or block.ident.startswith(_SIGNED_TABLES),
            )
            for index, column in enumerate(block.columns)
            if column.numeric and any(row[index].sort is not None for row in block.rows)
        ]
    if isinstance(block, Figure):
        return [
            family(f"{block.ident}/{axis}/{trace.get('name', number)}", trace[axis])
            for number, trace in enumerate(block.data)
            for axis in ("x", "y")
            if axis in trace and _is_numeric(trace[axis])
        ]
    return []


def _is_numeric(values: list[Any]) -> bool:
    return any(isinstance(value, int | float) for value in values)


def share_flags(report: ReportInput) -> list[str]:
    """Return a red flag for every window whose drawn shares leave [0, 1] or do not sum to 1."""
    flags = []
    for run in report.runs:
        for window in run.windows:
            shares = [time.share for time in window.families.values()]
            place = f"{run.identity.name} window {window.window} rank {window.rank}"
            if any(not 0 <= share <= 1 for share in shares):
                flags.append(f"{place}: a family share lies outside [0, 1]")
            elif window.kernel_ns and abs(sum(shares) - 1) > _SHARE_SLACK:
                flags.append(f"{place}: family shares sum to {sum(shares):.6f} and not to 1")
            if sum(time.ns for time in window.families.values()) != window.kernel_ns:
                flags.append(f"{place}: family times do not sum to the window's kernel time")
    return flags
