"""A campaign directory to the runs that a registered decision may rest on.

Only runs in state ``complete`` with role primary or confirmation take part, under the protocol that
the campaign itself holds. Everything else is named with its reason and never replaced.

Source: protocol, A-P3-2, A-P3-5, A-P3-6; ``artifacts.campaign``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from opprof.analysis.bound import campaign_around, campaign_protocol
from opprof.analysis.load import LoadedRun, read_analysis
from opprof.artifacts.campaign import Campaign, RunRecord, Stop
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_file
from opprof.protocol import Protocol
from opprof.words import plural

T = TypeVar("T")
_LIMIT_BYTES = 64 << 20
_ROLES = ("primary", "confirmation")


@dataclass(frozen=True)
class CampaignRuns:
    """What a campaign offers to a decision."""

    root: Path
    campaign: Campaign
    protocol: Protocol
    folders: tuple[Path, ...]
    """Directories of the complete measured runs, in the order of their names."""
    absent: dict[str, str]
    """Planned run to why it is not there."""
    marks: dict[str, tuple[str, ...]]
    """Run to its marks: reruns, quarantine, later adjudications."""
    quarantined: frozenset[str]
    stop: str | None
    """Why the campaign stands still, where it does."""

    @property
    def registered(self) -> bool:
        """A decision is registered only under a frozen protocol."""
        return self.protocol.file.status == "frozen"


def read_campaign(root: Path) -> CampaignRuns:
    """Read a campaign's plan and states.

    Raises:
        InputError: a file is missing or contradicts another, or no measured run is complete.
        SchemaError: a file does not fit its schema.
    """
    campaign = _decode(root / "campaign.json", Campaign)
    protocol = campaign_protocol(root)
    folder = root / "state"
    if not folder.is_dir():
        raise InputError("no such folder: the campaign has no states", path=folder)
    records = [_record(path) for path in sorted(folder.glob("*.json"))]
    measured = [record for record in records if record.role in _ROLES]
    complete = [record for record in measured if record.state == "complete"]
    folders = []
    for record in complete:
        run = root / "runs" / record.run
        if not (run / "client" / "timeline.json").is_file():
            raise InputError(f"{record.run} is complete in its state and not here", path=run)
        folders.append(run)
    stop = root / "stop.json"
    return CampaignRuns(
        root=root,
        campaign=campaign,
        protocol=protocol,
        folders=tuple(folders),
        absent={r.run: _absence(r) for r in measured if r.state != "complete"},
        marks={record.run: tuple(_marks(record)) for record in complete},
        quarantined=frozenset(r.run for r in complete if r.drain_quarantined),
        stop=_stop(_decode(stop, Stop)) if stop.is_file() else None,
    )


def both_verdicts(run: Path) -> str:
    """Return the verdicts on a campaign's run whose kept data were judged again; else empty.

    Raises:
        InputError, SchemaError: the run's state cannot be read.
    """
    root = campaign_around(run)
    if root is None or run.resolve().parent != root / "runs":
        return ""
    path = root / "state" / f"{run.resolve().name}.json"
    if not path.is_file():
        return ""
    record = _record(path)
    if not record.adjudications or record.attempt is None:
        return ""
    first = record.attempt
    failed = [
        f"{name}: {gate.reason}" for name, gate in first.checks.items() if gate.outcome == "fail"
    ]
    measured = first.source_hashes.get("protocol", "")[:12] or "not recorded"
    lines = [f"protocol {measured}: {_word(not failed, failed)}"]
    lines += [
        f"{item.amendment}, protocol {item.protocol_sha256[:12]}:"
        f" {_word(item.accepted, item.reasons)}"
        for item in record.adjudications
    ]
    return "; then ".join(lines)


def _word(accepted: bool, reasons: Sequence[str]) -> str:
    word = "accepted" if accepted else "rejected"
    return f"{word} ({'; '.join(reasons)})" if reasons else word


def stored_analysis(run: Path, protocol: Protocol) -> LoadedRun | None:
    """Return a run's own analysis where it was made under this protocol from these very files."""
    folder = run / "analysis"
    if not (folder / "sanity.json").is_file():
        return None
    analysis = read_analysis(folder)
    origin = analysis.sanity.provenance
    if origin.protocol_sha256 != protocol.sha256:
        return None
    for name, digest in origin.inputs.items():
        path = run / name
        if not path.is_file() or sha256_file(path) != digest:
            return None
    return LoadedRun(run, analysis)


def _record(path: Path) -> RunRecord:
    record = _decode(path, RunRecord)
    if record.run != path.stem:
        raise InputError(f"holds the state of {record.run}", path=path)
    return record


def _absence(record: RunRecord) -> str:
    last = record.attempt
    reason = f": {last.reason}" if last is not None and last.reason else ""
    return f"its state is {record.state} after {plural(len(record.attempts), 'attempt')}{reason}"


def _marks(record: RunRecord) -> list[str]:
    marks = []
    if len(record.attempts) > 1:
        earlier = "; ".join(
            f"attempt {item.number} {item.phase}: {item.reason or 'no reason given'}"
            for item in record.attempts[:-1]
        )
        marks.append(f"rerun, {len(record.attempts)} attempts ({earlier})")
    if record.accepted is False:
        marks.append("not accepted by the campaign's checks")
    marks += [
        f"adjudicated again under {item.amendment}: {_word(item.accepted, item.reasons)}"
        for item in record.adjudications
    ]
    return marks


def _stop(stop: Stop) -> str:
    return f"the campaign stands still: {stop.name}, {stop.reason}"


def _decode(path: Path, kind: type[T]) -> T:
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SchemaError(f"does not fit its schema: {error}", path=path) from error
