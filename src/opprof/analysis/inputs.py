"""What lies in a run directory, checked for what an analysis cannot do without.

Source: contract, section 1. Missing optional files become reasons later; a directory without a
timeline or a Layer-1 stream is no run and is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from opprof.analysis.bound import kept_as
from opprof.artifacts.common import oversized_integer
from opprof.artifacts.run import ManifestSummary, Result, Timeline
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes
from opprof.telemetry.stream import find_stream, sidecar_path
from opprof.telemetry.timeline import read_timeline

_TRACE_NAME = re.compile(r"^window(\d+)-rank(\d+)\.pt\.trace\.json(?:\.gz)?$")
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class TraceFile:
    """One rank's trace of one logical window."""

    window: int
    rank: int
    path: Path


@dataclass(frozen=True)
class RunInputs:
    """The files of one run; optional ones are None where they are absent."""

    root: Path
    timeline: Timeline
    stream: Path
    requests: Path | None
    traces: tuple[TraceFile, ...]
    result: Result | None
    manifest: ManifestSummary | None
    signal_wall_ns: int | None
    """When a hard kill was signalled (``environment.json``); None when none was recorded."""

    def files(self) -> dict[str, Path]:
        """Every input by its path inside the run directory, for the provenance."""
        named = [self.root / "client/timeline.json", self.stream, sidecar_path(self.stream)]
        named += [self.root / "client/result.json", self.root / "manifest.sha256"]
        named += [self.root / "environment.json"]
        named += [trace.path for trace in self.traces]
        named += [self.requests] if self.requests is not None else []
        present = sorted(path for path in named if path.is_file())
        return {path.relative_to(self.root).as_posix(): path for path in present}


def read_inputs(root: Path) -> RunInputs:
    """Read the small files of a run directory and find the large ones.

    Raises:
        InputError: no such folder, no timeline, no single Layer-1 stream, a trace misnamed.
        SchemaError: a small file does not fit its schema.
    """
    if not root.is_dir():
        reason = "is a file, not a run directory" if root.exists() else "no such run directory"
        reason += kept_as(root)
        raise InputError(reason, path=root)
    timeline_path = root / "client" / "timeline.json"
    if not timeline_path.is_file():
        held = sum(1 for _ in root.glob("*/client/timeline.json"))
        hint = f"; it holds {held} run(s): name them, as in {root}/*" if held else ""
        raise InputError(f"no run directory: client/timeline.json is missing{hint}", path=root)
    requests = root / "client" / "requests.jsonl"
    return RunInputs(
        root=root,
        timeline=read_timeline(timeline_path),
        stream=find_stream(root),
        requests=requests if requests.is_file() else None,
        traces=_find_traces(root / "traces"),
        result=_decode(root / "client" / "result.json", Result),
        manifest=_decode(root / "manifest.sha256", ManifestSummary),
        signal_wall_ns=_signal_time(root / "environment.json"),
    )


def _find_traces(folder: Path) -> tuple[TraceFile, ...]:
    found: dict[tuple[int, int], TraceFile] = {}
    if not folder.is_dir():
        return ()
    for path in sorted(folder.iterdir()):
        if ".trace.json" not in path.name:
            continue
        match = _TRACE_NAME.match(path.name)
        if match is None:
            raise InputError("trace not named window{W}-rank{R}.pt.trace.json.gz", path=path)
        key = (int(match.group(1)), int(match.group(2)))
        if key in found:
            raise InputError(f"second trace of window {key[0]} rank {key[1]}", path=path)
        found[key] = TraceFile(*key, path)
    return tuple(found[key] for key in sorted(found))


def _decode(path: Path, kind: type[Any]) -> Any:
    if not path.exists():
        return None
    try:
        value = msgspec.json.decode(read_bytes(path, limit_bytes=_SMALL_BYTES), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
    if (at := oversized_integer(value)) is not None:
        raise SchemaError(f"does not fit its schema: integer beyond 62 bits - at `{at}`", path=path)
    return value


class _Environment(msgspec.Struct):
    """The one field of ``environment.json`` that the analysis reads; the rest is evidence."""

    signal_wall_ns: int | None = None


def _signal_time(path: Path) -> int | None:
    environment = _decode(path, _Environment)
    return None if environment is None else environment.signal_wall_ns
