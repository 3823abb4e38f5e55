"""Writing a run's artefacts: all four or a reason why not, never over another run's files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opprof.analysis.results import RunAnalysis
from opprof.artifacts.sanity import Sanity
from opprof.errors import InputError, StateConflict
from opprof.files import read_bytes, write_atomic

ARTEFACTS = ("layer1", "kernels", "waste", "sanity")
_LIMIT_BYTES = 256 << 20


def encode(value: msgspec.Struct) -> bytes:
    """Return the Struct as indented JSON with a final newline; the same value, the same bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def check_free(folder: Path, inputs: dict[str, str]) -> None:
    """Refuse a folder that holds the analysis of other inputs.

    The same run may be analysed again (another mapping, a newer protocol); its files are then
    replaced one by one, each whole.

    Raises:
        StateConflict: the folder holds artefacts of another run, or something unreadable.
    """
    present = [folder / f"{name}.json" for name in ARTEFACTS if (folder / f"{name}.json").exists()]
    if not present:
        return
    path = folder / "sanity.json"
    try:
        old = msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=Sanity)
    except (InputError, msgspec.DecodeError) as error:
        reason = "holds an analysis whose sanity.json cannot be read; move it away first"
        raise StateConflict(reason, path=folder) from error
    if old.provenance.inputs != inputs:
        reason = (
            f"holds the analysis of another run ({old.run.name}, other input hashes); "
            "choose another --out or rename the run's folder"
        )
        raise StateConflict(reason, path=folder)


def write_analysis(analysis: RunAnalysis, folder: Path) -> list[Path]:
    """Write the four artefacts into ``folder``, ``sanity.json`` (the completion marker) last.

    Raises:
        StateConflict: the folder holds the analysis of another run.
        EnvironmentFailure: the folder cannot be written.
    """
    check_free(folder, analysis.sanity.provenance.inputs)
    written = []
    for name in ARTEFACTS:
        path = folder / f"{name}.json"
        write_atomic(path, encode(getattr(analysis, name)))
        written.append(path)
    return written
