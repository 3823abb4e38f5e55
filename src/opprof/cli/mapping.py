"""``opprof mapping``: check a table of operator families, and ask which rule a kernel hits."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import Struct

from opprof.cli.options import json_option, print_json
from opprof.mapping import (
    BUILTIN_VERSIONS,
    CheckReport,
    MappingTable,
    RuleHit,
    check_table,
    load_table,
)


class ShownKernel(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of ``opprof mapping show --json``."""

    name: str
    scopes: list[str]
    hit: RuleHit


class Shown(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``opprof mapping show --json`` prints."""

    version: str
    sha256: str
    kernels: list[ShownKernel]


@click.group("mapping")
def group() -> None:
    """Check and explain tables that map kernel names to operator families."""


@group.command("check", short_help="Prove a table's examples.")
@click.argument("table", metavar="v1|v2|FILE")
@json_option
def check(table: str, as_json: bool) -> None:
    """Prove a table's examples: exit 0 when every one reaches its own rule, else 1."""
    report = check_table(_which(table))
    if as_json:
        print_json(report)
    else:
        click.echo(_check_text(report))
    raise SystemExit(0 if report.ok else 1)


@group.command("show", short_help="Say which rule each kernel name hits.")
@click.argument("table", metavar="v1|v2|FILE")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="S",
    help="An enclosing CPU op or module annotation, outermost first; may be given again.",
)
@json_option
def show(table: str, names: tuple[str, ...], scopes: tuple[str, ...], as_json: bool) -> None:
    """Say which rule each kernel name hits, and by what it was recognised."""
    loaded = load_table(_which(table))
    kernels = [
        ShownKernel(name=name, scopes=list(scopes), hit=loaded.explain(name, scopes))
        for name in names
    ]
    if as_json:
        print_json(Shown(version=loaded.version, sha256=loaded.sha256, kernels=kernels))
        return
    click.echo(_head(loaded))
    for kernel in kernels:
        click.echo(_hit_text(kernel))


def _which(table: str) -> str | Path:
    return table if table in BUILTIN_VERSIONS else Path(table)


def _head(table: MappingTable) -> str:
    return f"{table.version}: {table.title}\nsha256 {table.sha256}"


def _hit_text(kernel: ShownKernel) -> str:
    hit = kernel.hit
    lines = [kernel.name, f"  {hit.family} (priority {hit.priority})"]
    if hit.rule is None:
        lines[-1] += ": no rule matches"
        return "\n".join(lines)
    lines[-1] += f" by rule {hit.rule}"
    if hit.name_match is not None:
        lines.append(f"  name   {hit.name_match!r} found by {hit.name_pattern}")
    if hit.scope_match is not None:
        lines.append(f"  scope  {hit.scope_match!r} found by {hit.scope_pattern}")
    return "\n".join(lines)


def _check_text(report: CheckReport) -> str:
    lines = [f"{report.version}: {report.title}", f"sha256 {report.sha256}"]
    for rule in report.rules:
        reached = sum(hit.ok for hit in rule.examples)
        lines.append(
            f"  {rule.priority} {rule.family:<17} {rule.id:<33}"
            f" {reached}/{len(rule.examples)} examples"
        )
    lines.append(f"  {report.unmatched} names documented as matched by no rule")
    for finding in report.findings:
        place = f"{finding.rule}: " if finding.rule else ""
        lines.append(f"{finding.level}: {place}{finding.message}")
    lines.append("ok" if report.ok else "NOT OK")
    return "\n".join(lines)
