"""``opprof pack``: one archive of a folder that verifies and scans clean; the same bytes each time.

Source: protocol, "Before packaging, a scanner must reject …"; "Budget and hard stop conditions".
"""

from __future__ import annotations

import gzip
import importlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from opprof._version import __version__
from opprof.artifacts.common import SanityBlock
from opprof.artifacts.pack import Pack
from opprof.artifacts.provenance import FileHash
from opprof.artifacts.run import ManifestSummary
from opprof.artifacts.scan import ScanReport
from opprof.artifacts.verification import VerifyReport
from opprof.code_hash import code_sha256
from opprof.errors import InputError, IntegrityError, StateConflict
from opprof.files import new_file_writer
from opprof.integrity.check import scan_folder
from opprof.integrity.provenance import hash_folder
from opprof.integrity.tree import Entry, open_plain, walk
from opprof.integrity.verify import verify
from opprof.protocol import Protocol
from opprof.rules.sanity import family
from opprof.words import plural

CONTENTS = "pack.json"
_CHUNK_BYTES = 1 << 20
_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Packed:
    """An archive that was written."""

    path: Path
    sha256: str
    bytes: int
    contents: Pack


@dataclass(frozen=True)
class PackOptions:
    """What a folder is scanned against and judged by."""

    manifests: tuple[Path, ...]
    protocol: Protocol
    """Its ``[budget].public_bytes_max`` holds."""
    private_dirs: tuple[Path, ...] = ()
    public: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    accept_not_evaluable: bool = False
    jobs: int = 1


def pack(
    folder: Path,
    out: Path,
    options: PackOptions,
    *,
    on_verified: Callable[[VerifyReport], None] = lambda _: None,
    on_scanned: Callable[[ScanReport], None] = lambda _: None,
) -> Packed:
    """Verify, scan and pack a folder; write the archive's SHA-256 beside it.

    Every file is hashed before the checks and again while it is packed: what changes in between is
    refused, and no archive appears.

    Args:
        folder: a campaign, a run directory or a folder of analyses.
        out: ``*.tar.gz`` or ``*.tar``; ``*.tar.zst`` where Python brings Zstandard (3.14).
        options: see :class:`PackOptions`.
        on_verified: called with the verification, whatever it says.
        on_scanned: called with the scan, whatever it says.

    Raises:
        StateConflict: ``out`` or its hash file exists.
        IntegrityError: the folder is over the protocol's size, does not verify, holds something
            private, was not scanned against a private manifest that it used, or changed meanwhile.
        InputError: ``out`` lies in the folder, or has no suffix that is known; a manifest or the
            folder cannot be used; something in it could not be looked at.
        EnvironmentFailure: the archive cannot be written.
    """
    beside = out.with_name(f"{out.name}.sha256")
    _check_out(folder, out, beside)
    # Before anything is hashed, for a folder far too large; and of what was hashed.
    present = sum(entry.bytes for entry in walk(folder) if isinstance(entry, Entry))
    _limited(present, options.protocol, folder)
    files = hash_folder(folder)
    size = _limited(sum(item.bytes for item in files), options.protocol, folder)
    verified = verify(folder, runs=options.runs, protocols=frozenset({options.protocol.sha256}))
    on_verified(verified)
    _refuse_unverified(verified, options, folder)
    scanned = scan_folder(
        folder,
        manifests=options.manifests,
        private_dirs=options.private_dirs,
        public=options.public,
        jobs=options.jobs,
    )
    on_scanned(scanned)
    if scanned.outcome == "fail":
        reason = f"the scan has {plural(len(scanned.findings), 'finding')}; nothing was packed"
        raise IntegrityError(reason, path=folder)
    if scanned.outcome != "pass":
        reason = f"the scan could not look at {len(scanned.findings)} things; nothing was packed"
        raise InputError(reason, path=folder)
    _refuse_unscanned(folder, files, scanned)
    contents = _contents(folder, files, size, verified, scanned, options)
    digest = _write(folder, contents, out, beside)
    return Packed(out, digest, out.stat().st_size, contents)


def _write(folder: Path, contents: Pack, out: Path, beside: Path) -> str:
    """Write the archive's hash and then the archive, each of which appears whole; return the hash.

    Only a process killed in the moment between the two leaves the hash alone.
    """
    complete = beside_written = False
    try:
        with new_file_writer(out) as stream:
            hashing = _HashingWriter(stream)
            with _compressed(hashing, out) as target:
                _write_tar(folder, contents, target)
            digest = hashing.digest.hexdigest()
            with new_file_writer(beside) as line:
                line.write(f"{digest}  {out.name}\n".encode())
            beside_written = True
        complete = True
    finally:
        if beside_written and not complete:
            beside.unlink(missing_ok=True)
    return digest


