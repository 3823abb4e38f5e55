"""The privacy scan: every byte of a folder, looked at through every encoding, in bounded memory.

Source: protocol, "Artifact, privacy, and reproducibility contract" and hard stop 8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opprof._version import __version__
from opprof.artifacts.common import Outcome, SanityBlock
from opprof.artifacts.scan import UNSEEN_KINDS, FindingKind, ScanFinding, ScanReport
from opprof.code_hash import code_sha256
from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.integrity.containers import (
    INFLATED_LIMIT_BYTES,
    Chained,
    Damaged,
    PlainFile,
    Readable,
    Stream,
    Unlooked,
    streams,
)
from opprof.integrity.findings import Enough, FileLog, Tally
from opprof.integrity.keys import forbidden_keys
from opprof.integrity.normalize import class_table, is_text, long_runs, views
from opprof.integrity.source import PrivateSource, PrivateText
from opprof.integrity.stretches import MIN_CHARS, SEPARATOR, collapse
from opprof.integrity.tree import Entry, Unreadable, open_plain, single, walk
from opprof.rules.sanity import family
from opprof.workers import run_many_sharing

COMMAND_LOG = "commands.log"
_YAML = ("yaml", "yml")
"""The one name under which private paths may stand (protocol: "the exact command log")."""
CHUNK_BYTES = 1 << 19
OVERLAP_BYTES = 16 << 10
"""Of neighbouring chunks: far more than 32 characters take in any encoding, so that no border cuts
a match; only white space escaped over more than this could."""
_BINARY = "is binary or in an unknown encoding: only what stands in it as text was looked at"
_REMEMBERED = 1 << 14
_GZIP_IN_TEXT = bytes.fromhex("20 8b 08")
"""The beginning of a gzip member, whose first byte counts as white space; no UTF-8 has it."""
_BATCH_BYTES = 4 << 20
_BATCH_ENTRIES = 256
_OWN_BYTES = 512 << 10
"""No source file of this program is longer."""
_ID_BETWEEN = b",;[]() \"'"
_ID_CLASS = class_table(b"0123456789" + _ID_BETWEEN)
_ID_BREAKS = bytes(0x2C if byte in _ID_BETWEEN else byte for byte in range(256))
_COMMAS = re.compile(rb",,+")


@dataclass(frozen=True)
class Scanner:
    """What is looked for; one for all files, shared by worker processes."""

    source: PrivateSource
    paths: tuple[bytes, ...] = ()
    """Private places, as bytes."""
    public: bytes = b""
    """Collapsed text that everybody may read; what it holds is no finding."""
    private_files: frozenset[tuple[int, int]] = frozenset()
    """(device, inode) of the manifests."""
    private_folders: tuple[Path, ...] = ()
    """Private folders, resolved."""
    recorded: frozenset[str] = frozenset()
    """Copies of another version of this program whose recorded hash fits."""
    own: frozenset[str] = frozenset()
    """SHA-256 of files that are copies of this program, where keys are program text."""
    limit_bytes: int = INFLATED_LIMIT_BYTES
    _known_public: dict[bytes, bool] = field(default_factory=dict)

    def scan_entry(self, entry: Entry | Unreadable) -> Tally:
        """Look at one name and, where it is a file, at all that it holds."""
        tally = Tally()
        log = FileLog(tally, self.shown_name(entry.name, tally))
        try:
            if isinstance(entry, Unreadable):
                log.add("not_looked_at", "", entry.reason)
            elif entry.kind == "link":
                self._link(entry, log)
            elif entry.kind == "special":
                log.add("special_file", "", "is a pipe, a socket or a device")
            elif entry.kind == "file":
                self._file(entry, log)
        except Enough:
            tally.more = True
        return tally

    def shown_name(self, name: str, tally: Tally) -> str:
        """Return a name, or its hash where it is itself private; such a name is a finding."""
        first = self._private_name(name)
        if first is None:
            return name
        shown = _withheld(name)
        detail = f"in the name itself: {first.detail}"
        tally.findings.append(ScanFinding(shown, "", first.kind, detail))
        return shown

    def _private_name(self, name: str) -> ScanFinding | None:
        probe = FileLog(Tally(), "")
        self._look(collapse(name.encode()), probe, "", 0, keys=False, path_allowed=False)
        return next(iter(probe.tally.findings), None)

    def _inside_name(self, inside: str) -> str:
        if not inside or self._private_name(inside) is None:
            return inside if inside.isprintable() else inside.encode("unicode_escape").decode()
        return _withheld(inside)

    def _link(self, entry: Entry, log: FileLog) -> None:
        try:
            found = entry.path.exists()
        except OSError:
            found = False  # links in a circle, or a name that is too long
        where = "which exists" if found else "which does not exist"
        log.add("link", "", f"is a link to something, {where}; links are not followed")

    def _file(self, entry: Entry, log: FileLog) -> None:
        if any(folder in entry.path.resolve().parents for folder in self.private_folders):
            log.add("private_file", "", "lies in a private folder")
        try:
            with open_plain(entry.path) as stream:
                before = os.fstat(stream.fileno())
                if (before.st_dev, before.st_ino) in self.private_files:
                    log.add("private_file", "", "is a private manifest itself")
                name = entry.name.rsplit("/", 1)[-1]
                recorded = entry.name in self.recorded
                for part in streams(PlainFile(stream), name=name, limit_bytes=self.limit_bytes):
                    if isinstance(part, Unlooked):
                        log.add("not_looked_at", self._inside_name(part.name), part.reason)
                    else:
                        self._stream(part, entry.name, log, recorded=recorded)
                if _identity(os.fstat(stream.fileno())) != _identity(before):
                    log.add("not_looked_at", "", "changed while it was looked at")
        except InputError as error:
            log.add("not_looked_at", "", error.reason)

    def _stream(self, part: Stream, name: str, log: FileLog, *, recorded: bool) -> None:
        try:
            self._plain(part, name, log, recorded=recorded)
        except Damaged as error:
            log.add("not_looked_at", self._inside_name(part.name), str(error))

    def _plain(self, part: Stream, name: str, log: FileLog, *, recorded: bool) -> None:
        log.tally.streams += 1
        head = _fill(part.reader, _OWN_BYTES)
        own = recorded or (len(head) < _OWN_BYTES and sha256_bytes(head) in self.own)
        allowed = (part.name or name).rsplit("/", 1)[-1].split("!")[-1] == COMMAND_LOG
        inside = self._inside_name(part.name)
        suffix = (part.name or name).removesuffix(".gz").rsplit(".", 1)[-1].lower()
        reader = Chained(head, part.reader)
        for chunk in _chunks(reader, log.tally):
            if part.whole and not is_text(chunk.raw):
                log.add("not_looked_at", inside, _BINARY)
            self._look(
                chunk.text,
                log,
                inside,
                chunk.offset,
                keys=not own,
                path_allowed=allowed,
                page=suffix in ("html", "htm"),
                config=suffix == "toml",
                table=suffix in ("csv", "tsv", *_YAML),
                yaml=suffix in _YAML,
            )

    def _look(
        self,
        text: bytes,
        log: FileLog,
        inside: str,
        offset: int,
        *,
        keys: bool,
        path_allowed: bool,
        page: bool = False,
        config: bool = False,
        table: bool = False,
        yaml: bool = False,
    ) -> None:
        """Look at one stretch of collapsed text in every view."""
        for view in views(text, table=table):
            if _GZIP_IN_TEXT in view:
                log.add("not_looked_at", inside, "holds gzip data inside of other bytes", offset)
            if keys:
                for key in forbidden_keys(view, page=page, config=config, yaml=yaml):
                    log.add("forbidden_key", inside, f'key "{key}" holds text or ids', offset)
            if not path_allowed and any(path in view for path in self.paths):
                log.add("private_path", inside, "names a private path", offset)
            for private in self.source.texts:
                self._find(private, view, log, inside, offset)
            if self.source.ids:
                numbers = _id_text(view)
                for private in self.source.ids if len(numbers) >= MIN_CHARS else ():
                    self._find(private, numbers, log, inside, offset)

    def _find(
        self, private: PrivateText, view: bytes, log: FileLog, inside: str, offset: int
    ) -> None:
        for match in private.index.find(view):
            if self.public and self._is_public(match.text):
                log.tally.public += 1
                continue
            count = len(match.text.decode("utf-8", "ignore"))
            where = private.where(match.source)
            detail = f"{count} characters or more of the prompt at {where}"
            kind: FindingKind = (
                "prompt_text" if private.kind == "prompt_text" else "prompt_token_ids"
            )
            log.add(kind, inside, detail, offset, once=where)

    def _is_public(self, text: bytes) -> bool:
        known = self._known_public.get(text)
        if known is None:
            if len(self._known_public) >= _REMEMBERED:
                self._known_public.clear()
            known = self._known_public[text] = text in self.public
        return known


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _withheld(name: str) -> str:
    return f"(name withheld, SHA-256 {sha256_bytes(name.encode())[:16]})"


@dataclass(frozen=True, slots=True)
class _Chunk:
    offset: int
    """Of its first byte in the stream."""
    text: bytes
    """Collapsed, with the end of the chunk before."""
    raw: bytes
    """Its own bytes as they are."""


def _chunks(reader: Readable, tally: Tally) -> Iterator[_Chunk]:
    """Yield overlapping chunks of a stream."""
    carry, held, offset = b"", b"", 0
    while True:
        chunk = _fill(reader, CHUNK_BYTES)
        if not chunk and not held:
            return
        raw, held = _whole_characters(held + chunk) if chunk else (held, b"")
        part = collapse(raw)
        if carry.endswith(b" "):
            part = part.removeprefix(b" ")
        text = carry + part
        if text.strip(SEPARATOR):
            yield _Chunk(max(0, offset - len(carry)), text, chunk)
        offset += len(chunk)
        tally.stream_bytes += len(chunk)
        carry = text[-OVERLAP_BYTES:]


def _fill(reader: Readable, wanted: int) -> bytes:
    parts, size = [], 0
    while size < wanted and (part := reader.read(wanted - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _whole_characters(raw: bytes) -> tuple[bytes, bytes]:
    """Split before a UTF-8 character that is not whole yet."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte >= 0xC0:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
            return (raw[:-back], raw[-back:]) if needed > back else (raw, b"")
        if byte < 0x80:
            break
    return raw, b""


