"""``opprof protocol diff|amend|rejudge``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opprof.cli.options import json_option, print_json
from opprof.errors import InputError, StateConflict
from opprof.files import new_file_writer
from opprof.protocol.load import Protocol, load_protocol, parse_protocol
from opprof.words import check_text

if TYPE_CHECKING:
    from opprof.artifacts.run import LoadPoint, Role
    from opprof.protocol.design import RunKind
    from opprof.protocol.diff import Change

FROZEN_MODE = 0o444
_RUN_FIELDS = ("pattern", "config", "load_point", "role")
_ROLES: tuple[Role, ...] = ("primary", "confirmation", "burnin", "colocation")


def load(source: str) -> Protocol:
    """Read a protocol that must be one.

    Raises:
        InputError: "none" was given, or the file cannot be used.
    """
    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("'none' is no protocol")
    return protocol


def day_of(date: str | None) -> str:
    """Return the day of a change: the one given, or today.

    Raises:
        InputError: it lies ahead; nothing is decided there yet, and no later change could precede
            it.
    """
    # Wherever the sun stands, nobody is more than a day ahead of this clock.
    today = datetime.date.today()
    if date is not None and date > (today + datetime.timedelta(days=1)).isoformat():
        raise InputError(f"--date {date} is no day of the form YYYY-MM-DD that has come")
    return today.isoformat() if date is None else date


def write_frozen(out: Path, data: bytes) -> None:
    """Write a frozen protocol to a place where nothing is.

    Raises:
        StateConflict: something is, be it a link that leads nowhere.
        EnvironmentFailure: it cannot be written.
    """
    with new_file_writer(out, mode=FROZEN_MODE) as stream:
        stream.write(data)


@click.command("diff", short_help="What differs, decides, and which cells it touches.")
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@json_option
def diff_command(old: str, new: str, as_json: bool) -> None:
    """Show what B says differently from A: key, values, what it decides, which cells it touches.

    Layout, comments and the order of rows make no difference. A key that decides nothing (text,
    budget, placement) touches no run. "from kept data" marks what can be judged again without
    running anything.
    """
    before, after = load(old), load(new)
    answer = _answer(before, after)
    if as_json:
        print_json(answer)
        return
    for change, meaning in _meanings(before, after):
        click.echo(f"{change.key}: {_value(change.old)} -> {_value(change.new)}")
        click.echo(f"    {meaning}")
    if not answer["changes"]:
        click.echo("the two protocols say the same")
    for line in _history(before, after, [row["key"] for row in answer["records"]]):
        click.echo(line)


def _history(before: Protocol, after: Protocol, keys: list[str]) -> list[str]:
    """Say which amendments came or went, and which other records differ."""
    rows = [{(row.id, row.title): row for row in p.file.amendments} for p in (before, after)]
    lines = [
        f"amendment {sign}: {row.date} {row.id} {row.title}"
        + (f": {row.reason}" if row.reason else "")
        for sign, here, there in (("added", rows[1], rows[0]), ("missing", rows[0], rows[1]))
        for key, row in here.items()
        if key not in there
    ]
    others = [key for key in keys if key not in ("amendments", "freeze.seal")]
    return lines + ([f"other records that differ: {', '.join(others)}"] if others else [])


def _answer(before: Protocol, after: Protocol) -> dict[str, Any]:
    from opprof.protocol.design import cells
    from opprof.protocol.diff import all_changes
    from opprof.protocol.impact import impact

    return {
        "old_sha256": before.sha256,
        "new_sha256": after.sha256,
        "cells": sorted({*cells(before.file), *cells(after.file)}),
        "changes": [
            {
                "key": touch.change.key,
                "old": touch.change.old,
                "new": touch.change.new,
                "kind": touch.change.kind,
                "decides": touch.change.decides,
                "cells": sorted(touch.cells),
                "roles": sorted(touch.roles),
                "load_points": sorted(touch.load_points),
                "runs": [
                    {name: getattr(run, name) for name in _RUN_FIELDS} for run in sorted(touch.runs)
                ],
                "rejudgeable": touch.rejudgeable,
            }
            for touch in impact(before.file, after.file).touches
        ],
        "records": [
            {"key": change.key, "old": change.old, "new": change.new}
            for change in all_changes(before.file, after.file)
            if change.kind == "record"
        ],
    }


def _value(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _meanings(before: Protocol, after: Protocol) -> Iterator[tuple[Change, str]]:
    """Return every change with what it decides and which runs it touches."""
    from opprof.protocol.design import run_kinds
    from opprof.protocol.impact import impact

    planned = run_kinds(before.file) | run_kinds(after.file)
    for touch in impact(before.file, after.file).touches:
        change, words = touch.change, touch.change.kind
        if not change.decides:
            yield change, f"{words}; decides no result"
        elif not touch.runs:
            yield change, f"{words}; touches no run"
        else:
            how = "from kept data" if touch.rejudgeable else "runs would have been other ones"
            yield change, f"{words}; touches {_named(touch.runs, planned)}; {how}"


def _named(runs: AbstractSet[RunKind], planned: AbstractSet[RunKind]) -> str:
    """Name runs by role and cell, with the load point where a cell has another one as well."""
    parts = []
    for role in _ROLES:
        every = _loads_by_cell(planned, role)
        groups: dict[str, list[str]] = {}
        for cell, loads in _loads_by_cell(runs, role).items():
            kind = role if loads == every[cell] else f"{role} ({', '.join(loads)})"
            groups.setdefault(kind, []).append(cell)
        for kind, cells in groups.items():
            where = "all cells" if len(cells) == len(every) else " ".join(cells)
            parts.append(f"{kind} of {where}")
    return ", ".join(parts)


def _loads_by_cell(runs: AbstractSet[RunKind], role: Role) -> dict[str, list[LoadPoint]]:
    found: dict[str, list[LoadPoint]] = {}
    for run in sorted(runs):
        if run.role == role:
            found.setdefault(f"{run.pattern}/{run.config}", []).append(run.load_point)
    return found


@click.command("amend", short_help="Append a dated amendment to a frozen file.")
@click.argument("source", metavar="FROZEN")
@click.option("--id", "identity", required=True, metavar="A-X-1", help="Id of the amendment.")
@click.option("--title", required=True, help="Its title; id and title together must be new.")
@click.option("--reason", required=True, help="Why, for the readers of the report.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="New value of a key, as TOML or plain text: gates.warmup_completions_min=16, "
    "patterns.P10.drain_budget_s=600, pinned.hardware=NVIDIA H200. Repeatable.",
)
@click.option(
    "--rejudge",
    is_flag=True,
    help="Judge completed runs again from kept raw data; both verdicts stay.",
)
@click.option(
    "--refresh-installation",
    "refresh",
    is_flag=True,
    help="Also bind to this installation's client, plugin, hooks and mapping tables.",
)
@click.option("--date", metavar="YYYY-MM-DD", help="Date of the amendment (default: today).")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Amended file to write; must not exist.",
)
@json_option
def amend_command(
    source: str,
    identity: str,
    title: str,
    reason: str,
    settings: tuple[str, ...],
    rejudge: bool,
    refresh: bool,
    date: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Append a dated amendment to a frozen protocol.

    Sets the named keys and records the amendment with its reason, old and new values, and the
    hash of FROZEN. Whether a campaign may take it depends on what has been run: `opprof protocol
    diff` shows the touched cells.
    """
    from opprof.protocol.amend import Request, amend_protocol

    for flag, text in (("--id", identity), ("--title", title), ("--reason", reason)):
        check_text(flag, text)
    day = day_of(date)
    pairs = [_setting(text) for text in settings]
    frozen = load(source)
    data = amend_protocol(frozen, Request(identity, title, reason, day, pairs, rejudge, refresh))
    write_frozen(out, data)
    made = parse_protocol(data, source=str(out))
    answer = _answer(frozen, made)
    if as_json:
        print_json({"id": made.file.id, "sha256": made.sha256, **answer})
        return
    click.echo(f"{made.file.id}: amended as {out}, {made.sha256}")
    for change, meaning in _meanings(frozen, made):
        click.echo(f"  {change.key}: {meaning}")


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip() or not value.strip():
        raise InputError(f"--set {text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


@click.command("rejudge", short_help="Judge a completed run again; keep both verdicts.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--old", required=True, metavar="FILE", help="Protocol the run was measured under.")
@click.option("--new", required=True, metavar="FILE", help="Protocol that judges it again.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for adjudication.json and result.json; never the run's own.",
)
@json_option
def rejudge_command(run: Path, old: str, new: str, out: Path, as_json: bool) -> None:
    """Judge a completed RUN again from its kept raw data; both verdicts are written.

    The --new protocol amends the --old one with --rejudge. Nothing is rerun and nothing in RUN is
    changed. Exit codes: 0 accepted by the new protocol, 1 not accepted, 2 unusable input.
    """
    from opprof.adjudication import rejudge, write_adjudication
    from opprof.analysis.bound import kept_as

    if not run.exists():
        raise InputError(f"no such run directory{kept_as(run)}", path=run)
    if run.resolve() in [out.resolve(), *out.resolve().parents]:
        raise InputError(
            "lies inside the run, which stays as it is; choose another --out", path=out
        )
    measured, judging = load(old), load(new)
    _check_judging(measured, judging)
    found = rejudge(run, measured, judging)
    write_adjudication(found, out)
    if as_json:
        print_json(found)
    else:
        for name, verdict in (("before", found.before), ("after", found.after)):
            word = "accepted" if verdict.accepted else "not accepted"
            flag = ", drain-quarantined" if verdict.drain_quarantined else ""
            click.echo(f"{found.run.name} {name} ({verdict.protocol_sha256[:12]}): {word}{flag}")
            for reason in verdict.reasons:
                click.echo(f"    {reason}")
        for gate in found.changed:
            click.echo(f"  {gate.source} {gate.name} ({gate.scope}): {gate.before} -> {gate.after}")
    raise SystemExit(0 if found.after.accepted else 1)


def _check_judging(old: Protocol, new: Protocol) -> None:
    """See to it that the one protocol asks for runs of the other to be judged again.

    Raises:
        StateConflict: it is a draft, unsound, follows not from that one, or does not ask for it.
    """
    from opprof.protocol.amend import added_amendments, chain_problems

    if new.file.freeze is None or new.file.status != "frozen":
        reason = "is a draft: a run is judged again by an amendment of its protocol only"
    elif problems := chain_problems(new):
        reason = "; ".join(problems)
    else:
        added, problems = added_amendments(old, new)
        if not problems and any(row.rejudge for row in added):
            return
        reason = "has no amendment with --rejudge"
        if problems:
            reason = f"does not amend {old.sha256[:12]}, the protocol of --old"
    raise StateConflict(reason, path=new.source)
