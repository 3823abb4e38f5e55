"""The scan as one call: manifests, private places and public texts from their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opprof.artifacts.scan import ScanReport
from opprof.errors import InputError
from opprof.files import read_bytes
from opprof.integrity.normalize import SEPARATOR, collapse
from opprof.integrity.scan import Scanner, private_places, scan_tree
from opprof.integrity.source import read_private

_PUBLIC_LIMIT_BYTES = 256 << 20


def scan_folder(
    folder: Path,
    *,
    manifests: Sequence[Path],
    private_dirs: Sequence[Path] = (),
    public: Sequence[Path] = (),
    jobs: int = 1,
) -> ScanReport:
    """Scan a folder against private manifests (see :mod:`opprof.integrity.scan`).

    Raises:
        InputError: the folder is missing or empty, a manifest is cut or holds no prompt, a private
            folder holds the scanned one.
    """
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
        private_files=frozenset((status.st_dev, status.st_ino) for status in identities),
    )
    return scan_tree(folder, scanner, private_dirs=len(places), jobs=jobs)
