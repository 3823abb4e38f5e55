"""What ``opprof campaign status`` prints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts.campaign import Campaign, ControllerRecord, RunRecord
from opprof.campaign.costs import pace_of, run_cost
from opprof.campaign.frozen import frozen_of
from opprof.campaign.ledger import balance
from opprof.campaign.ledger_file import read_ledger
from opprof.campaign.plan import standings, without_colocation
from opprof.campaign.processes import ProcessTable
from opprof.campaign.reruns import left_of
from opprof.campaign.review import standing
from opprof.campaign.store import Store
from opprof.campaign.watch import controller_state, standstill
from opprof.cli.options import print_json
from opprof.integrity.ledger import NAME as LEDGER_NAME
from opprof.protocol import load_protocol
from opprof.protocol.model import ProtocolFile

_WATCH_S = 1.0
_NS = 1_000_000_000


def show_status(folder: Path, *, watch: bool, as_json: bool) -> int:
    """Print the status and return the exit code."""
    store = Store(folder, wall_ns=time.time_ns)
    store.campaign()
    if watch and not as_json:
        return _watch(store)
    facts = _facts(store)
    if as_json:
        print_json(facts)
    else:
        from opprof.cli.console import console

        console().print(_renderable(store))
    return _code(store)


def _code(store: Store) -> int:
    """1 where somebody has to do something: the campaign does not end well by itself."""
    records = store.runs()
    failed = any(record.state == "failed" for record in records)
    state, controller = controller_state(store.folder)
    stands = state != "running" or _held(controller) != ""
    missing = stands and any(record.state != "complete" for record in records)
    return int(standing(store) is not None or failed or missing)


def _watch(store: Store) -> int:
    from rich.live import Live

    from opprof.cli.console import console

    out = console()
    if not out.is_terminal:
        # A log wants what there is at the end, not each picture on the way.
        while controller_state(store.folder)[0] == "running":
            time.sleep(_WATCH_S)
        out.print(_renderable(store))
        return _code(store)
    with Live(_renderable(store), console=out, auto_refresh=False) as live:
        while controller_state(store.folder)[0] == "running":
            time.sleep(_WATCH_S)
            live.update(_renderable(store), refresh=True)
        live.update(_renderable(store), refresh=True)
    return _code(store)


def _facts(store: Store) -> dict[str, Any]:
    state, controller = controller_state(store.folder)
    sums = balance(read_ledger(store.folder / LEDGER_NAME))
    return {
        "campaign": store.campaign(),
        "controller": {"state": state, "record": controller, "standstill": _held(controller)},
        "stop": standing(store),
        "gpu_hours": {"consumed": sums.consumed_hours, "reserved": sums.reserved_hours},
        "expected_left_s": _expected_left_s(store.runs(), _protocol(store), store.campaign()),
        "runs": [_run_facts(record, _protocol(store)) for record in store.runs()],
    }


def _run_facts(record: RunRecord, protocol: ProtocolFile) -> dict[str, Any]:
    attempt = record.attempt
    return {
        "run": record.run,
        "state": record.state,
        "attempts": len(record.attempts),
        "accepted": record.accepted,
        "drain_quarantined": record.drain_quarantined,
        "failed_checks": [] if attempt is None else _failed(record),
        "reason": "" if attempt is None else attempt.reason,
        "next": _next(record, protocol),
        "transitions": [] if attempt is None else msgspec.to_builtins(attempt.transitions),
    }


def _next(record: RunRecord, protocol: ProtocolFile) -> str:
    """Say what a failed run still may: its exact rerun, or nothing without an amendment."""
    if record.state != "failed":
        return ""
    again, words = left_of(record, frozen_of(protocol).reruns)
    if again:
        return f"an {words} is left, made when the campaign goes on"
    return (
        f"{words}: no exact rerun is left, so only an amendment (resume --protocol) lets it go on"
    )


def _failed(record: RunRecord) -> list[str]:
    attempt = record.attempt
    checks = {} if attempt is None else attempt.checks
    return [name for name, gate in checks.items() if gate.outcome == "fail"]


def _renderable(store: Store) -> Any:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Column, Table

    campaign, records, protocol = store.campaign(), store.runs(), _protocol(store)
    state, controller = controller_state(store.folder)
    sums = balance(read_ledger(store.folder / LEDGER_NAME))
    standing = standings(without_colocation(records), protocol)
    table = Table(Column("run", no_wrap=True), Column("state", no_wrap=True))
    for name in ("attempt", "since", "failed checks"):
        table.add_column(name)
    # Reasons are sentences: below the table they have the whole width of a terminal.
    reasons = []
    for record in records:
        attempt = record.attempt
        since = "" if attempt is None else _ago(attempt.transitions[-1].wall_ns)
        reason = "" if attempt is None else attempt.reason
        own = standing.get(record.run)
        if record.state == "pending" and own is not None and own.state == "blocked":
            reason = f"cannot run: {own.reason}"
        if reason:
            reasons.append(
                f"{record.run}: {'; '.join(filter(None, [reason, _next(record, protocol)]))}"
            )
        flags = " quarantined" if record.drain_quarantined else ""
        table.add_row(
            record.run,
            record.state + flags,
            str(len(record.attempts) or ""),
            since,
            ", ".join(_failed(record)),
        )
    label = " SIMULATED" if campaign.simulated else ""
    complete = sum(record.state == "complete" for record in records)
    pid = "" if controller is None else f" (pid {controller.process.pid})"
    lines = [
        f"{campaign.id}{label}: {complete} of {len(records)} runs complete; controller "
        f"{state}{pid if state == 'running' else ''}",
        f"GPU-hours: {sums.consumed_hours:.3f} used, {sums.reserved_hours:.3f} reserved of "
        f"{protocol.budget.gpu_hours_max:g}",
    ]
    lines += _host_lines(controller)
    if held := _held(controller):
        lines.append(held)
    left_s = _expected_left_s(records, protocol, campaign)
    if left_s:
        clock = " of virtual time" if campaign.engine == "sim-virtual" else ""
        lines.append(f"still to run: about {left_s / 3600:.2f} h{clock}, one cell after the other")
    last = [*reasons, *_last_lines(store, state, controller)]
    return Group(*map(escape, lines), table, *map(escape, last))


def _host_lines(controller: ControllerRecord | None) -> list[str]:
    """Say how each host is used in this life of the controller."""
    lines = []
    for use in controller.hosts if controller is not None else []:
        gpus = ",".join(str(gpu.index) for gpu in use.topology.gpus)
        how = f"{use.width} of its GPU slots at once"
        if use.lost:
            how = "lost, no run goes there any more"
        elif use.width is None:
            how = "its co-location check is not made yet"
        elif use.width == 1:
            how = "one cell at a time"
        lines.append(f"host {use.topology.host} (GPU {gpus}): {how}")
    return lines


def _held(controller: ControllerRecord | None) -> str:
    return "" if controller is None else standstill(ProcessTable(), controller)


def _protocol(store: Store) -> ProtocolFile:
    protocol = load_protocol(store.protocol)
    assert protocol is not None
    return protocol.file


def _expected_left_s(records: list[RunRecord], protocol: ProtocolFile, campaign: Campaign) -> float:
    """Return the protocol's own estimate for what can still run."""
    pace = pace_of(protocol, campaign.time_scale)
    planned = without_colocation(records)
    open_runs = {
        name
        for name, s in standings(planned, protocol).items()
        if s.state not in ("complete", "blocked")
    }
    return sum(
        run_cost(protocol, record, pace).expected_s for record in planned if record.run in open_runs
    )


def _last_lines(store: Store, state: str, controller: ControllerRecord | None) -> list[str]:
    """Say why nothing runs, and what makes it go on."""
    again, stop = f"opprof campaign resume {store.folder}", standing(store)
    if stop is not None:
        text = f"STANDS STILL, condition {stop.condition} ({stop.name}): {stop.reason}"
        return [text, f"look at it, then: {again} --reviewed TEXT"]
    if state == "running":
        return []
    message = "" if controller is None or state == "dead" else controller.message
    return [*filter(None, [message]), *([] if state == "finished" else [f"go on: {again}"])]


def _ago(wall_ns: int) -> str:
    seconds = max(0, (time.time_ns() - wall_ns) // _NS)
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
