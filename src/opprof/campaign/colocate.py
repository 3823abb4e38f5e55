"""The co-location check of one host as it runs (A-P3-1): solo, eight-way, after a failure four-way.

Every regime has two rounds, calibration and moderate run. A round is one target and its
backgrounds on fresh servers: all servers come up, the backgrounds load, the target's client starts
when each of them has completed a request, and they are told to stop when it has ended. A round
counts as a whole: its runs become complete together or none does; a round that was broken off is
made anew, one that failed by its surroundings once more.

A campaign on several hosts makes the check on each of them, at the same time: they share no GPU, no
bus and no processor. Each check reserves its own rounds in the one ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from opprof.artifacts.campaign import RunRecord, Stop
from opprof.artifacts.plan import ColocationGate, Regime
from opprof.campaign.attempt import Outcome, PlaceLost
from opprof.campaign.colocation import ColocationRun, Round, next_regime, rounds
from opprof.campaign.colocation_read import CheckedPlace, gate_of, write_gate
from opprof.campaign.frozen import frozen_of
from opprof.campaign.launcher import Equipment, Launcher, Place
from opprof.campaign.ledger import fits, reserve
from opprof.campaign.meeting import RoundMeeting
from opprof.campaign.reruns import may_rerun
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure, InputError, StateConflict
from opprof.protocol import Protocol
from opprof.protocol.model import Reruns


@dataclass(frozen=True)
class Check:
    """What the check needs of the campaign."""

    equipment: Equipment
    launcher: Launcher
    place: CheckedPlace
    port_base: int
    """Port of the host's first slot."""
    over: Callable[[], bool]
    """Whether nothing further may begin: a stop, also of another host's check, or a signal."""
    stop: Callable[[Sequence[Stop]], None]
    """Takes the hard stops that the runs of a round call for, as any run's."""

    @property
    def protocol(self) -> Protocol:
        """In force."""
        return self.equipment.binding.protocol


class BudgetSpent(EnvironmentFailure):
    """A round would go over the GPU budget."""


async def colocation_gate(check: Check) -> ColocationGate | None:
    """Measure what is still to be measured and return the gate, which is on disk.

    None where the campaign was stopped meanwhile; a resume goes on.

    Raises:
        BudgetSpent: a round would exceed the budget.
        PlaceLost: the host was lost.
        StateConflict: earlier rounds were made on other GPUs.
        asyncio.CancelledError, EnvironmentFailure: broken off; a resume goes on.
    """
    file, host = check.protocol.file, check.place.host
    measured: list[Regime] = []
    gate: ColocationGate | None = None
    while (regime := next_regime(file, host, gate)) != "done":
        for each in rounds(file, host, regime, check.place.pace, port_base=check.port_base):
            if check.over():
                return None
            await _round(check, each)
        if check.over():
            return None
        measured.append(regime)
        now = check.equipment.store.wall_ns()
        gate = gate_of(
            check.equipment.store.folder, check.protocol, measured, check.place, wall_ns=now
        )
        write_gate(check.equipment.store.folder, gate)
        check.equipment.say(f"co-location on {host.host}, {regime}: {gate.reason}")
    if gate is None:
        raise InputError("the host holds no co-located regime of the protocol")
    return gate


async def _round(check: Check, each: Round) -> None:
    runs = [each.target, *each.backgrounds]
    records = {
        run.run: _record(check.equipment.store, run, index) for index, run in enumerate(runs)
    }
    _require_same_gpus(each, records)
    if _is_settled(list(records.values()), frozen_of(check.protocol.file).reruns):
        return
    _reserve(check, each, runs)
    where = f"{each.target.slot.host}, {each.regime} {each.load_point}"
    check.equipment.say(f"co-location on {where}: {len(runs)} servers")
    meeting = RoundMeeting(each.target.run, [run.run for run in each.backgrounds])
    tasks = [
        asyncio.create_task(
            check.launcher.attempt(records[run.run], run.slot, _place(each, run, meeting))
        )
        for run in runs
    ]
    try:
        ended: list[tuple[RunRecord, Outcome]] = await asyncio.gather(*tasks)
    except PlaceLost:
        # All runs of a round have one host; each finds out by itself, and its record says so.
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in runs:
            check.launcher.release(run.run, run.slot.wave)
    bad = next(((record, outcome) for record, outcome in ended if outcome.reason), None)
    try:
        for record, outcome in ended:
            if bad is not None and not outcome.reason:
                reason = f"{bad[0].run} of the same round failed: {bad[1].reason}"
                outcome = msgspec.structs.replace(outcome, reason=reason, fault=bad[1].fault)
            check.launcher.finish(record, outcome)
    finally:
        check.stop([stop for _, outcome in ended for stop in outcome.stops])


def _require_same_gpus(each: Round, records: Mapping[str, RunRecord]) -> None:
    """A host that has got other GPUs is not the one that was measured.

    Raises:
        StateConflict: a complete run of the round was made on others.
    """
    for run in (each.target, *each.backgrounds):
        record = records[run.run]
        slot = record.attempt.slot if record.attempt else None
        if record.state != "complete" or slot is None:
            continue
        if (slot.gpus, slot.gpu_uuids) != (run.slot.gpus, run.slot.gpu_uuids):
            raise StateConflict(
                f"the co-location check of {slot.host} was made on GPU {slot.gpus[0]}"
                f" {slot.gpu_uuids[0]}, which is {run.slot.gpus[0]} {run.slot.gpu_uuids[0]} now:"
                " bring that machine back, or give this one another name to have it checked"
            )


def _is_settled(records: list[RunRecord], rule: Reruns) -> bool:
    """Whether a round is not made any more: complete, or failed for good."""
    if all(record.state == "complete" for record in records):
        return True
    return any(record.state == "failed" and not may_rerun(record, rule) for record in records)


def _reserve(check: Check, each: Round, runs: list[ColocationRun]) -> None:
    budget = check.protocol.file.budget
    if not fits(check.equipment.ledger.balance, each.cost.reserved_gpu_s, budget):
        raise BudgetSpent(
            f"the {each.regime} co-location round on {each.target.slot.host} would reserve"
            f" {each.cost.reserved_gpu_s:.0f} GPU-seconds beyond the budget of"
            f" {budget.gpu_hours_max:g} GPU-hours"
        )
    share = each.cost.reserved_gpu_s / len(runs)
    check.equipment.ledger.append(
        reserve(
            {run.run: (1, share) for run in runs},
            wave=0,
            wall_ns=check.equipment.store.wall_ns(),
            simulated=check.equipment.ledger.simulated,
        )
    )


def _place(each: Round, run: ColocationRun, meeting: RoundMeeting) -> Place:
    saturation = None
    if each.saturation_folder and not run.background:
        saturation = f"{each.saturation_folder}/client/result.json"
    return Place(run.folder, saturation, run.background, meeting)


def _record(store: Store, run: ColocationRun, index: int) -> RunRecord:
    """Return the run's record; a new one is not saved before its attempt begins."""
    for record in store.runs():
        if record.run == run.run:
            return record
    return RunRecord(
        schema=1,
        run=run.run,
        pattern=run.pattern,
        config=run.config,
        load_point=run.load_point,
        role="colocation",
        order=index,
        needs=[],
        state="pending",
        attempts=[],
    )
