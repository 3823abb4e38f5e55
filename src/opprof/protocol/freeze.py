"""Freezing a draft, and refusing whatever is not the protocol that was frozen.

A frozen protocol is its draft with ``status = "frozen"``, approvals and a ``[freeze]`` table. Both
can be undone to the byte, so ``draft_sha256`` proves that nothing else was changed.

Source: protocol, "Open decisions for the orchestrator" and stop condition 1 (hash mismatches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opprof.errors import InputError, StateConflict
from opprof.files import sha256_bytes
from opprof.protocol import edit
from opprof.protocol.base import is_date
from opprof.protocol.check import check_protocol
from opprof.protocol.load import Protocol, parse_protocol
from opprof.protocol.model import Freeze, ProtocolFile


@dataclass(frozen=True)
class Installation:
    """The hashes of this installation that a protocol is frozen with."""

    code_version: str
    code_sha256: str
    client_sha256: str
    plugin_sha256: str
    hooks_sha256: str
    mappings: Mapping[str, str]
    """Version to SHA-256 of every mapping table that the protocol names."""


@dataclass(frozen=True)
class Approvals:
    """Which open decisions are approved in freezing, and by whom."""

    numbers: Mapping[int, str] = field(default_factory=dict)
    """Number of the decision to the date of its approval."""
    rest: str | None = None
    """Date for every other one; None approves no other."""
    by: str = ""


def installation(file: ProtocolFile) -> Installation:
    """Hash what the protocol binds of this installation.

    Raises:
        InputError: a mapping table that the protocol names cannot be used.
    """
    from opprof._version import __version__
    from opprof.code_hash import client_sha256, code_sha256, hooks_sha256, plugin_sha256
    from opprof.mapping import load_table

    tables = [load_table(name) for name in (file.mapping.pinned, *file.mapping.alternatives)]
    return Installation(
        code_version=__version__,
        code_sha256=code_sha256(),
        client_sha256=client_sha256(),
        plugin_sha256=plugin_sha256(),
        hooks_sha256=hooks_sha256(),
        mappings={table.version: table.sha256 for table in tables},
    )


def freeze_protocol(
    draft: Protocol, approvals: Approvals, *, date: str, here: Installation | None = None
) -> bytes:
    """Return the frozen file of a draft.

    Args:
        draft: with its bytes (as ``load_protocol`` reads it).
        approvals: of its open decisions.
        date: of the freezing, ``YYYY-MM-DD``.
        here: hashes to freeze with; None takes this installation's.

    Raises:
        StateConflict: it is frozen already, or a decision stays open.
        InputError: it is unsound, an approval fits no open decision, or a table that must be
            edited is written in a way that could not be undone.
    """
    file = draft.file
    if file.status == "frozen" or file.freeze is not None:
        raise StateConflict(
            "is frozen already; `opprof protocol amend` changes it", path=draft.source
        )
    if problems := check_protocol(file):
        raise InputError(f"unsound: {'; '.join(problems)}", path=draft.source)
    approved = _approved(draft, approvals, date)
    text = draft.data.decode()
    tree = edit.decode(text)
    text = edit.replace_at(text, ["status"], '"frozen"')
    tree["status"] = "frozen"
    for index, row in enumerate(file.open_decisions):
        for key, value in _approval(approved, row.number, approvals.by):
            text = edit.insert_key(text, ["open_decisions", index, key], edit.text_of(value))
            tree["open_decisions"][index][key] = value
    made = here if here is not None else installation(file)
    lines, tree["freeze"] = _table(made, draft.sha256, date, sorted(approved))
    text = edit.sealed("\n".join([text.removesuffix("\n"), "", *lines, ""]))
    found = edit.decode(text)
    tree["freeze"]["seal"] = found["freeze"]["seal"]
    data = text.encode()
    if found != tree or sha256_bytes(undo_freeze(data)) != draft.sha256:
        raise InputError(
            "is laid out in a way that freezing could not undo; write status, open_decisions and "
            "every table under a [header] of its own",
            path=draft.source,
        )
    parse_protocol(data, source=draft.source)
    return data


def _approved(draft: Protocol, approvals: Approvals, date: str) -> dict[int, str]:
    """Return number to date of every decision that is approved now."""
    open_now = [row.number for row in draft.file.open_decisions if row.approved is None]
    check_date(date)
    for number, day in approvals.numbers.items():
        _check_approval(number, check_date(day), draft.file.date, date)
        if number not in open_now:
            listed = ", ".join(map(str, open_now)) or "none"
            raise InputError(f"decision {number} is not open (open: {listed})", path=draft.source)
    if approvals.rest is not None and not approvals.by:
        raise InputError("--approve-all needs --by NAME: who approves")
    result = dict(approvals.numbers)
    left = [number for number in open_now if number not in result]
    if left and approvals.rest is None:
        listed = ", ".join(map(str, left))
        raise StateConflict(
            f"decisions without approval: {listed} (--approve N, or --approve-all --by NAME)",
            path=draft.source,
        )
    return result | {number: check_date(approvals.rest or date) for number in left}


def _check_approval(number: int, day: str, drafted: str, frozen: str) -> None:
    """An approval is given after the draft was written and before, or in, its freezing.

    Raises:
        InputError: it is not.
    """
    if day > frozen:
        reason = f"is later than the freezing, {frozen}"
    elif day < min(drafted, frozen):
        reason = f"lies before the protocol's own date, {drafted}"
    else:
        return
    raise InputError(f"decision {number}: the approval of {day} {reason}")


def _approval(approved: Mapping[int, str], number: int, by: str) -> list[tuple[str, str]]:
    if number not in approved:
        return []
    named = [("approved_by", by)] if by else []
    return [("approved", approved[number]), *named]


def _table(
    here: Installation, draft_sha256: str, date: str, approved: Sequence[int]
) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of ``[freeze]`` and what they mean, the seal still open."""
    values: dict[str, Any] = {
        "date": date,
        "draft_sha256": draft_sha256,
        "code_version": here.code_version,
        "code_sha256": here.code_sha256,
        "client_sha256": here.client_sha256,
        "plugin_sha256": here.plugin_sha256,
        "hooks_sha256": here.hooks_sha256,
        "mappings": dict(here.mappings),
        "approved": list(approved),
        "seal": edit.UNSEALED,
    }
    lines = [f"{key} = {inline(value)}" for key, value in values.items()]
    return ["[freeze]", *lines], values


