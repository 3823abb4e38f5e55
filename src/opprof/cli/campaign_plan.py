"""``opprof campaign plan``: waves, slots, reservations and cost, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from opprof.cli.options import gpu_indices, json_option, print_json
from opprof.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opprof.artifacts.environment import Topology
    from opprof.artifacts.plan import CampaignPlan, PlannedRun, PlannedWave
    from opprof.campaign.preview import PlanRequest
    from opprof.protocol import Protocol

_WORDS = {"burnin": "burn-ins", "matrix": "matrix", "confirmation": "confirmations"}


@click.command("plan", short_help="Show waves, slots and cost before anything runs.")
@click.argument("source", metavar="PROTOCOL|CAMPAIGN")
@click.option(
    "--host-file",
    "host_files",
    multiple=True,
    metavar="FILE|NAME",
    help="Description of a host, repeatable (default: the host that the protocol's map describes).",
)
@click.option("--gpus", metavar="LIST", default="", help="Physical GPUs to use, as 0-3 or 0,2.")
@click.option(
    "--only", multiple=True, metavar="PATTERN[/CONFIG]", help="These cells only; repeatable."
)
@click.option("--serial", is_flag=True, help="One cell at a time; needs no co-location gate.")
@click.option(
    "--time-scale", type=float, default=1.0, show_default=True, help="Declared factor on durations."
)
@click.option(
    "--base-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the first GPU; 0: free ports.",
)
@json_option
def plan(
    source: str,
    host_files: tuple[str, ...],
    gpus: str,
    only: tuple[str, ...],
    serial: bool,
    time_scale: float,
    base_port: int,
    as_json: bool,
) -> None:
    """Show what a campaign would launch: waves, GPUs, masks, reservations, time and GPU-hours.

    Of a campaign's folder, what is left to launch with the GPU time that its ledger says is left;
    the campaign's own options then hold. A forecast from the protocol's own estimates: nothing is
    started and nothing is measured. Exit code 1: the host does not fit the protocol's map, or the
    budget refuses the first wave.
    """
    from opprof.campaign.costs import pace_of
    from opprof.campaign.options import check_time_scale
    from opprof.campaign.preview import PlanRequest, plan_campaign

    if Path(source).is_dir():
        _only_hosts(gpus=gpus, only=only, serial=serial)
        protocol, request = _of_folder(Path(source), host_files)
    else:
        protocol = _load(source)
        check_time_scale(time_scale, "vllm")
        request = PlanRequest(
            hosts=_hosts(protocol, host_files, gpus),
            pace=pace_of(protocol.file, time_scale),
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


def _only_hosts(*, gpus: str, only: tuple[str, ...], serial: bool) -> None:
    from opprof.errors import InputError

    if gpus or only or serial:
        raise InputError("a campaign has its own --gpus, --only and --serial")


def _load(source: str) -> Protocol:
    from opprof.errors import InputError
    from opprof.protocol import load_protocol
    from opprof.protocol.check import check_protocol

    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("'none' is no protocol")
    problems = check_protocol(protocol.file)
    if problems:
        raise InputError(
            f"{problems[0]} ({plural(len(problems), 'problem')})", path=protocol.source
        )
    return protocol


def _hosts(protocol: Protocol, host_files: tuple[str, ...], gpus: str) -> tuple[Topology, ...]:
    from opprof.campaign.places import choose_gpus
    from opprof.campaign.preview import topology_of
    from opprof.host.fake import FakeHost
    from opprof.host.fake_file import load_machine

    hosts = [FakeHost(load_machine(source)).topology() for source in host_files]
    hosts = hosts or [topology_of(protocol.file.placement, "the protocol's host")]
    return tuple(choose_gpus(host, gpu_indices(gpus)) for host in hosts)


def _of_folder(folder: Path, host_files: tuple[str, ...]) -> tuple[Protocol, PlanRequest]:
    """What is left of a campaign, on its own host unless another is described."""
    import time
    from dataclasses import replace

    from opprof.campaign.colocation_read import read_gates
    from opprof.campaign.costs import pace_of
    from opprof.campaign.hosts import open_host, place_of, placed
    from opprof.campaign.ledger_file import read_ledger
    from opprof.campaign.options import options_of
    from opprof.campaign.places import choose_gpus
    from opprof.campaign.preview import PlanRequest, SoFar
    from opprof.campaign.store import Store
    from opprof.errors import InputError
    from opprof.integrity.ledger import NAME as LEDGER

    store = Store(folder, wall_ns=time.time_ns)
    campaign = store.campaign()
    options = options_of(campaign)
    protocol = _load(str(store.protocol))
    protocol = replace(protocol, file=placed(protocol.file, options))
    gates = read_gates(folder)
    record = store.controller()
    if host_files:
        hosts = _hosts(protocol, host_files, "")
    elif campaign.executor == "ray":
        hosts = tuple(use.topology for use in record.hosts if not use.lost) if record else ()
        if not hosts:
            raise InputError("no controller has asked this campaign's nodes yet", path=folder)
    else:
        hosts = (
            place_of(open_host(options, campaign.engine, campaign.id).topology(), options.gpus),
        )
    request = PlanRequest(
        hosts=tuple(choose_gpus(host, options.gpus) for host in hosts),
        pace=pace_of(protocol.file, campaign.time_scale),
        only=(),
        serial=options.serial,
        port_base=options.base_port,
        so_far=SoFar(
            campaign=campaign.id,
            records=tuple(store.runs()),
            charges=tuple(read_ledger(folder / LEDGER)),
            start_ns=store.wall_ns(),
            widths={host: gate.authorised_width for host, gate in gates.items()},
        ),
    )
    return protocol, request


def plan_lines(plan: CampaignPlan) -> list[str]:
    """Return the plan for a terminal of 80 columns."""
    lines = [*_head(plan), ""]
    for wave in plan.waves:
        lines += [*_wave(plan, wave), ""]
    if not plan.waves and not plan.refusal:
        lines += ["nothing is left that could run", ""]
    if plan.colocation:
        lines += [*_colocation(plan), ""]
    # Where no wave starts, every outlook would be the one refusal that stands below.
    if not plan.refusal:
        lines += _outlooks(plan)
    lines += [f"note: {note}" for note in plan.notes]
    if plan.refusal:
        lines += ["", f"REFUSED: {plan.refusal}"]
    if plan.blocked:
        lines += ["", "cannot run here", *(f"  {r}: {w}" for r, w in plan.blocked.items())]
    return lines


def _head(plan: CampaignPlan) -> list[str]:
    return [
        f"{plan.protocol_id} ({plan.status}) {plan.protocol_sha256[:12]}: forecast, not measured",
        *(f"host       {host}: {_width(plan, host)}" for host in plan.hosts),
        f"runs       {plural(plan.cells, 'cell')}, "
        f"{plural(plan.measured_runs, 'measured run')}, {plural(plan.burnins, 'burn-in')}, "
        f"time scale {plan.time_scale:g}",
        *(
            [
                f"campaign   {plan.campaign}: {plural(plan.complete, 'run')} complete, this is "
                "what is left"
            ]
            if plan.campaign
            else []
        ),
        f"budget     {plan.gpu_hours_max:g} GPU-hours, {plan.prior_gpu_hours:g} used before the "
        "campaign",
    ]


def _width(plan: CampaignPlan, host: str) -> str:
    """How much of a host is used at once, and why."""
    width = plan.widths[host]
    if width > 1 and host in plan.needs_gate:
        return f"{width} GPU slots at once, once its gate authorises it"
    if width > 1:
        return f"{width} GPU slots at once, as its gate authorises"
    if host in plan.needs_gate:
        return "one cell at a time (start --serial): no co-location check fits"
    return "one cell at a time"


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
        where = f"{row.host} " if len(plan.hosts) > 1 else ""
        rows.append(
            f"  {where}{row.regime:<5} {row.load_point:<10} {plural(row.gpus, 'GPU')}, "
            f"{minutes:.1f} min, {row.expected_gpu_hours:.3f} GPU-h "
            f"(reserved {row.reserved_gpu_hours:.3f})"
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
