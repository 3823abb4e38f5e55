"""What the engine's recorder says of the profiler, and the traces' way into the run directory.

Read beside the Layer-1 stream in ``--opprof-dir``: ``engine-config.json`` (schedule and folder of
the profiler) and ``engine-0.profiler.ndjson`` (one line a start or stop, with the traces it left).
Both are absent with other producers; then nothing is known and nothing is collected.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opprof.artifacts.engine import ProfilerEvent
from opprof.client.timeline import WindowRecord
from opprof.errors import EnvironmentFailure, SchemaError, StateConflict
from opprof.files import read_bytes, sha256_file, sync_folder

EVENTS_NAME = "engine-0.profiler.ndjson"
CONFIG_NAME = "engine-config.json"

_RANK = re.compile(r"(?:^|[_\-.])rank[-_]?(\d+)(?=[._\-]|$)")


class EngineProfiler(msgspec.Struct):
    """The part of ``engine-config.json`` that the client needs."""

    profiler_dir: str | None = None
    profiler_schedule: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class CollectedTrace:
    """A trace in the run directory, with the name that the engine gave it."""

    window: int
    rank: int
    name: str
    original_name: str
    sha256: str
    bytes: int


def read_engine_profiler(opprof_dir: Path) -> EngineProfiler | None:
    """Return what the engine says of its profiler; None where it says nothing.

    Raises:
        SchemaError: ``engine-config.json`` is no JSON object of that kind.
    """
    path = opprof_dir / CONFIG_NAME
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(read_bytes(path), type=EngineProfiler)
    except msgspec.MsgspecError as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error


def check_schedule(engine: EngineProfiler, warmup: int, active: int) -> None:
    """Compare the server's profiler schedule with the run's.

    Raises:
        EnvironmentFailure: they differ, so windows would have other active steps.
    """
    schedule = engine.profiler_schedule
    wanted = {"wait": 0, "warmup": warmup, "active": active}
    if schedule and schedule != wanted:
        has = ", ".join(f"{name} {count}" for name, count in sorted(schedule.items()))
        raise EnvironmentFailure(
            f"the server's profiler runs {has}; the run needs wait 0, warmup {warmup}, "
            f"active {active}: start the server with --profiler-config '{{..., "
            f'"warmup_iterations": {warmup}, "active_iterations": {active}}}\''
        )


def read_events(opprof_dir: Path) -> list[ProfilerEvent]:
    """Return the profiler's events; empty where the engine writes none.

    Raises:
        SchemaError: a line is no event.
    """
    path = opprof_dir / EVENTS_NAME
    if not path.is_file():
        return []
    events = []
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            events.append(msgspec.json.decode(line, type=ProfilerEvent))
        except msgspec.MsgspecError as error:
            raise SchemaError(f"is no profiler event: {error}", path=path, line=number) from error
    return events


def stop_event(events: Sequence[ProfilerEvent], window: WindowRecord) -> ProfilerEvent | None:
    """Return the stop event whose engine call begins inside the client's stop call.

    Its end is not asked for: an embedded engine tells when its modelled call ends, and its timer
    may answer a fraction of a millisecond before that.
    """
    stop = window.stop
    if stop is None:
        return None
    return next(
        (
            event
            for event in events
            if event.event == "stop" and stop.before_ns <= event.call_mono_ns[0] <= stop.after_ns
        ),
        None,
    )


def collect_traces(
    events: Sequence[ProfilerEvent],
    windows: Sequence[WindowRecord],
    profiler_dir: Path,
    target: Path,
) -> list[CollectedTrace]:
    """Put each window's traces into ``target`` as ``window{W}-rank{R}.pt.trace.json.gz``.

    Linked where the file system allows it, else copied. The original stays, unless it lies in
    ``target`` itself: then it is renamed, so that the folder holds every trace once.

    Raises:
        StateConflict: a trace of that name is there already.
        EnvironmentFailure: a trace cannot be read or written.
    """
    collected = []
    for window in windows:
        event = stop_event(events, window)
        for original in [] if event is None else event.traces:
            match = _RANK.search(original)
            rank = int(match.group(1)) if match else 0
            suffix = ".pt.trace.json.gz" if original.endswith(".gz") else ".pt.trace.json"
            path = target / f"window{window.index}-rank{rank}{suffix}"
            _link_or_copy(profiler_dir / original, path)
            size = path.stat().st_size
            collected.append(
                CollectedTrace(window.index, rank, path.name, original, sha256_file(path), size)
            )
    return collected


def _link_or_copy(source: Path, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except FileExistsError as error:
            raise StateConflict("an earlier run wrote this file", path=path) from error
        except OSError:
            temporary = path.with_name(f".{path.name}.tmp")
            shutil.copyfile(source, temporary)
            temporary.replace(path)
        if source.parent.resolve() == path.parent.resolve():
            source.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot collect the trace {source.name}: {error.strerror or error}", path=path
        ) from error
