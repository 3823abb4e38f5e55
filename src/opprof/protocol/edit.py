"""Editing a protocol's text so that each edit can be undone to the byte.

Values are replaced by tomlkit, which keeps comments and layout; keys and tables are added as lines.
Every edit is checked by its meaning: the text is decoded again and must be the expected tree, so an
edit that met an unusual layout is refused instead of trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from opprof.errors import InputError
from opprof.files import sha256_bytes
from opprof.toml_file import decode_toml

_SEAL = re.compile(r'(?m)^seal = "([0-9a-f]{64})"$')
_BARE = re.compile(r"[A-Za-z0-9_-]+")
UNSEALED = "0" * 64
Path = Sequence[str | int]
"""Keys from the root; an index stands for a row of an array of tables."""


def decode(text: str) -> dict[str, Any]:
    """Return the tree of a TOML text.

    Raises:
        InputError: the text is no TOML.
    """
    return decode_toml(text)


def literal(text: str) -> str:
    """Return a value's TOML text: what the user wrote, or the text as a string.

    ``0.10``, ``"x"``, ``[1, 2]`` and ``{a = 1}`` stand for themselves; anything that is no TOML
    value (``NVIDIA H200``) becomes a string.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        if list(decode(f"value = {text}")) == ["value"]:
            return str(tomlkit.value(text.strip()).as_string())
    except (InputError, TOMLKitError):
        pass  # No TOML value: the text itself is meant.
    return text_of(text)


def value_of(raw: str) -> Any:
    """Return the value of a TOML literal."""
    return decode(f"value = {raw}")["value"]


def text_of(value: Any) -> str:
    """Return a value as a TOML literal."""
    import tomlkit

    return _utf8(str(tomlkit.item(value).as_string()))


def _utf8(text: str) -> str:
    """Refuse a text of a command line whose bytes are no UTF-8.

    Raises:
        InputError: quotes it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{text!r} is no UTF-8 text, which no file can hold") from error
    return text


def raw_at(text: str, path: Path) -> str:
    """Return the literal of the value at ``path`` as the file writes it."""
    item: Any = _document(text)
    for name in path:
        item = item[name]
    # tomlkit hands out plain Python booleans.
    return text_of(item) if isinstance(item, bool) else str(item.as_string())


@lru_cache(maxsize=2)
def _document(text: str) -> Any:
    """Parse a text that several values are read from; the document is never changed."""
    import tomlkit

    return tomlkit.parse(text)


def replace_at(text: str, path: Path, raw: str) -> str:
    """Replace the value at ``path`` by a literal; comments and layout stay."""
    return replace_all(text, [(path, raw)])


def replace_all(text: str, values: Sequence[tuple[Path, str]]) -> str:
    """Replace the values at several paths (see :func:`replace_at`)."""
    import tomlkit

    if not values:
        return text
    document = tomlkit.parse(text)
    for path, raw in values:
        table: Any = document
        for name in path[:-1]:
            table = table[name]
        table[path[-1]] = tomlkit.value(raw)
    return tomlkit.dumps(document)


def insert_key(text: str, path: Path, raw: str) -> str:
    """Add ``key = raw`` as the last line of its table.

    Raises:
        InputError: the table is not written under a ``[header]`` of its own.
    """
    if not _BARE.fullmatch(str(path[-1])):
        raise InputError(f"{path[-1]!r} is no key that can be added: letters, digits, _ and -")
    lines = text.split("\n")
    _, end = _block(lines, path[:-1])
    return "\n".join([*lines[:end], f"{path[-1]} = {raw}", *lines[end:]])


def remove_key(text: str, path: Path, raw: str) -> str:
    """Undo :func:`insert_key`.

    Raises:
        InputError: the line is not there.
    """
    lines, added = text.split("\n"), f"{path[-1]} = {raw}".split("\n")
    start, end = _block(lines, path[:-1])
    for at in range(end - len(added), start - 1, -1):
        if lines[at : at + len(added)] == added:
            return "\n".join([*lines[:at], *lines[at + len(added) :]])
    raise InputError(f"the added key {path[-1]} is not where it was put")


def header_rows(text: str, name: str) -> list[int]:
    """Return the line indices of ``[[name]]`` headers."""
    wanted = f"[[{name}]]"
    return [at for at, line in enumerate(text.split("\n")) if _bare(line) == wanted]


def block_at(text: str, start: int) -> tuple[int, int]:
    """Return ``[start, end)``, the lines of the block whose header is line ``start``."""
    return start, _end(text.split("\n"), start + 1)


def _block(lines: Sequence[str], table: Path) -> tuple[int, int]:
    """Return first and end index of the lines of a table; the root's begin at 0."""
    if not table:
        return 0, _end(lines, 0)
    if isinstance(table[-1], int):
        starts = header_rows("\n".join(lines), ".".join(map(str, table[:-1])))
        start = starts[table[-1]] if table[-1] < len(starts) else None
    else:
        header = f"[{'.'.join(map(str, table))}]"
        start = next((at for at, line in enumerate(lines) if _bare(line) == header), None)
    if start is None:
        name = ".".join(map(str, table))
        raise InputError(f"the table {name} has no [header] of its own; write it as one")
    return start + 1, _end(lines, start + 1)


def _bare(line: str) -> str:
    return line.split("#", 1)[0].strip()


def _end(lines: Sequence[str], start: int) -> int:
    """Return the index after the last line of content before the next header."""
    end = start
    for at in range(start, len(lines)):
        stripped = lines[at].strip()
        if re.match(r"\[+[\w.\"'-]+\]+\s*(#.*)?$", lines[at]):
            break
        if stripped and not stripped.startswith("#"):
            end = at + 1
    return end


def seal_of(text: str) -> tuple[str, str]:
    """Return the seal that a text carries and the one that it should carry.

    Raises:
        InputError: it carries none, or more than one.
    """
    found = _SEAL.findall(text)
    if len(found) != 1:
        raise InputError(f"{len(found)} seals, one is needed")
    return found[0], sha256_bytes(_SEAL.sub(f'seal = "{UNSEALED}"', text).encode())


def sealed(text: str) -> str:
    """Return the text with the seal that it should carry."""
    _, right = seal_of(text)
    return _SEAL.sub(f'seal = "{right}"', text)
