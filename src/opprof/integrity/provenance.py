"""What a campaign ran with, as immutable copies; and the hashes of every folder that it finished.

``record_campaign`` runs once before the first launch (and again, harmlessly, on every resume),
``record_protocol`` for each amendment, ``record_folder`` for each finished run or attempt, before
its state says ``complete``. Every file appears whole or not at all, with mode 0444.

Source: protocol, A-P3-2; "Artifact, privacy, and reproducibility contract".
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opprof._version import __version__
from opprof.artifacts.provenance import (
    CampaignProvenance,
    CopyKind,
    FileHash,
    FolderProvenance,
    OriginalTrace,
    RecordedCopy,
)
from opprof.code_hash import (
    HOOK_TABLES,
    PACKAGE,
    client_sha256,
    code_sha256,
    hooks_sha256,
    source_files,
)
from opprof.errors import InputError, IntegrityError, SchemaError, StateConflict
from opprof.files import read_bytes, sha256_bytes, write_atomic
from opprof.integrity.tree import Unreadable, hash_plain, walk

FOLDER = "provenance"
INDEX = "provenance.json"
SOURCES_TAR = "controller/opprof-sources.tar"
CLIENT_TAR = "client/opprof-client-sources.tar"
MODE = 0o444
"""Of every file below ``provenance/``."""
_LIMIT_BYTES = 64 << 20
_SCRIPT = "scripts/opprof_phase3_client.py"

T = TypeVar("T")


def record_campaign(
    campaign: Path,
    *,
    campaign_id: str,
    protocol: Path,
    mappings: Sequence[str],
    launches: Mapping[str, Any],
    wall_ns: int,
) -> CampaignProvenance:
    """Write ``provenance/`` of a campaign, or confirm the one that is there.

    Args:
        campaign: the campaign's folder.
        campaign_id: ``campaign.json``'s ``id``.
        protocol: the frozen protocol in force.
        mappings: every table of the protocol, as ``v1`` or as a file's path.
        launches: configuration to its launch configuration (command, environment, values that must
            be effective); anything that JSON can hold. Private paths have no place in it.
        wall_ns: CLOCK_REALTIME, integer nanoseconds.

    Raises:
        StateConflict: what is recorded was made from other sources, hooks, mappings, launch
            configurations, or does not know the protocol; names the first difference.
        EnvironmentFailure: the folder cannot be written.
    """
    files = dict(_copies(protocol, mappings, launches))
    made = CampaignProvenance(
        schema=1,
        campaign=campaign_id,
        created_wall_ns=wall_ns,
        code_version=__version__,
        code_sha256=code_sha256(),
        client_sha256=client_sha256(),
        hooks_sha256=hooks_sha256(),
        protocols=[_hash_of(files, "protocol")[0].sha256],
        mappings={copy.label: copy.sha256 for copy in _hash_of(files, "mapping")},
        launches={copy.label: copy.sha256 for copy in _hash_of(files, "launch")},
        copies=[copy for copy, _ in files.values()],
    )
    folder = campaign / FOLDER
    if (folder / INDEX).exists():
        present = read_campaign(campaign)
        _refuse_difference(present, made, folder / INDEX)
        return present
    for copy, data in files.values():
        write_atomic(folder / copy.path, data, mode=MODE)
    write_atomic(folder / INDEX, pretty(made), mode=MODE)
    return made


def record_protocol(campaign: Path, protocol: Path) -> CampaignProvenance:
    """Add the copy of an amended protocol; does nothing where that one is recorded already.

    Raises:
        StateConflict: the campaign has no provenance.
        EnvironmentFailure: the folder cannot be written.
    """
    present = read_campaign(campaign)
    data = read_bytes(protocol, limit_bytes=_LIMIT_BYTES)
    digest = sha256_bytes(data)
    if digest in present.protocols:
        return present
    copy = _protocol_copy(data, number=len(present.protocols))
    write_atomic(campaign / FOLDER / copy.path, data, mode=MODE)
    grown = msgspec.structs.replace(
        present,
        protocols=[*present.protocols, digest],
        copies=[*present.copies, copy],
    )
    write_atomic(campaign / FOLDER / INDEX, pretty(grown), mode=MODE)
    return grown


def record_folder(
    campaign: Path,
    folder: str,
    *,
    attempt: int,
    protocol_sha256: str | None,
    wall_ns: int,
    broken: bool = False,
) -> FolderProvenance:
    """Hash every file of a finished folder into ``provenance/<folder>.json``.

    Recording the same unchanged folder again returns the first record.

    Args:
        campaign: the campaign's folder.
        folder: relative to it: ``runs/<run>``, ``attempts/<run>.<n>`` or one below ``colocation/``.
        attempt: number of the attempt, from 1; 0 for what has none.
        protocol_sha256: of the protocol in force.
        wall_ns: CLOCK_REALTIME, integer nanoseconds.
        broken: a failed or broken-off attempt, kept as it is: a result that cannot be read tells no
            traces and holds nothing up.

    Raises:
        StateConflict: it was recorded before with other contents, or the campaign has no
            provenance.
        IntegrityError: it holds a link, a pipe, a socket or a name that is no UTF-8.
        InputError: the folder is missing or a file cannot be read.
    """
    present = read_campaign(campaign)
    path, root = record_path(campaign, folder), campaign / folder
    made = FolderProvenance(
        schema=1,
        campaign=present.campaign,
        folder=folder,
        attempt=attempt,
        recorded_wall_ns=wall_ns,
        code_sha256=code_sha256(),
        protocol_sha256=protocol_sha256,
        files=hash_folder(root),
        traces=_traces_of_a_wreck(root) if broken else original_traces(root),
    )
    if path.exists():
        before = read_folder_record(path)
        if before.files != made.files or before.attempt != attempt:
            raise StateConflict(f"{folder} was recorded before with other contents", path=path)
        return before
    write_atomic(path, pretty(made), mode=MODE)
    return made


def record_run(
    campaign: Path, run: str, *, attempt: int, protocol_sha256: str | None, wall_ns: int
) -> FolderProvenance:
    """Record ``runs/<run>`` (see :func:`record_folder`)."""
    return record_folder(
        campaign,
        f"runs/{run}",
        attempt=attempt,
        protocol_sha256=protocol_sha256,
        wall_ns=wall_ns,
    )


def record_path(campaign: Path, folder: str) -> Path:
    """Where the record of a finished folder lies.

    Raises:
        InputError: the folder does not lie below the campaign, or is its provenance.
    """
    parts = Path(folder).parts
    if Path(folder).is_absolute() or ".." in parts or not parts or parts[0] == FOLDER:
        raise InputError(f"{folder!r} is no finished folder of a campaign", path=campaign)
    return campaign / FOLDER / f"{folder}.json"


def hash_folder(root: Path) -> list[FileHash]:
    """Return path, SHA-256 and size of every file below ``root``, sorted by path.

    Raises:
        IntegrityError: something that is no regular file or folder lies there.
        InputError: the folder is missing or a file cannot be read.
    """
    found = []
    for entry in walk(root):
        if isinstance(entry, Unreadable):
            raise IntegrityError(entry.reason, path=root / entry.name)
        if entry.kind == "folder":
            continue
        if entry.kind != "file" or entry.path.relative_to(root).as_posix() != entry.name:
            what = "a name that is no UTF-8" if entry.kind == "file" else f"a {entry.kind}"
            raise IntegrityError(f"a finished folder holds {what}", path=root / entry.name)
        digest, size = hash_plain(entry.path)
        found.append(FileHash(entry.name, digest, size))
    return sorted(found, key=lambda item: item.path)


def listing_sha256(files: Iterable[FileHash]) -> str:
    """Return one hash over path and SHA-256 of each file, whatever their order."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return sha256_bytes("".join(lines).encode())


