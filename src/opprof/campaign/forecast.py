"""A campaign played on paper: waves, ledger and stops over given outcomes, in virtual time.

The same code forecasts (every run takes what the protocol estimates) and tests the schedule (runs
fail, take long, are quarantined). Nothing here is measured; every charge is labelled simulated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from opprof.artifacts.campaign import Attempt, Charge, Phase, RunRecord, Slot, Stop, Transition
from opprof.campaign.costs import Pace, run_cost
from opprof.campaign.ledger import (
    attempt_cost,
    balance,
    charge_attempt,
    opening,
    over_budget,
    release,
    reserve,
)
from opprof.campaign.naming import run_folder
from opprof.campaign.waves import Done, Lane, Refusal, Wave, Where, next_in_lane, next_wave
from opprof.protocol.model import ProtocolFile

_NS = 1_000_000_000


@dataclass(frozen=True)
class Outcome:
    """How one attempt goes."""

    run_s: float
    """From the server's launch to its shutdown."""
    cleanup_s: float = 0.0
    """From then to free GPU memory."""
    phase: Literal["complete", "failed", "interrupted"] = "complete"
    accepted: bool | None = True
    fault: Literal["", "infrastructure", "semantic", "interrupted"] = ""
    drain_quarantined: bool = False


Outcomes = Callable[[RunRecord, int], Outcome]
"""A run and its attempt number to how that attempt goes."""
StopRule = Callable[[Sequence[RunRecord], int], Stop | None]
"""All records and the wall time to a stop; asked after every run."""


@dataclass(frozen=True)
class PlayedWave:
    """One wave as it went."""

    wave: Wave
    start_ns: int
    end_ns: int
    attempts: tuple[tuple[str, Attempt], ...]
    """In the order of their ends."""
    gpu_s: float
    """What it consumed."""
    consumed_ns: int
    """GPU-nanoseconds consumed by the campaign at its end, prior use included."""


