"""The next wave: which cells run at once, where, under which reservation (A-P3-1, A-P3-4).

A wave is the longest beginning of what may run, in the protocol's order, that fits the GPU slots;
the next one starts when all of it has ended. The specification reserves "before every launch wave",
and a queue that refills single slots would start servers (compiling, loading weights) beside clean
intervals of others, which the co-location check never looked at. In time it would win nothing while
all cells take the same: 1.23 h for the full matrix either way; with the 120 s of drain that A-P3-1
reckoned with 1.56 h, within its "1.5-2 hours" (:mod:`opprof.campaign.forecast` computes both).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opprof.artifacts.campaign import RunRecord, Slot, Stop
from opprof.artifacts.environment import Topology
from opprof.campaign.costs import Pace, RunCost, config_row, run_cost
from opprof.campaign.ledger import Balance, fits, hours_ns
from opprof.campaign.places import (
    GpuSlot,
    gpu_slots,
    mask_of,
    placement_problems,
    take_adjacent,
)
from opprof.campaign.plan import (
    GROUPS,
    Group,
    Standing,
    gives_rate,
    group_of,
    standings,
    without_colocation,
)
from opprof.errors import InputError
from opprof.protocol.model import ProtocolFile
from opprof.words import plural

PORT_MAX = 65535
_NS = 1_000_000_000


@dataclass(frozen=True)
class Where:
    """What a campaign may use."""

    hosts: tuple[Topology, ...]
    widths: Mapping[str, int]
    """Host to GPU slots that may be used at once: 8 or 4 as the co-location gate authorises, 1 for
    one cell at a time. A cell that needs more GPUs than that runs alone on its host."""
    port_base: int
    """Port of the first GPU slot, every slot of every host has the next; 0 leaves ports to the
    launch (a free one for every attempt)."""

    def ordinal(self, host: str) -> int:
        """Return the place of a host's first slot among the slots of all hosts."""
        before = itertools.takewhile(lambda each: each.host != host, self.hosts)
        return sum(len(each.gpus) for each in before)


@dataclass(frozen=True)
class Lane:
    """One cell of a wave: its runs, one after the other, on one slot."""

    slot: Slot
    runs: tuple[str, ...]
    costs: tuple[RunCost, ...]
    """One a run."""

    @property
    def expected_s(self) -> float:
        """Seconds of all its runs, as the protocol estimates them."""
        return sum(cost.expected_s for cost in self.costs)


@dataclass(frozen=True)
class Wave:
    """What is launched together."""

    number: int
    """From 1; stands in every slot."""
    group: Group
    lanes: tuple[Lane, ...]

    @property
    def runs(self) -> tuple[str, ...]:
        """All its runs, lane by lane."""
        return tuple(run for lane in self.lanes for run in lane.runs)

    @property
    def reservations(self) -> dict[str, tuple[int, float]]:
        """Run to its GPUs and reserved GPU-seconds, for :func:`opprof.campaign.ledger.reserve`."""
        return {
            run: (cost.gpus, cost.reserved_gpu_s)
            for lane in self.lanes
            for run, cost in zip(lane.runs, lane.costs, strict=True)
        }

    @property
    def reserved_gpu_s(self) -> float:
        """The wave's conservative reservation."""
        return sum(cost.reserved_gpu_s for lane in self.lanes for cost in lane.costs)

    @property
    def expected_gpu_s(self) -> float:
        """The wave's estimated GPU-seconds."""
        return sum(cost.expected_gpu_s for lane in self.lanes for cost in lane.costs)

    @property
    def expected_s(self) -> float:
        """Its estimated wall seconds: those of its longest lane."""
        return max(lane.expected_s for lane in self.lanes)


@dataclass(frozen=True)
class Refusal:
    """Why no wave may start now, although there is work."""

    kind: Literal["stop", "active", "placement", "budget"]
    reason: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """Nothing is left that could run; what did not complete is named with its reason."""

    blocked: Mapping[str, str]


def next_wave(
    records: Sequence[RunRecord],
    where: Where,
    protocol: ProtocolFile,
    now: Balance,
    pace: Pace,
    *,
    stop: Stop | None = None,
    beside: Sequence[RunRecord] = (),
) -> Wave | Refusal | Done:
    """Return the next wave of a campaign whose earlier waves have all ended.

    ``beside`` are runs that are not to be launched but have had waves, which keep their numbers.

    Resumed campaigns ask the same: complete runs are left out, a cell whose saturation is complete
    begins with its moderate run, everything keeps the protocol's order.

    Raises:
        InputError: records or hosts contradict themselves, or a port would not exist.
    """
    if stop is not None and not stop.reviewed:
        return Refusal("stop", f"hard stop {stop.condition} ({stop.name}): {stop.reason}")
    records = without_colocation(records)
    problems = _host_problems(where, protocol)
    if problems:
        return Refusal("placement", "; ".join(problems))
    standing = standings(records, protocol, held_runs(records, where, protocol))
    active = [record.run for record in records if standing[record.run].state == "active"]
    if active:
        return Refusal(
            "active", f"{plural(len(active), 'run is', 'runs are')} under way, first {active[0]}"
        )
    cells = _ready_cells(records, standing)
    if not cells:
        return Done(_blocked(records, standing))
    chosen = _longest_beginning(cells, where, protocol)
    wave = _wave(chosen, where, protocol, pace, _next_number([*records, *beside]))
    if not fits(now, wave.reserved_gpu_s, protocol.budget):
        return _over(wave, now, protocol)
    return wave


