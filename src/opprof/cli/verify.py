"""``opprof verify DIR``: every recorded hash, recomputed."""

from __future__ import annotations

from pathlib import Path

import click

from opprof.artifacts.verification import VerifyReport
from opprof.cli.options import json_option, print_json
from opprof.words import plural


@click.command("verify")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--runs",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Where the run directories of analyses lie that were written elsewhere.",
)
@click.option(
    "--protocol",
    "protocols",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Further protocol that artefacts may name (a campaign brings its own).",
)
@json_option
def verify(
    folder: Path, runs: tuple[Path, ...], protocols: tuple[Path, ...], as_json: bool
) -> None:
    """Recompute every hash of a campaign, a run directory or a folder of analyses.

    A changed, missing or additional file is named with its recorded and its seen hash. What cannot
    be recomputed here is not evaluable, and said so. Exit code 1 when a check failed.
    """
    from opprof.files import sha256_file
    from opprof.integrity.verify import verify as verify_folder

    named = frozenset(sha256_file(path) for path in protocols)
    report = verify_folder(folder, runs=runs, protocols=named)
    if as_json:
        print_json(report)
    else:
        print_verification(report, folder)
    raise SystemExit(int(report.outcome == "fail"))


def print_verification(report: VerifyReport, folder: Path) -> None:
    """Print what did not pass, then the counts."""
    from opprof.cli import one_line
    from opprof.integrity.checks import MEANINGS

    for check in report.checks:
        hashes = ""
        if check.expected is not None or check.seen is not None:
            hashes = f" (recorded {check.expected or 'nothing'}, seen {check.seen or 'nothing'})"
        label = "FAIL" if check.outcome == "fail" else "not evaluable"
        line = f"{label}: {check.subject}: {check.name}: {check.reason}{hashes}"
        click.echo(one_line(line), err=check.outcome == "fail")
    passed = plural(sum(report.passed.values()), "check")
    click.echo(f"{one_line(str(folder))}: {report.kind}: {report.outcome}; {passed} passed")
    for name, count in report.passed.items():
        click.echo(f"  {count:>6} {name:<14} {MEANINGS.get(name, '')}")
    if report.root_sha256 is not None:
        click.echo(f"provenance {report.root_sha256}")