def _id_text(view: bytes) -> bytes:
    """Return every long row of numbers with one comma between them, rows apart by NUL."""
    rows = (
        _COMMAS.sub(b",", view[start:end].translate(_ID_BREAKS))
        for start, end in long_runs(view, _ID_CLASS, MIN_CHARS)
    )
    return SEPARATOR.join(row for row in rows if len(row) >= MIN_CHARS)


def scan_tree(
    root: Path,
    scanner: Scanner,
    *,
    private_dirs: int,
    jobs: int = 1,
    also: Sequence[Path] = (),
) -> ScanReport:
    """Scan everything below ``root``, in ``jobs`` processes that share one index.

    ``also``: files beside it, which are named by their own names.

    Raises:
        InputError: ``root`` is no folder, or holds nothing.
        EnvironmentFailure: a worker process was killed.
    """
    entries = list(walk(root))
    if not any(isinstance(entry, Entry) and entry.kind != "folder" for entry in entries):
        raise InputError("holds no file: there is nothing to scan", path=root)
    inside = list(entries)
    entries += map(single, also)
    batches = _batches(entries)
    several = run_many_sharing(
        _scan_batch, scanner, [[entries[at] for at in batch] for batch in batches], jobs=jobs
    )
    order = [at for batch in batches for at in batch]
    by_entry = dict(zip(order, (tally for tallies in several for tally in tallies), strict=True))
    tallies = [by_entry[at] for at in range(len(entries))]
    tallies += [_late(entry, scanner) for entry in _appeared(root, inside)]
    return _report(entries, tallies, scanner, private_dirs)


