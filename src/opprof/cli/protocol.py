"""``opprof protocol check|show``."""

from __future__ import annotations

import dataclasses

import click

from opprof.cli.options import json_option, print_json
from opprof.errors import InputError
from opprof.protocol.check import check_protocol
from opprof.protocol.design import Design, cells, design, execution_order
from opprof.protocol.load import PACKAGED, Protocol, load_protocol


@click.group("protocol")
def group() -> None:
    """Check and show a pre-registered protocol."""


def _load(source: str) -> Protocol:
    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("'none' is no protocol")
    return protocol


@group.command("check")
@click.argument("source", metavar="[FILE]", default=PACKAGED)
@json_option
def check(source: str, as_json: bool) -> None:
    """Check types, references, domains and the protocol's own arithmetic."""
    protocol = _load(source)
    problems = check_protocol(protocol.file)
    if as_json:
        print_json({"id": protocol.file.id, "sha256": protocol.sha256, "problems": problems})
    else:
        for problem in problems:
            click.echo(f"{protocol.source}: {problem}", err=True)
        if not problems:
            click.echo(f"{protocol.file.id}: sound ({protocol.file.status}), {protocol.sha256}")
    raise SystemExit(2 if problems else 0)


@group.command("show")
@click.argument("source", metavar="[FILE]", default=PACKAGED)
@json_option
def show(source: str, as_json: bool) -> None:
    """Show the design: cells, loads, windows, gates, order and cost."""
    protocol = _load(source)
    numbers = design(protocol.file)
    order = execution_order(protocol.file)
    if as_json:
        print_json(
            {
                "sha256": protocol.sha256,
                "design": dataclasses.asdict(numbers),
                "execution_order": order,
                "protocol": protocol.file,
            }
        )
        return
    for line in [*_head(protocol), "", *_matrix(protocol), "", *_arithmetic(protocol, numbers)]:
        click.echo(line)
    click.echo("")
    for line in [*_gates(protocol), "", *_order(order), "", *_amendments(protocol)]:
        click.echo(line)


def _head(protocol: Protocol) -> list[str]:
    file = protocol.file
    open_decisions = [row.number for row in file.open_decisions if row.approved is None]
    pinned = file.pinned
    return [
        f"{file.id}: {file.title}",
        f"status    {file.status}, dated {file.date}, {len(file.amendments)} amendments, "
        f"open decisions without approval: {open_decisions or 'none'}",
        f"sha256    {protocol.sha256}",
        f"system    {pinned.model} {pinned.dtype}, {pinned.engine} {pinned.engine_version}, "
        f"{pinned.hardware}",
        f"variables {', '.join('${' + name + '}' for name in file.variables)}",
        f"seeds     workload {file.seeds.workload}, order {file.seeds.execution_order}, "
        f"statistics {file.seeds.statistics}",
        f"mapping   {file.mapping.pinned} decides; also shown: "
        f"{', '.join(file.mapping.alternatives) or 'none'}",
    ]


def _matrix(protocol: Protocol) -> list[str]:
    chosen = cells(protocol.file)
    rows = ["pattern  configs" + " " * 25 + "cell"]
    for pattern in protocol.file.patterns:
        configs = " ".join(c for p, c in chosen if p == pattern.id)
        rows.append(f"{pattern.id:<8} {configs:<31} {pattern.cell}")
    return rows


def _arithmetic(protocol: Protocol, numbers: Design) -> list[str]:
    budget, timeline = protocol.file.budget, protocol.file.timeline
    return [
        f"patterns            {numbers.patterns}",
        f"configurations      {numbers.configs}",
        f"cells               {numbers.cells} ({numbers.tp1_cells} on one GPU)",
        f"measured runs       {numbers.primary_runs} + {numbers.confirmation_runs} confirmations "
        f"= {numbers.measured_runs}, and {numbers.burnins} burn-ins",
        f"profiler windows    {numbers.windows}, {numbers.active_iterations} active iterations, "
        f"{numbers.trace_files} trace files",
        f"clean seconds       {numbers.clean_s_per_run:g} a run "
        f"({timeline.clean_segments} x {timeline.clean_segment_s:g})",
        f"one primary run     {numbers.primary_run_s:g} s",
        f"wall, one at a time {numbers.wall_hours:.1f} h ({numbers.wall_hours:.3f}; "
        f"estimate frozen at {budget.wall_hours_estimate:g})",
        f"GPU time            {numbers.gpu_hours:.1f} GPU-hours ({numbers.gpu_hours:.3f}; "
        f"estimate frozen at {budget.gpu_hours_estimate:g})",
        f"budget              {budget.gpu_hours_max:g} GPU-hours, "
        f"{budget.gpu_hours_used:g} used before",
    ]


def _gates(protocol: Protocol) -> list[str]:
    rows = ["gates"]
    gates = protocol.file.gates
    for name in gates.__struct_fields__:
        rows.append(f"  {name:<40} {getattr(gates, name):g}")
    rows.append(f"  {'smd_max':<40} {protocol.file.representativeness.smd_max:g}")
    rows.append(f"  {'inversion_gap_share':<40} {protocol.file.ranking.inversion_gap_share:g}")
    return rows


def _order(order: list[tuple[str, str]]) -> list[str]:
    names = [f"{pattern}/{config}" for pattern, config in order]
    lines = [" ".join(names[i : i + 8]) for i in range(0, len(names), 8)]
    return ["execution order", *(f"  {line}" for line in lines)]


def _amendments(protocol: Protocol) -> list[str]:
    rows = ["amendments (later takes precedence)"]
    for amendment in protocol.file.amendments:
        rows.append(f"  {amendment.date} {amendment.id} - {amendment.title}: {amendment.summary}")
    return rows