@dataclass(frozen=True)
class Forecast:
    """The whole play."""

    waves: tuple[PlayedWave, ...]
    ending: Done | Refusal
    records: tuple[RunRecord, ...]
    charges: tuple[Charge, ...]
    stop: Stop | None

    @property
    def wall_s(self) -> float:
        """Seconds from the first launch to the last end."""
        return self.waves[-1].end_ns / _NS if self.waves else 0.0

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of the waves, prior use not included."""
        return sum(played.gpu_s for played in self.waves)


Drain = Literal["none", "shortest", "whole"]
"""Assumed drain: none, the protocol's shortest allowance for every run, each run's whole one."""


def expected_outcomes(protocol: ProtocolFile, pace: Pace, drain: Drain) -> Outcomes:
    """Return outcomes in which every run succeeds in its expected seconds and its drain.

    ``whole`` is what a reservation counts: the shutdown takes its whole time-out as well.
    """
    shortest = min(row.drain_budget_s for row in protocol.patterns) * pace.time_scale
    extra = shortest if drain == "shortest" else 0.0

    def outcome(record: RunRecord, _attempt: int) -> Outcome:
        cost = run_cost(protocol, record, pace)
        return Outcome(run_s=cost.reserved_s if drain == "whole" else cost.expected_s + extra)

    return outcome


def play(
    records: Sequence[RunRecord],
    where: Where,
    protocol: ProtocolFile,
    pace: Pace,
    outcomes: Outcomes,
    *,
    stop_rule: StopRule | None = None,
    charges: Sequence[Charge] = (),
    start_ns: int = 0,
    waves_max: int | None = None,
) -> Forecast:
    """Play waves until nothing may start; the budget also stops a wave that overruns it.

    ``charges``: the ledger so far, a new one where empty. ``waves_max``: stop after so many (a
    controller that ends in between).
    """
    table = _Table(protocol, pace, outcomes, stop_rule, list(records), list(charges))
    if not table.charges:
        table.charges.append(opening(protocol.budget, wall_ns=start_ns, simulated=True))
    waves: list[PlayedWave] = []
    now_ns = start_ns
    while True:
        found = next_wave(
            table.records, where, protocol, balance(table.charges), pace, stop=table.stop
        )
        if not isinstance(found, Wave):
            break
        if waves_max is not None and len(waves) >= waves_max:
            found = Refusal("active", "the play ends here")
            break
        waves.append(table.wave(found, now_ns))
        now_ns = waves[-1].end_ns
    return Forecast(tuple(waves), found, tuple(table.records), tuple(table.charges), table.stop)


def queue_wall_s(waves: Sequence[PlayedWave], width: int) -> float:
    """Return the wall seconds if every slot took the next cell at once, instead of waiting.

    A work-conserving queue over the same cells in the same order, burn-ins before all others and
    confirmations after; a cell on two GPUs waits for two free slots.
    """
    total = 0.0
    for group in ("burnin", "matrix", "confirmation"):
        lanes = [
            (len(lane.slot.gpus), _lane_s(lane, played))
            for played in waves
            if played.wave.group == group
            for lane in played.wave.lanes
        ]
        free = [0.0] * width
        for gpus, seconds in lanes:
            free.sort()
            taken = min(gpus, width)
            start = free[taken - 1]
            free[:taken] = [start + seconds] * taken
        total += max(free)
    return total


def _lane_s(lane: Lane, played: PlayedWave) -> float:
    ends = [attempt.transitions[-1].wall_ns for run, attempt in played.attempts if run in lane.runs]
    return (max(ends, default=played.start_ns) - played.start_ns) / _NS


class _Table:
    """The records and the ledger while they are played."""

    def __init__(
        self,
        protocol: ProtocolFile,
        pace: Pace,
        outcomes: Outcomes,
        stop_rule: StopRule | None,
        records: list[RunRecord],
        charges: list[Charge],
    ) -> None:
        self.protocol = protocol
        self.pace = pace
        self.outcomes = outcomes
        self.stop_rule = stop_rule
        self.records = records
        self.charges = charges
        self.stop: Stop | None = None
        self._place = {record.run: index for index, record in enumerate(records)}

    def wave(self, wave: Wave, start_ns: int) -> PlayedWave:
        """Play one wave: every lane's runs in turn, the ends of all lanes in the order of time."""
        before_ns = balance(self.charges).consumed_ns
        self.charges += reserve(
            wave.reservations, wave=wave.number, wall_ns=start_ns, simulated=True
        )
        ends: list[tuple[int, int, str, Attempt]] = []
        done: list[tuple[str, Attempt]] = []
        now_ns = start_ns
        for index, lane in enumerate(wave.lanes):
            self._start(index, lane, start_ns, ends)
        while ends:
            now_ns, index, run, attempt = heapq.heappop(ends)
            self._end(run, attempt, now_ns)
            done.append((run, attempt))
            if self.stop is None:
                self._start(index, wave.lanes[index], now_ns, ends)
        for run in wave.runs:
            self.charges += release(
                self.charges, run, wave.number, wall_ns=now_ns, simulated=True, note="not run"
            )
        after_ns = balance(self.charges).consumed_ns
        spent_s = (after_ns - before_ns) / _NS
        return PlayedWave(wave, start_ns, now_ns, tuple(done), spent_s, after_ns)

    def _start(
        self, index: int, lane: Lane, now_ns: int, ends: list[tuple[int, int, str, Attempt]]
    ) -> None:
        run = next_in_lane(lane, self.records, self.protocol)
        if run is None:
            return
        record = self.records[self._place[run]]
        number = len(record.attempts) + 1
        how = self.outcomes(record, number)
        cleaning_ns = now_ns + round(how.run_s * _NS)
        end_ns = cleaning_ns + round(how.cleanup_s * _NS)
        attempt = _attempt(run, number, lane.slot, how, (now_ns, cleaning_ns, end_ns))
        heapq.heappush(ends, (end_ns, index, run, attempt))
        self._put(record, "loading", attempt, None, None)

    def _end(self, run: str, attempt: Attempt, now_ns: int) -> None:
        record = self.records[self._place[run]]
        how = self.outcomes(record, attempt.number)
        accepted = how.accepted if how.phase == "complete" else None
        self._put(record, how.phase, attempt, accepted, how.drain_quarantined)
        cost = attempt_cost(attempt)
        self.charges += charge_attempt(record, attempt, cost, wall_ns=now_ns, simulated=True)
        assert attempt.slot is not None
        self.charges += release(
            self.charges, run, attempt.slot.wave, wall_ns=now_ns, simulated=True
        )
        if self.stop is None and self.stop_rule is not None:
            self.stop = self.stop_rule(self.records, now_ns)
        if self.stop is None and over_budget(balance(self.charges), 0.0, self.protocol.budget):
            self.stop = Stop(1, 9, "budget", "the GPU-hour cap is reached", run, now_ns)

    def _put(
        self,
        record: RunRecord,
        state: Phase,
        attempt: Attempt,
        accepted: bool | None,
        quarantined: bool | None,
    ) -> None:
        self.records[self._place[record.run]] = msgspec.structs.replace(
            record,
            state=state,
            attempts=[*record.attempts[: attempt.number - 1], attempt],
            accepted=accepted,
            drain_quarantined=quarantined,
        )


def _attempt(
    run: str, number: int, slot: Slot, how: Outcome, times_ns: tuple[int, int, int]
) -> Attempt:
    start_ns, cleaning_ns, end_ns = times_ns
    steps: list[tuple[Phase, int]] = [
        ("starting", start_ns),
        ("loading", start_ns),
        ("cleaning", cleaning_ns),
        (how.phase, end_ns),
    ]
    attempt = Attempt(
        number=number,
        folder=run_folder(run),
        phase=how.phase,
        transitions=[Transition(phase, at) for phase, at in steps],
        slot=slot,
        processes=[],
        source_hashes={},
        checks={},
        reason="" if how.phase == "complete" else f"played: {how.fault or how.phase}",
        fault=how.fault,
    )
    return msgspec.structs.replace(attempt, gpu_seconds=attempt_cost(attempt).gpu_s)
