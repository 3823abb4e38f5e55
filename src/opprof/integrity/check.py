"""The scan as one call: manifests, private places and public texts from their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opprof.artifacts.scan import ScanReport
from opprof.code_hash import source_files
from opprof.errors import EnvironmentFailure, InputError, StateConflict
from opprof.files import read_bytes, sha256_bytes
from opprof.integrity.provenance import FOLDER, INDEX, read_campaign
from opprof.integrity.scan import Scanner, private_places, scan_tree
from opprof.integrity.source import read_private
from opprof.integrity.stretches import SEPARATOR, collapse
from opprof.integrity.tree import hash_plain

_PUBLIC_LIMIT_BYTES = 256 << 20


def scan_folder(
    folder: Path,
    *,
    manifests: Sequence[Path],
    private_dirs: Sequence[Path] = (),
    public: Sequence[Path] = (),
    jobs: int = 1,
    also: Sequence[Path] = (),
) -> ScanReport:
    """Scan a folder, and files beside it, against private manifests (:mod:`opprof.integrity.scan`).

    Raises:
        InputError: the folder is missing or empty, a manifest is cut or holds no prompt, a private
            folder holds the scanned one; or the scan could not be ended (memory, a killed worker),
            so that there is no verdict.
    """
    try:
        return _scan_folder(folder, manifests, private_dirs, public, jobs, also)
    except MemoryError as error:
        reason = "the scan needs more memory than there is: there is no verdict"
        raise InputError(reason, path=folder) from error
    except (EnvironmentFailure, OSError) as error:
        reason = f"the scan did not run to its end, there is no verdict: {error}"
        raise InputError(reason, path=folder) from error


def _scan_folder(
    folder: Path,
    manifests: Sequence[Path],
    private_dirs: Sequence[Path],
    public: Sequence[Path],
    jobs: int,
    also: Sequence[Path],
) -> ScanReport:
    if not manifests:
        raise InputError("nothing private is named: there is nothing to look for", path=folder)
    places = private_places(manifests, private_dirs, folder)
    text = SEPARATOR.join(
        collapse(read_bytes(path, limit_bytes=_PUBLIC_LIMIT_BYTES)) for path in public
    )
    source = read_private(manifests)
    identities = [path.stat() for path in manifests]
    scanner = Scanner(
        source=source,
        paths=tuple(sorted(collapse(place.encode()) for place in places)),
        public=text,
        recorded=_recorded_sources(folder),
        own=frozenset(sha256_bytes(path.read_bytes()) for path in source_files().values()),
        private_folders=tuple(
            place
            for place in map(Path, sorted(places))
            if place.is_dir() and place == place.resolve()
        ),
        private_files=frozenset((status.st_dev, status.st_ino) for status in identities),
    )
    return scan_tree(folder, scanner, private_dirs=len(places), jobs=jobs, also=also)


def _recorded_sources(folder: Path) -> frozenset[str]:
    """Copies of this program below ``provenance/`` that are what the campaign recorded."""
    if not (folder / FOLDER / INDEX).is_file():
        return frozenset()
    try:
        copies = read_campaign(folder).copies
        return frozenset(
            f"{FOLDER}/{copy.path}"
            for copy in copies
            if copy.kind in ("client", "controller", "hooks")
            and hash_plain(folder / FOLDER / copy.path)[0] == copy.sha256
        )
    except (StateConflict, InputError):
        # `opprof verify` tells what is wrong with it; here nothing is trusted then.
        return frozenset()
