"""Amendments of a frozen protocol: each can be undone to the byte, back to the draft.

An amendment is a ``[[amendments]]`` table with its reason, date, the old and new value of every
key, and the SHA-256 of the file that it changed. Undoing the last one must yield that file, so a
chain of amendments proves itself from the newest file alone.

Source: protocol, "Any change ... requires a dated amendment", and its section "Amendments".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from opprof.errors import InputError, StateConflict
from opprof.files import sha256_bytes
from opprof.protocol import edit
from opprof.protocol.check import check_protocol
from opprof.protocol.diff import diff, resolve
from opprof.protocol.freeze import (
    Installation,
    check_date,
    inline,
    installation,
    installation_problems,
    undo_freeze,
)
from opprof.protocol.load import Protocol, parse_protocol
from opprof.protocol.model import Amendment

_FIXED = frozenset({"schema", "id", "status", "date", "freeze", "amendments", "open_decisions"})
_EMPTY = re.compile(r"(?m)^(?=amendments *= *\[ *\])")
_EMPTY_MARK = re.compile(r"(?m)^# (?=amendments *= *\[ *\])")
"""An empty list in the root stands in the way of the first ``[[amendments]]`` table."""


@dataclass(frozen=True)
class Request:
    """What is to be amended, and why."""

    id: str
    title: str
    reason: str
    date: str
    """``YYYY-MM-DD``."""
    settings: Sequence[tuple[str, str]]
    """Key path and value: a TOML value, or any other text, which is then a string."""
    rejudge: bool = False
    """Judge completed runs again from their kept raw data."""
    refresh: bool = False
    """Also bind to this installation where it differs from the frozen one."""


@dataclass(frozen=True)
class _Value:
    """One changed key with both literals; ``old`` is None for an added key."""

    key: str
    path: edit.Path
    old: str | None
    new: str


def amend_protocol(
    frozen: Protocol, request: Request, *, here: Installation | None = None
) -> bytes:
    """Return the file of a frozen protocol with one more amendment.

    Args:
        frozen: with its bytes; a frozen protocol or one amended before.
        request: what to change.
        here: hashes to compare with; None takes this installation's.

    Raises:
        StateConflict: a draft, a file that was changed after it was frozen, or one that does not
            fit this installation (unless the request refreshes it).
        SchemaError: a value has the wrong type or an unknown key.
        InputError: a key does not exist or cannot be amended, a value is the present one, the id
            and title occur already, or the amended protocol is unsound.
    """
    _check_request(frozen, request)
    text = frozen.data.decode()
    tree = edit.decode(text)
    values = [_value(text, tree, key, raw) for key, raw in request.settings]
    draft = _applied(text, values)
    _check_meaning(frozen, draft, values)
    values += _freeze_values(frozen, text, draft, request, here)
    text = _insert_block(_applied(text, values), _block(request, values, frozen.sha256))
    data = edit.sealed(text).encode()
    made = _parsed(data, frozen.source)
    if problems := check_protocol(made.file):
        raise InputError(f"unsound when amended: {'; '.join(problems)}", path=frozen.source)
    if len(made.file.amendments) != len(frozen.file.amendments) + 1 or (
        undo_amendment(data, frozen.sha256) != frozen.data
    ):
        reason = "is laid out in a way that this amendment could not be undone"
        raise InputError(f"{reason}; write every table under a [header]", path=frozen.source)
    return data


def _check_request(frozen: Protocol, request: Request) -> None:
    file = frozen.file
    if file.status != "frozen" or file.freeze is None:
        raise StateConflict("is a draft; edit it, then freeze it", path=frozen.source)
    if problems := chain_problems(frozen):
        raise StateConflict("; ".join(problems), path=frozen.source)
    for name in ("id", "title", "reason"):
        if not getattr(request, name).strip():
            raise InputError(f"an amendment needs a {name}")
    if any((row.id, row.title) == (request.id, request.title) for row in file.amendments):
        raise InputError(
            f"amendment {request.id} {request.title!r} is there already", path=frozen.source
        )
    before = max([file.freeze.date, *(row.date for row in file.amendments)])
    if check_date(request.date) < before:
        raise InputError(f"--date {request.date} lies before the last change, {before}")
    keys = [key for key, _ in request.settings]
    for key in keys:
        if key.split(".")[0] in _FIXED:
            raise InputError(f"{key} cannot be amended")
        if keys.count(key) > 1:
            raise InputError(f"{key} is set twice")
    if not keys and not request.refresh:
        raise InputError("an amendment changes at least one key")


def _value(text: str, tree: dict[str, Any], key: str, wanted: str) -> _Value:
    path = resolve(tree, key)
    at: Any = tree
    for name in path[:-1]:
        at = at[name]
    old = edit.raw_at(text, path) if path[-1] in at else None
    return _Value(key, path, old, edit.literal(wanted))


def _applied(text: str, values: Sequence[_Value]) -> str:
    replaced = [(value.path, value.new) for value in values if value.old is not None]
    text = edit.replace_all(text, replaced)
    for value in values:
        if value.old is None:
            text = edit.insert_key(text, value.path, value.new)
    return text


def _check_meaning(frozen: Protocol, text: str, values: Sequence[_Value]) -> None:
    """The new values fit the schema, and exactly the named keys differ."""
    try:
        made = _parsed(text.encode(), frozen.source)
    except InputError as error:
        # The file is sound: what does not fit is one of the values.
        raise type(error)(_of_the_values(error.reason, values)) from error
    changed = [change.key for change in diff(frozen.file, made.file)]
    for value in values:
        if not any(key == value.key or key.startswith(value.key + ".") for key in changed):
            raise InputError(f"{value.key} is {value.old or 'at its default'} already")


def _of_the_values(reason: str, values: Sequence[_Value]) -> str:
    """Say of an amended file that cannot be read which of the new values is at fault."""
    for value in values:
        name = value.path[-1]
        if value.old is None and f"unknown field `{name}`" in reason:
            table = value.key.rpartition(".")[0]
            return f"unknown key {value.key!r}: {table} has no {name!r}"
    return f"with these values the protocol is unusable: {reason}"


def _parsed(data: bytes, source: str) -> Protocol:
    try:
        return parse_protocol(data, source=source)
    except InputError as error:
        # Lines of a file that does not exist would mislead.
        raise type(error)(error.reason, path=source) from error


def _freeze_values(
    frozen: Protocol, text: str, draft: str, request: Request, here: Installation | None
) -> list[_Value]:
    """Return what changes in ``[freeze]``: named tables, or the whole installation on request."""
    freeze = frozen.file.freeze
    assert freeze is not None
    amended = parse_protocol(draft.encode(), source=frozen.source).file
    now = here if here is not None else installation(amended)
    known = {} if request.refresh else freeze.mappings
    wanted: dict[str, Any] = {"mappings": {v: known.get(v, h) for v, h in now.mappings.items()}}
    if request.refresh:
        for name in ("code_version", "code_sha256", "client_sha256", "hooks_sha256"):
            wanted[name] = getattr(now, name)
        wanted["plugin_sha256"] = now.plugin_sha256
    bound = msgspec.structs.replace(freeze, **wanted)
    if problems := installation_problems(bound, now):
        raise StateConflict(
            f"{'; '.join(problems)}; --refresh binds the amended protocol to this installation",
            path=frozen.source,
        )
    return [
        _Value(f"freeze.{name}", ["freeze", name], edit.raw_at(text, ["freeze", name]), inline(new))
        for name, new in wanted.items()
        if getattr(freeze, name) != new
    ]


def _block(request: Request, values: Sequence[_Value], previous_sha256: str) -> list[str]:
    """Return the lines of the amendment's table."""
    changed = [value.key for value in values]
    summary = ", ".join(
        f"{value.key} {_short(value.old or 'absent')} -> {_short(value.new)}" for value in values
    )
    fields: dict[str, Any] = {
        "id": request.id,
        "title": request.title,
        "date": request.date,
        "changes": changed,
        "summary": summary or "bound to the present installation",
        "reason": request.reason,
        "previous_sha256": previous_sha256,
        "rejudge": request.rejudge,
    }
    lines = ["[[amendments]]", *(f"{key} = {edit.text_of(value)}" for key, value in fields.items())]
    lines.append("values = [")
    for value in values:
        old = "" if value.old is None else f", old = {value.old}"
        lines.append(f"  {{ key = {edit.text_of(value.key)}{old}, new = {value.new} }},")
    return "\n".join([*lines, "]"]).split("\n")


