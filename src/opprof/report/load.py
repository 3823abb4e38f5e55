"""Folders to what a report shows: the only module of the report that reads files.

Analyses are read, or made where a run has none, by :mod:`opprof.analysis`; here they meet their
run's timeline and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from opprof.analysis.bound import other_protocol, protocol_named
from opprof.analysis.load import LoadedRun, compare_found, find_folders, read_analysis
from opprof.analysis.results import RunAnalysis
from opprof.analysis.write import encode
from opprof.artifacts.comparison import Comparison
from opprof.artifacts.decision import Decision
from opprof.decision.campaign import both_verdicts
from opprof.decision.write import read_decision
from opprof.errors import InputError
from opprof.files import sha256_bytes, sha256_file
from opprof.protocol import Protocol
from opprof.report.downsample import StepSeries
from opprof.report.formats import listing
from opprof.report.inputs import MEASURED, SIMULATED, ReportInput, RunView
from opprof.telemetry.columns import StepColumns

Analyse = Callable[[Sequence[Path]], Sequence[RunAnalysis]]
"""Analyses run directories, in their order."""

_TIMELINE = "client/timeline.json"
_MARKER = "sanity.json"
_OWN = "analysis"


class Source(Struct, frozen=True):
    """One run as it was given: its analysis, its own folder, or both."""

    analysis: Path | None
    run: Path | None

    @property
    def is_own(self) -> bool:
        """Whether the analysis lies in its run."""
        return self.run is not None and self.analysis == self.run / _OWN

    @property
    def folder(self) -> Path:
        """The run's folder, or where its analysis lies."""
        folder = self.run or self.analysis
        assert folder is not None
        return folder


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Return every run below the given folders; an analysis meets its run by their input hashes.

    Raises:
        InputError: a path is no folder, or holds neither a run nor an analysis.
    """
    return _meet([_source(folder) for folder in find_folders(paths)])


def _source(folder: Path) -> Source:
    if not (folder / _TIMELINE).is_file():
        return Source(folder, None)
    inside = folder / _OWN
    return Source(inside if (inside / _MARKER).is_file() else None, folder)


def _meet(sources: list[Source]) -> list[Source]:
    """Give every analysis without a run the run that it was made from, where that is here too."""
    runs = {sha256_file(s.run / _TIMELINE): s for s in sources if s.run is not None}
    met: dict[Source, Source] = {}
    used: set[Source] = set()
    for source in sources:
        if source.run is not None or source.analysis is None:
            continue
        inputs = read_analysis(source.analysis).sanity.provenance.inputs
        partner = runs.get(inputs.get(_TIMELINE, ""))
        if partner is not None:
            met[source] = Source(source.analysis, partner.run)
            used.add(partner)
    return [met.get(source, source) for source in sources if source not in used]


def load_report(
    paths: Sequence[Path],
    protocol: Protocol | None,
    analyse: Analyse,
    *,
    title: str,
    mapping: str | None = None,
) -> ReportInput:
    """Read or make every run's analysis, add timelines and steps, and compare the runs.

    A ``decision.json``, or a folder that holds one (a campaign), puts the decision on the page.

    Raises:
        InputError: a folder or an artefact cannot be used, or does not belong to its run.
        SchemaError: an artefact does not fit its schema.
    """
    folders, decision_path = split_decision(paths)
    decision = None if decision_path is None else read_decision(decision_path)
    sources, found, again = _analyses(find_sources(folders), protocol, analyse)
    views = [_view(analysis, source) for analysis, source in zip(found, sources, strict=True)]
    loaded = [LoadedRun(s.folder, analysis) for analysis, s in zip(found, sources, strict=True)]
    views = _told_apart(views, sources)
    named = tuple(sorted(views, key=_order))
    page = ReportInput(
        named,
        title,
        decision=decision,
        decision_trouble=() if decision is None else decision_trouble(decision, named),
        analysed_again=tuple(again),
    )
    simulated = [view.identity.simulated for view in views]
    if len(set(simulated)) < 2:
        return _compared(page, loaded, protocol, mapping)
    return msgspec.structs.replace(
        page,
        protocol_trouble=_protocol_trouble(named, protocol),
        comparison_reason="measured and simulated runs are compared apart",
        parts=tuple(
            _compared(
                ReportInput(tuple(run for run in named if run.identity.simulated is kind), word),
                [item for item, is_kind in zip(loaded, simulated, strict=True) if is_kind is kind],
                protocol,
                mapping,
            )
            for kind, word in ((False, MEASURED), (True, SIMULATED))
        ),
    )


def _compared(
    page: ReportInput, loaded: Sequence[LoadedRun], protocol: Protocol | None, mapping: str | None
) -> ReportInput:
    """Add the comparison of a page's runs, or why there is none."""
    comparison, reason = _compare(loaded, protocol, mapping)
    return msgspec.structs.replace(
        page,
        comparison=comparison,
        comparison_reason=reason,
        protocol_trouble=_protocol_trouble(page.runs, protocol),
    )


