"""An amended protocol in a campaign that has begun: taken over, and judged by from kept raw data.

A run that has not begun is made under the new protocol. A run that has is touched only by an
amendment that judges again (A-P3-5, A-P3-6): its raw data are analysed under the new protocol into
``adjudications/``, both verdicts are kept, nothing is rerun. A failed run that the new protocol
accepts becomes complete with the data it has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import Adjudication, Attempt, RunRecord
from opprof.campaign import state
from opprof.campaign.checks import declared_by
from opprof.campaign.frozen import frozen_of
from opprof.campaign.ledger import amended_prior
from opprof.campaign.ledger_file import open_ledger
from opprof.campaign.plan import planned_runs
from opprof.campaign.soundness import check_contents
from opprof.campaign.store import Store, with_attempt
from opprof.errors import InputError, StateConflict
from opprof.files import sync_folder, write_atomic
from opprof.integrity.adjudicated import JUDGED_AGAIN
from opprof.integrity.closing import reopen
from opprof.integrity.ledger import NAME as LEDGER_NAME
from opprof.integrity.provenance import record_protocol
from opprof.protocol import Protocol, load_protocol
from opprof.protocol.amend import added_amendments
from opprof.protocol.freeze import require_frozen
from opprof.protocol.impact import check_amendment, impact
from opprof.protocol.model import Amendment


def take_amendment(
    store: Store, path: Path, only: Sequence[str], say: Callable[[str], None]
) -> None:
    """Put an amended protocol in force; the caller owns the campaign.

    The copy, its provenance and its prior use come first and ``protocol.toml`` last, so that a
    crash in between leaves the old protocol in force; taking the same amendment again finishes it.
    The file that is in force changes nothing, and that is said.

    Raises:
        StateConflict: it does not follow from the protocol in force, touches runs that have begun,
            needs manifests that the campaign is not bound to, or judges by data that were changed.
        InputError: it is unsound.
    """
    old, new = _load(store.protocol), _load(path)
    require_frozen(new)
    frozen_of(new.file)
    if old.sha256 == new.sha256:
        _amend_prior(store, new, say)
        say(f"protocol {new.sha256[:12]} is in force already: nothing changes")
        return
    started = [record for record in store.runs() if record.attempts]
    if problems := check_amendment(old, new, started):
        raise StateConflict("; ".join(problems), path=path)
    _check_manifests(store, new, only)
    added, _ = added_amendments(old, new)
    rejudging = [row for row in added if row.rejudge]
    judged = _to_judge_again(store, old, new) if rejudging else []
    # From here on the campaign changes: what a controller left closed is open again.
    reopen(store.folder)
    _judge_again(store, judged, new, rejudging, say)
    number = len(list((store.folder / "protocols").iterdir()))
    kept = store.folder / "protocols" / f"{number:02d}-{new.sha256[:12]}.toml"
    if not list(kept.parent.glob(f"*-{new.sha256[:12]}.toml")):
        write_atomic(kept, new.data)
    record_protocol(store.folder, path)
    _plan_again(store, new, only)
    _amend_prior(store, new, say)
    write_atomic(store.protocol, new.data)
    say(f"protocol {new.sha256[:12]} is in force: {', '.join(row.id for row in added)}")


def _amend_prior(store: Store, new: Protocol, say: Callable[[str], None]) -> None:
    """Charge what the protocol declares as used before and the ledger does not count yet."""
    ledger = open_ledger(store.folder / LEDGER_NAME, wall_ns=store.wall_ns())
    lines = amended_prior(ledger.charges, new.file.budget, new.sha256, wall_ns=store.wall_ns())
    ledger.append(lines)
    for line in lines:
        say(f"ledger: {line.gpu_seconds / 3600:+.6g} GPU hours, {line.note}")


def _load(path: Path) -> Protocol:
    protocol = load_protocol(path)
    if protocol is None:
        raise InputError("'none' is no protocol")
    return protocol


def _check_manifests(store: Store, new: Protocol, only: Sequence[str]) -> None:
    bound = store.campaign().manifests
    for record in planned_runs(new.file, only):
        if record.pattern not in bound:
            raise StateConflict(
                f"the amended protocol runs {record.pattern}, whose manifest this campaign is not "
                "bound to: start a new campaign for it",
                path=store.folder,
            )


def _plan_again(store: Store, new: Protocol, only: Sequence[str]) -> None:
    """Bring the runs that have not begun in line with the new plan; touch no other."""
    begun = {record.run: record for record in store.runs() if record.attempts}
    wanted = {record.run: record for record in planned_runs(new.file, only)}
    for name, record in wanted.items():
        if name not in begun:
            store.save(record)
        elif begun[name].order != record.order:
            store.save(msgspec.structs.replace(begun[name], order=record.order))
    for record in store.runs():
        if record.run not in wanted and not record.attempts:
            store.forget(record.run)


# --------------------------------------------------------------------- judging again


def _to_judge_again(store: Store, old: Protocol, new: Protocol) -> list[RunRecord]:
    """Return the runs that the change touches, whose data are all what they were."""
    touched = impact(old.file, new.file)
    judged = [
        record
        for record in store.runs()
        if record.role not in ("burnin", "colocation")
        and record.state in ("complete", "failed")
        and touched.on(record)
    ]
    for record in judged:
        # All of them first: no verdict is given while another run's data are not what they were.
        check_contents(store, record)
    return judged


def _judge_again(
    store: Store,
    judged: Sequence[RunRecord],
    new: Protocol,
    rejudging: Sequence[Amendment],
    say: Callable[[str], None],
) -> None:
    name = ", ".join(f"{row.id} ({row.title})" for row in rejudging)
    for record in judged:
        attempt = record.attempt
        assert attempt is not None
        found = _last_verdict(record, new) or _adjudicate(store, record, attempt, new, name)
        if found is None:
            continue
        say(f"{record.run}: {name} {'accepts' if found.accepted else 'refuses'} it")
        if found.accepted and record.state == "failed":
            _revive(store, store.run(record.run), attempt, new.sha256, name)


def _last_verdict(record: RunRecord, new: Protocol) -> Adjudication | None:
    """Return the verdict under this protocol, where a crash came between it and its effect."""
    found = [each for each in record.adjudications if each.protocol_sha256 == new.sha256]
    return found[-1] if found else None


def _adjudicate(
    store: Store, record: RunRecord, attempt: Attempt, new: Protocol, name: str
) -> Adjudication | None:
    """Judge kept raw data under the new protocol; None where there is no measurement to judge."""
    from opprof.adjudication.judge import rejudge
    from opprof.adjudication.write import write_adjudication

    folder = store.folder / attempt.folder
    if not (folder / "client" / "result.json").is_file():
        return None
    found = rejudge(folder, _measured_under(store, attempt), new)
    relative = f"adjudications/{new.sha256[:12]}/{record.run}"
    write_adjudication(found, store.folder / relative)
    after = found.after
    # What the campaign itself declares costs no run its place in it.
    declared = tuple(f"analysis: {gate}" for gate in declared_by(store.campaign()))
    reasons = [reason for reason in after.reasons if not (declared and reason.startswith(declared))]
    reasons += standing_failures(attempt, stored_accepted=found.stored_accepted)
    verdict = Adjudication(new.sha256, name, not reasons, reasons, relative)
    record = msgspec.structs.replace(
        record,
        adjudications=[*record.adjudications, verdict],
        drain_quarantined=after.drain_quarantined,
    )
    store.save(record)
    return verdict


def standing_failures(attempt: Attempt, *, stored_accepted: bool) -> list[str]:
    """Return the failed checks that no kept raw data can pass: what happened on the machine."""
    bad = {name: gate for name, gate in attempt.checks.items() if gate.outcome == "fail"}
    if not stored_accepted:
        # The client's verdict is judged again; a client that accepted failed in another way.
        bad.pop("client", None)
    bad = {name: gate for name, gate in bad.items() if name == "client" or name not in JUDGED_AGAIN}
    flags = [] if attempt.sanity is None else attempt.sanity.red_flags
    return [f"stands: {name}: {gate.reason}" for name, gate in bad.items()] + [
        f"stands: state: {flag}" for flag in flags
    ]


def _measured_under(store: Store, attempt: Attempt) -> Protocol:
    """Return the protocol that an attempt was made under, from the campaign's copies."""
    wanted = attempt.source_hashes["protocol"]
    for path in sorted((store.folder / "protocols").glob(f"*-{wanted[:12]}.toml")):
        return _load(path)
    raise InputError(f"the campaign keeps no protocol {wanted[:12]}", path=store.folder)


def _revive(
    store: Store, record: RunRecord, attempt: Attempt, protocol_sha256: str, name: str
) -> None:
    """Make a failed run complete with the data it has (A-P3-5: "no GPU rerun is authorized")."""
    home, kept = store.run_folder(record.run), store.folder / attempt.folder
    if kept != home and not home.exists():
        # The attempt stays where it was, as its provenance says; the run shares its files.
        made = home.with_name(f".{home.name}.tmp")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(kept, made, copy_function=os.link)
        made.rename(home)
        sync_folder(home.parent)
    attempt = msgspec.structs.replace(attempt, folder=f"runs/{record.run}", fault="")
    state.complete(store, with_attempt(record, attempt), protocol_sha256, f"accepted under {name}")
