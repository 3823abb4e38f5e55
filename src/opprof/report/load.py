"""Folders to :class:`ReportInput`: the only module of the report that reads files.

A folder is one of three kinds, told apart by what lies in it: an analysed run (``sanity.json``,
the completion marker of an analysis), a run directory (``client/timeline.json``), or a folder that
holds either kind one level below, such as what ``opprof analyze --out`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_file
from opprof.report.downsample import StepSeries
from opprof.report.inputs import RunView

T = TypeVar("T")


class Analysed(Protocol):
    """The four artefacts of one run, wherever they come from."""

    @property
    def layer1(self) -> Layer1Summary: ...
    @property
    def kernels(self) -> Kernels: ...
    @property
    def waste(self) -> Waste: ...
    @property
    def sanity(self) -> Sanity: ...


Analyse = Callable[[Sequence[Path]], Sequence[Analysed]]
"""Analyses run directories, in their order."""

_TIMELINE = "client/timeline.json"
_MARKER = "sanity.json"
_LIMIT_BYTES = 256 << 20


class Source(Struct, frozen=True):
    """One run as it was given: its analysis, its own folder, or both."""

    analysis: Path | None
    run: Path | None

    @property
    def name(self) -> str:
        """The folder's base name, for messages and for runs whose identities coincide."""
        folder = self.run or self.analysis
        assert folder is not None
        return folder.resolve().name


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Return every run below the given folders; an analysis meets its run by their input hashes.

    Raises:
        InputError: a path is no folder, or holds neither a run nor an analysis.
    """
    sources: list[Source] = []
    for path in paths:
        if not path.is_dir():
            reason = "is a file, not a folder" if path.exists() else "no such folder"
            raise InputError(reason, path=path)
        own = _source(path)
        below = [] if own else [_source(child) for child in sorted(path.iterdir())]
        found = [source for source in (own, *below) if source is not None]
        if not found:
            reason = (
                "holds neither a run (client/timeline.json) nor an analysis (sanity.json), "
                "and no folder in it does"
            )
            raise InputError(reason, path=path)
        sources.extend(found)
    return _meet(list(dict.fromkeys(sources)))


def _source(path: Path) -> Source | None:
    if not path.is_dir():
        return None
    if (path / _TIMELINE).is_file():
        inside = path / "analysis"
        return Source(inside if (inside / _MARKER).is_file() else None, path)
    return Source(path, None) if (path / _MARKER).is_file() else None


def _meet(sources: list[Source]) -> list[Source]:
    """Give every analysis without a run the run that it was made from, where that is here too."""
    runs = {_timeline_hash(source.run): source for source in sources if source.run is not None}
    met: list[Source] = []
    taken: set[Path | None] = set()
    for source in sources:
        if source.run is None and source.analysis is not None:
            made_from = _decode(source.analysis / _MARKER, Sanity).provenance.inputs
            partner = runs.get(made_from.get(_TIMELINE, ""))
            if partner is not None:
                taken.add(partner.run)
                source = Source(source.analysis, partner.run)
        met.append(source)
    return [s for s in met if not (s.run in taken and s == runs[_timeline_hash(s.run)])]


def _timeline_hash(run: Path | None) -> str:
    assert run is not None
    return sha256_file(run / _TIMELINE)


def load_views(sources: Sequence[Source], analyse: Analyse) -> tuple[RunView, ...]:
    """Read every analysis, make those that are missing, and add timelines and steps.

    Raises:
        InputError: an artefact is missing or does not belong to the run beside it.
        SchemaError: an artefact does not fit its schema.
    """
    waiting = [source.run for source in sources if source.analysis is None and source.run]
    made = iter(analyse(waiting)) if waiting else iter(())
    views = []
    for source in sources:
        if source.analysis is None:
            fresh = next(made)
            view = RunView(fresh.layer1, fresh.kernels, fresh.waste, fresh.sanity)
        else:
            view = read_analysis(source.analysis)
        if source.run is not None:
            view = _with_steps(view, source.run, check=source.analysis is not None)
        views.append((view, source))
    return _named(views)


def _named(found: list[tuple[RunView, Source]]) -> tuple[RunView, ...]:
    """Sort the runs, and tell apart those whose identities coincide by their folders."""
    labels = [view.label for view, _ in found]
    views = [
        msgspec.structs.replace(view, note=source.name) if labels.count(view.label) > 1 else view
        for view, source in found
    ]
    return tuple(sorted(views, key=_order))


def _order(view: RunView) -> tuple[str, str, str, str, str]:
    run = view.identity
    return (run.pattern, run.config, run.load_point, run.role, view.note)


def read_analysis(folder: Path) -> RunView:
    """Read the four artefacts of one analysed run.

    Raises:
        InputError: an artefact is missing, or the four speak of different runs.
        SchemaError: an artefact does not fit its schema.
    """
    view = RunView(
        layer1=_decode(folder / "layer1.json", Layer1Summary),
        kernels=_decode(folder / "kernels.json", Kernels),
        waste=_decode(folder / "waste.json", Waste),
        sanity=_decode(folder / _MARKER, Sanity),
    )
    names = sorted({artefact.run.name for artefact in view.artefacts})
    if len(names) > 1:
        raise InputError(f"the artefacts speak of different runs: {', '.join(names)}", path=folder)
    return view


def _with_steps(view: RunView, run: Path, *, check: bool) -> RunView:
    from opprof.telemetry.stream import find_stream, read_stream
    from opprof.telemetry.timeline import read_timeline

    stream = find_stream(run)
    if check:
        for path in (run / _TIMELINE, stream):
            _check_hash(view, run, path)
    columns = read_stream(stream).columns
    return msgspec.structs.replace(
        view,
        intervals=tuple(read_timeline(run / _TIMELINE).intervals),
        steps=executed_steps(columns),
    )


def _check_hash(view: RunView, run: Path, path: Path) -> None:
    name = path.relative_to(run).as_posix()
    inputs = {key: value for _, p in view.provenances() for key, value in p.inputs.items()}
    if inputs.get(name) != sha256_file(path):
        reason = "is not the file that the analysis was made from; run opprof analyze again"
        raise InputError(reason, path=path)


def executed_steps(columns: Any) -> StepSeries:
    """Return the columns that a timeline shows, of the steps that ran the model."""
    ran = columns.model_executed
    return StepSeries(
        complete_mono_ns=columns.complete_mono_ns[ran],
        duration_ns=columns.duration_ns[ran],
        prefill_tokens=columns.prefill_tokens[ran],
        decode_tokens=columns.decode_tokens[ran],
        running=columns.running[ran],
        waiting=columns.waiting[ran],
    )


def _decode(path: Path, kind: type[T]) -> T:
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