def next_in_lane(lane: Lane, records: Sequence[RunRecord], protocol: ProtocolFile) -> str | None:
    """Return the lane's run that may start now; None when the lane has ended for this wave.

    A run has one attempt a wave: its exact rerun belongs to a later wave, with its own reservation.
    """
    by_name = {record.run: record for record in records}
    standing = standings(without_colocation(records), protocol)
    for run in lane.runs:
        attempt = by_name[run].attempt
        tried = attempt is not None and attempt.slot and attempt.slot.wave == lane.slot.wave
        if standing[run].state == "runnable" and not tried:
            return run
    return None


def held_runs(records: Sequence[RunRecord], where: Where, protocol: ProtocolFile) -> dict[str, str]:
    """Return the runs that these hosts can never run, with the reason.

    Moderate runs whose saturation was calibrated in another placement regime (A-P3-1, 3), and runs
    that need more GPUs than any host has.
    """
    by_name = {record.run: record for record in records}
    every = _every_slot(where)
    held: dict[str, str] = {}
    for record in records:
        gpus = config_row(protocol, record.config).tensor_parallel_size
        width = _regime(record, by_name)
        if _block(every, gpus, every) is None:
            held[record.run] = f"needs {plural(gpus, 'GPU')} side by side, which no host has"
        elif _block(_of_width(every, width, where), gpus, every) is None:
            held[record.run] = (
                f"its saturation run was calibrated {width} wide; a moderate run takes its rate"
                " from its own placement regime only"
            )
    return held


def _of_width(slots: Sequence[GpuSlot], width: int, where: Where) -> list[GpuSlot]:
    """The slots of hosts with this placement regime; all of them for 0."""
    return [slot for slot in slots if width in (0, where.widths[slot.host])]


@dataclass(frozen=True)
class _Cell:
    """Runs of one cell that may run now, one after the other."""

    records: tuple[RunRecord, ...]
    width: int = 0
    """Regime that its rate was calibrated in, where that was in an earlier wave; 0 for any."""

    @property
    def config(self) -> str:
        return self.records[0].config


@dataclass(frozen=True)
class _Placed:
    cell: _Cell
    slots: tuple[GpuSlot, ...]


def _host_problems(where: Where, protocol: ProtocolFile) -> list[str]:
    names = [host.host for host in where.hosts]
    if len(set(names)) != len(names):
        raise InputError(f"two hosts have one name: {', '.join(names)}")
    if not any(host.gpus for host in where.hosts):
        return ["no host has a GPU slot"]
    missing = [name for name in names if where.widths.get(name, 0) < 1]
    if missing:
        raise InputError(f"no width for host {missing[0]!r}")
    last = where.port_base + sum(len(host.gpus) for host in where.hosts) - 1
    if where.port_base and not 1 <= where.port_base <= last <= PORT_MAX:
        raise InputError(f"ports {where.port_base} to {last} do not exist (1 to {PORT_MAX})")
    return [
        problem for host in where.hosts for problem in placement_problems(protocol.placement, host)
    ]


def _ready_cells(records: Sequence[RunRecord], standing: Mapping[str, Standing]) -> list[_Cell]:
    """Return the cells of the first group with work, in order; a moderate run joins its cell."""
    for group in GROUPS:
        cells: dict[tuple[str, str, str], list[RunRecord]] = {}
        for record in sorted(records, key=lambda each: each.order):
            if group_of(record) != group:
                continue
            key = (record.pattern, record.config, record.role)
            before = {each.run for each in cells.get(key, [])}
            state = standing[record.run].state
            follows = state == "waiting" and any(name in before for name in record.needs)
            follows = follows and all(
                name in before or standing[name].state == "complete" for name in record.needs
            )
            if state == "runnable" or follows:
                cells.setdefault(key, []).append(record)
        if cells:
            by_name = {record.run: record for record in records}
            return [_Cell(tuple(each), _regime(each[0], by_name)) for each in cells.values()]
    return []


