"""A campaign's records: copies, states, and every file of every finished folder."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

from opprof.artifacts.campaign import Attempt, Campaign, CheckName, RunRecord
from opprof.artifacts.provenance import CampaignProvenance, FolderProvenance
from opprof.code_hash import HOOK_TABLES, hash_sources
from opprof.errors import OpprofError
from opprof.integrity.adjudicated import JUDGED_AGAIN, accepted_later, check_adjudications
from opprof.integrity.checks import Checks
from opprof.integrity.closing import NAME as CLOSING
from opprof.integrity.closing import OWN_NAMES, RECORDED, check_closing
from opprof.integrity.derived import TIMELINE, Known, check_run
from opprof.integrity.gates import check_gates
from opprof.integrity.ledger import check_ledger
from opprof.integrity.provenance import CLIENT_TAR, FOLDER, INDEX, SOURCES_TAR, listing_sha256
from opprof.integrity.tree import Entry, walk

_CHECKS: tuple[CheckName, ...] = get_args(CheckName)


def check_campaign(checks: Checks, known: Known) -> Known:
    """Check everything but the artefacts over all runs; return what those may name."""
    folder = checks.root
    index = folder / FOLDER / INDEX
    recorded = checks.read("provenance", index, CampaignProvenance)
    campaign = checks.read("campaign", folder / "campaign.json", Campaign)
    if recorded is None:
        return replace(known, binding=True)
    # What cannot be undone: one campaign, one version of everything.
    bound = Known(
        protocols=frozenset(recorded.protocols),
        mappings={name: frozenset({digest}) for name, digest in recorded.mappings.items()},
        codes=frozenset({recorded.code_sha256}),
        binding=True,
    )
    _check_copies(checks, recorded)
    _check_sources(checks, recorded)
    _check_protocols(checks, recorded)
    if campaign is not None:
        _check_binding(checks, campaign, recorded)
    records = _read_records(checks)
    states = _check_states(checks, campaign, recorded, records)
    for state in states.values():
        check_adjudications(checks, state, bound)
    for record in records.values():
        _check_folder(checks, record)
    for run in _run_folders(folder):
        check_run(checks, run, bound)
    check_gates(checks, bound)
    check_closing(checks)
    check_ledger(checks, recorded.protocols[0], recorded.protocols[-1])
    _check_names(checks)
    return bound


def _check_copies(checks: Checks, recorded: CampaignProvenance) -> None:
    folder = checks.root / FOLDER
    for copy in recorded.copies:
        checks.file("copy", folder / copy.path, copy.sha256)
    expected = {copy.path for copy in recorded.copies} | {INDEX, CLOSING}
    for entry in walk(folder):
        if not isinstance(entry, Entry) or entry.kind != "file" or entry.name in expected:
            continue
        if entry.name.split("/")[0] not in RECORDED:
            subject, seen = f"{FOLDER}/{entry.name}", checks.hash(entry.path)
            checks.add("copy", subject, "fail", "is additional: nobody recorded it", seen=seen)


def _check_sources(checks: Checks, recorded: CampaignProvenance) -> None:
    """The recorded sources must have the recorded hashes, not only their own."""
    folder = checks.root / FOLDER
    for tar, name in ((SOURCES_TAR, "code_sha256"), (CLIENT_TAR, "client_sha256")):
        seen = _tar_hash(folder / tar)
        reason = f"its sources do not have the recorded {name}"
        checks.equal("sources", f"{FOLDER}/{tar}", getattr(recorded, name), seen, reason=reason)
    try:
        hooks = [(name, (folder / "hooks" / Path(name).name).read_bytes()) for name in HOOK_TABLES]
    except OSError:
        return  # told with the copies
    reason = "the tables do not have the recorded hooks_sha256"
    seen = hash_sources(hooks)
    checks.equal("sources", f"{FOLDER}/hooks", recorded.hooks_sha256, seen, reason=reason)


def _tar_hash(path: Path) -> str | None:
    files = []
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    files.append((member.name.removeprefix("opprof/"), content.read()))
    except (OSError, tarfile.TarError, EOFError):
        return None
    return hash_sources(sorted(files))


def _check_protocols(checks: Checks, recorded: CampaignProvenance) -> None:
    """The protocol in force is the last one recorded, and was frozen with the same sources."""
    folder = checks.root
    reason = "is not the protocol that was recorded last"
    seen = checks.hash(folder / "protocol.toml")
    checks.equal("protocol", "protocol.toml", recorded.protocols[-1], seen, reason=reason)
    for path in sorted((folder / "protocols").glob("*.toml")):
        if checks.hash(path) not in recorded.protocols:
            reason = "is none of the recorded protocols"
            checks.add("protocol", checks.subject(path), "fail", reason, seen=checks.hash(path))
    for copy in recorded.copies:
        if copy.kind == "protocol":
            _check_freeze(checks, folder / FOLDER / copy.path, recorded)


def _check_freeze(checks: Checks, path: Path, recorded: CampaignProvenance) -> None:
    from opprof.protocol.load import load_protocol

    subject = checks.subject(path)
    try:
        protocol = load_protocol(path)
    except OpprofError as error:
        checks.add("frozen", subject, "fail", f"cannot be read: {error.reason}")
        return
    freeze = None if protocol is None else protocol.file.freeze
    if freeze is None:
        checks.add("frozen", subject, "not_evaluable", "has no [freeze] table: it is a draft")
        return
    for name in ("client_sha256", "hooks_sha256", "mappings"):
        then, now = getattr(freeze, name), getattr(recorded, name)
        reason = f"was frozen with another {name}"
        checks.equal("frozen", subject, then, now, reason=reason)


def _check_binding(checks: Checks, campaign: Campaign, recorded: CampaignProvenance) -> None:
    pairs = (
        ("id", campaign.id, recorded.campaign),
        ("protocol_sha256", campaign.protocol_sha256, recorded.protocols[0]),
        ("code_sha256", campaign.code_sha256, recorded.code_sha256),
    )
    for name, started, seen in pairs:
        reason = f"its {name} is not the recorded one"
        checks.equal("campaign", "campaign.json", started, seen, reason=reason)


def _read_records(checks: Checks) -> dict[str, FolderProvenance]:
    """Return the records of finished folders by folder."""
    records: dict[str, FolderProvenance] = {}
    base = checks.root / FOLDER
    for top in RECORDED:
        for path in sorted((base / top).rglob("*.json")):
            record = checks.read("record", path, FolderProvenance)
            if record is None:
                continue
            wanted = path.relative_to(base).with_suffix("").as_posix()
            reason = "speaks of another folder"
            checks.equal("record", checks.subject(path), wanted, record.folder, reason=reason)
            records[wanted] = record
    return records


def _check_states(
    checks: Checks,
    campaign: Campaign | None,
    recorded: CampaignProvenance,
    records: dict[str, FolderProvenance],
) -> dict[str, RunRecord]:
    """``complete`` stands only where all seven checks passed and every file was recorded."""
    states: dict[str, RunRecord] = {}
    for path in sorted((checks.root / "state").glob("*.json")):
        state = checks.read("state", path, RunRecord)
        if state is None:
            continue
        states[f"runs/{state.run}"] = state
        reason = "is the state of another run"
        checks.equal("state", checks.subject(path), path.stem, state.run, reason=reason)
        if state.state == "complete":
            _check_complete(checks, checks.subject(path), state, records)
        for attempt in state.attempts:
            _check_attempt(checks, checks.subject(path), state, attempt, campaign, recorded)
    _check_unrecorded(checks, states, records)
    return states


def _check_complete(
    checks: Checks, subject: str, state: RunRecord, records: dict[str, FolderProvenance]
) -> None:
    attempt = state.attempt
    if attempt is None or attempt.phase != "complete":
        checks.add("state", subject, "fail", "says complete, but its last attempt is not")
        return
    for name in _CHECKS:
        gate = attempt.checks.get(name)
        if gate is None:
            checks.add("state", subject, "fail", f"says complete without the {name} check")
        elif gate.outcome == "fail" and not (name in JUDGED_AGAIN and accepted_later(state)):
            reason = f"says complete, but its {name} check failed: {gate.reason}"
            checks.add("state", subject, "fail", reason)
        else:
            # A check without an object (no window in a burn-in) is the controller's own word.
            checks.add("state", subject, "pass", "")
    if attempt.sanity is not None and attempt.sanity.red_flags:
        reason = f"says complete, with a red flag: {attempt.sanity.red_flags[0]}"
        checks.add("state", subject, "fail", reason)
    record = records.get(attempt.folder)
    if record is None:
        reason = f"says complete, but {attempt.folder} was never recorded"
        checks.add("state", subject, "fail", reason)
    else:
        reason = f"{attempt.folder} was recorded as another attempt"
        checks.equal("state", subject, attempt.number, record.attempt, reason=reason)
        if attempt.judged_sha256 is not None:
            reason = f"{attempt.folder} was recorded with other files than those that were checked"
            seen = listing_sha256(record.files)
            checks.equal("state", subject, attempt.judged_sha256, seen, reason=reason)


def _check_attempt(
    checks: Checks,
    subject: str,
    state: RunRecord,
    attempt: Attempt,
    campaign: Campaign | None,
    recorded: CampaignProvenance,
) -> None:
    expected: dict[str, Iterable[str]] = {
        "protocol": recorded.protocols,
        "code": [recorded.code_sha256],
        "client": [recorded.client_sha256],
        "launch": [recorded.launches.get(state.config, "")],
    }
    if campaign is not None:
        expected["manifest"] = [campaign.manifests.get(state.pattern, "")]
    for name, seen in attempt.source_hashes.items():
        possible = expected.get(name)
        if possible is not None and seen not in possible:
            reason = f"attempt {attempt.number} was made from another {name}"
            wanted = ", ".join(possible)
            checks.add("source", subject, "fail", reason, expected=wanted, seen=seen)
        elif possible is not None:
            checks.add("source", subject, "pass", "")


def _check_unrecorded(
    checks: Checks, states: dict[str, RunRecord], records: dict[str, FolderProvenance]
) -> None:
    folders = {state.attempt.folder: state for state in states.values() if state.attempt}
    for pattern in ("runs/*", "attempts/*", "colocation/*/*/*"):
        for place in sorted(checks.root.glob(pattern)):
            name = place.relative_to(checks.root).as_posix()
            if name in records:
                continue
            state = states.get(name, folders.get(name))
            standing = "no state speaks of it" if state is None else f"its state is {state.state}"
            reason = f"is not recorded ({standing}): its files cannot be compared"
            checks.add("record", name, "not_evaluable", reason)


def _check_folder(checks: Checks, record: FolderProvenance) -> None:
    """Compare every file of a recorded folder; name changed, missing and additional ones."""
    root = checks.root / record.folder
    if not root.is_dir() or root.is_symlink():
        checks.add("recorded_file", record.folder, "fail", "was recorded and is missing")
        return
    for item in record.files:
        checks.file("recorded_file", root / item.path, item.sha256)
    expected = {item.path for item in record.files}
    for entry in walk(root):
        if isinstance(entry, Entry) and entry.kind != "folder" and entry.name not in expected:
            subject = f"{record.folder}/{entry.name}"
            seen = checks.hash(entry.path) if entry.kind == "file" else entry.kind
            reason = "is additional: the finished folder did not hold it"
            checks.add("recorded_file", subject, "fail", reason, seen=seen)
    hashes = {item.path: item.sha256 for item in record.files}
    for trace in record.traces:
        reason = "is not the trace that the client collected"
        subject = f"{record.folder}/{trace.path}"
        checks.equal("trace", subject, trace.sha256, hashes.get(trace.path), reason=reason)


def _run_folders(folder: Path) -> list[Path]:
    """Run directories that are or were worth a check: finished ones and the gate's."""
    check = sorted((folder / "colocation").glob("*/*/*"))
    places = [*sorted((folder / "runs").glob("*")), *check]
    return [place for place in places if (place / TIMELINE).is_file() and not place.is_symlink()]


def _check_names(checks: Checks) -> None:
    for path in sorted(checks.root.iterdir()):
        if path.name not in OWN_NAMES:
            reason = "is no part of a campaign: nothing records it"
            seen = checks.hash(path) if path.is_file() else None
            checks.add("tree", path.name, "not_evaluable", reason, seen=seen)
