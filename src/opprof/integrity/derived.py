"""Derived artefacts: every one names its inputs, protocol, mapping and code; each is recomputed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opprof.artifacts.common import Outcome, Provenance, RunIdentity
from opprof.artifacts.run import ManifestSummary, Timeline
from opprof.code_hash import code_sha256
from opprof.errors import InputError
from opprof.integrity.checks import Checks
from opprof.integrity.tree import Entry, walk

ANALYSIS = ("layer1.json", "kernels.json", "waste.json", "sanity.json")
TIMELINE = "client/timeline.json"
_HEX = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TRACES = "client/result.json"


@dataclass(frozen=True)
class Known:
    """What artefacts may have been made with."""

    protocols: frozenset[str]
    """SHA-256 of every protocol that is here."""
    mappings: Mapping[str, frozenset[str]]
    """Version of a mapping table to the hashes that it may have."""
    codes: frozenset[str]
    """Hashes of the package's sources: this version's, and those recorded with their sources."""
    binding: bool = False
    """True in a campaign: whatever names another protocol, mapping or code is wrong; elsewhere it
    is of another place or version and cannot be judged."""


@dataclass
class Analyses:
    """Where analyses and run directories lie, by the run's name."""

    analyses: dict[str, list[Path]] = field(default_factory=dict)
    runs: dict[str, list[Path]] = field(default_factory=dict)


Again = Callable[[str, Provenance], str | None]
"""(name of an input, who names it) to the hash of that analysis, made again; None where the stored
one is meant, :data:`OTHER_CODE` where the one that is meant cannot be made here."""
OTHER_CODE = "made by other code"


class _Origin(msgspec.Struct):
    provenance: Provenance


class _RunOrigin(msgspec.Struct):
    run: RunIdentity


class _Row(msgspec.Struct):
    name: str
    sha256: str


class _Metrics(msgspec.Struct):
    traces: list[_Row] = []
    protocol_sha256: str | None = None
    code_sha256: str | None = None


class _Result(msgspec.Struct):
    manifest_sha256: str
    metrics: _Metrics


def installed(protocols: frozenset[str] = frozenset()) -> Known:
    """Return what this installation knows: its code, its mapping tables, the packaged protocol."""
    from opprof.mapping import BUILTIN_VERSIONS, load_table
    from opprof.protocol.load import load_protocol

    packaged = load_protocol("phase3")
    own = frozenset() if packaged is None else frozenset({packaged.sha256})
    return Known(
        protocols=protocols | own,
        mappings={name: frozenset({load_table(name).sha256}) for name in BUILTIN_VERSIONS},
        codes=frozenset({code_sha256()}),
    )


def find(folders: list[Path]) -> Analyses:
    """Find every analysis and run directory in or directly below the folders."""
    found = Analyses()
    for folder in folders:
        inside = [folder, *sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())]
        for place in inside:
            if (place / TIMELINE).is_file():
                _note(found.runs, place / TIMELINE, place, Timeline)
            for held in (place, place / "analysis"):
                if (held / "sanity.json").is_file() and (held / "kernels.json").is_file():
                    _note(found.analyses, held / "sanity.json", held, _RunOrigin)
    return found


def _note(
    places: dict[str, list[Path]],
    path: Path,
    place: Path,
    kind: type[Timeline] | type[_RunOrigin],
) -> None:
    try:
        value = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError):
        return  # told by the check that reads it
    name = value.run_name if isinstance(value, Timeline) else value.run.name
    if place not in places.setdefault(name, []):
        places[name].append(place)


def check_run(checks: Checks, run: Path, known: Known) -> None:
    """Recompute what a run directory says of itself."""
    checks.read("timeline", run / TIMELINE, Timeline)
    result_path = run / _TRACES
    if result_path.is_file():
        result = checks.read("result", result_path, _Result)
        if result is not None:
            _check_result(checks, run, result, known)
    else:
        reason = "is missing: the run's client never finished"
        checks.add("result", checks.subject(result_path), "not_evaluable", reason)
    for name in ("client/sanity.json", *(f"analysis/{item}" for item in ANALYSIS)):
        path = run / name
        if path.is_file():
            check_derived(checks, path, known, run=run)
    missing = [name for name in ANALYSIS if not (run / "analysis" / name).is_file()]
    if missing and len(missing) < len(ANALYSIS):
        subject = checks.subject(run / "analysis")
        checks.add("analysis", subject, "fail", f"is not whole: {', '.join(missing)} missing")


def _check_result(checks: Checks, run: Path, result: _Result, known: Known) -> None:
    subject = checks.subject(run / _TRACES)
    for row in result.metrics.traces:
        checks.file("trace", run / "traces" / row.name, row.sha256)
    summary_path = run / "manifest.sha256"
    if summary_path.is_file():
        summary = checks.read("manifest", summary_path, ManifestSummary)
        if summary is not None:
            checks.equal(
                "manifest",
                checks.subject(summary_path),
                result.manifest_sha256,
                summary.sha256,
                reason="is of another manifest than the result",
            )
    if result.metrics.protocol_sha256 is not None:
        _check_protocol(checks, subject, result.metrics.protocol_sha256, known)
    if result.metrics.code_sha256 is not None:
        _check_code(checks, subject, result.metrics.code_sha256, known)