def _compare(
    loaded: Sequence[LoadedRun], protocol: Protocol | None, mapping: str | None
) -> tuple[Comparison | None, str]:
    """Compare the runs that have windows; return why there is no comparison, where there is none.

    Runs that cannot be compared (two attempts at one cell, say) still make a report. Those that
    were analysed under another protocol are set side by side, and not judged by the bound one.
    """
    found = [item for item in loaded if item.analysis.kernels.windows]
    if not found:
        return None, "no run has a profile window"
    other = any(other_protocol(item.analysis.sanity.provenance, protocol) for item in found)
    try:
        return compare_found(found, None if other else protocol, mapping=mapping), ""
    except InputError as error:
        return None, str(error)


def _protocol_trouble(runs: Sequence[RunView], protocol: Protocol | None) -> tuple[str, ...]:
    """Say which of the runs shown were judged by another protocol than the one that is bound."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for reason in {other_protocol(origin, protocol) for _, origin in run.provenances()} - {""}:
            found.setdefault(reason, []).append(run.label)
    return tuple(
        f"{_each(labels, len(labels) == len(runs))} {reason}." for reason, labels in found.items()
    )


def _each(labels: list[str], every: bool) -> str:
    if len(labels) == 1:
        return labels[0]
    return "Every run" if every else f"Each of {listing(labels)}"


def _analyses(
    sources: Sequence[Source], protocol: Protocol | None, analyse: Analyse
) -> tuple[list[Source], list[RunAnalysis], list[str]]:
    """Read the analyses; a run is judged anew where its own analysis is of another protocol.

    So a campaign's runs are judged by the protocol in force, amendments included, as its decision
    judges them. An analysis that was given apart from its run is shown as it is.
    """
    kept: list[Source] = []
    read: dict[Path, RunAnalysis] = {}
    again: list[str] = []
    for source in sources:
        if source.analysis is None:
            kept.append(source)
            continue
        analysis = read_analysis(source.analysis)
        origin = analysis.sanity.provenance
        if source.is_own and protocol is not None and other_protocol(origin, protocol):
            again.append(
                f"{analysis.sanity.run.name} is judged anew under {protocol_named(protocol)}: "
                f"its own analysis is of {protocol_named(origin)}"
            )
            kept.append(Source(None, source.run))
        else:
            read[source.analysis] = analysis
            kept.append(source)
    waiting = [source.run for source in kept if source.analysis is None and source.run]
    made = dict(zip(waiting, analyse(waiting) if waiting else (), strict=True))
    found = [made[s.folder] if s.analysis is None else read[s.analysis] for s in kept]
    return kept, found, again


def split_decision(paths: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """Return the folders that hold runs, and the one decision among the paths.

    Raises:
        InputError: there are two decisions.
    """
    folders: list[Path] = []
    decisions: list[Path] = []
    for path in paths:
        if path.is_file() and path.suffix == ".json":
            decisions.append(path)
            continue
        inside = path / "decision.json"
        runs = path / "runs"
        if inside.is_file():
            decisions.append(inside)
        if (inside.is_file() or (path / "campaign.json").is_file()) and runs.is_dir():
            folders.append(runs)
        elif not inside.is_file() or _holds_runs(path):
            folders.append(path)
    found = list(dict.fromkeys(decisions))
    if len(found) > 1:
        raise InputError(f"is a second decision beside {found[0]}", path=found[1])
    return folders, found[0] if found else None


def _holds_runs(path: Path) -> bool:
    try:
        return bool(find_folders([path]))
    except InputError:
        return False


def decision_trouble(decision: Decision, runs: Sequence[RunView]) -> tuple[str, ...]:
    """Say where the decision and the runs beside it are not of one piece."""
    given = {run.identity.name for run in runs}
    used = {item.run.name for item in decision.runs}
    sentences = []
    if runs and used - given:
        sentences.append(f"Not on this page: {', '.join(sorted(used - given))}.")
    if given - used:
        sentences.append(f"Took no part in the decision: {', '.join(sorted(given - used))}.")
    inputs = decision.provenance.inputs
    changed = [
        run.identity.name
        for run in runs
        if run.kernels is not None
        and run.identity.name in used
        and inputs.get(f"{run.identity.name}/kernels.json") != sha256_bytes(encode(run.kernels))
    ]
    if changed:
        sentences.append(
            f"The analysis shown of {', '.join(changed)} is not the one that the decision was made "
            "from (its hash differs): windows and steps below may have other numbers."
        )
    return tuple(sentences)


def _told_apart(views: Sequence[RunView], sources: Sequence[Source]) -> list[RunView]:
    """Tell runs whose identities coincide apart by their folders."""
    alike: dict[str, list[Path]] = {}
    for view, source in zip(views, sources, strict=True):
        alike.setdefault(view.label, []).append(source.folder.resolve())
    return [
        msgspec.structs.replace(view, note=_tail(source.folder.resolve(), alike[view.label]))
        if len(alike[view.label]) > 1
        else view
        for view, source in zip(views, sources, strict=True)
    ]


def _tail(folder: Path, among: Sequence[Path]) -> str:
    """Return the last parts of a path, as many as tell it from the others."""
    for count in range(1, len(folder.parts)):
        if sum(other.parts[-count:] == folder.parts[-count:] for other in among) == 1:
            return "/".join(folder.parts[-count:])
    return str(folder)


def _order(view: RunView) -> tuple[str, str, str, str, str]:
    run = view.identity
    return (run.pattern, run.config, run.load_point, run.role, view.note)


def _view(analysis: RunAnalysis, source: Source) -> RunView:
    view = RunView(analysis.layer1, analysis.kernels, analysis.waste, analysis.sanity)
    if source.run is None:
        return view
    view = msgspec.structs.replace(view, verdicts=both_verdicts(source.run))
    from opprof.telemetry.stream import find_stream, read_stream
    from opprof.telemetry.timeline import read_timeline

    timeline, stream = source.run / _TIMELINE, find_stream(source.run)
    if source.analysis is not None:
        for path in (timeline, stream):
            _check_hash(analysis, source.run, path)
    return msgspec.structs.replace(
        view,
        intervals=tuple(read_timeline(timeline).intervals),
        steps=executed_steps(read_stream(stream).columns),
    )


def _check_hash(analysis: RunAnalysis, run: Path, path: Path) -> None:
    name = path.relative_to(run).as_posix()
    if analysis.sanity.provenance.inputs.get(name) != sha256_file(path):
        reason = "is not the file that the analysis was made from; run opprof analyze again"
        raise InputError(reason, path=path)


def executed_steps(columns: StepColumns) -> StepSeries:
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
