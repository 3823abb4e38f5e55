"""Writing a decision: the artefact and its page, whole, never over another decision's files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opprof.artifacts.decision import Decision
from opprof.decision.page import decision_page, markdown
from opprof.errors import InputError, SchemaError, StateConflict
from opprof.files import read_bytes, write_atomic

_LIMIT_BYTES = 256 << 20


def write_decision(decision: Decision, folder: Path) -> list[Path]:
    """Write ``decision.md``, then ``decision.json`` (the completion marker).

    A decision on the same runs may be made again; one on other runs is never replaced.

    Raises:
        StateConflict: the folder holds a decision on other inputs, or something unreadable.
        EnvironmentFailure: the folder cannot be written.
    """
    path = folder / "decision.json"
    if path.exists():
        _check_same(path, decision)
    page = folder / "decision.md"
    title = f"# Decision: {decision.compound.outcome}\n\n"
    write_atomic(page, (title + markdown(decision_page(decision))).encode())
    data = msgspec.json.format(msgspec.json.encode(decision), indent=1)
    write_atomic(path, data + b"\n")
    return [page, path]


def check_replaceable(folder: Path) -> None:
    """Refuse a folder whose ``decision.json`` is none, before minutes of work.

    Raises:
        StateConflict: something unreadable lies there, or the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise StateConflict("is a file, not a folder", path=folder)
    if (folder / "decision.json").exists():
        _old(folder / "decision.json")


def read_decision(path: Path) -> Decision:
    """Read ``decision.json``.

    Raises:
        InputError, SchemaError: it cannot be read, or does not fit its schema.
    """
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=Decision)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error


def _old(path: Path) -> Decision:
    try:
        return read_decision(path)
    except InputError as error:
        raise StateConflict("is no decision that can be read; move it away", path=path) from error


def _check_same(path: Path, decision: Decision) -> None:
    # Artefacts carry the code's hash, so a newer analysis of the same runs has other bytes: runs
    # are compared by who they are. A campaign goes on, so its later decision may have more runs.
    old = {item.run.name for item in _old(path).runs}
    new = {item.run.name for item in decision.runs}
    grown = old <= new and not decision.exploratory
    if old != new and not grown:
        raise StateConflict("is a decision on other runs; choose another --out", path=path)