def _batches(entries: Sequence[Entry | Unreadable]) -> list[list[int]]:
    """Return the entries' numbers, the largest files first and alone, small ones together."""
    sizes = [entry.bytes if isinstance(entry, Entry) else 0 for entry in entries]
    batches: list[list[int]] = []
    room = 0
    for at in sorted(range(len(entries)), key=lambda at: -sizes[at]):
        if not batches or room < sizes[at] or len(batches[-1]) >= _BATCH_ENTRIES:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(at)
        room -= sizes[at]
    return batches


def _scan_batch(scanner: Scanner, entries: Sequence[Entry | Unreadable]) -> list[Tally]:
    return [scanner.scan_entry(entry) for entry in entries]


def _appeared(root: Path, entries: Sequence[Entry | Unreadable]) -> Iterator[Entry | Unreadable]:
    """Yield what was not there, or was something else, when the scan began."""
    before = set(entries)
    yield from (entry for entry in walk(root) if entry not in before)


def _late(entry: Entry | Unreadable, scanner: Scanner) -> Tally:
    tally = Tally()
    FileLog(tally, scanner.shown_name(entry.name, tally)).add(
        "not_looked_at", "", "appeared or changed while the scan ran"
    )
    return tally


def _report(
    entries: Sequence[Entry | Unreadable],
    tallies: Sequence[Tally],
    scanner: Scanner,
    private_dirs: int,
) -> ScanReport:
    findings = [finding for tally in tallies for finding in tally.findings]
    sizes = [e.bytes for e in entries if isinstance(e, Entry) and e.kind == "file"]
    return ScanReport(
        schema=1,
        outcome=_outcome(findings),
        findings=findings,
        more=sorted({tally.findings[0].file for tally in tallies if tally.more}),
        manifests=list(scanner.source.manifests),
        private_dirs=private_dirs,
        public_matches=sum(tally.public for tally in tallies),
        files=len(sizes),
        file_bytes=sum(sizes),
        streams=sum(tally.streams for tally in tallies),
        stream_bytes=sum(tally.stream_bytes for tally in tallies),
        index_bytes=scanner.source.memory_bytes,
        code_version=__version__,
        code_sha256=code_sha256(),
        sanity=_sanity(sizes, findings),
    )


