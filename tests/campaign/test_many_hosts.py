"""Checks of several hosts in one controller: who is checked, what a failure and a loss do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import campaign_small
import msgspec
import pytest
from campaign_builders import ended, host
from test_colocation_gate import decide, facts
from test_colocation_sim import TABLE

from opprof.artifacts.campaign import CheckName, ControllerRecord, ProcessRecord, Slot
from opprof.artifacts.common import Gate
from opprof.artifacts.environment import Topology
from opprof.artifacts.plan import ColocationGate
from opprof.campaign import controller as module
from opprof.campaign.attempt import AttemptSpec, CleanedUp, Halt, Journal, Outcome, PlaceLost
from opprof.campaign.begin import Request, create_campaign
from opprof.campaign.binding import bind
from opprof.campaign.colocate import Check, colocation_gate
from opprof.campaign.launcher import Equipment
from opprof.campaign.ledger_file import open_ledger
from opprof.campaign.options import Options, make_sources
from opprof.campaign.site import SiteFacts
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure, StateConflict
from opprof.host.cpu import CpuHost
from opprof.integrity.ledger import NAME

Answer = Callable[[Check], Any]


class Quick:
    """Runs nothing: an attempt leaves a folder and is complete, unless its host is lost."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.hosts: list[tuple[str, str]] = []

    async def execute(
        self, spec: AttemptSpec, journal: Journal, halt: Halt, meeting: object = None
    ) -> Outcome:
        del halt, meeting
        if spec.slot.host in self.lost:
            raise PlaceLost(f"{spec.slot.host} was lost")
        self.hosts.append((spec.run, spec.slot.host))
        for phase in ("serving", "loading", "draining", "cleaning", "checking"):
            await journal.phase(phase)  # type: ignore[arg-type]
        Path(spec.folder).mkdir(parents=True)
        (Path(spec.folder) / "server.log").write_text("up\n")
        checks = {name: Gate(name, "pass", "", {}) for name in get_args(CheckName)}
        return Outcome(checks, "", "", True, False, 0.0, None)

    async def clean_up(self, campaign: str) -> CleanedUp:
        raise AssertionError(campaign)