def inline(value: Any) -> str:
    """Return a value as a literal of one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{edit.text_of(k)} = {edit.text_of(v)}" for k, v in value.items())
        return f"{{ {inside} }}"
    return edit.text_of(value)


def undo_freeze(data: bytes) -> bytes:
    """Return the draft that a frozen file without amendments was made from.

    Whether it is the draft, its hash tells: compare it with ``[freeze].draft_sha256``.

    Raises:
        InputError: the file was not written by :func:`freeze_protocol`.
    """
    text = data.decode()
    tree = edit.decode(text)
    freeze, decisions = tree.get("freeze", {}), tree.get("open_decisions", [])
    head, mark, _ = text.rpartition("\n\n[freeze]\n")
    if not mark:
        raise InputError("no [freeze] table where freezing puts it")
    head += "\n"
    for index, row in enumerate(decisions):
        if row["number"] in freeze.get("approved", []):
            for key in ("approved_by", "approved"):
                if key in row:
                    path: edit.Path = ["open_decisions", index, key]
                    head = edit.remove_key(head, path, edit.text_of(row[key]))
    draft = edit.replace_at(head, ["status"], '"draft"').encode()
    # Whether the draft's last line was ended cannot be seen any more; its hash tells.
    without = draft.removesuffix(b"\n")
    return without if sha256_bytes(without) == freeze.get("draft_sha256") else draft


def check_frozen(protocol: Protocol, *, here: Installation | None = None) -> list[str]:
    """Return every reason why a frozen file must not be used here; empty when it may be.

    Looks at its seal, its chain of amendments back to the draft, and at the hashes of client,
    plugin, hooked functions and mapping tables. Another ``code_sha256`` is no reason: a campaign
    binds the whole package's hash at its own start.

    Args:
        protocol: with its bytes.
        here: hashes to compare with; None takes this installation's.
    """
    from opprof.protocol.amend import chain_problems

    freeze = protocol.file.freeze
    if freeze is None or protocol.file.status != "frozen":
        return ["it is a draft; `opprof protocol freeze` makes it usable"]
    problems = chain_problems(protocol)
    try:
        made = here if here is not None else installation(protocol.file)
    except InputError as error:
        return [*problems, str(error)]
    return [*problems, *installation_problems(freeze, made)]


def installation_problems(freeze: Freeze, here: Installation) -> list[str]:
    """Name what differs between a freeze and an installation."""
    pairs = {
        "the client": (freeze.client_sha256, here.client_sha256),
        "the plugin": (freeze.plugin_sha256 or here.plugin_sha256, here.plugin_sha256),
        "the table of hooked functions": (freeze.hooks_sha256, here.hooks_sha256),
    }
    for version in sorted({*freeze.mappings, *here.mappings}):
        name = f"mapping table {version}"
        pairs[name] = (freeze.mappings.get(version, "none"), here.mappings.get(version, "none"))
    return [
        f"{name} is not the one that was frozen ({frozen[:12]} frozen, {now[:12]} here)"
        for name, (frozen, now) in pairs.items()
        if frozen != now
    ]


def require_frozen(protocol: Protocol, *, here: Installation | None = None) -> Freeze:
    """Return the freeze of a protocol that may be executed here.

    Args:
        protocol: with its bytes (as ``load_protocol`` reads it).
        here: hashes to compare with; None takes this installation's.

    Raises:
        StateConflict: it is a draft, was changed after it was frozen, has an open decision, or
            does not fit this installation.
        InputError: it is unsound.
    """
    freeze = protocol.file.freeze
    if freeze is None or protocol.file.status != "frozen":
        raise StateConflict(
            "is a draft; freeze it first (`opprof protocol freeze`)", path=protocol.source
        )
    if problems := check_protocol(protocol.file):
        raise InputError(f"unsound: {'; '.join(problems)}", path=protocol.source)
    if problems := check_frozen(protocol, here=here):
        raise StateConflict("; ".join(problems), path=protocol.source)
    return freeze


def check_date(text: str) -> str:
    """Return a date as it is.

    Raises:
        InputError: it is no day of the calendar, written ``YYYY-MM-DD``.
    """
    if not is_date(text):
        raise InputError(f"{text!r} is no date of the form YYYY-MM-DD")
    return text
