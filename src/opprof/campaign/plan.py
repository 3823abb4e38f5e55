"""Which runs a protocol plans, in which order, and where each of them stands.

Burn-ins come first, one a configuration; then the cells in the protocol's execution order, each
with its saturation and its moderate run; then the confirmations in their fixed order (protocol,
"Compile warm-up and execution order"). Values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from opprof.artifacts.campaign import Phase, RunRecord
from opprof.artifacts.run import LoadPoint, Role
from opprof.campaign.frozen import frozen_of
from opprof.campaign.naming import run_name
from opprof.campaign.reruns import left_of
from opprof.errors import InputError
from opprof.protocol.design import cells, execution_order
from opprof.protocol.model import ProtocolFile, Reruns
from opprof.words import plural

ACTIVE: frozenset[Phase] = frozenset(
    ("starting", "serving", "loading", "draining", "cleaning", "checking")
)
"""Phases in which an attempt is under way."""

Group = Literal["burnin", "matrix", "confirmation"]
GROUPS: tuple[Group, ...] = ("burnin", "matrix", "confirmation")

Cell = tuple[str, str]


@dataclass(frozen=True)
class Standing:
    """Where a run stands: what may be done with it now, and why not."""

    state: Literal["complete", "runnable", "active", "waiting", "blocked"]
    """``waiting``: its needs are not met yet; ``blocked``: they never will be, or it failed."""
    reason: str = ""


def planned_runs(protocol: ProtocolFile, only: Sequence[str] = ()) -> list[RunRecord]:
    """Return a pending record for every run of the protocol, in execution order.

    ``only``: cells as ``PATTERN/CONFIG`` or whole patterns as ``PATTERN``; empty for all of them.
    Burn-ins are planned for the configurations in use, confirmations for the cells in use.

    Raises:
        InputError: ``only`` names a cell that the protocol has not.
    """
    chosen = select_cells(protocol, only)
    used = [cell for cell in execution_order(protocol) if cell in chosen]
    rule = protocol.confirmations
    repeats = [p for p in rule.patterns if (p, rule.config) in chosen]
    configs = {config for _, config in used}
    records: list[RunRecord] = []

    def add(cell: Cell, load_point: LoadPoint, role: Role, needs: list[str]) -> str:
        name = run_name(*cell, load_point, role)
        records.append(
            RunRecord(
                schema=1,
                run=name,
                pattern=cell[0],
                config=cell[1],
                load_point=load_point,
                role=role,
                order=len(records),
                needs=needs,
                state="pending",
                attempts=[],
            )
        )
        return name

    burnins = [
        add((protocol.burnin.pattern, row.id), "saturation", "burnin", [])
        for row in protocol.configs
        if row.id in configs
    ]
    for cell in used:
        saturation = add(cell, "saturation", "primary", list(burnins))
        add(cell, "moderate", "primary", [saturation])
    for pattern in repeats:
        needs = list(burnins)
        if rule.load_point == "moderate":
            needs = [run_name(pattern, rule.config, "saturation")]
        add((pattern, rule.config), rule.load_point, "confirmation", needs)
    return records


def select_cells(protocol: ProtocolFile, only: Sequence[str]) -> set[Cell]:
    """Return the cells that ``only`` names; all of them for an empty one.

    Raises:
        InputError: a name fits no cell.
    """
    every = cells(protocol)
    if not only:
        return set(every)
    chosen: set[Cell] = set()
    for name in only:
        pattern, _, config = name.partition("/")
        found = {c for c in every if c[0] == pattern and config in ("", c[1])}
        if not found or name.endswith("/"):
            known = ", ".join("/".join(cell) for cell in every)
            raise InputError(f"{name!r} is no cell of {protocol.id}; it has {known}")
        chosen |= found
    return chosen


def group_of(record: RunRecord) -> Group:
    """Return the part of the campaign that a run belongs to."""
    if record.role == "burnin":
        return "burnin"
    return "confirmation" if record.role == "confirmation" else "matrix"


def without_colocation(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Leave out the runs of the co-location check, which is no part of the matrix (A-P3-1, 4)."""
    return [record for record in records if record.role != "colocation"]


