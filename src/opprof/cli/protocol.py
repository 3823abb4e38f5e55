"""``opprof protocol check|freeze|show``; the others stand in ``protocol_change``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from opprof.cli.options import json_option, print_json
from opprof.cli.protocol_change import (
    amend_command,
    day_of,
    diff_command,
    load,
    rejudge_command,
    write_frozen,
)
from opprof.cli.protocol_tables import show_lines
from opprof.errors import InputError
from opprof.protocol.check import check_protocol
from opprof.protocol.design import design, execution_order
from opprof.protocol.load import PACKAGED
from opprof.words import check_text

_DIGITS_MAX = 9


@click.group("protocol")
def group() -> None:
    """Check, freeze, amend and show a pre-registered protocol.

    FILE is a protocol file or `phase3`, the packaged one. A draft is checked and frozen (its open
    decisions are approved then); only a frozen file starts a campaign, and only an amendment
    changes it.
    """


group.add_command(diff_command)
group.add_command(amend_command)
group.add_command(rejudge_command)


@group.command("check", short_help="Check a draft, or a frozen file against this installation.")
@click.argument("source", metavar="[FILE]", default=PACKAGED)
@json_option
def check(source: str, as_json: bool) -> None:
    """Check types, references, domains and the protocol's own arithmetic.

    A frozen file must also be, to the byte, what freezing and amending made of its draft, and its
    hashes of client, plugin, hooked functions and mapping tables must fit this installation.

    Exit codes: 0 sound, 1 frozen and not usable here, 2 unsound.
    """
    from opprof.protocol.freeze import check_frozen

    protocol = load(source)
    problems = check_protocol(protocol.file)
    frozen = check_frozen(protocol) if protocol.file.freeze is not None else []
    if as_json:
        print_json(
            {
                "id": protocol.file.id,
                "sha256": protocol.sha256,
                "status": protocol.file.status,
                "problems": problems,
                "freeze_problems": frozen,
            }
        )
    else:
        for problem in [*problems, *frozen]:
            click.echo(f"{protocol.source}: {problem}", err=True)
        if not problems and not frozen:
            click.echo(f"{protocol.file.id}: sound ({protocol.file.status}), {protocol.sha256}")
    raise SystemExit(2 if problems else 1 if frozen else 0)


@group.command("freeze", short_help="Approve open decisions and freeze a draft.")
@click.argument("source", metavar="FILE")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Frozen file to write; must not exist.",
)
@click.option(
    "--approve",
    "approved",
    metavar="N[=DATE]",
    multiple=True,
    help="Approve open decision N (date of the approval: --date). Repeatable.",
)
@click.option("--approve-all", is_flag=True, help="Approve every decision still open; needs --by.")
@click.option("--by", default="", metavar="NAME", help="Who approves; recorded with each approval.")
@click.option("--date", metavar="YYYY-MM-DD", help="Date of the freezing (default: today).")
@json_option
def freeze(
    source: str,
    out: Path,
    approved: tuple[str, ...],
    approve_all: bool,
    by: str,
    date: str | None,
    as_json: bool,
) -> None:
    """Freeze a draft: approve its open decisions and bind it to this installation.

    Writes the same file with its comments, status "frozen", the approvals, and a [freeze] table
    with the hashes of draft, code, client, plugin, hooked functions and mapping tables. Refuses an
    unsound draft, a decision left open, and an --out that exists.
    """
    from opprof.protocol.freeze import Approvals, freeze_protocol
    from opprof.protocol.load import parse_protocol

    check_text("--by", by)
    day = day_of(date)
    approvals = Approvals(_numbers(approved, day), day if approve_all else None, by)
    data = freeze_protocol(load(source), approvals, date=day)
    write_frozen(out, data)
    made = parse_protocol(data, source=str(out))
    if as_json:
        print_json({"id": made.file.id, "sha256": made.sha256, "freeze": made.file.freeze})
    else:
        click.echo(f"{made.file.id}: frozen as {out}, {made.sha256}")


def _numbers(texts: tuple[str, ...], day: str) -> dict[int, str]:
    """Return decision number to date of ``N`` and ``N=DATE``."""
    found: dict[int, str] = {}
    for text in texts:
        number, _, date = text.partition("=")
        if not (number.isdecimal() and len(number) <= _DIGITS_MAX):
            raise InputError(f"--approve {text!r} is not N or N=DATE")
        if int(number) in found:
            raise InputError(f"--approve names decision {number} twice")
        found[int(number)] = date or day
    return found


@group.command("show", short_help="Show cells, order, gates, stops and cost.")
@click.argument("source", metavar="[FILE]", default=PACKAGED)
@json_option
def show(source: str, as_json: bool) -> None:
    """Show the design: cells, loads, windows, gates, order and cost."""
    protocol = load(source)
    numbers = design(protocol.file)
    order = execution_order(protocol.file)
    if as_json:
        print_json(
            {
                "sha256": protocol.sha256,
                "design": dataclasses.asdict(numbers),
                "execution_order": order,
                "protocol": protocol.file,
            }
        )
        return
    for line in show_lines(protocol, numbers, order):
        click.echo(line)
