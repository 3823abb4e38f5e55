"""The slow way into a manifest: every line read, checked and indexed, one at a time in memory.

No message here holds any part of a prompt: msgspec's messages name a type and a key, never a value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from opprof.artifacts.manifest import ManifestIndex, ManifestLineRaw, TokenId
from opprof.errors import InputError, SchemaError
from opprof.workload.write import little_endian

MAX_LINE_BYTES = 64 << 20
"""Longest line that is read: eight times the text of the longest prompt."""

T = TypeVar("T")
_line = msgspec.json.Decoder(ManifestLineRaw)
_ids = msgspec.json.Decoder(list[TokenId])
_text = msgspec.json.Decoder(str)


@dataclass(frozen=True)
class Scan:
    """What the lines of a manifest say."""

    index: ManifestIndex
    pattern: str
    arrival: str
    text: bool
    """The prompts are text, not token ids."""


@dataclass
class _Columns:
    ids: list[str] = field(default_factory=list)
    start: array[int] = field(default_factory=lambda: array("Q"))
    end: array[int] = field(default_factory=lambda: array("Q"))
    input: array[int] = field(default_factory=lambda: array("I"))
    output: array[int] = field(default_factory=lambda: array("I"))


def bounded_lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line with its newline) of every line.

    Raises:
        InputError: a line is longer than :data:`MAX_LINE_BYTES`, or the file cannot be read.
    """
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", path=path) from error
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            reason = f"the line is longer than {MAX_LINE_BYTES} bytes"
            raise InputError(reason, path=path, line=number)
        yield number, line


def scan_manifest(stream: BinaryIO, path: Path) -> Scan:
    """Read a manifest from its start, check every line, and return its index.

    Raises:
        InputError: no line, a cut line, a repeated id, a prompt whose ids are not as many as
            ``input_tokens``, or lines that disagree on pattern, arrival or kind of prompt.
        SchemaError: a line does not fit :class:`opprof.artifacts.manifest.ManifestLine`.
    """
    columns, seen, digest = _Columns(), set[str](), sha256()
    offset, first = 0, None
    for number, raw in bounded_lines(stream, path):
        digest.update(raw)
        line = decode_line(_line, raw, path, number)
        prompt = _prompt(line, path, number)
        first = first or line
        _check_same(first, line, path, number)
        request_id = str(line.id)
        if request_id in seen:
            raise InputError(f"the id {request_id!r} occurs twice", path=path, line=number)
        seen.add(request_id)
        # The same bytes are the same value, wherever in the line they are found first.
        start = offset + raw.index(prompt)
        columns.ids.append(request_id)
        columns.start.append(start)
        columns.end.append(start + len(prompt))
        columns.input.append(line.input_tokens)
        columns.output.append(line.output_tokens)
        offset += len(raw)
    if first is None:
        raise InputError("the manifest has no request", path=path)
    index = ManifestIndex(
        schema=1,
        manifest_sha256=digest.hexdigest(),
        manifest_bytes=offset,
        ids=columns.ids,
        prompt_start=little_endian(columns.start),
        prompt_end=little_endian(columns.end),
        input_tokens=little_endian(columns.input),
        output_tokens=little_endian(columns.output),
    )
    return Scan(index, first.pattern, first.arrival, bool(first.prompt))


def decode_line(decoder: msgspec.json.Decoder[T], raw: bytes, path: Path, number: int) -> T:
    """Return one line of a manifest as ``decoder`` takes it.

    Raises:
        InputError: the line is cut, or no JSON that can be read.
        SchemaError: it does not fit the decoder's type.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise SchemaError(f"no manifest line: {error}", path=path, line=number) from None
    except msgspec.DecodeError as error:
        cut = "" if raw.endswith(b"\n") else "the line is cut short: "
        raise InputError(f"{cut}{error}", path=path, line=number) from None
    except RecursionError:
        raise InputError("nested too deeply", path=path, line=number) from None


def _prompt(line: ManifestLineRaw, path: Path, number: int) -> bytes:
    """Return the bytes of the prompt's JSON value after checking it."""
    text, ids = bytes(line.prompt).strip(), bytes(line.prompt_token_ids).strip()
    if bool(text) == bool(ids):
        reason = "a line needs exactly one of prompt_token_ids and prompt"
        raise SchemaError(reason, path=path, line=number)
    try:
        if text:
            _text.decode(text)
            return text
        count = len(_ids.decode(ids))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "invalid UTF-8"
        raise SchemaError(f"unusable prompt: {reason}", path=path, line=number) from None
    if count != line.input_tokens:
        reason = f"input_tokens is {line.input_tokens}, but there are {count} token ids"
        raise InputError(reason, path=path, line=number)
    return ids


def _check_same(first: ManifestLineRaw, line: ManifestLineRaw, path: Path, number: int) -> None:
    for key in ("pattern", "arrival"):
        if getattr(line, key) != getattr(first, key):
            reason = f"{key} is {getattr(line, key)!r}, but {getattr(first, key)!r} on line 1"
            raise InputError(reason, path=path, line=number)
    if bool(line.prompt) != bool(first.prompt):
        raise InputError("token ids and text prompts in one manifest", path=path, line=number)
