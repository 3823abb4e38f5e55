"""GPU time: what was consumed, what is reserved, whether a wave still fits (A-P3-4).

A ledger opens with the declared prior use and counts runs, burn-ins, the co-location check, retries
and cleanup while a server still owns GPU memory. Sums are taken in whole nanoseconds of one GPU, so
that the border (16.0 hours) is exact: a reservation may reach it and not pass it. Values in, values
out; the file is :mod:`opprof.campaign.ledger_file`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from opprof.artifacts.campaign import Attempt, Charge, Phase, RunRecord
from opprof.campaign.plan import ACTIVE
from opprof.campaign.stamps import Stamp, elapsed_ns, stamp_of
from opprof.protocol.model import Budget

CONSUMED = ("prior", "run", "burnin", "colocation", "retry", "cleanup")
"""Kinds of charges that are GPU time spent."""

_NS = 1_000_000_000
_SECONDS_PER_HOUR = 3600
_TOLERANCE_NS = 1_000_000
"""A state file and the ledger round the same interval apart by less than this."""
_SETTLED = "settled after a crash"
_OWNING: frozenset[Phase] = ACTIVE - {"checking"}
"""Phases in which the attempt's server may own GPU memory."""

Consumed = Literal["run", "burnin", "colocation", "retry", "cleanup"]


@dataclass(frozen=True)
class Balance:
    """Sums of a ledger in GPU-nanoseconds (one GPU for one nanosecond)."""

    consumed_ns: int
    reserved_ns: int
    by_kind: Mapping[str, int]
    """Consumed, by :data:`CONSUMED`."""

    @property
    def consumed_hours(self) -> float:
        """GPU-hours spent, prior use included."""
        return self.consumed_ns / _NS / _SECONDS_PER_HOUR

    @property
    def reserved_hours(self) -> float:
        """GPU-hours of open reservations."""
        return self.reserved_ns / _NS / _SECONDS_PER_HOUR


EMPTY = Balance(0, 0, {})


def gpu_ns(gpu_seconds: float) -> int:
    """Return GPU-seconds as whole GPU-nanoseconds."""
    return round(gpu_seconds * _NS)


def hours_ns(hours: float) -> int:
    """Return GPU-hours as whole GPU-nanoseconds."""
    return round(hours * _SECONDS_PER_HOUR * _NS)


def balance(charges: Iterable[Charge]) -> Balance:
    """Return the ledger's sums."""
    by_kind = dict.fromkeys(CONSUMED, 0)
    reserved = 0
    for charge in charges:
        if charge.kind in ("reserve", "release"):
            reserved += gpu_ns(charge.gpu_seconds)
        elif charge.kind != "note":
            by_kind[charge.kind] += gpu_ns(charge.gpu_seconds)
    return Balance(sum(by_kind.values()), reserved, by_kind)


def opening(budget: Budget, *, wall_ns: int, simulated: bool) -> Charge:
    """Return a ledger's first line: the use that the protocol declares from before."""
    return Charge(
        schema=1,
        kind="prior",
        run="",
        attempt=0,
        gpus=0,
        gpu_seconds=budget.gpu_hours_used * _SECONDS_PER_HOUR,
        wall_ns=wall_ns,
        note="declared prior use (budget.gpu_hours_used)",
        simulated=simulated,
    )


def amended_prior(
    charges: Iterable[Charge], budget: Budget, protocol_sha256: str, *, wall_ns: int
) -> list[Charge]:
    """Return the line that brings the prior use to what an amended protocol declares, if one does.

    The opening stays as it is; the line holds the difference.
    """
    lines = list(charges)
    now_ns = balance(lines).by_kind["prior"]
    added_ns = hours_ns(budget.gpu_hours_used) - now_ns
    if abs(added_ns) <= _TOLERANCE_NS:
        return []
    change = f"{now_ns / _NS / _SECONDS_PER_HOUR:g} to {budget.gpu_hours_used:g}"
    return [
        msgspec.structs.replace(
            opening(budget, wall_ns=wall_ns, simulated=lines[0].simulated),
            gpu_seconds=added_ns / _NS,
            note=f"amended prior use (budget.gpu_hours_used from {change})",
            protocol_sha256=protocol_sha256,
        )
    ]


