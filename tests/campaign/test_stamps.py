"""GPU time by the monotonic clock: a wall clock that is set changes no charge, and is noted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from campaign_builders import NS, phase3

from opprof.artifacts.campaign import Phase, RunRecord, Slot
from opprof.campaign import state
from opprof.campaign.ledger import attempt_cost
from opprof.campaign.plan import planned_runs
from opprof.campaign.stamps import Stamp, clock_lines, elapsed_ns, wall_step_ns
from opprof.campaign.state import StoreJournal
from opprof.campaign.store import Store

SLOT = Slot("dash0", [4, 5], ["a", "b"], 18004, "80-119", 3, 8)
DAY_S = 86_400


class Clocks:
    """A wall clock that can be set, and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.wall_s, self.mono_s = 1_000_000.0, 500.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.mono_s += seconds

    def store(self, folder: Path, boot_id: str = "boot") -> Store:
        return Store(
            folder,
            wall_ns=lambda: round(self.wall_s * NS),
            mono_ns=lambda: round(self.mono_s * NS),
            boot_id=boot_id,
        )


def begun(store: Store, slot: Slot = SLOT) -> RunRecord:
    """A run whose first attempt has just begun."""
    run = next(record for record in planned_runs(phase3()) if record.role == "primary")
    return state.begin_attempt(store, run, slot, {}, folder=f"runs/{run.run}")


@pytest.fixture(autouse=True)
def kept_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without provenance there is nothing to record a moved folder in."""
    monkeypatch.setattr(state, "put_aside", lambda store, record, sha256: record)


@pytest.mark.parametrize("set_by_s", [64_000.0, -3600.0, 0.0])
def test_a_clock_that_is_set_changes_no_charge(tmp_path: Path, set_by_s: float) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    journal = StoreJournal(store, begun(store))

    async def play() -> None:
        phases: tuple[Phase, ...] = ("serving", "loading", "draining", "cleaning", "checking")
        for phase in phases:
            if phase == "draining":
                clocks.wall_s += set_by_s
            clocks.pass_s(1.0)
            await journal.phase(phase)

    asyncio.run(play())
    assert journal.record.attempt is not None
    cost = attempt_cost(journal.record.attempt)
    assert (cost.run_gpu_s, cost.cleanup_gpu_s) == (8.0, 2.0)
    steps = {step.phase: step.wall_step_s for step in journal.record.attempt.transitions}
    assert steps["draining"] == set_by_s
    assert [value for phase, value in steps.items() if phase != "draining"] == [0.0] * 5
    said = clock_lines(journal.record)
    assert len(said) == (1 if set_by_s else 0)
    assert all(f"set by {set_by_s:+.3f} s before draining" in line for line in said)


@pytest.mark.parametrize("set_by_s", [64_000.0, -3600.0])
def test_what_is_under_way_is_counted_by_the_monotonic_clock(
    tmp_path: Path, set_by_s: float
) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = begun(store)
    clocks.wall_s += set_by_s
    clocks.pass_s(3.0)
    assert record.attempt is not None
    assert attempt_cost(record.attempt, until=store.now()).gpu_s == 6.0
    ended = state.interrupt(store, record, "told to end", "0" * 64)
    assert ended.attempt is not None
    assert ended.attempt.gpu_seconds == 6.0


def test_across_a_reboot_the_wall_clock_is_gone_by() -> None:
    before, after = Stamp(10 * NS, 900 * NS, "one"), Stamp(30 * NS, 4 * NS, "two")
    assert elapsed_ns(before, after) == 20 * NS
    assert elapsed_ns(after, before) == 0
    assert wall_step_ns(before, after) == 0
    assert elapsed_ns(Stamp(10 * NS), after) == 20 * NS, "a record of an earlier version"


def test_a_disciplined_clock_is_no_clock_that_was_set() -> None:
    first = Stamp(0, 0, "boot")
    drift = Stamp(round(3 * DAY_S * NS * (1 + 5e-4)), 3 * DAY_S * NS, "boot")
    assert wall_step_ns(first, drift) == 0
    assert wall_step_ns(first, Stamp(3 * NS, NS, "boot")) == 2 * NS