class _Metrics(msgspec.Struct, frozen=True):
    traces: list[dict[str, Any]] = []


class _Result(msgspec.Struct):
    metrics: _Metrics = _Metrics()


def original_traces(root: Path) -> list[OriginalTrace]:
    """Return the collected traces with their original names, from the run's client.

    Raises:
        SchemaError: ``client/result.json`` is unreadable.
    """
    path = root / "client" / "result.json"
    if not path.is_file():
        return []
    try:
        rows = msgspec.json.decode(read_bytes(path), type=_Result).metrics.traces
        return [
            OriginalTrace(f"traces/{row['name']}", row["original_name"], row["sha256"])
            for row in rows
        ]
    except (msgspec.DecodeError, KeyError, RecursionError) as error:
        raise SchemaError(f"does not tell its traces: {error}", path=path) from error


def _traces_of_a_wreck(root: Path) -> list[OriginalTrace]:
    try:
        return original_traces(root)
    except SchemaError:
        return []


def read_campaign(campaign: Path) -> CampaignProvenance:
    """Return ``provenance/provenance.json``.

    Raises:
        StateConflict: it is missing or unreadable.
    """
    return _read(campaign / FOLDER / INDEX, CampaignProvenance)


def read_folder_record(path: Path) -> FolderProvenance:
    """Return one record of a finished folder.

    Raises:
        StateConflict: it is missing or unreadable.
    """
    return _read(path, FolderProvenance)