def fits(now: Balance, reservation_gpu_s: float, budget: Budget) -> bool:
    """Whether a reservation keeps consumed and reserved GPU time within the cap."""
    wanted = now.consumed_ns + now.reserved_ns + gpu_ns(reservation_gpu_s)
    return wanted <= hours_ns(budget.gpu_hours_max)


def over_budget(now: Balance, running_gpu_s: float, budget: Budget) -> bool:
    """Whether what was consumed, with the GPU time of attempts under way, has reached the cap.

    The controller asks while a wave runs and stops it (hard stop 9) when the answer is yes; give it
    the running attempts' time plus what their shutdown will take, and the cap is never passed.
    """
    return now.consumed_ns + gpu_ns(running_gpu_s) >= hours_ns(budget.gpu_hours_max)


def reserve(
    costs: Mapping[str, tuple[int, float]], *, wave: int, wall_ns: int, simulated: bool
) -> list[Charge]:
    """Return the reservation of a wave, one line a run: run to (GPUs, GPU-seconds)."""
    return [
        Charge(
            schema=1,
            kind="reserve",
            run=run,
            attempt=0,
            gpus=gpus,
            gpu_seconds=gpu_seconds,
            wall_ns=wall_ns,
            wave=wave,
            simulated=simulated,
        )
        for run, (gpus, gpu_seconds) in costs.items()
    ]


def open_reservations(charges: Iterable[Charge]) -> dict[tuple[str, int], float]:
    """Return (run, wave) to the GPU-seconds still reserved, in the order of their reservation."""
    found: dict[tuple[str, int], float] = {}
    for charge in charges:
        key = (charge.run, charge.wave)
        if charge.kind in ("reserve", "release"):
            found[key] = found.get(key, 0.0) + charge.gpu_seconds
    return {key: value for key, value in found.items() if gpu_ns(value) != 0}


def release(
    charges: Iterable[Charge],
    run: str,
    wave: int,
    *,
    wall_ns: int,
    simulated: bool,
    note: str = "",
) -> list[Charge]:
    """Return the release of what a run of a wave still has reserved; empty where nothing is."""
    value = open_reservations(charges).get((run, wave))
    if value is None:
        return []
    return [
        Charge(
            schema=1,
            kind="release",
            run=run,
            attempt=0,
            gpus=0,
            gpu_seconds=-value,
            wall_ns=wall_ns,
            note=note,
            wave=wave,
            simulated=simulated,
        )
    ]


@dataclass(frozen=True)
class AttemptCost:
    """GPU time of one attempt by what it was spent on; seconds of one GPU."""

    run_gpu_s: float
    """From the server's launch to its shutdown, drain of the client included."""
    cleanup_gpu_s: float
    """From then until its GPU memory was back at zero."""

    @property
    def gpu_s(self) -> float:
        """Both: ``Attempt.gpu_seconds``."""
        return self.run_gpu_s + self.cleanup_gpu_s


def attempt_cost(attempt: Attempt, *, until: Stamp | None = None) -> AttemptCost:
    """Return what an attempt spent, from its transitions.

    The server owns its GPUs from ``starting`` until the transition after ``cleaning``
    (``checking``, or the attempt's end, which is written when its GPU memory is back at zero).
    ``until``: for an attempt that nobody saw end, until when its server may have lived. Lengths are
    the monotonic clock's (:mod:`opprof.campaign.stamps`), never negative.
    """
    gpus = len(attempt.slot.gpus) if attempt.slot else 0
    start = cleaning = end = None
    for step in attempt.transitions:
        if step.phase == "starting" and start is None:
            start = stamp_of(step)
        elif step.phase == "cleaning" and cleaning is None:
            cleaning = stamp_of(step)
        elif start is not None and step.phase not in _OWNING and end is None:
            end = stamp_of(step)
    if start is None:
        return AttemptCost(0.0, 0.0)
    last = stamp_of(attempt.transitions[-1])
    whole_ns = elapsed_ns(start, last if end is None else end)
    if end is None and until is not None:
        whole_ns += elapsed_ns(last, until)
    run_ns = whole_ns if cleaning is None else min(elapsed_ns(start, cleaning), whole_ns)
    return AttemptCost(
        run_gpu_s=gpus * run_ns / _NS, cleanup_gpu_s=gpus * (whole_ns - run_ns) / _NS
    )


