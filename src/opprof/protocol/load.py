"""Reading a protocol: file to checked, hashed :class:`Protocol`.

Precedence of the source: an explicit path, then ``$OPPROF_PROTOCOL``, then the packaged
``phase3``. ``none`` binds no protocol: gates that need one are then ``not_evaluable``.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import inspect

from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes
from opprof.protocol.base import BOTH_ENDS
from opprof.protocol.model import Config, Pattern, ProtocolFile
from opprof.toml_file import decode_toml

ENVIRONMENT_VARIABLE = "OPPROF_PROTOCOL"
PACKAGED = "phase3"
_LIMIT_BYTES = 4 << 20
_EXACT_MAX = 1 << 53
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PROSE = frozenset(
    ("title", "cell", "purpose", "text", "superseded", "summary", "reason", "command", "manifest")
)
"""Keys whose text may have several lines: prose, and commands, which are split into words."""


@dataclass(frozen=True)
class Protocol:
    """A protocol bound to the bytes it was read from."""

    file: ProtocolFile
    sha256: str
    """SHA-256 of the file's bytes; stands in every artefact."""
    source: str
    data: bytes = field(default=b"", repr=False, compare=False)
    """The file's bytes; empty where a test made the protocol from values."""

    def pattern(self, pattern_id: str) -> Pattern | None:
        """Return the pattern's row, or None where the protocol does not name it."""
        return next((row for row in self.file.patterns if row.id == pattern_id), None)

    def config(self, config_id: str) -> Config | None:
        """Return the configuration's row, or None where the protocol does not name it."""
        return next((row for row in self.file.configs if row.id == config_id), None)


def load_protocol(source: str | os.PathLike[str] | None = None) -> Protocol | None:
    """Read the protocol named by ``source``, ``$OPPROF_PROTOCOL`` or the package; None for "none".

    Raises:
        InputError: the file cannot be read or is no TOML (with its line).
        SchemaError: a key is missing, unknown or of the wrong type (with its key and line).
    """
    name = os.fspath(source) if source is not None else os.environ.get(ENVIRONMENT_VARIABLE, "")
    if name == "none":
        return None
    path = packaged_path() if name in ("", PACKAGED) else Path(name)
    return parse_protocol(read_bytes(path, limit_bytes=_LIMIT_BYTES), source=str(path))


def packaged_path() -> Path:
    """Return the packaged protocol's path: inside the wheel, or a checkout's ``protocols/``."""
    inside = Path(__file__).parent / "data" / f"{PACKAGED}.toml"
    if inside.is_file():
        return inside
    return Path(__file__).parents[3] / "protocols" / f"{PACKAGED}.toml"


def parse_protocol(data: bytes, *, source: str) -> Protocol:
    """Decode and type-check the bytes of a protocol file.

    Raises:
        InputError: the bytes are no UTF-8 TOML.
        SchemaError: a key is missing, unknown or of the wrong type, a number is one that no
            record holds exactly, or a text holds a character that no record shows.
    """
    tree = decode_toml(data, source=source)
    text = data.decode()
    if (problem := _unusable(tree, "$", "")) is not None:
        reason = f"does not fit the protocol schema: {problem}"
        raise SchemaError(reason, path=source, line=_key_line(text, reason))
    try:
        file = msgspec.convert(tree, ProtocolFile)
    except msgspec.ValidationError as error:
        reason = f"does not fit the protocol schema: {error}{_why(str(error))}"
        raise SchemaError(reason, path=source, line=_key_line(text, reason)) from error
    return Protocol(file=file, sha256=sha256_bytes(data), source=source, data=data)


