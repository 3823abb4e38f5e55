"""One controller process: takes the lock, checks the binding, tidies up, runs, decides, leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import Campaign, ControllerRecord
from opprof.artifacts.environment import Topology
from opprof.campaign import state
from opprof.campaign.attempt import RunExecutor
from opprof.campaign.binding import Binding, bind, check_manifests
from opprof.campaign.commands import CommandLog, iso
from opprof.campaign.controller import Controller, Ending
from opprof.campaign.detach import Starter
from opprof.campaign.executors.choose import open_executor
from opprof.campaign.finale import conclude
from opprof.campaign.hosts import (
    hosts_to_check,
    open_host,
    place_of,
    placed,
    require_alike,
    require_map,
)
from opprof.campaign.launcher import Equipment
from opprof.campaign.ledger import open_reservations, settle
from opprof.campaign.ledger_file import Ledger, open_ledger
from opprof.campaign.options import Sources, options_of
from opprof.campaign.processes import ProcessTable, own_record
from opprof.campaign.review import check_review, release
from opprof.campaign.site import look_up
from opprof.campaign.soundness import check_prior, check_records
from opprof.campaign.store import Store, campaign_lock, machine_lock
from opprof.campaign.unseen import Known
from opprof.errors import EnvironmentFailure, OpprofError, refused
from opprof.host.birthmark import usable_limit
from opprof.host.cpu import CpuHost
from opprof.host.ports import Host
from opprof.integrity.closing import close, reopen
from opprof.integrity.ledger import NAME as LEDGER_NAME
from opprof.protocol import load_protocol

DONE, FAILED, STOPPED = 0, 1, 130


@dataclass(frozen=True)
class Life:
    """What a controller process was started with."""

    folder: Path
    sources: Sources
    starter: Starter
    ray_address: str = ""
    """Of the Ray head in this life; empty for the one that the campaign was started with."""
    reviewed: str = ""
    """Who has looked at the hard stop that stands, and why it is released."""
    holds_lock: Callable[[], bool] = lambda: True
    beat_wall_ns: int = 0
    """Last heartbeat of the controller before; 0 for none."""

    def command(self) -> list[str]:
        """Return the command that makes this controller; it holds private paths."""
        words = [sys.executable, "-m", "opprof", "campaign", "controller", str(self.folder)]
        words += self.sources.flags()
        words += ["--ray-address", self.ray_address] if self.ray_address else []
        return words + (["--reviewed", self.reviewed] if self.reviewed else [])


def live(life: Life) -> int:
    """Run a controller to its end and return its exit code.

    0: every planned run is complete. 1: a run failed, a hard stop, or the surroundings failed.
    130: told to end, state kept.
    """
    store, owns = Store(life.folder, wall_ns=time.time_ns), False
    try:
        campaign = store.campaign()
        with campaign_lock(life.folder) as holds_lock, machine_lock(campaign.id, life.folder):
            owns = True
            return _owning(replace(life, holds_lock=holds_lock), store, campaign)
    except (OpprofError, OSError) as raised:
        error = refused(raised) if isinstance(raised, OSError) else raised
        # The log may be that of a controller which runs on: it is not its error.
        say(
            f"{'' if owns else 'another start or resume was refused: '}error [{error.code}] {error}"
        )
        life.starter.tell(f"{error.code} {error}")
        return error.exit_code


def _owning(life: Life, store: Store, campaign: Campaign) -> int:
    # What cannot be gone on from is refused here, while the starter still listens.
    binding = bind(store, campaign, life.sources)
    check_records(store, binding.protocol.file, options_of(campaign).only)
    stands = check_review(store, life.reviewed)
    ledger = open_ledger(store.folder / LEDGER_NAME, wall_ns=store.wall_ns())
    check_prior(store, ledger.charges, binding.protocol.sha256)
    before = store.controller()
    life = replace(life, beat_wall_ns=before.heartbeat_wall_ns if before else 0)
    record = _first_record(store, campaign, life.sources)
    # Until it is released: what still refuses this life leaves the stop as it was.
    record = msgspec.structs.replace(record, stop=stands)
    reopen(store.folder)
    try:
        CommandLog(store.commands, store.wall_ns).add("controller", life.command(), {})
        store.write_controller(record)
        return asyncio.run(_placed(life, store, campaign, binding, ledger, record))
    except (OpprofError, OSError) as error:
        with contextlib.suppress(EnvironmentFailure):
            store.write_controller(
                msgspec.structs.replace(record, phase="failed", message=str(error))
            )
        raise
    finally:
        close(store.folder, wall_ns=store.wall_ns())


def _first_record(store: Store, campaign: Campaign, sources: Sources) -> ControllerRecord:
    before, now = store.controller(), store.wall_ns()
    command = [sources.redact(part) for part in sys.argv]
    return ControllerRecord(
        schema=1,
        campaign=campaign.id,
        process=own_record(ProcessTable(), command, wall_ns=now),
        session=os.getsid(0),
        phase="running",
        heartbeat_wall_ns=now,
        resumed=0 if before is None else before.resumed + 1,
    )


async def _placed(
    life: Life,
    store: Store,
    campaign: Campaign,
    binding: Binding,
    ledger: Ledger,
    record: ControllerRecord,
) -> int:
    options = options_of(campaign)
    # An executor of many hosts asks each of them there; here only the disk is looked at.
    elsewhere = campaign.executor == "ray"
    host = CpuHost() if elsewhere else open_host(options, campaign.engine, campaign.id)
    given = life.ray_address or options.ray_address
    here = msgspec.structs.replace(options, ray_address=given)
    async with open_executor(campaign, store.folder, here, host, say) as (executor, hosts):
        places = [place_of(each, options.gpus) for each in hosts]
        # Refuses here, while the starter still listens, what no check could authorise.
        file = placed(binding.protocol.file, options)
        require_map(file, places)
        if not campaign.simulated:
            require_alike(places)
        hosts_to_check(campaign.engine, options, file, places)
        release(store, life.reviewed, say)
        record = msgspec.structs.replace(record, stop=None)
        life.starter.tell(f"ok {campaign.id}")
        return await _run(life, store, campaign, binding, ledger, record, executor, host, places)


async def _run(
    life: Life,
    store: Store,
    campaign: Campaign,
    binding: Binding,
    ledger: Ledger,
    record: ControllerRecord,
    executor: RunExecutor,
    host: Host,
    hosts: Sequence[Topology],
) -> int:
    options = options_of(campaign)
    if usable_limit() is None:
        say("this system lets no resource limit be set: a process is known by its variables alone")
    found = await executor.clean_up(campaign.id)
    for line in [*(each.line for each in found.ended), *found.lines]:
        say(line)
    known = Known(
        beat_wall_ns=life.beat_wall_ns,
        reserved=open_reservations(ledger.charges),
        elsewhere=campaign.executor != "local",
    )
    records = state.recover(store, binding.protocol.sha256, say, found.ended, known)
    ledger.append(
        settle(ledger.charges, records, wall_ns=store.wall_ns(), simulated=ledger.simulated)
    )
    site = look_up(store, campaign, options, host)
    equipment = Equipment(store, binding, life.sources, executor, ledger, site, say)
    controller = Controller(equipment, host, hosts, record, holds_lock=life.holds_lock)
    ending = await controller.run()
    code, message = _verdict(store, ending)
    if not (ending.asked or ending.stop or ending.failure):
        for line in await conclude(store, campaign, options.limits, say):
            code, message = FAILED, f"{message}; {line}"
    controller.farewell(message)
    say(message)
    return code


def _verdict(store: Store, ending: Ending) -> tuple[int, str]:
    records = store.runs()
    complete = sum(record.state == "complete" for record in records)
    count = f"{complete} of {len(records)} runs complete"
    if ending.failure:
        return FAILED, f"{count}; the surroundings failed: {ending.failure}"
    if ending.stop is not None:
        return FAILED, f"{count}; stands still for review: {ending.stop.reason}"
    if ending.asked:
        return STOPPED, f"{count}; told to end, `opprof campaign resume` goes on"
    return (DONE if complete == len(records) else FAILED), count


def say(text: str) -> None:
    """Write a line with its time to the controller's log."""
    print(f"{iso(time.time_ns())} {text}", file=sys.stderr, flush=True)  # noqa: T201


def check_sources(folder: Path, sources: Sources) -> None:
    """See to it that the manifests are those of the campaign.

    Raises:
        InputError: one is missing.
        StateConflict: one is another.
    """
    campaign = Store(folder, wall_ns=time.time_ns).campaign()
    check_manifests(campaign.manifests, sources)


def amend(folder: Path, protocol: Path, sources: Sources) -> None:
    """Put an amended protocol in force before a resume (see :mod:`opprof.campaign.amend`).

    Raises:
        StateConflict: what the campaign is bound to changed, its records are not sound, or the
            amendment is refused; nothing has changed then.
    """
    from opprof.campaign.amend import take_amendment

    store = Store(folder, wall_ns=time.time_ns)
    campaign = store.campaign()
    options = options_of(campaign)
    with campaign_lock(folder):
        binding = bind(store, campaign, sources)
        amended = load_protocol(protocol)
        after = None if amended is None else amended.file
        check_records(store, binding.protocol.file, options.only, amended=after)
        take_amendment(store, protocol, options.only, say)