def _outcome(findings: Sequence[ScanFinding]) -> Outcome:
    """Where nothing private was found, but not all could be looked at, nobody can tell."""
    if any(finding.kind not in UNSEEN_KINDS for finding in findings):
        return "fail"
    return "not_evaluable" if findings else "pass"


def _sanity(sizes: Sequence[int], findings: Sequence[ScanFinding]) -> SanityBlock:
    kinds = sorted({finding.kind for finding in findings})
    flags = [f"{'unseen' if kind in UNSEEN_KINDS else 'private_data'}: {kind}" for kind in kinds]
    return SanityBlock([family("file_bytes", sizes, unit="bytes")], flags)


def private_places(manifests: Sequence[Path], folders: Sequence[Path], root: Path) -> set[str]:
    """Return the private paths to look for: the manifests, their folders, and the given ones.

    A folder that holds the scanned one is no private folder; then only the manifest's own path is.

    Raises:
        InputError: a given folder is none, or is (or holds) the scanned one.
    """
    scanned = root.resolve()
    places: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise InputError("is no folder", path=folder)
        resolved = folder.resolve()
        if resolved == scanned or resolved in scanned.parents:
            raise InputError("holds the folder that is to be scanned", path=folder)
        places |= {str(resolved), str(folder.absolute())}
    for manifest in manifests:
        for path in (manifest.resolve(), manifest.absolute()):
            parent = path.parent
            holds = parent == scanned or parent in scanned.parents or len(parent.parts) < 3
            places.add(str(path) if holds else str(parent))
    return places
