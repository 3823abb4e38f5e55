"""``opprof scan DIR --private MANIFEST``: nothing private may leave the machine."""

from __future__ import annotations

from pathlib import Path

import click

from opprof.artifacts.scan import ScanReport
from opprof.cli.options import json_option, print_json, scan_options
from opprof.words import plural

_EXIT_CODES = {"pass": 0, "fail": 1, "not_evaluable": 2}


@click.command("scan")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@scan_options
@click.option(
    "--also",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A file beside DIR to look into as well, repeatable.",
)
@json_option
def scan(
    folder: Path,
    manifests: tuple[Path, ...],
    private_dirs: tuple[Path, ...],
    public: tuple[Path, ...],
    jobs: int,
    also: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Look for private text in every file of DIR, packed ones and logs included.

    A finding is a prompt, messages, content or generated text under any key; 32 characters or more
    of a source prompt, white space normalised, in any encoding known here; a private path outside
    of commands.log; a file that could not be looked at. Exit code 1 with any finding.
    """
    from opprof.integrity.check import scan_folder

    report = scan_folder(
        folder, manifests=manifests, private_dirs=private_dirs, public=public, jobs=jobs, also=also
    )
    if as_json:
        print_json(report)
    else:
        print_scan(report, folder)
    raise SystemExit(_EXIT_CODES[report.outcome])


def print_scan(report: ScanReport, folder: Path) -> None:
    """Print findings, then what was looked at."""
    from opprof.cli import one_line

    for finding in report.findings:
        inside = f" [{finding.inside}]" if finding.inside else ""
        near = "" if finding.offset is None else f" (near byte {finding.offset})"
        line = f"{finding.file}{inside}: {finding.kind}: {finding.detail}{near}"
        click.echo(one_line(line), err=True)
    for name in report.more:
        click.echo(one_line(f"{name}: has more findings than are listed"), err=True)
    prompts = sum(item.text_prompts + item.id_prompts for item in report.manifests)
    short = sum(item.too_short for item in report.manifests)
    click.echo(
        f"{one_line(str(folder))}: {report.outcome}: {plural(len(report.findings), 'finding')} in "
        f"{plural(report.files, 'file')} ({report.file_bytes} bytes; {report.stream_bytes} looked "
        f"at), "
        f"against {plural(prompts, 'prompt')}, {short} of them too short to be looked for"
    )
    if report.public_matches:
        matches = plural(report.public_matches, "match is", "matches are")
        click.echo(f"{matches} public text")
