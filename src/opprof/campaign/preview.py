"""``opprof campaign plan``: the whole schedule on paper, with what the budget would refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from opprof.artifacts.campaign import Charge, RunRecord
from opprof.artifacts.environment import GpuDevice, NumaNode, Topology
from opprof.artifacts.plan import (
    CampaignPlan,
    ColocationRound,
    Outlook,
    PlannedLane,
    PlannedRun,
    PlannedWave,
)
from opprof.campaign.colocation import needs_gate, placeable, regime_width, rounds
from opprof.campaign.costs import Pace, run_cost
from opprof.campaign.forecast import Drain, Forecast, expected_outcomes, play, queue_wall_s
from opprof.campaign.ledger import balance, ledger_problems, opening, settle
from opprof.campaign.naming import is_of_host
from opprof.campaign.plan import ACTIVE, planned_runs, without_colocation
from opprof.campaign.waves import Refusal, Where
from opprof.host.cpus import format_cpus, parse_cpus
from opprof.protocol.load import Protocol
from opprof.protocol.model import Placement, ProtocolFile
from opprof.words import plural

_HOUR = 3600
_DRAINS: tuple[tuple[str, Drain], ...] = (
    ("every drain takes the shortest allowance", "shortest"),
    ("every drain takes its whole allowance", "whole"),
)


@dataclass(frozen=True)
class SoFar:
    """Where a campaign stands whose rest is planned."""

    campaign: str
    records: tuple[RunRecord, ...]
    charges: tuple[Charge, ...]
    """Its ledger, which is only read."""
    start_ns: int
    widths: Mapping[str, int] = field(default_factory=dict)
    """Host to width, as the co-location gates authorise that it has so far."""


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for."""

    hosts: tuple[Topology, ...]
    pace: Pace
    only: tuple[str, ...]
    serial: bool
    port_base: int
    so_far: SoFar | None = None


def topology_of(placement: Placement, name: str) -> Topology:
    """Return the host that the protocol's map describes, for plans without a real one."""
    nodes: dict[int, set[int]] = {}
    for index in range(placement.gpus):
        mask = parse_cpus(placement.cpu_map[index]) if placement.cpu_map else ()
        nodes.setdefault(placement.numa_nodes[index] if placement.numa_nodes else 0, set()).update(
            mask
        )
    return Topology(
        host=name,
        kind="fake",
        boot_id="",
        gpus=[
            GpuDevice(
                index=index,
                uuid="",
                name="assumed",
                memory_bytes=0,
                numa_node=placement.numa_nodes[index] if placement.numa_nodes else None,
            )
            for index in range(placement.gpus)
        ],
        numa_nodes=[NumaNode(node, format_cpus(cpus)) for node, cpus in sorted(nodes.items())],
        cpus=format_cpus(cpu for cpus in nodes.values() for cpu in cpus),
    )


def plan_campaign(protocol: Protocol, request: PlanRequest) -> CampaignPlan:
    """Return the forecast of a campaign.

    Raises:
        InputError: ``only`` names no cell, or hosts and ports contradict themselves.
    """
    file = protocol.file
    so_far = request.so_far
    records = planned_runs(file, request.only) if so_far is None else _rest(so_far)
    widths = {host.host: _width(protocol, host, request) for host in request.hosts}
    where = Where(request.hosts, widths, request.port_base)
    gated = [host for host in request.hosts if needs_gate(file, host, serial=request.serial)]
    known = {} if so_far is None else so_far.widths
    unchecked = [host for host in gated if host.host not in known]
    check = [row for host in unchecked for row in _colocation(protocol, host, request)]
    charges = [opening(file.budget, wall_ns=0, simulated=True)]
    if so_far is not None:
        charges = _settled(so_far)
    table = _Plays(protocol, records, where, request.pace, charges)
    expected = table.play("none")
    width = sum(widths.values())
    outlooks = [
        _outlook("every run takes what the protocol estimates", expected, width),
        *(_outlook(words, table.play(drain), width) for words, drain in _DRAINS),
    ]
    if check:
        first = [row for row in check if row.regime != "four" or not _has_eight(check, row.host)]
        extra_s = sum(row.expected_gpu_hours for row in first) * _HOUR
        again = table.play("none", extra_s=extra_s)
        outlooks.append(_outlook("as estimated, after a new co-location check", again, width))
    if further := _further_burnins(file, request, expected):
        again = table.play("none", extra_s=sum(further))
        words = f"as estimated, with {plural(len(further), 'burn-in')} of more hosts"
        outlooks.append(_outlook(words, again, width))
    ending = expected.ending
    return CampaignPlan(
        schema=1,
        protocol_id=file.id,
        protocol_sha256=protocol.sha256,
        status=file.status,
        hosts=[host.host for host in request.hosts],
        widths=widths,
        needs_gate=[host.host for host in unchecked],
        time_scale=request.pace.time_scale,
        cells=sum(record.role == "primary" for record in records) // 2,
        measured_runs=sum(record.role != "burnin" for record in records),
        burnins=sum(record.role == "burnin" for record in records),
        gpu_hours_max=file.budget.gpu_hours_max,
        prior_gpu_hours=file.budget.gpu_hours_used,
        waves=_waves(expected),
        colocation=check,
        outlooks=outlooks,
        blocked={} if isinstance(ending, Refusal) else dict(ending.blocked),
        refusal=ending.reason if isinstance(ending, Refusal) and not expected.waves else "",
        campaign="" if so_far is None else so_far.campaign,
        complete=sum(record.state == "complete" for record in records),
        notes=[] if so_far is None else _notes(so_far),
    )