def check_derived(
    checks: Checks,
    path: Path,
    known: Known,
    *,
    run: Path | None = None,
    places: Analyses | None = None,
    again: Again | None = None,
) -> None:
    """Recompute the hashes that one derived artefact names.

    ``run`` is the run directory that its inputs lie in; ``places`` is where an artefact of several
    runs finds theirs, and ``again`` gives the hash of an analysis that was made in memory, under
    the artefact's own protocol. An input that is nowhere here cannot be judged.
    """
    origin = checks.read("artefact", path, _Origin)
    if origin is None:
        return
    subject, named = checks.subject(path), origin.provenance
    for name, expected in named.inputs.items():
        made = None if again is None else again(name, named)
        if made == OTHER_CODE:
            reason = f"its input {name} was made in memory by other code, which is not here"
            checks.add("input", subject, "not_evaluable", reason, expected=expected)
            continue
        if made == expected:
            checks.add("input", subject, "pass", "")
            checks.remade.add(expected)
            continue
        inputs = [run / name] if run is not None else _places(name, places or Analyses())
        _check_input(checks, subject, name, expected, inputs, certain=run is not None)
    mapping = None
    if named.mapping_sha256 is not None and named.mapping_version is not None:
        mapping = named.mapping_version, named.mapping_sha256
    check_made_with(checks, subject, named.protocol_sha256, mapping, named.code_sha256, known)


def check_made_with(
    checks: Checks,
    subject: str,
    protocol_sha256: str | None,
    mapping: tuple[str, str] | None,
    code_sha256: str,
    known: Known,
) -> None:
    """Compare the protocol, the mapping table (version and hash) and the code of an artefact."""
    if protocol_sha256 is not None:
        _check_protocol(checks, subject, protocol_sha256, known)
    if mapping is not None:
        _check_mapping(checks, subject, *mapping, known)
    _check_code(checks, subject, code_sha256, known)


def _places(name: str, places: Analyses) -> list[Path]:
    """``<run>/kernels.json`` of a decision lies in that run's analysis."""
    run, _, file = name.partition("/")
    return [folder / file for folder in places.analyses.get(run, [])]


def _check_input(
    checks: Checks, subject: str, name: str, expected: str, inputs: list[Path], *, certain: bool
) -> None:
    if certain and inputs:
        if not _inside(inputs[0]):
            checks.add("input", subject, "fail", f"names an input outside of its run: {name}")
            return
        checks.file("input", inputs[0], expected)
        return
    present = [path for path in inputs if path.is_file()]
    if not present:
        reason = f"its input {name} is not here"
        checks.add("input", subject, "not_evaluable", reason, expected=expected)
        return
    seen = [checks.hash(path) for path in present]
    found = expected if expected in seen else seen[0]
    checks.equal("input", subject, expected, found, reason=f"its input {name} has changed")


def _inside(path: Path) -> bool:
    return ".." not in path.parts


def _check_protocol(checks: Checks, subject: str, named: str, known: Known) -> None:
    if named in known.protocols:
        checks.add("protocol", subject, "pass", "")
    elif known.binding:
        reason = "was made under a protocol that is none of the campaign's"
        checks.add("protocol", subject, "fail", reason, seen=named)
    else:
        reason = "was made under a protocol that is not here (--protocol FILE)"
        checks.add("protocol", subject, "not_evaluable", reason, seen=named)


def _check_mapping(checks: Checks, subject: str, version: str, named: str, known: Known) -> None:
    possible = known.mappings.get(version, frozenset())
    if named in possible:
        checks.add("mapping", subject, "pass", "")
        return
    expected = ", ".join(sorted(possible)) or None
    reason = f"was made with another mapping table {version}"
    outcome: Outcome = "fail" if known.binding else "not_evaluable"
    checks.add("mapping", subject, outcome, reason, expected=expected, seen=named)


def _check_code(checks: Checks, subject: str, named: str, known: Known) -> None:
    if named in known.codes:
        checks.add("code", subject, "pass", "")
    elif known.binding:
        expected = ", ".join(sorted(known.codes))
        reason = "was made by other code than the campaign's"
        checks.add("code", subject, "fail", reason, expected=expected, seen=named)
    else:
        reason = "was made by another version of the code, which is not here"
        checks.add("code", subject, "not_evaluable", reason, seen=named)


def check_page(checks: Checks, path: Path, known: Known) -> None:
    """Compare the hashes that a page shows with those of everything that is here."""
    try:
        shown = {found.decode() for found in _HEX.findall(path.read_bytes())}
    except OSError as error:
        checks.add("page", checks.subject(path), "fail", f"cannot read: {error.strerror}")
        return
    here = checks.known() | known.protocols | known.codes
    here |= {digest for hashes in known.mappings.values() for digest in hashes}
    here |= set(_named(checks.root))
    unknown = sorted(shown - here)
    if not shown:
        reason = "shows no hash: nothing ties it to its data"
        checks.add("page", checks.subject(path), "not_evaluable", reason)
    elif unknown:
        reason = f"{len(unknown)} of its {len(shown)} hashes belong to nothing that is here"
        checks.add("page", checks.subject(path), "not_evaluable", reason, seen=unknown[0])
    else:
        checks.add("page", checks.subject(path), "pass", "")


def _named(root: Path) -> Iterator[str]:
    """Hashes that the manifests' summaries name: the manifests themselves are private."""
    try:
        for entry in walk(root):
            if isinstance(entry, Entry) and entry.name.endswith("manifest.sha256"):
                yield from (found.decode() for found in _HEX.findall(entry.path.read_bytes()))
    except (OSError, InputError):
        return