def charge_attempt(
    record: RunRecord,
    attempt: Attempt,
    cost: AttemptCost,
    *,
    wall_ns: int,
    simulated: bool,
    note: str = "",
) -> list[Charge]:
    """Return the charges of one attempt: its run (or retry), and its cleanup."""
    kind: Consumed = "run"
    if attempt.number > 1:
        kind = "retry"
    elif record.role == "burnin":
        kind = "burnin"
    elif record.role == "colocation":
        kind = "colocation"
    parts: list[tuple[Consumed, float]] = [(kind, cost.run_gpu_s), ("cleanup", cost.cleanup_gpu_s)]
    return [
        Charge(
            schema=1,
            kind=each,
            run=record.run,
            attempt=attempt.number,
            gpus=len(attempt.slot.gpus) if attempt.slot else 0,
            gpu_seconds=gpu_s,
            wall_ns=wall_ns,
            note=note,
            simulated=simulated,
        )
        for each, gpu_s in parts
        if gpu_s > 0 or each == kind
    ]


def settle(
    charges: Sequence[Charge],
    records: Iterable[RunRecord],
    *,
    wall_ns: int,
    simulated: bool,
) -> list[Charge]:
    """Return the lines that bring a ledger in order after a crash; empty when it is.

    The controller writes the state file first and the ledger second, so what a crash loses is a
    charge, never an attempt. An ended attempt lacks the difference to its ``gpu_seconds``; one that
    nobody saw end is charged from its own timestamps until ``wall_ns`` (when the resume found its
    GPUs free: conservative). Every reservation left open is released.
    """
    lines: list[Charge] = []
    charged: dict[tuple[str, int], int] = {}
    for charge in charges:
        if charge.kind in CONSUMED:
            key = (charge.run, charge.attempt)
            charged[key] = charged.get(key, 0) + gpu_ns(charge.gpu_seconds)
    for record in records:
        for attempt in record.attempts:
            found = charged.get((record.run, attempt.number), 0)
            cost = _owed(attempt, found, until=Stamp(wall_ns))
            if cost is not None:
                lines += charge_attempt(
                    record, attempt, cost, wall_ns=wall_ns, simulated=simulated, note=_SETTLED
                )
    for run, wave in open_reservations(charges):
        lines += release(charges, run, wave, wall_ns=wall_ns, simulated=simulated, note=_SETTLED)
    return lines


def _owed(attempt: Attempt, charged_ns: int, *, until: Stamp) -> AttemptCost | None:
    """What an attempt still owes the ledger; None for nothing."""
    ended = attempt.phase not in ACTIVE
    cost = attempt_cost(attempt, until=None if ended else until)
    owed_ns = (gpu_ns(attempt.gpu_seconds) if ended else gpu_ns(cost.gpu_s)) - charged_ns
    if owed_ns <= _TOLERANCE_NS:
        return None
    if abs(owed_ns - gpu_ns(cost.gpu_s)) <= _TOLERANCE_NS:
        return cost
    return AttemptCost(owed_ns / _NS, 0.0)


def ledger_problems(charges: Sequence[Charge], records: Iterable[RunRecord]) -> list[str]:
    """Compare the ledger with the state files; one sentence a difference, empty when they agree.

    Every ended attempt's ``gpu_seconds`` stands in the ledger, and nothing else does.
    """
    spent: dict[tuple[str, int], int] = {}
    for charge in charges:
        if charge.kind in CONSUMED and charge.run:
            key = (charge.run, charge.attempt)
            spent[key] = spent.get(key, 0) + gpu_ns(charge.gpu_seconds)
    problems = []
    for record in records:
        for attempt in record.attempts:
            found = spent.pop((record.run, attempt.number), 0)
            if attempt.phase in ACTIVE or attempt.phase == "pending":
                continue
            wanted = gpu_ns(attempt.gpu_seconds)
            if abs(found - wanted) > _TOLERANCE_NS:
                problems.append(
                    f"{record.run}, attempt {attempt.number}: {found / _NS:.3f} GPU-s in the"
                    f" ledger, {wanted / _NS:.3f} in its state file"
                )
    return problems + [
        f"{run}, attempt {number}: charged {value / _NS:.3f} GPU-s, but no such attempt is recorded"
        for (run, number), value in spent.items()
        if value
    ]