def _unusable(value: object, key: str, name: str) -> str | None:
    """Return what no record can hold: a number beyond what JSON holds exactly, a control character.

    ``key``: path of the value; ``name``: the last key in it, which lists inherit.
    """
    found: Iterator[str | None]
    if isinstance(value, dict):
        inside = ((f"{key}.{each}", each, held) for each, held in value.items())
        found = (_hidden(each, path) or _unusable(held, path, each) for path, each, held in inside)
    elif isinstance(value, list):
        found = (_unusable(each, f"{key}[{index}]", name) for index, each in enumerate(value))
    elif isinstance(value, str):
        prose = name in _PROSE or key.startswith(("$.variables.", "$.amendments["))
        return _hidden(re.sub(r"[\n\t]", "", value) if prose else value, key)
    else:
        fits = not isinstance(value, int | float) or abs(value) < _EXACT_MAX
        return None if fits else f"no finite number below 2^53 - at `{key}`"
    return next((each for each in found if each is not None), None)


def _hidden(text: str, key: str) -> str | None:
    match = _CONTROL.search(text)
    shown = key.encode("unicode_escape").decode()
    return match and f"the character {match.group()!r} shows nothing - at `{shown}`"


def expand(template: str, variables: Mapping[str, str]) -> str:
    """Replace ``${NAME}`` by the site's value.

    Raises:
        InputError: the template names a variable without a value.
    """
    try:
        return string.Template(template).substitute(variables)
    except KeyError as error:
        name = error.args[0]
        raise InputError(
            f"no value for the variable ${{{name}}}; give it as {name}=VALUE"
        ) from error
    except ValueError as error:
        raise InputError(f"bad variable in {template!r}: {error}") from error


def _why(message: str) -> str:
    """Return what the key of msgspec's message may have instead, or why it has such limits."""
    found: inspect.Type = inspect.type_info(ProtocolFile)
    told = ""
    for name in [*_key_path(message), None]:
        while isinstance(found, inspect.Metadata | inspect.UnionType):
            if isinstance(found, inspect.Metadata):
                told = (found.extra_json_schema or {}).get("description", "")
                found = found.type
            else:
                found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        if isinstance(found, inspect.StructType) and isinstance(name, str):
            known = {each.encode_name: each.type for each in found.fields}
            found = known.get(name, inspect.AnyType())
        elif isinstance(found, inspect.ListType) and name is not None:
            found = found.item_type
        elif isinstance(found, inspect.DictType) and name is not None:
            found = found.value_type
        elif isinstance(found, inspect.TupleType) and isinstance(name, int):
            found = found.item_types[name]
    if isinstance(found, inspect.LiteralType) and "Invalid enum value" in message:
        told = f"one of {', '.join(map(repr, found.values))}"
    elif re.search(r"` >=? ", message) and told not in BOTH_ENDS:
        told = ""
    limited = "Invalid enum value" in message or "`int` " in message or "`float` " in message
    return f" ({told})" if told and limited else ""


def _key_path(message: str) -> list[str | int]:
    """Return the keys and places in lists that msgspec's message leads through."""
    path = re.search(r"`\$((?:\.[\w-]+|\[[^\]]*\])*)`", message)
    keys = re.findall(r"\.([\w-]+)|\[(\d+)\]", path.group(1)) if path else []
    return [name or int(index) for name, index in keys]


def _key_line(text: str, message: str) -> int | None:
    """Find the line of the key that msgspec's message names, where the path leads to one."""
    unknown = re.search(r"unknown field `([^`]+)`", message)
    names = _key_path(message)
    if unknown:
        names.append(unknown.group(1))
    return _walk(text.splitlines(), names)


def _walk(lines: list[str], names: list[str | int]) -> int | None:
    """Follow tables and array indices down the file; return the last line that matched."""
    at, found = 0, None
    for position, name in enumerate(names):
        if isinstance(name, int):
            header = f"[[{names[position - 1]}]]" if position else ""
            seen = [i for i, line in enumerate(lines) if line.strip() == header]
            if name < len(seen):
                at = found = seen[name]
            continue
        pattern = re.compile(rf"^\s*(?:\[+(?:\w+\.)*{re.escape(name)}\]+|{re.escape(name)}\s*=)")
        for index in range(at, len(lines)):
            if pattern.match(lines[index]):
                at = found = index
                break
    return None if found is None else found + 1
