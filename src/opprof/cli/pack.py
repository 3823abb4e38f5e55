"""``opprof pack DIR --out FILE.tar.gz --private MANIFEST``: what may leave, as one archive."""

from __future__ import annotations

from pathlib import Path

import click

from opprof.artifacts.scan import ScanReport
from opprof.artifacts.verification import VerifyReport
from opprof.cli.options import json_option, print_json, scan_options
from opprof.errors import InputError
from opprof.words import plural


@click.command("pack")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE.tar.gz",
    required=True,
    type=click.Path(path_type=Path),
    help="The archive; FILE.tar.gz.sha256 is written beside it. Nothing is overwritten.",
)
@scan_options
@click.option(
    "--runs",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Where the runs of analyses lie (see `opprof verify`).",
)
@click.option(
    "--protocol",
    "protocol_source",
    metavar="FILE|phase3",
    default=None,
    help="Protocol whose size limit holds (default: DIR/protocol.toml, else the packaged one).",
)
@click.option(
    "--accept-not-evaluable",
    is_flag=True,
    help="Pack although some checks could not be made; the archive lists them.",
)
@json_option
def pack(
    folder: Path,
    out: Path,
    manifests: tuple[Path, ...],
    private_dirs: tuple[Path, ...],
    public: tuple[Path, ...],
    runs: tuple[Path, ...],
    protocol_source: str | None,
    accept_not_evaluable: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Pack DIR, if it verifies and holds nothing private.

    Refuses a folder that does not verify or scan clean, or is larger than the protocol lets be
    public. The same folder gives the same bytes. Exit code 1 when refused, 2 for unusable input.
    """
    from opprof.cli import one_line
    from opprof.cli.scan import print_scan
    from opprof.cli.verify import print_verification
    from opprof.integrity.pack import PackOptions
    from opprof.integrity.pack import pack as pack_folder
    from opprof.protocol import load_protocol

    own = folder / "protocol.toml"
    source = protocol_source or (str(own) if own.is_file() else None)
    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("packing needs a protocol: its size limit has no default")

    def verified(report: VerifyReport) -> None:
        if not as_json or report.outcome == "fail":
            print_verification(report, folder)

    def scanned(report: ScanReport) -> None:
        if not as_json or report.outcome != "pass":
            print_scan(report, folder)

    options = PackOptions(
        manifests=manifests,
        protocol=protocol,
        private_dirs=private_dirs,
        public=public,
        runs=runs,
        accept_not_evaluable=accept_not_evaluable,
        jobs=jobs,
    )
    done = pack_folder(folder, out, options, on_verified=verified, on_scanned=scanned)
    if as_json:
        print_json(
            {
                "path": str(done.path),
                "sha256": done.sha256,
                "bytes": done.bytes,
                "files": len(done.contents.files),
                "verified": done.contents.verified,
                "not_evaluable": done.contents.not_evaluable,
                "root_sha256": done.contents.root_sha256,
            }
        )
        return
    click.echo(
        f"{one_line(str(out))}: {plural(len(done.contents.files), 'file')}, {done.bytes} bytes, "
        f"{done.sha256}"
    )
