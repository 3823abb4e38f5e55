"""Private manifests as two indexes: prompts that are text, and prompts that are token ids.

Both kinds of manifest are read: OpProf's own, and the trace that a private one is made from. Chat
``messages`` count with every string in them. No message here holds any part of a prompt.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from opprof.artifacts.scan import ScannedManifest
from opprof.errors import InputError, SchemaError
from opprof.integrity.index import GramIndex
from opprof.integrity.stretches import MIN_CHARS, SEPARATOR, collapse
from opprof.integrity.tree import open_plain
from opprof.workload.scan import bounded_lines, decode_line


class _Row(msgspec.Struct):
    prompt: Raw = Raw()
    prompt_token_ids: Raw = Raw()
    messages: Raw = Raw()


_row = msgspec.json.Decoder(_Row)
_SPACES = b" \t\r\n"


@dataclass(frozen=True)
class PrivateText:
    """One index, and how to name the prompt of a place in it."""

    index: GramIndex
    kind: str
    """``prompt_text`` or ``prompt_token_ids``."""
    manifest: str
    """First digits of the manifest's SHA-256; empty where the index is of several."""
    starts: array[int] = field(default_factory=lambda: array("Q"))
    """First byte of every prompt; empty where the text is the manifest itself."""
    labels: tuple[str, ...] = ()

    def where(self, position: int) -> str:
        """Return manifest and line of a place, for a message."""
        if self.starts:
            return self.labels[bisect_right(self.starts, position) - 1]
        line = 1
        for start in range(0, position, 1 << 24):
            line += bytes(self.index.text[start : min(start + (1 << 24), position)]).count(b"\n")
        return f"{self.manifest}:{line}"


@dataclass(frozen=True)
class PrivateSource:
    """Everything private that the scan looks for."""

    texts: tuple[PrivateText, ...]
    ids: tuple[PrivateText, ...]
    manifests: tuple[ScannedManifest, ...]

    @property
    def memory_bytes(self) -> int:
        """Memory of all indexes with their texts."""
        return sum(item.index.memory_bytes for item in (*self.texts, *self.ids))


@dataclass
class _Gathered:
    """Collapsed prompts of one kind with NUL between them."""

    data: bytearray = field(default_factory=bytearray)
    starts: array[int] = field(default_factory=lambda: array("Q"))
    labels: list[str] = field(default_factory=list)

    def add(self, text: bytes, label: str) -> None:
        self.starts.append(len(self.data))
        self.labels.append(label)
        self.data += text + SEPARATOR


@dataclass
class _Counts:
    requests: int = 0
    text: int = 0
    ids: int = 0
    short: int = 0
    plain: bool = True
    """Every array of ids stands without white space, so that the file is its own text."""


def read_private(paths: Sequence[Path]) -> PrivateSource:
    """Read and index private manifests.

    Memory: a manifest of token ids is mapped, not copied; text prompts are held once, and
    :class:`GramIndex` says what it adds.

    Raises:
        InputError: a manifest cannot be read, is cut, or holds no prompt of 32 characters.
        SchemaError: a line is no JSON object with a prompt of a known form.
    """
    texts = _Gathered()
    ids: list[PrivateText] = []
    manifests = []
    for path in dict.fromkeys(paths):
        numbers = _Gathered()
        counts, digest = _Counts(), sha256()
        for line, raw in _lines(path):
            digest.update(raw)
            _take(raw, path, line, counts, texts, numbers)
        if not counts.text and not counts.ids:
            raise InputError("holds no prompt: nothing could be looked for", path=path)
        if counts.short == counts.text + counts.ids:
            reason = f"holds no prompt of {MIN_CHARS} characters: nothing could be looked for"
            raise InputError(reason, path=path)
        name = digest.hexdigest()
        manifests.append(
            ScannedManifest(name, counts.requests, counts.text, counts.ids, counts.short)
        )
        texts.labels = [label if ":" in label else f"{name[:12]}:{label}" for label in texts.labels]
        if counts.ids:
            ids.append(_id_index(path, name[:12], counts, numbers))
    found = []
    if texts.starts:
        index = GramIndex(texts.data)
        found.append(PrivateText(index, "prompt_text", "", texts.starts, tuple(texts.labels)))
    return PrivateSource(tuple(found), tuple(ids), tuple(manifests))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open_plain(path) as stream:
        yield from bounded_lines(stream, path)


def _id_index(path: Path, name: str, counts: _Counts, numbers: _Gathered) -> PrivateText:
    """Index arrays of ids: the mapped file where its arrays are compact, else their own text."""
    # Artefacts hold few long rows of numbers: probing all of them costs nothing, so the index is
    # as small as it can be.
    if not counts.plain:
        starts, labels = numbers.starts, tuple(f"{name}:{label}" for label in numbers.labels)
        index = GramIndex(numbers.data, dense=False)
        return PrivateText(index, "prompt_token_ids", name, starts, labels)
    with open_plain(path) as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return PrivateText(GramIndex(mapped, dense=False), "prompt_token_ids", name)


def _take(
    raw: bytes, path: Path, line: int, counts: _Counts, texts: _Gathered, numbers: _Gathered
) -> None:
    if not raw.strip():
        return
    counts.requests += 1
    row = decode_line(_row, raw, path, line)
    ids = bytes(row.prompt_token_ids)
    for literal in (bytes(row.prompt), bytes(row.messages)):
        if not literal or literal == b"null":
            continue
        if literal.startswith(b"[") and not literal.strip(b"[]0123456789,-" + _SPACES):
            ids = literal  # the interface takes ids under "prompt", too
            continue
        counts.text += 1
        strings = list(_strings(_value(literal, path, line)))
        longest = 0
        for text in strings:
            collapsed = collapse(text.encode("utf-8", "surrogatepass"))
            longest = max(longest, len(collapsed.decode("utf-8", "replace")))
            texts.add(collapsed, str(line))
        counts.short += longest < MIN_CHARS
    if ids and ids != b"null":
        counts.ids += 1
        _take_ids(ids, path, line, counts, numbers)


def _take_ids(literal: bytes, path: Path, line: int, counts: _Counts, numbers: _Gathered) -> None:
    compact = literal.translate(None, _SPACES)
    counts.short += len(compact) - 2 < MIN_CHARS
    if not compact.startswith(b"[") or compact.strip(b"[]0123456789,-"):
        raise SchemaError("prompt_token_ids is no array of integers", path=path, line=line)
    if compact != literal and counts.plain:
        counts.plain = False
        # Earlier lines were not gathered, for they could stand for themselves.
        for before, raw in _lines(path):
            if before == line:
                break
            if raw.strip():
                row = decode_line(_row, raw, path, before)
                earlier = bytes(row.prompt_token_ids) or bytes(row.prompt)
                numbers.add(earlier.translate(None, _SPACES).strip(b"[]"), str(before))
    if not counts.plain:
        numbers.add(compact.strip(b"[]"), str(line))


def _value(literal: bytes, path: Path, line: int) -> Any:
    try:
        return msgspec.json.decode(literal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError("the prompt is no valid JSON", path=path, line=line) from None


def _strings(value: Any) -> Iterator[str]:
    """Every string in a prompt or in a list of messages, but for roles and types."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("role", "type"):
                yield from _strings(item)
