"""Runs as a user names them: run directories, finished analyses, or folders that hold several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opprof._version import __version__
from opprof.analysis.bound import kept_as, other_protocol
from opprof.analysis.gates import invalidates
from opprof.analysis.many import analyze_many
from opprof.analysis.results import RunAnalysis
from opprof.analysis.write import encode
from opprof.artifacts.common import Provenance
from opprof.artifacts.comparison import Comparison
from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste
from opprof.code_hash import code_sha256
from opprof.compare import RunInput, compare_runs, comparison_rule
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes
from opprof.protocol import Protocol

T = TypeVar("T")
_MARKER = "sanity.json"
_TIMELINE = "client/timeline.json"
_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class LoadedRun:
    """One run's analysis and where it came from."""

    source: Path
    analysis: RunAnalysis


def find_folders(paths: Sequence[Path]) -> list[Path]:
    """Return every run directory and finished analysis that the paths name or hold, in order.

    Raises:
        InputError: a path is no folder, or holds neither.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            reason = "is a file, not a folder" if path.exists() else "no such folder"
            raise InputError(f"{reason}{kept_as(path)}", path=path)
        inside = [path] if _is_run(path) or _is_analysis(path) else []
        if not inside:
            inside = [p for p in sorted(path.iterdir()) if _is_run(p) or _is_analysis(p)]
        if not inside:
            reason = f"holds neither a run ({_TIMELINE}) nor an analysis ({_MARKER})"
            if (path / "runs").is_dir():
                reason += "; a campaign's lie in its folder runs"
            raise InputError(reason, path=path)
        found += inside
    return list(dict.fromkeys(found))


def load_runs(
    paths: Sequence[Path],
    protocol: Protocol | None,
    *,
    mapping: str | None = None,
    jobs: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[LoadedRun]:
    """Analyse the run directories among the paths and read the finished analyses.

    Raises:
        InputError, SchemaError: a folder cannot be used.
    """
    folders = find_folders(paths)
    runs = [folder for folder in folders if _is_run(folder)]
    made = dict(
        zip(
            runs,
            analyze_many(runs, protocol, mapping=mapping, jobs=jobs, advance=advance),
            strict=True,
        )
    )
    return [
        LoadedRun(folder, made[folder] if folder in made else read_analysis(folder))
        for folder in folders
    ]


def read_analysis(folder: Path) -> RunAnalysis:
    """Read the four artefacts of a finished analysis.

    Raises:
        InputError: one is missing, or they speak of different runs.
        SchemaError: one does not fit its schema.
    """
    analysis = RunAnalysis(
        layer1=_decode(folder / "layer1.json", Layer1Summary),
        kernels=_decode(folder / "kernels.json", Kernels),
        waste=_decode(folder / "waste.json", Waste),
        sanity=_decode(folder / _MARKER, Sanity),
    )
    parts = (analysis.layer1, analysis.kernels, analysis.waste, analysis.sanity)
    if len({msgspec.json.encode(part.provenance) for part in parts}) > 1:
        raise InputError("the four artefacts do not come from one analysis", path=folder)
    return analysis


def compare_found(
    found: Sequence[LoadedRun], protocol: Protocol | None, *, mapping: str | None = None
) -> Comparison:
    """Compare loaded runs under the protocol's rule; ``mapping`` overrides the deciding table.

    Raises:
        InputError: they cannot be compared, or one was analysed under another protocol.
    """
    for item in found:
        if reason := other_protocol(item.analysis.sanity.provenance, protocol):
            raise InputError(reason, path=item.source)
    rule = None if protocol is None else comparison_rule(protocol.file)
    if rule is not None and mapping is not None and found:
        rule = msgspec.structs.replace(
            rule, mapping_pinned=found[0].analysis.kernels.mapping_version
        )
    entries = [
        RunInput(
            item.analysis.kernels,
            str(item.source),
            metrics=run_metrics(item.analysis),
            failed_gates=[gate.name for gate in item.analysis.failed if invalidates(gate) == "run"],
            red_flags=item.analysis.sanity.red_flags,
        )
        for item in found
    ]
    return compare_runs(entries, rule, _provenance(found, protocol))


def run_metrics(analysis: RunAnalysis) -> dict[str, float | None]:
    """Return the run-level figures that a comparison sets beside the baseline's.

    What is a waste metric too has the contract's name here as well: one metric, one name.
    """
    end, union = analysis.layer1.end_to_end, analysis.layer1.clean_union
    return {
        "completed_rps": None if end is None else end.completed_rps,
        "output_tokens_per_s": None if end is None else end.output_tokens_per_s,
        "ttft_p50_ms": None if end is None else end.from_scheduled.ttft_ms.p50,
        "tpot_p50_ms": None if end is None else end.from_scheduled.tpot_ms.p50,
        "latency_p99_ms": None if end is None else end.from_scheduled.latency_ms.p99,
        "E_token_per_ms": analysis.waste.e_token_per_ms,
        "step_duration_mean_ms": None if union is None else union.step_duration_ms.mean,
    }


def _provenance(found: Sequence[LoadedRun], protocol: Protocol | None) -> Provenance:
    kernels = [item.analysis.kernels for item in found]
    return Provenance(
        inputs={f"{k.run.name}/kernels.json": sha256_bytes(encode(k)) for k in kernels},
        protocol_id=None if protocol is None else protocol.file.id,
        protocol_sha256=None if protocol is None else protocol.sha256,
        mapping_version=kernels[0].mapping_version if kernels else None,
        mapping_sha256=kernels[0].mapping_sha256 if kernels else None,
        code_version=__version__,
        code_sha256=code_sha256(),
    )


def _is_run(path: Path) -> bool:
    return (path / _TIMELINE).is_file()


def _is_analysis(path: Path) -> bool:
    return (path / _MARKER).is_file() and (path / "kernels.json").is_file()


def _decode(path: Path, kind: type[T]) -> T:
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