class Rig:
    """A campaign on hosts that only exist on paper, with its controller."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = campaign_small.SOURCE.read_text()
        source = tmp_path / "source.toml"
        source.write_text(text.replace("[placement]", TABLE.format(limit=0.03, share=0.03), 1))
        monkeypatch.setattr(campaign_small, "SOURCE", source)
        sources = make_sources(campaign_small.small_manifests(tmp_path / "private"), ())
        request = Request(
            protocol=campaign_small.small_protocol(tmp_path / "small.toml"),
            out=tmp_path / "campaign",
            engine="sim",
            variables={"MODEL": "tiny"},
            sources=sources,
            time_scale=1.0,
            seed=1,
            executor="local",
            hosts=(),
            options=Options(bind_cpus=False, gpus=[0, 1]),
        )
        self.store = create_campaign(request, print)
        self.executor, self.sources, self.monkeypatch = Quick(), sources, monkeypatch

    def run(self, answer: Answer, *hosts: Topology) -> module.Ending:
        self.monkeypatch.setattr(module, "colocation_gate", answer)
        store = Store(self.store.folder, wall_ns=time.time_ns)
        campaign = store.campaign()
        equipment = Equipment(
            store,
            bind(store, campaign, self.sources),
            self.sources,
            self.executor,
            open_ledger(store.folder / NAME, wall_ns=store.wall_ns()),
            SiteFacts(None, None),
            print,
        )
        process = ProcessRecord("controller", "here", os.getpid(), 0, "boot", 1, [], 0)
        record = ControllerRecord(1, campaign.id, process, 0, "running", 0, 0)
        made = module.Controller(equipment, CpuHost(), hosts, record, holds_lock=lambda: True)
        return asyncio.run(made.run())

    def shown(self) -> dict[str, tuple[int | None, bool]]:
        record = self.store.controller()
        assert record is not None
        return {use.topology.host: (use.width, use.lost) for use in record.hosts}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def gate(check: Check, outcome: str) -> ColocationGate:
    place = check.place
    return msgspec.structs.replace(
        decide(facts("solo"), facts("eight")),
        outcome=outcome,
        reason=f"{outcome} on {place.host.host}",
        authorised_width=2 if outcome == "eight" else 1,
        protocol_sha256=check.protocol.sha256,
        host=place.host.host,
        gpus=[0, 1],
        gpu_uuids=[gpu.uuid for gpu in place.host.gpus[:2]],
        engine=place.engine,
        engine_version=place.engine_version,
    )


def test_each_host_is_as_wide_as_its_own_gate_says(rig: Rig) -> None:
    asked: list[tuple[str, int]] = []

    async def answer(check: Check) -> ColocationGate:
        asked.append((check.place.host.host, check.port_base))
        return gate(check, "eight")

    ending = rig.run(answer, host("a", 2), host("b", 1), host("c", 2))
    assert (ending.failure, ending.stop) == ("", None)
    # A host with one slot needs no check; ports differ over all hosts.
    assert asked == [("a", 1), ("c", 4)]
    assert rig.shown() == {"a": (2, False), "b": (1, False), "c": (2, False)}
    ran = dict(rig.executor.hosts)
    assert ran["P01-C00-saturation-burnin"] == "a"
    assert ran["P01-C00-saturation-burnin@c"] == "c"
    primary = {run.run: run.attempts[-1].slot for run in rig.store.runs() if run.role == "primary"}
    assert {(slot.host, slot.width) for slot in primary.values() if slot} == {("a", 2)}


def never(check: Check) -> ColocationGate:
    raise AssertionError(check)


def test_every_host_is_burnt_in_before_it_measures(rig: Rig) -> None:
    ending = rig.run(never, host("a", 1), host("b", 1))
    assert (ending.failure, ending.stop) == ("", None)
    ran = [where for run, where in rig.executor.hosts if "burnin" not in run]
    assert set(ran) == {"a", "b"}
    warm: set[str] = set()
    for run, where in rig.executor.hosts:
        if "burnin" in run:
            assert where not in warm, "a host is burnt in once"
            warm.add(where)
        assert where in warm, run
    burnins = [run.run for run in rig.store.runs() if run.role == "burnin"]
    assert burnins == ["P01-C00-saturation-burnin", "P01-C00-saturation-burnin@b"]
    assert {run.state for run in rig.store.runs()} == {"complete"}
    waves = [run.attempts[-1].slot for run in rig.store.runs()]
    assert sorted({slot.wave for slot in waves if slot}) == [1, 2, 3]


def test_a_host_lost_in_its_burn_in_is_done_without(rig: Rig) -> None:
    execute = rig.executor.execute

    async def lost(spec: AttemptSpec, *rest: Any) -> Outcome:
        if spec.run.endswith("burnin@b"):
            rig.executor.lost.add("b")
        return await execute(spec, *rest)

    rig.monkeypatch.setattr(rig.executor, "execute", lost)
    ending = rig.run(never, host("a", 1), host("b", 1))
    assert (ending.failure, ending.stop) == ("", None)
    assert rig.shown() == {"a": (1, False), "b": (None, True)}
    states = {run.run: run.state for run in rig.store.runs()}
    # What was b's own burn-in goes to no other host.
    assert states.pop("P01-C00-saturation-burnin@b") == "interrupted"
    assert set(states.values()) == {"complete"}
    assert {where for run, where in rig.executor.hosts} == {"a"}


def test_a_host_whose_burn_in_fails_twice_is_used_no_more(rig: Rig) -> None:
    execute = rig.executor.execute

    async def fails(spec: AttemptSpec, *rest: Any) -> Outcome:
        done = await execute(spec, *rest)
        if not spec.run.endswith("burnin@b"):
            return done
        checks = {**done.checks, "client": Gate("client", "fail", "no port", {})}
        return msgspec.structs.replace(
            done, checks=checks, reason="no port", fault="infrastructure"
        )

    rig.monkeypatch.setattr(rig.executor, "execute", fails)
    ending = rig.run(never, host("a", 1), host("b", 1))
    assert (ending.failure, ending.stop) == ("", None)
    assert rig.shown() == {"a": (1, False), "b": (None, True)}
    records = {run.run: run for run in rig.store.runs()}
    own = records.pop("P01-C00-saturation-burnin@b")
    assert (own.state, len(own.attempts)) == ("failed", 2)
    assert {run.state for run in records.values()} == {"complete"}


def test_a_host_whose_check_fails_stops_the_matrix_of_all(rig: Rig) -> None:
    seen: list[bool] = []

    async def answer(check: Check) -> ColocationGate | None:
        if check.place.host.host == "b":
            return gate(check, "stop")
        while not check.over():
            await asyncio.sleep(0.01)
        seen.append(True)
        return None

    ending = rig.run(answer, host("a", 2), host("b", 2))
    assert ending.stop is not None and seen == [True]
    assert (ending.stop.condition, ending.stop.name) == (0, "co-location gate of b")
    assert "stop on b" in ending.stop.reason
    assert rig.store.stop() == ending.stop
    assert {run.state for run in rig.store.runs() if run.role == "primary"} == {"pending"}
    assert rig.shown() == {"a": (None, False), "b": (None, False)}


def test_a_host_that_is_lost_in_its_check_is_done_without(rig: Rig) -> None:
    async def answer(check: Check) -> ColocationGate:
        if check.place.host.host == "a":
            rig.executor.lost.add("a")
            raise PlaceLost("a was lost")
        return gate(check, "eight")

    ending = rig.run(answer, host("a", 2), host("b", 2))
    assert (ending.failure, ending.stop) == ("", None)
    assert rig.shown() == {"a": (None, True), "b": (2, False)}
    assert {run.state for run in rig.store.runs()} == {"complete"}


def test_the_last_host_lost_in_its_check_ends_the_life(rig: Rig) -> None:
    async def answer(check: Check) -> ColocationGate:
        raise PlaceLost(f"{check.place.host.host} was lost")

    assert "was lost: resume when one is back" in rig.run(answer, host("a", 2)).failure


def test_a_fault_of_the_place_ends_the_checks_of_all(rig: Rig) -> None:
    ends: list[str] = []

    async def answer(check: Check) -> ColocationGate:
        if check.place.host.host == "a":
            raise EnvironmentFailure("disk full")
        try:
            await asyncio.sleep(60)
        finally:
            ends.append(check.place.host.host)
        raise AssertionError

    assert "disk full" in rig.run(answer, host("a", 2), host("b", 2)).failure
    assert ends in ([], ["b"])


def test_rounds_that_were_made_on_other_gpus_are_refused(rig: Rig) -> None:
    name = "solo-saturation-P01-C00-saturation-colocation@a"
    planned = msgspec.structs.replace(
        rig.store.run("P01-C00-saturation"), run=name, role="colocation", needs=[]
    )
    slot = Slot("a", [0], ["GPU-of-another-day"], 1, "", 0, 1)
    rig.store.save(ended(planned, "complete", slot))
    with pytest.raises(StateConflict, match="GPU-of-another-day, which is 0 GPU-a-0 now"):
        rig.run(colocation_gate, host("a", 2))
