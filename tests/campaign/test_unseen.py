"""What an attempt costs whose server outlived its controller and was gone at the resume."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from campaign_builders import NS
from test_stamps import DAY_S, SLOT, Clocks, begun

from opprof.artifacts.campaign import ProcessRecord, RunRecord
from opprof.campaign import state
from opprof.campaign.processes import Ended
from opprof.campaign.store import Store, with_attempt
from opprof.campaign.unseen import NOTHING, Known
from opprof.host.birthmark import birthmark

GPUS = len(SLOT.gpus)
RESERVED_S = 488.0


@pytest.fixture(autouse=True)
def kept_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without provenance there is nothing to record a moved folder in."""
    monkeypatch.setattr(state, "put_aside", lambda store, record, sha256: record)


def serving(clocks: Clocks, store: Store, boot_id: str = "boot") -> RunRecord:
    """A run whose server was let go; its log is written 3 s after the start, `loading` saved."""
    record = begun(store)
    assert record.attempt is not None
    server = ProcessRecord("server", "h", 1, 1, boot_id, 1, [], started_wall_ns=0)
    attempt = msgspec.structs.replace(record.attempt, processes=[server])
    clocks.pass_s(2.0)
    record = store.transition(with_attempt(record, attempt), "loading")
    clocks.pass_s(1.0)
    log = store.folder / attempt.folder / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("alive\n")
    written_ns = round(clocks.wall_s * NS)
    os.utime(log, ns=(written_ns, written_ns))
    return record


def known(record: RunRecord, *, elsewhere: bool = False, beat_wall_ns: int = 0) -> Known:
    """The reservation that a crash left open."""
    reserved = {(record.run, SLOT.wave): RESERVED_S * GPUS}
    return Known(beat_wall_ns=beat_wall_ns, reserved=reserved, elsewhere=elsewhere)


def charged_s(store: Store, facts: Known, survivors: tuple[Ended, ...] = ()) -> float:
    """Seconds of each GPU that a resume charges now."""
    (recovered,) = state.recover(store, "0" * 64, lambda _: None, survivors, facts)
    assert recovered.attempt is not None
    assert recovered.attempt.phase == "interrupted"
    return recovered.attempt.gpu_seconds / GPUS


@pytest.mark.parametrize(("away_s", "seconds"), [(0.0, 3.0), (40.0, 43.0), (3 * DAY_S, RESERVED_S)])
def test_an_orphan_that_is_gone_is_charged_until_now_and_not_past_its_reservation(
    tmp_path: Path, away_s: float, seconds: float
) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = serving(clocks, store)
    clocks.pass_s(away_s)
    assert charged_s(store, known(record)) == seconds


def test_a_sign_of_life_after_the_reservation_counts(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = serving(clocks, store)
    clocks.pass_s(RESERVED_S)
    beat_wall_ns = round(clocks.wall_s * NS)
    clocks.pass_s(3 * DAY_S)
    assert charged_s(store, known(record, beat_wall_ns=beat_wall_ns)) == RESERVED_S + 3.0


def test_what_nothing_bounds_is_charged_until_now(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    serving(clocks, store)
    clocks.pass_s(DAY_S)
    assert charged_s(store, NOTHING) == DAY_S + 3.0


def test_what_had_to_be_ended_now_is_charged_until_now(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = serving(clocks, store)
    clocks.pass_s(DAY_S)
    survivor = Ended(birthmark("c", record.run), "ended")
    assert charged_s(store, known(record), (survivor,)) == DAY_S + 3.0


def test_a_server_that_was_never_let_go_ended_with_its_controller(tmp_path: Path) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = begun(store)
    clocks.pass_s(40.0)
    assert charged_s(store, known(record)) == 0.0


def test_a_reboot_ends_the_servers_of_the_controllers_own_machine(tmp_path: Path) -> None:
    clocks = Clocks()
    record = serving(clocks, clocks.store(tmp_path))
    beat_wall_ns = round((clocks.wall_s + 5.0) * NS)
    clocks.pass_s(3600.0)
    clocks.mono_s = 20.0
    facts = known(record, beat_wall_ns=beat_wall_ns)
    assert charged_s(clocks.store(tmp_path, "another boot"), facts) == 8.0


def test_a_reboot_of_the_controllers_machine_ends_no_server_elsewhere(tmp_path: Path) -> None:
    clocks = Clocks()
    record = serving(clocks, clocks.store(tmp_path), "the node's boot")
    clocks.pass_s(3600.0)
    clocks.mono_s = 20.0
    facts = known(record, elsewhere=True)
    assert charged_s(clocks.store(tmp_path, "another boot"), facts) == RESERVED_S


@pytest.mark.parametrize("set_by_s", [64_000.0, -3600.0])
def test_a_clock_that_was_set_meanwhile_hides_no_time(tmp_path: Path, set_by_s: float) -> None:
    clocks = Clocks()
    store = clocks.store(tmp_path)
    record = serving(clocks, store)
    clocks.wall_s += set_by_s
    clocks.pass_s(40.0)
    assert charged_s(store, known(record)) == 43.0