def _check_out(folder: Path, out: Path, beside: Path) -> None:
    if os.path.lexists(out):
        raise StateConflict("exists already; nothing is overwritten", path=out)
    if os.path.lexists(beside):
        reason = (
            "exists already without its archive, which was moved, or a pack was killed just before "
            "it appeared; nothing is overwritten"
        )
        raise StateConflict(reason, path=beside)
    if not out.name.endswith((".tar.gz", ".tar.zst", ".tar")):
        raise InputError("--out takes FILE.tar.gz, FILE.tar.zst or FILE.tar", path=out)
    if out.name.endswith(".zst"):
        _zstd()
    if folder.resolve() in out.resolve().parents:
        raise InputError("the archive would lie in the folder that it packs", path=out)


def _limited(size: int, protocol: Protocol, folder: Path) -> int:
    """Return a folder's size; hard stop 9."""
    limit = protocol.file.budget.public_bytes_max
    if size > limit:
        reason = f"holds {size} bytes, the protocol allows {limit} to be public (hard stop 9)"
        raise IntegrityError(reason, path=folder)
    return size


def _refuse_unverified(report: VerifyReport, options: PackOptions, folder: Path) -> None:
    if report.outcome == "fail":
        count = sum(check.outcome == "fail" for check in report.checks)
        raise IntegrityError(f"{count} checks failed; nothing was packed", path=folder)
    if report.outcome != "pass" and not options.accept_not_evaluable:
        reason = (
            f"{len(report.checks)} checks are not evaluable, which is no pass; nothing was packed "
            "(--accept-not-evaluable packs with their list)"
        )
        raise IntegrityError(reason, path=folder)


def _refuse_unscanned(folder: Path, files: Sequence[FileHash], report: ScanReport) -> None:
    """Every private manifest that a run used must be among those that were scanned against."""
    scanned = {manifest.sha256 for manifest in report.manifests}
    for item in files:
        if not f"/{item.path}".endswith("/manifest.sha256"):
            continue
        path = folder / item.path
        try:
            used = msgspec.json.decode(path.read_bytes(), type=ManifestSummary)
        except (OSError, msgspec.DecodeError) as error:
            raise IntegrityError(f"is no manifest summary: {error}", path=path) from error
        if used.private and used.sha256 not in scanned:
            reason = f"names the private manifest {used.sha256}, which --private did not"
            raise IntegrityError(reason, path=path)


def _contents(
    folder: Path,
    files: list[FileHash],
    size: int,
    verified: VerifyReport,
    scanned: ScanReport,
    options: PackOptions,
) -> Pack:
    sizes = [item.bytes for item in files]
    return Pack(
        schema=1,
        folder=folder.resolve().name,
        kind=verified.kind,
        verified=verified.outcome,
        not_evaluable=[f"{c.subject}: {c.name}: {c.reason}" for c in verified.checks],
        root_sha256=verified.root_sha256,
        scanned=scanned.outcome,
        manifests=scanned.manifests,
        public_matches=scanned.public_matches,
        protocol_sha256=options.protocol.sha256,
        public_bytes=size,
        public_bytes_max=options.protocol.file.budget.public_bytes_max,
        files=[item for item in files if item.path != CONTENTS],
        code_version=__version__,
        code_sha256=code_sha256(),
        sanity=SanityBlock([family("file_bytes", sizes, unit="bytes")], []),
    )


def _write_tar(folder: Path, contents: Pack, target: BinaryIO) -> None:
    """Write the contents' list and every listed file, with nothing of this machine in a header."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        listed = msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n"
        archive.addfile(_member(contents.folder, CONTENTS, len(listed)), io.BytesIO(listed))
        for item in contents.files:
            path = folder / item.path
            with open_plain(path) as stream:
                reader = _Hashing(stream)
                try:
                    archive.addfile(_member(contents.folder, item.path, item.bytes), reader)
                except OSError as error:
                    raise IntegrityError(f"changed while it was packed: {error}", path=path) from (
                        error
                    )
                if stream.read(1) or reader.digest.hexdigest() != item.sha256:
                    raise IntegrityError("changed while it was packed", path=path)


def _member(folder: str, name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"{folder}/{name}")
    member.size, member.mode = size, 0o644
    return member


class _Hashing:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, sha256()

    def read(self, size: int = -1, /) -> bytes:
        part = self._stream.read(size)
        self.digest.update(part)
        return part


class _HashingWriter(io.RawIOBase):
    """Passes on what is written and hashes it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()


@contextmanager
def _compressed(stream: io.RawIOBase, out: Path) -> Iterator[Any]:
    if out.name.endswith(".gz"):
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0) as target:
            yield target
    elif out.name.endswith(".zst"):
        with _zstd().ZstdFile(stream, "wb") as target:
            yield target
    else:
        yield stream


def _zstd() -> Any:
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        reason = "Zstandard needs Python 3.14 or newer; take .tar.gz"
        raise InputError(reason) from None
