"""What a campaign left beside its finished folders: ledger, states, logs, decision.

A controller's last act is ``provenance/closing.json``: the hash of every file that no folder's own
record holds, the co-location gates among them. Its first act, and that of everything else that
changes a campaign, is to take that record away, so one that lies there speaks of the files as they
were left.

Source: protocol, A-P3-2; "Artifact, privacy, and reproducibility contract"; hard stop 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec

from opprof.artifacts.provenance import FileHash, FolderProvenance
from opprof.code_hash import code_sha256
from opprof.errors import EnvironmentFailure
from opprof.files import sha256_bytes, write_atomic
from opprof.integrity.checks import Checks
from opprof.integrity.ledger import NAME as LEDGER
from opprof.integrity.provenance import FOLDER, MODE, pretty, read_campaign, read_folder_record
from opprof.integrity.tree import Entry, hash_plain, open_plain, walk

NAME = "closing.json"
GROWS = frozenset({"controller.log"})
"""A resume that is refused still writes its line here: what was there must be there."""
_UNRECORDED = frozenset({"controller.lock", f"{FOLDER}/{NAME}"})
RECORDED = ("runs", "attempts", "colocation")
"""Folders of a campaign whose finished parts have records of their own."""
_LATER = frozenset({"comparison.json", "decision.json", "decision.md", "pack.json", "report.html"})
"""Made from finished folders at any time; these name the hashes of what they were made from."""
OWN_NAMES = frozenset(
    {
        "campaign.json",
        "protocol.toml",
        "protocols",
        "state",
        LEDGER,
        "controller.json",
        "controller.lock",
        "controller.log",
        "commands.log",
        "logs",
        "stop.json",
        "stops",
        "adjudications",
        FOLDER,
        *RECORDED,
        *_LATER,
    }
)
"""What may lie at the top of a campaign."""


def close(campaign: Path, *, wall_ns: int) -> None:
    """Record every file that no folder's own record holds.

    Raises:
        StateConflict: the campaign has no provenance.
        InputError: a file cannot be read.
        EnvironmentFailure: the record cannot be written.
    """
    inside = _recorded(entry.name for entry in _files(campaign / FOLDER, f"{FOLDER}/"))
    entries = _entries(campaign, inside)
    files = [FileHash(entry.name, *hash_plain(entry.path)) for entry in entries]
    record = FolderProvenance(
        schema=1,
        campaign=read_campaign(campaign).campaign,
        folder=".",
        attempt=0,
        recorded_wall_ns=wall_ns,
        code_sha256=code_sha256(),
        protocol_sha256=None,
        files=sorted(files, key=lambda item: item.path),
        traces=[],
    )
    write_atomic(campaign / FOLDER / NAME, pretty(record), mode=MODE)


def reopen(campaign: Path) -> None:
    """Take the record away before anything changes; nothing where none is.

    Raises:
        EnvironmentFailure: it cannot be removed.
    """
    path = campaign / FOLDER / NAME
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailure(f"cannot remove: {error.strerror or error}", path=path) from error


def record_again(campaign: Path, written: Collection[Path]) -> None:
    """Put a decision or page that was made anew into the record; nothing where none is.

    Args:
        campaign: a folder; one that is no ended campaign has no record.
        written: files of that folder; a name that is no campaign's is left out.

    Raises:
        StateConflict: the record is unreadable.
        InputError: a file cannot be read.
        EnvironmentFailure: the record cannot be written.
    """
    path = campaign / FOLDER / NAME
    made = [place for place in written if place.name in _LATER]
    if not made or not path.is_file():
        return
    record = read_folder_record(path)
    files = {item.path: item for item in record.files}
    for place in made:
        files[place.name] = FileHash(place.name, *hash_plain(place))
    grown = msgspec.structs.replace(record, files=sorted(files.values(), key=lambda f: f.path))
    write_atomic(path, pretty(grown), mode=MODE)


def check_closing(checks: Checks) -> None:
    """Compare what lies beside the finished folders with what the last controller left."""
    path = checks.root / FOLDER / NAME
    subject = checks.subject(path)
    if not path.is_file():
        reason = (
            "is missing: no controller has come to its end since the campaign was started or "
            "resumed, so ledger, states, logs and decision cannot be compared"
        )
        checks.add("closing", subject, "not_evaluable", reason)
        return
    record = checks.read("closing", path, FolderProvenance)
    if record is None:
        return
    checks.equal("closing", subject, ".", record.folder, reason="speaks of another folder")
    told = {check.subject for check in checks.found if check.outcome == "fail"}
    for item in record.files:
        if item.path in told:
            continue
        if item.path in GROWS:
            _check_grown(checks, item)
        else:
            checks.file("closing", checks.root / item.path, item.sha256)
    expected = {item.path for item in record.files} | _LATER | GROWS | told
    for entry in _entries(checks.root, _recorded(item.path for item in record.files)):
        # Other names at the top are told as what they are: no part of a campaign.
        if entry.name not in expected and ("/" in entry.name or entry.name in OWN_NAMES):
            reason = "is additional: the campaign was left without it"
            seen = checks.hash(entry.path)
            checks.add("closing", entry.name, "fail", reason, seen=seen)


def _check_grown(checks: Checks, item: FileHash) -> None:
    path = checks.root / item.path
    if not path.is_file():
        checks.file("closing", path, item.sha256)
        return
    with open_plain(path) as stream:
        seen = sha256_bytes(stream.read(item.bytes))
    reason = "has changed in what was there when the campaign was left"
    checks.equal("closing", item.path, item.sha256, seen, reason=reason)


def _recorded(names: Iterable[str]) -> frozenset[str]:
    """Return the folders whose own records are among the names of a campaign's files."""
    inside = (name.removeprefix(f"{FOLDER}/") for name in names if name.startswith(f"{FOLDER}/"))
    return frozenset(
        name.removesuffix(".json")
        for name in inside
        if name.endswith(".json") and name.split("/")[0] in RECORDED
    )


def _entries(campaign: Path, recorded: frozenset[str]) -> Iterator[Entry]:
    """Yield the regular files that no folder's own record holds."""
    for entry in _files(campaign):
        if entry.name not in _UNRECORDED and recorded.isdisjoint(_folders(entry.name)):
            yield entry


def _files(root: Path, prefix: str = "") -> Iterator[Entry]:
    for entry in walk(root):
        if isinstance(entry, Entry) and entry.kind == "file":
            yield replace(entry, name=prefix + entry.name)


def _folders(name: str) -> Iterator[str]:
    """Yield every folder that a file lies in."""
    return (parent.as_posix() for parent in PurePosixPath(name).parents)