def sources_tar(under: str = "") -> bytes:
    """Return the package's sources as a tar whose bytes depend on nothing but them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in source_files(under).items():
            data = path.read_bytes()
            member = tarfile.TarInfo(f"opprof/{name}")
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _copies(
    protocol: Path, mappings: Sequence[str], launches: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[RecordedCopy, bytes]]]:
    """Yield every copy by its path below ``provenance/``."""

    def keep(
        kind: CopyKind, path: str, data: bytes, label: str = ""
    ) -> tuple[str, tuple[RecordedCopy, bytes]]:
        return path, (RecordedCopy(kind, path, sha256_bytes(data), len(data), label), data)

    yield keep("client", CLIENT_TAR, sources_tar("client/"), client_sha256())
    script = PACKAGE.parents[1] / _SCRIPT
    if script.is_file():
        yield keep("client", f"client/{_SCRIPT}", script.read_bytes())
    yield keep("controller", SOURCES_TAR, sources_tar(), code_sha256())
    for which in dict.fromkeys(mappings):
        version, data = _mapping(which)
        yield keep("mapping", f"mapping/{version}.toml", data, version)
    data = read_bytes(protocol, limit_bytes=_LIMIT_BYTES)
    copy = _protocol_copy(data, number=0)
    yield copy.path, (copy, data)
    for config in sorted(launches):
        encoded = pretty(launches[config])
        yield keep("launch", f"launch/{config}.json", encoded, config)
    for name in HOOK_TABLES:
        data = (PACKAGE / name).read_bytes()
        yield keep("hooks", f"hooks/{Path(name).name}", data)


def _protocol_copy(data: bytes, *, number: int) -> RecordedCopy:
    digest = sha256_bytes(data)
    path = f"protocol/{number:02d}-{digest[:12]}.toml"
    return RecordedCopy("protocol", path, digest, len(data), digest[:12])


def _mapping(which: str) -> tuple[str, bytes]:
    from opprof.mapping import BUILTIN_VERSIONS, load_table

    table = load_table(which)
    if which in BUILTIN_VERSIONS:
        place = resources.files("opprof.mapping") / "tables" / f"{which}.toml"
        return table.version, place.read_bytes()
    return table.version, read_bytes(Path(which), limit_bytes=_LIMIT_BYTES)


def _hash_of(files: Mapping[str, tuple[RecordedCopy, bytes]], kind: CopyKind) -> list[RecordedCopy]:
    return [copy for copy, _ in files.values() if copy.kind == kind]


def _refuse_difference(present: CampaignProvenance, made: CampaignProvenance, path: Path) -> None:
    """Refuse to go on with other sources than the campaign was started with."""
    if made.protocols[0] not in present.protocols:
        reason = f"the protocol {made.protocols[0][:12]} is none of the campaign's"
        raise StateConflict(reason, path=path)
    for name in ("campaign", "code_sha256", "client_sha256", "hooks_sha256"):
        seen, recorded = getattr(made, name), getattr(present, name)
        if seen != recorded:
            raise StateConflict(f"{name} is {seen} now, recorded is {recorded}", path=path)
    for name in ("mappings", "launches"):
        now, then = getattr(made, name), getattr(present, name)
        for key in sorted(now.keys() | then.keys()):
            if now.get(key) != then.get(key):
                reason = f"{name}: {key} is {now.get(key)} now, recorded is {then.get(key)}"
                raise StateConflict(reason, path=path)


def _read(path: Path, kind: type[T]) -> T:
    if not path.is_file():
        raise StateConflict("no provenance is recorded here", path=path)
    try:
        return msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StateConflict(f"does not fit its schema: {error}", path=path) from error


def pretty(value: object) -> bytes:
    """Encode a record for people and programs, the same bytes for the same value."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return msgspec.json.format(encoded, indent=1) + b"\n"
