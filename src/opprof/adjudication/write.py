"""Writing an adjudication beside the run, never into it: finished folders stay as they are."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opprof.artifacts.adjudication import Adjudication
from opprof.errors import StateConflict
from opprof.files import read_bytes, write_atomic

ARTEFACT = "adjudication.json"
RESULT = "result.json"


def write_adjudication(adjudication: Adjudication, folder: Path) -> list[Path]:
    """Write ``result.json`` (the later verdict) and then ``adjudication.json`` into ``folder``.

    Writing the same adjudication again changes nothing.

    Raises:
        StateConflict: the folder holds another adjudication.
        EnvironmentFailure: the folder cannot be written.
    """
    contents = {RESULT: _pretty(adjudication.result), ARTEFACT: _pretty(adjudication)}
    for name, data in contents.items():
        path = folder / name
        if path.exists() and read_bytes(path) != data:
            raise StateConflict("holds another adjudication; choose another folder", path=path)
    for name, data in contents.items():
        if not (folder / name).exists():
            write_atomic(folder / name, data)
    return [folder / name for name in contents]


def _pretty(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