def _width(protocol: Protocol, host: Topology, request: PlanRequest) -> int:
    """The widest that a check could authorise here; 1 where none can."""
    file = protocol.file
    if not needs_gate(file, host, serial=request.serial):
        return 1
    regimes = placeable(file, host)
    if file.colocation is None or not regimes:
        return 1
    if request.so_far is not None and host.host in request.so_far.widths:
        return min(request.so_far.widths[host.host], len(host.gpus))
    return regime_width(file.colocation, regimes[0])


def _colocation(protocol: Protocol, host: Topology, request: PlanRequest) -> list[ColocationRound]:
    regimes = placeable(protocol.file, host)
    if not regimes:
        return []
    found = []
    for regime in ("solo", *regimes):
        for each in rounds(protocol.file, host, regime, request.pace, port_base=request.port_base):
            found.append(
                ColocationRound(
                    host=host.host,
                    regime=regime,
                    load_point=each.load_point,
                    target=each.target.run,
                    backgrounds=[run.pattern for run in each.backgrounds],
                    gpus=each.cost.gpus,
                    expected_s=each.cost.expected_s,
                    expected_gpu_hours=each.cost.expected_gpu_s / _HOUR,
                    reserved_gpu_hours=each.cost.reserved_gpu_s / _HOUR,
                )
            )
    return found


def _has_eight(check: Sequence[ColocationRound], host: str) -> bool:
    return any((row.regime, row.host) == ("eight", host) for row in check)


@dataclass(frozen=True)
class _Plays:
    """One situation, played under several assumptions."""

    protocol: Protocol
    records: Sequence[RunRecord]
    where: Where
    pace: Pace
    charges: Sequence[Charge]

    def play(self, drain: Drain, *, extra_s: float = 0.0) -> Forecast:
        file = self.protocol.file
        extra = Charge(
            schema=1,
            kind="colocation",
            run="",
            attempt=0,
            gpus=0,
            gpu_seconds=extra_s,
            wall_ns=0,
            simulated=True,
        )
        outcomes = expected_outcomes(file, self.pace, drain)
        charges = [*self.charges, extra]
        return play(self.records, self.where, file, self.pace, outcomes, charges=charges)


def _rest(so_far: SoFar) -> list[RunRecord]:
    """The records as a resume would find them: what is under way is made anew."""
    return [
        msgspec.structs.replace(record, state="interrupted") if record.state in ACTIVE else record
        for record in without_colocation(so_far.records)
        if not is_of_host(record.run)
    ]


def _further_burnins(
    protocol: ProtocolFile, request: PlanRequest, expected: Forecast
) -> list[float]:
    """Return the GPU-seconds of burn-ins on every host that runs a configuration it has not run.

    The controller makes them where the hosts turn out to need them; they are no run of the matrix.
    """
    so_far = () if request.so_far is None else request.so_far.records
    burnins = {r.config: r for r in expected.records if r.role == "burnin"}
    warm = {
        (record.attempt.slot.host, record.config)
        for record in (*so_far, *expected.records)
        if record.role == "burnin" and record.state == "complete"
        if record.attempt is not None and record.attempt.slot is not None
    }
    config_of = {record.run: record.config for record in expected.records}
    used = dict.fromkeys(
        (lane.slot.host, config_of[lane.runs[0]])
        for played in expected.waves
        if played.wave.group != "burnin"
        for lane in played.wave.lanes
    )
    return [
        run_cost(protocol, burnins[config], request.pace).expected_gpu_s
        for host, config in used
        if config in burnins and (host, config) not in warm
    ]


def _settled(so_far: SoFar) -> list[Charge]:
    """The ledger as a resume would settle it now."""
    charges = list(so_far.charges)
    simulated = charges[0].simulated
    return charges + settle(charges, so_far.records, wall_ns=so_far.start_ns, simulated=simulated)


def _notes(so_far: SoFar) -> list[str]:
    active = [record.run for record in so_far.records if record.state in ACTIVE]
    notes = []
    if active:
        notes.append(
            f"{plural(len(active), 'run is', 'runs are')} under way; planned as if made anew"
        )
    notes += ledger_problems(so_far.charges, so_far.records)
    return notes


def _outlook(assumption: str, forecast: Forecast, width: int) -> Outlook:
    ending = forecast.ending
    return Outlook(
        assumption=assumption,
        waves=len(forecast.waves),
        wall_hours=forecast.wall_s / _HOUR,
        queue_wall_hours=queue_wall_s(forecast.waves, width) / _HOUR,
        gpu_hours=forecast.gpu_s / _HOUR,
        consumed_gpu_hours=balance(forecast.charges).consumed_hours,
        refusal=ending.reason if isinstance(ending, Refusal) else "",
    )


def _waves(forecast: Forecast) -> list[PlannedWave]:
    return [
        PlannedWave(
            number=played.wave.number,
            group=played.wave.group,
            lanes=[
                PlannedLane(
                    slot=lane.slot,
                    runs=[
                        PlannedRun(run, cost.gpus, cost.expected_s, cost.reserved_s)
                        for run, cost in zip(lane.runs, lane.costs, strict=True)
                    ],
                )
                for lane in played.wave.lanes
            ],
            reserved_gpu_hours=played.wave.reserved_gpu_s / _HOUR,
            consumed_before_gpu_hours=(played.consumed_ns / 1e9 - played.gpu_s) / _HOUR,
            expected_gpu_hours=played.wave.expected_gpu_s / _HOUR,
            expected_s=played.wave.expected_s,
        )
        for played in forecast.waves
    ]