def _short(literal: str) -> str:
    flat = " ".join(literal.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."


def _insert_block(text: str, block: Sequence[str]) -> str:
    """Add an amendment behind the last one, or before ``[freeze]`` where it is the first."""
    rows = edit.header_rows(text, "amendments")
    if rows:
        lines = text.split("\n")
        _, at = edit.block_at(text, rows[-1])
    else:
        lines = _EMPTY.sub("# ", text, count=1).split("\n")
        at = lines.index("[freeze]") - 1
    return "\n".join([*lines[:at], "", *block, *lines[at:]])


def undo_amendment(data: bytes, previous_sha256: str) -> bytes:
    """Return the file that the last amendment changed; its hash tells whether it is that one.

    Raises:
        InputError: the last amendment was not written by :func:`amend_protocol`, or its values are
            not those of the file.
    """
    text = data.decode()
    rows = edit.header_rows(text, "amendments")
    if not rows:
        raise InputError("no [[amendments]] table")
    start, end = edit.block_at(text, rows[-1])
    lines = text.split("\n")
    values = _recorded(text, "\n".join(lines[start:end]))
    text = "\n".join([*lines[: start - 1], *lines[end:]])
    for value in values:
        if value.old is None:
            text = edit.remove_key(text, value.path, value.new)
    replaced = [(value.path, value.old) for value in values if value.old is not None]
    text = edit.sealed(edit.replace_all(text, replaced))
    if len(rows) == 1 and sha256_bytes(text.encode()) != previous_sha256:
        text = edit.sealed(_EMPTY_MARK.sub("", text, count=1))
    return text.encode()


def _recorded(text: str, block: str) -> list[_Value]:
    """Return the values of an amendment with the literals as they are written in it."""
    tree, alone = edit.decode(text), edit.decode(block)
    found = []
    for index, row in enumerate(alone["amendments"][0].get("values", [])):
        at: edit.Path = ["amendments", 0, "values", index]
        path = resolve(tree, row["key"])
        held: Any = tree
        for name in path:
            held = held[name] if isinstance(name, int) else held.get(name)
        if held != row["new"]:
            raise InputError(f"{row['key']} is not what the last amendment made it")
        old = edit.raw_at(block, [*at, "old"]) if "old" in row else None
        found.append(_Value(row["key"], path, old, edit.raw_at(block, [*at, "new"])))
    return found


def chain_problems(protocol: Protocol) -> list[str]:
    """Return why a frozen file is not what freezing and amending made of its draft.

    Undoes one amendment after the other, compares each result with the hash that the amendment
    names, then undoes the freezing and compares the draft's hash.
    """
    freeze, data = protocol.file.freeze, protocol.data
    if freeze is None:
        return []
    try:
        carried, right = edit.seal_of(data.decode())
        if carried != right:
            return ["the file was changed after it was frozen (its seal does not fit its bytes)"]
        for row in reversed(_chained(protocol.file.amendments)):
            assert row.previous_sha256 is not None
            data = undo_amendment(data, row.previous_sha256)
            if sha256_bytes(data) != row.previous_sha256:
                return [f"without amendment {row.id} {row.title!r} it is not the file it amended"]
        if sha256_bytes(undo_freeze(data)) != freeze.draft_sha256:
            return ["without its freeze it is not the draft whose hash it names"]
    except InputError as error:
        return [f"not written by `opprof protocol`: {error.reason}"]
    return []


def _chained(amendments: Sequence[Amendment]) -> list[Amendment]:
    """Return the amendments made after freezing."""
    return [row for row in amendments if row.previous_sha256 is not None]


def added_amendments(old: Protocol, new: Protocol) -> tuple[list[Amendment], list[str]]:
    """Return the amendments by which ``new`` follows from ``old``, or why it does not."""
    if new.file.freeze is None or new.file.status != "frozen":
        return [], ["the amended protocol is a draft"]
    if new.sha256 == old.sha256:
        return [], ["it is the protocol in force; nothing is amended"]
    if problems := chain_problems(new):
        return [], problems
    added = new.file.amendments[len(old.file.amendments) :]
    if not added or added[0].previous_sha256 != old.sha256:
        return [], [
            f"it does not amend the protocol in force ({old.sha256[:12]}): `opprof protocol amend` "
            "that one"
        ]
    return added, []