def verdict(record: RunRecord) -> bool | None:
    """Return the verdict in force: the last adjudication's, else the run's own (A-P3-5, -6)."""
    return record.adjudications[-1].accepted if record.adjudications else record.accepted


def standings(
    records: Sequence[RunRecord],
    protocol: ProtocolFile,
    held: Mapping[str, str] | None = None,
) -> dict[str, Standing]:
    """Return every run's standing by name.

    Confirmations wait until no run of the matrix can run any more ("after the matrix"). ``held``:
    runs that cannot run for reasons outside the records (no place), with the reason.

    Raises:
        InputError: two records have one name, needs form a circle, or the protocol does not say
            which reruns are allowed.
    """
    rule = frozen_of(protocol).reruns
    by_name = {record.run: record for record in records}
    if len(by_name) != len(records):
        names = [record.run for record in records]
        double = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"two records for the run {double[0]!r}")
    found: dict[str, Standing] = {}
    for run, reason in (held or {}).items():
        if by_name[run].state != "complete":
            found[run] = Standing("blocked", reason)
    for record in records:
        _standing(record, by_name, rule, found, ())
    open_matrix = [
        record.run
        for record in records
        if group_of(record) == "matrix" and found[record.run].state not in ("complete", "blocked")
    ]
    if open_matrix:
        for record in records:
            if group_of(record) == "confirmation" and found[record.run].state == "runnable":
                reason = f"confirmations follow the matrix; {plural(len(open_matrix), 'run')} open"
                found[record.run] = Standing("waiting", reason)
    return found


def _standing(
    record: RunRecord,
    by_name: Mapping[str, RunRecord],
    rule: Reruns,
    found: dict[str, Standing],
    path: tuple[str, ...],
) -> Standing:
    if record.run in found:
        return found[record.run]
    if record.run in path:
        raise InputError(f"needs form a circle: {' -> '.join((*path, record.run))}")
    standing = _own(record, rule)
    if standing.state == "runnable":
        for name in record.needs:
            need = _need(record, name, by_name, rule, found, (*path, record.run))
            if need.state == "blocked" or (
                need.state == "waiting" and standing.state == "runnable"
            ):
                standing = need
    found[record.run] = standing
    return standing


def _own(record: RunRecord, rule: Reruns) -> Standing:
    """What the record alone says."""
    if record.state == "complete":
        return Standing("complete")
    if record.state in ACTIVE:
        return Standing("active", record.state)
    if record.state != "failed":
        return Standing("runnable")
    again, words = left_of(record, rule)
    if again:
        return Standing("runnable", words)
    attempt = record.attempt
    why = attempt.reason if attempt and attempt.reason else "no reason recorded"
    return Standing("blocked", f"{words}: {why}")


def _need(
    record: RunRecord,
    name: str,
    by_name: Mapping[str, RunRecord],
    rule: Reruns,
    found: dict[str, Standing],
    path: tuple[str, ...],
) -> Standing:
    need = by_name.get(name)
    if need is None:
        return Standing("blocked", f"needs {name}, which is not planned")
    standing = _standing(need, by_name, rule, found, path)
    if standing.state == "blocked":
        return Standing("blocked", f"needs {name}: {standing.reason}")
    if standing.state != "complete":
        return Standing("waiting", f"needs {name}")
    accepted = verdict(need)
    if accepted is False or (accepted is None and gives_rate(need, record)):
        return Standing("blocked", f"needs {name}, which was not accepted")
    return Standing("runnable")


def gives_rate(need: RunRecord, record: RunRecord) -> bool:
    """Whether ``record`` takes its offered rate from ``need``'s saturation throughput."""
    return (
        record.load_point == "moderate"
        and need.load_point == "saturation"
        and (need.pattern, need.config) == (record.pattern, record.config)
        and need.role != "burnin"
    )
