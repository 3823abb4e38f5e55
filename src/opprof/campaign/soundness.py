"""Whether what lies in a campaign's folder can be gone on from; looked at before anything is done.

A state file that is missing is a run that nobody would ever run, and a complete run without its
files is a measurement that nobody has. Contents are `opprof verify`'s: here only what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.campaign import Charge, RunRecord
from opprof.campaign.naming import is_of_host
from opprof.campaign.plan import planned_runs
from opprof.campaign.store import Store
from opprof.errors import StateConflict
from opprof.files import sha256_file
from opprof.integrity.ledger import NAME as LEDGER
from opprof.integrity.ledger import declared_hours, prior_problems
from opprof.integrity.provenance import read_folder_record, record_path
from opprof.protocol.model import ProtocolFile

_BY_NAME = ("pattern", "config", "load_point", "role")
_BY_PLAN = ("order", "needs")
"""What an amendment may change for runs that have not begun."""


def check_records(
    store: Store,
    protocol: ProtocolFile,
    only: Sequence[str],
    *,
    amended: ProtocolFile | None = None,
) -> None:
    """Compare the state files with the plan, and complete runs with their folders.

    ``amended``: a protocol that is about to be taken over. Where it was broken off in that before,
    each record is of the old plan or the new one.

    Raises:
        StateConflict: a run has no state file, a state file is not the plan's, or a complete run
            has lost files; names the first.
        SchemaError: a state file is damaged.
    """
    records = {record.run: record for record in store.runs()}
    plans = [
        {record.run: record for record in planned_runs(each, only)}
        for each in (protocol, amended)
        if each is not None
    ]
    planned = {name for plan in plans for name in plan}
    for name in sorted(planned):
        path = store.folder / "state" / f"{name}.json"
        found = records.get(name)
        if found is None and not all(name in plan for plan in plans):
            continue
        if found is None:
            raise StateConflict(
                "is missing: the protocol in force plans this run (bring the file back, or take "
                "an amendment that was broken off once more with --protocol)",
                path=path,
            )
        fields = _BY_NAME if found.attempts else (*_BY_NAME, *_BY_PLAN)
        differences = [_difference(found, plan[name], fields) for plan in plans if name in plan]
        if all(differences):
            raise StateConflict(differences[0], path=path)
    for name, record in records.items():
        of_check = record.role == "colocation" or is_of_host(name)
        if name not in planned and not of_check and not record.attempts:
            path = store.folder / "state" / f"{name}.json"
            raise StateConflict("the protocol in force plans no such run", path=path)
        if record.state == "complete":
            _check_folder(store, record)


def _difference(found: RunRecord, planned: RunRecord, fields: Sequence[str]) -> str:
    """What of a record is not the plan's; empty for nothing."""
    for field in fields:
        seen, wanted = getattr(found, field), getattr(planned, field)
        if seen != wanted:
            return f"{field} is {seen!r}, the protocol in force plans {wanted!r}"
    return ""


def check_prior(store: Store, charges: Sequence[Charge], protocol_sha256: str) -> None:
    """Compare the ledger's prior use with the protocols that declare it.

    Raises:
        StateConflict: it is another; names the first difference.
    """
    first = store.campaign().protocol_sha256
    declared = declared_hours(store.folder)
    for problem in prior_problems(charges, declared, first, protocol_sha256):
        reason = (
            f"{problem}: bring the ledger back, or take the amendment that was broken off once "
            "more with --protocol"
        )
        raise StateConflict(reason, path=store.folder / LEDGER)


def check_contents(store: Store, record: RunRecord) -> None:
    """Compare what a run left with its recorded hashes, before anything is judged by it.

    Raises:
        StateConflict: a file is gone or differs from what was recorded; names the first.
    """
    assert record.attempt is not None
    folder = record.attempt.folder
    recorded = record_path(store.folder, folder)
    if record.state != "complete" and not recorded.is_file():
        return
    _check_folder(store, record)
    for file in read_folder_record(recorded).files:
        path = store.folder / folder / file.path
        if sha256_file(path) != file.sha256:
            reason = f"is not what {record.run} left: it cannot be judged by this file again"
            raise StateConflict(reason, path=path)


def _check_folder(store: Store, record: RunRecord) -> None:
    assert record.attempt is not None
    folder = record.attempt.folder
    recorded = record_path(store.folder, folder)
    if not recorded.is_file():
        reason = f"is missing: it holds the hashes of {record.run}, which is complete"
        raise StateConflict(reason, path=recorded)
    for file in read_folder_record(recorded).files:
        path = store.folder / folder / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            reason = f"{record.run} is complete, but this file is gone: {error.strerror or error}"
            raise StateConflict(reason, path=path) from error
        if size != file.bytes:
            reason = f"{record.run} is complete, but this file has {size} bytes, not {file.bytes}"
            raise StateConflict(reason, path=path)
