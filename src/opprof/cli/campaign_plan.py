"""``opprof campaign plan``: waves, slots, reservations and cost, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opprof.cli.options import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opprof.artifacts.environment import Topology
    from opprof.artifacts.plan import CampaignPlan, PlannedRun, PlannedWave
    from opprof.protocol import Protocol

_WORDS = {"burnin": "burn-ins", "matrix": "matrix", "confirmation": "confirmations"}


@click.command("plan")
@click.argument("source", metavar="PROTOCOL")
@click.option(
    "--host-file",
    metavar="FILE|NAME",
    default=None,
    help="Description of a host (default: the host that the protocol's map describes).",
)
@click.option("--gpus", metavar="LIST", default="", help="Physical GPUs to use, as 0-3 or 0,2.")
@click.option("--only", multiple=True, metavar="PATTERN[/CONFIG]", help="Cells, repeatable.")
@click.option("--serial", is_flag=True, help="One cell at a time; needs no co-location gate.")
@click.option("--time-scale", type=float, default=1.0, help="Declared factor on durations.")
@click.option(
    "--shutdown-timeout",
    type=float,
    default=60.0,
    show_default=True,
    help="Of the server, in seconds.",
)
@click.option("--base-port", type=click.IntRange(0, 65535), default=0, help="0: free ports.")
@json_option
def plan(
    source: str,
    host_file: str | None,
    gpus: str,
    only: tuple[str, ...],
    serial: bool,
    time_scale: float,
    shutdown_timeout: float,
    base_port: int,
    as_json: bool,
) -> None:
    """Show what a campaign would launch: waves, GPUs, masks, reservations, time and GPU-hours.

    A forecast from the protocol's own estimates; nothing is started and nothing is measured. Exit
    code 1: the host does not fit the protocol's map, or the budget refuses the first wave.
    """
    import math

    from opprof.campaign.costs import Pace
    from opprof.campaign.places import choose_gpus
    from opprof.campaign.preview import PlanRequest, plan_campaign, topology_of
    from opprof.errors import InputError
    from opprof.host.cpus import parse_cpus

    protocol = _load(source)
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise InputError(f"--time-scale {time_scale:g} must be a positive number")
    if not (math.isfinite(shutdown_timeout) and shutdown_timeout >= 0):
        raise InputError(f"--shutdown-timeout {shutdown_timeout:g} must not be negative")
    host = (
        topology_of(protocol.file.placement, "the protocol's host")
        if host_file is None
        else _host(host_file)
    )
    request = PlanRequest(
        hosts=(choose_gpus(host, parse_cpus(gpus)),),
        pace=Pace(time_scale, shutdown_timeout),
        only=only,
        serial=serial,
        port_base=base_port,
    )
    found = plan_campaign(protocol, request)
    if as_json:
        print_json(found)
    else:
        for line in plan_lines(found):
            click.echo(line)
    raise SystemExit(1 if found.refusal else 0)


def _load(source: str) -> Protocol:
    from opprof.errors import InputError
    from opprof.protocol import load_protocol
    from opprof.protocol.check import check_protocol

    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("'none' is no protocol")
    problems = check_protocol(protocol.file)
    if problems:
        raise InputError(f"{problems[0]} ({len(problems)} problems)", path=protocol.source)
    return protocol


def _host(source: str) -> Topology:
    from opprof.host.fake import FakeHost
    from opprof.host.fake_file import load_machine

    return FakeHost(load_machine(source)).topology()


def plan_lines(plan: CampaignPlan) -> list[str]:
    """Return the plan for a terminal of 80 columns."""
    lines = [*_head(plan), ""]
    for wave in plan.waves:
        lines += [*_wave(plan, wave), ""]
    if plan.colocation:
        lines += [*_colocation(plan), ""]
    lines += _outlooks(plan)
    if plan.refusal:
        lines += ["", f"REFUSED: {plan.refusal}"]
    if plan.blocked:
        lines += ["", "cannot run here", *(f"  {r}: {w}" for r, w in plan.blocked.items())]
    return lines


def _head(plan: CampaignPlan) -> list[str]:
    gate = "one cell at a time"
    if plan.width > 1:
        gate = f"{plan.width} GPU slots at once, once a gate authorises it"
    elif plan.needs_gate:
        gate = "one cell at a time: no co-location check fits this host"
    return [
        f"{plan.protocol_id} ({plan.status}) {plan.protocol_sha256[:12]}: forecast, not measured",
        f"hosts      {', '.join(plan.hosts)}: {gate}",
        f"runs       {plan.cells} cells, {plan.measured_runs} measured runs, "
        f"{plan.burnins} burn-ins, time scale {plan.time_scale:g}",
        f"budget     {plan.gpu_hours_max:g} GPU-hours, {plan.prior_gpu_hours:g} used before",
    ]


def _wave(plan: CampaignPlan, wave: PlannedWave) -> list[str]:
    after = wave.consumed_before_gpu_hours + wave.reserved_gpu_hours
    head = (
        f"wave {wave.number} {_WORDS[wave.group]} {wave.expected_s / 60:.1f} min, "
        f"{wave.expected_gpu_hours:.3f} GPU-h; used {wave.consumed_before_gpu_hours:.3f} + "
        f"{wave.reserved_gpu_hours:.3f} reserved = {after:.3f}"
    )
    several = len(plan.hosts) > 1
    rows = [head]
    for lane in wave.lanes:
        slot = lane.slot
        gpus = ",".join(map(str, slot.gpus))
        where = f"{slot.host}:{gpus}" if several else gpus
        port = str(slot.port) if slot.port else "free"
        rows.append(
            f"  GPU {where:<5} CPUs {slot.cpus or '-':<9} port {port:<5}  {_runs(lane.runs)}"
        )
    return rows


def _runs(runs: Sequence[PlannedRun]) -> str:
    names = [run.run for run in runs]
    if len(names) == 2:
        return f"{names[0]}, then moderate"
    return ", ".join(names)


def _colocation(plan: CampaignPlan) -> list[str]:
    rows = ["co-location check (apart from the matrix; the fallback only after a failure)"]
    for row in plan.colocation:
        beside = " ".join(row.backgrounds) or "nothing"
        minutes = row.expected_s / 60
        rows.append(
            f"  {row.regime:<5} {row.load_point:<10} {row.gpus} GPUs, {minutes:.1f} min,"
            f" {row.expected_gpu_hours:.3f} GPU-h (reserved {row.reserved_gpu_hours:.3f})"
        )
        if row.load_point == "saturation" and row.backgrounds:
            rows.append(f"        beside {beside}")
    return rows


def _outlooks(plan: CampaignPlan) -> list[str]:
    rows = ["outlook                                        wall h  queue h  GPU-h  consumed"]
    for each in plan.outlooks:
        rows.append(
            f"  {each.assumption:<44} {each.wall_hours:>6.2f} {each.queue_wall_hours:>8.2f} "
            f"{each.gpu_hours:>6.2f} {each.consumed_gpu_hours:>9.3f}"
        )
        if each.refusal:
            rows.append(f"    REFUSED: {each.refusal}")
    return rows