def _regime(record: RunRecord, by_name: Mapping[str, RunRecord]) -> int:
    """Width under which the saturation was measured that a run takes its rate from; 0 for none."""
    for need in (by_name[name] for name in record.needs if name in by_name):
        attempt = need.attempt
        if gives_rate(need, record) and need.state == "complete" and attempt and attempt.slot:
            return attempt.slot.width
    return 0


def _every_slot(where: Where) -> list[GpuSlot]:
    return gpu_slots(where.hosts, {host.host: len(host.gpus) for host in where.hosts})


def _block(free: Sequence[GpuSlot], count: int, every: Sequence[GpuSlot]) -> list[GpuSlot] | None:
    """Return adjacent free slots of one NUMA node; spanning nodes only where none is so large."""
    one_node = take_adjacent(every, count) is not None
    return take_adjacent(free, count, one_node=one_node)


def _longest_beginning(
    cells: Sequence[_Cell], where: Where, protocol: ProtocolFile
) -> list[_Placed]:
    """Return the longest beginning of ``cells`` that fits together; at least the first cell.

    Strictly in order: a cell that does not fit ends the wave and is the first of the next.
    """
    free, every = gpu_slots(where.hosts, where.widths), _every_slot(where)
    placed: list[_Placed] = []
    for count in range(1, len(cells) + 1):
        attempt = _place(cells[:count], free, every, where, protocol)
        if attempt is None:
            break
        placed = attempt
    if placed:
        return placed
    usable = _of_width(every, cells[0].width, where)
    alone = _block(usable, _gpus(cells[0], protocol), every)
    assert alone is not None, "cells that fit nowhere were held before"
    return [_Placed(cells[0], tuple(alone))]


def _place(
    cells: Sequence[_Cell],
    free: Sequence[GpuSlot],
    every: Sequence[GpuSlot],
    where: Where,
    protocol: ProtocolFile,
) -> list[_Placed] | None:
    """Place all cells at once, those with most GPUs first, each on the lowest slots that fit."""
    left = list(free)
    blocks: dict[int, tuple[GpuSlot, ...]] = {}
    for index in sorted(range(len(cells)), key=lambda i: (-_gpus(cells[i], protocol), i)):
        cell = cells[index]
        usable = _of_width(left, cell.width, where)
        block = _block(usable, _gpus(cell, protocol), every)
        if block is None:
            return None
        blocks[index] = tuple(block)
        left = [slot for slot in left if slot not in block]
    return [_Placed(cell, blocks[index]) for index, cell in enumerate(cells)]


def _gpus(cell: _Cell, protocol: ProtocolFile) -> int:
    return config_row(protocol, cell.config).tensor_parallel_size


def _wave(
    chosen: Sequence[_Placed],
    where: Where,
    protocol: ProtocolFile,
    pace: Pace,
    number: int,
) -> Wave:
    lanes = []
    for placed in chosen:
        gpus = [slot.gpu.index for slot in placed.slots]
        host = placed.slots[0].host
        lanes.append(
            Lane(
                slot=Slot(
                    host=host,
                    gpus=gpus,
                    gpu_uuids=[slot.gpu.uuid for slot in placed.slots],
                    port=where.port_base and where.port_base + placed.slots[0].ordinal,
                    cpus=mask_of(protocol.placement, gpus),
                    wave=number,
                    width=where.widths[host],
                ),
                runs=tuple(record.run for record in placed.cell.records),
                costs=tuple(run_cost(protocol, record, pace) for record in placed.cell.records),
            )
        )
    return Wave(number, group_of(chosen[0].cell.records[0]), tuple(lanes))


def _next_number(records: Sequence[RunRecord]) -> int:
    waves = [attempt.slot.wave for record in records for attempt in record.attempts if attempt.slot]
    return 1 + max(waves, default=0)


def _over(wave: Wave, now: Balance, protocol: ProtocolFile) -> Refusal:
    cap = protocol.budget.gpu_hours_max
    reserved = wave.reserved_gpu_s / 3600
    left = (hours_ns(cap) - now.consumed_ns - now.reserved_ns) / _NS / 3600
    return Refusal(
        "budget",
        f"wave {wave.number} would reserve {reserved:.3f} GPU-hours;"
        f" {left:.3f} of {cap:g} are left",
        {
            "wave": wave.number,
            "consumed_gpu_hours": now.consumed_hours,
            "reserved_gpu_hours": now.reserved_hours,
            "wave_gpu_hours": reserved,
            "gpu_hours_max": cap,
        },
    )


def _blocked(records: Sequence[RunRecord], standing: Mapping[str, Standing]) -> dict[str, str]:
    """Every run that is not complete, with the reason why it never will be."""
    return {
        record.run: standing[record.run].reason
        for record in records
        if standing[record.run].state != "complete"
    }
