"""What differs between two protocols in meaning: key paths, values, and what each key decides.

Rows of ``patterns`` and ``configs`` are compared by id and decisions by number, so a row that only
moved is no difference. What records the history (amendments, the freeze, approvals) is told apart
from what the protocol says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from opprof.errors import InputError
from opprof.protocol.model import ProtocolFile

Kind = Literal[
    "pattern",
    "config",
    "design",
    "gate",
    "threshold",
    "mapping",
    "seed",
    "campaign",
    "text",
    "record",
]
"""What a key decides. ``design``: how runs are made. ``gate``: whether a run counts. ``threshold``:
what follows from the runs that count. ``campaign``: order, places and costs, none of the results.
``text``: nothing. ``record``: history of the file itself."""

_ROW_KEYS = {"patterns": "id", "configs": "id", "open_decisions": "number", "stops": "number"}
_KINDS: Mapping[str, Kind] = {
    "schema": "record",
    "id": "text",
    "title": "text",
    "date": "text",
    "status": "record",
    "variables": "text",
    "pinned": "config",
    "patterns": "pattern",
    "workload": "pattern",
    "private_source": "pattern",
    "configs": "config",
    "server": "config",
    "cells": "design",
    "load": "design",
    "timeline": "design",
    "layer1": "gate",
    "layer2": "gate",
    "gates": "gate",
    "representativeness": "gate",
    "mapping": "mapping",
    "ranking": "threshold",
    "waste": "threshold",
    "statistics": "threshold",
    "null": "threshold",
    "interference": "threshold",
    "h1b": "threshold",
    "partial_matrix": "threshold",
    "seeds": "seed",
    "confirmations": "design",
    "burnin": "design",
    "colocation": "design",
    "placement": "campaign",
    "budget": "campaign",
    "expected": "campaign",
    "stops": "campaign",
    "reruns": "campaign",
    "amendments": "record",
    "open_decisions": "record",
    "freeze": "record",
}
_FIELD_KINDS: Mapping[tuple[str, str], Kind] = {
    ("patterns", "cell"): "text",
    ("configs", "purpose"): "text",
    ("layer1", "flush_interval_s"): "design",
    ("layer2", "wait_iterations"): "design",
    ("layer2", "warmup_iterations"): "design",
    ("layer2", "active_iterations"): "design",
    ("server", "shutdown_timeout_s"): "campaign",
    ("load", "primary_load_point"): "threshold",
    ("load", "primary_config"): "threshold",
}
"""Fields that decide something else than their table."""


class Change(Struct, frozen=True):
    """One key whose value differs; null where the key or row is absent."""

    key: str
    old: Any
    new: Any
    kind: Kind
    decides: bool
    """Whether a result can depend on it."""


def diff(old: ProtocolFile, new: ProtocolFile) -> list[Change]:
    """Return what the protocols say differently, in the order of the file; records left out."""
    return [change for change in all_changes(old, new) if change.kind != "record"]


def all_changes(old: ProtocolFile, new: ProtocolFile) -> list[Change]:
    """Return every difference, records of the history included."""
    pairs = _walk(msgspec.to_builtins(old), msgspec.to_builtins(new), ())
    return [_change(path, a, b) for path, a, b in pairs]


def _change(path: tuple[str, ...], old: Any, new: Any) -> Change:
    kind = kind_of(path)
    decides = kind not in ("campaign", "text", "record")
    return Change(".".join(path), old, new, kind, decides)


def kind_of(path: tuple[str, ...]) -> Kind:
    """Return what a key decides; ``path`` names a row by its id."""
    row = path[0] in _ROW_KEYS and len(path) == 2
    return _KINDS[path[0]] if row else _FIELD_KINDS.get((path[0], path[-1]), _KINDS[path[0]])


def _walk(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _walk(_rows(old, key, path), _rows(new, key, path), (*path, str(key)))
    elif old != new:
        yield path, old, new


def _rows(table: dict[Any, Any], key: Any, path: tuple[str, ...]) -> Any:
    """Return the value, rows of an array of tables as a mapping by their id."""
    value = table.get(key)
    if path or key not in _ROW_KEYS or value is None:
        return value
    return {str(row[_ROW_KEYS[key]]): row for row in value}


def resolve(tree: Mapping[str, Any], key: str) -> list[str | int]:
    """Return the path of a key in a decoded file, rows as indices.

    The key itself need not be there (it may have a default); everything above it must.

    Raises:
        InputError: no such table or row, or the key names a row as a whole.
    """
    names = key.split(".")
    if names[0] not in _KINDS:
        raise InputError(f"unknown key {key!r}: a protocol has no {names[0]!r}")
    if names[0] in _ROW_KEYS:
        # An id may hold dots; the fields of a row are never nested.
        head, _, field = key.removeprefix(names[0] + ".").rpartition(".")
        ids = [str(row[_ROW_KEYS[names[0]]]) for row in tree.get(names[0], [])]
        if head not in ids:
            listed = ", ".join(ids) or "none"
            raise InputError(
                f"unknown key {key!r}: write {names[0]}.ID.FIELD with an ID of: {listed}"
            )
        return [names[0], ids.index(head), field]
    at: Any = tree
    for depth, name in enumerate(names[:-1]):
        if not isinstance(at, dict) or name not in at:
            raise InputError(
                f"unknown key {key!r}: the file has no table {'.'.join(names[: depth + 1])!r}"
            )
        at = at[name]
    if not isinstance(at, dict):
        raise InputError(f"unknown key {key!r}: {'.'.join(names[:-1])!r} is no table")
    return list(names)
