"""Freezing: what it writes, what it refuses, and what is refused afterwards."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from opprof.cli import main
from opprof.errors import InputError, OpprofError, StateConflict
from opprof.files import sha256_bytes
from opprof.protocol import Protocol
from opprof.protocol.freeze import (
    Approvals,
    Installation,
    check_frozen,
    freeze_protocol,
    installation,
    require_frozen,
    undo_freeze,
)
from opprof.protocol.load import packaged_path, parse_protocol

TEXT = packaged_path().read_text()
OPEN = TEXT.replace('approved = "2026-07-12"\n', "")
DATE = "2026-11-30"


def protocol(text: str, source: str = "draft.toml") -> Protocol:
    return parse_protocol(text.encode(), source=source)


def frozen(text: str = TEXT, approvals: Approvals | None = None) -> Protocol:
    data = freeze_protocol(protocol(text), approvals or Approvals(), date=DATE)
    return parse_protocol(data, source="frozen.toml")


@pytest.fixture(scope="module")
def made() -> Protocol:
    return frozen()


def without_freezing(file: object) -> dict[str, object]:
    tree = msgspec.to_builtins(file)
    del tree["status"], tree["freeze"]
    for row in tree["open_decisions"]:
        del row["approved"], row["approved_by"]
    return tree


def test_a_frozen_protocol_says_what_its_draft_says(made: Protocol) -> None:
    draft = protocol(TEXT)
    assert without_freezing(made.file) == without_freezing(draft.file)
    assert made.file.status == "frozen"
    assert made.file.freeze is not None
    assert made.file.freeze.draft_sha256 == draft.sha256
    assert undo_freeze(made.data) == draft.data
    kept = [line for line in TEXT.splitlines() if line.startswith("#")]
    assert [line for line in made.data.decode().splitlines() if line.startswith("#")] == kept


# A failing draft is not shrunk: every example parses the file several times.
@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(
    numbers=st.sets(st.integers(1, 6)),
    closed=st.sets(st.integers(1, 6)),
    by=st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=12),
    newline=st.booleans(),
    returns=st.booleans(),
)
def test_freezing_changes_nothing_but_status_approvals_and_its_table(
    numbers: set[int], closed: set[int], by: str, newline: bool, returns: bool
) -> None:
    text = OPEN
    for number in closed:
        row = f"number = {number}\nblocking"
        assert text.count(row) == 1
        text = text.replace(row, f'approved = "2026-01-02"\n{row}')
    text = text if newline else text.removesuffix("\n")
    draft = protocol(text.replace("\n", "\r\n") if returns else text)
    chosen = dict.fromkeys(numbers - closed, "2026-08-04")
    approvals = Approvals(chosen, DATE, by or "somebody")
    data = freeze_protocol(draft, approvals, date=DATE, here=HERE)
    after = parse_protocol(data, source="frozen.toml")
    assert without_freezing(after.file) == without_freezing(draft.file)
    assert undo_freeze(data) == draft.data
    for row in after.file.open_decisions:
        if row.number in closed:
            assert (row.approved, row.approved_by) == ("2026-01-02", "")
        else:
            assert row.approved == chosen.get(row.number, DATE)
            assert row.approved_by == (by or "somebody")
    assert check_frozen(after, here=HERE) == []


HERE = Installation("1", "1" * 64, "2" * 64, "3" * 64, "4" * 64, {"v1": "5" * 64, "v2": "6" * 64})


def test_it_fits_the_installation_that_froze_it(made: Protocol) -> None:
    freeze = require_frozen(made)
    here = installation(made.file)
    assert freeze.client_sha256 == here.client_sha256
    assert freeze.mappings == here.mappings
    assert set(freeze.mappings) == {"v1", "v2"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"client_sha256": "0" * 64}, "the client is not the one that was frozen"),
        ({"plugin_sha256": "0" * 64}, "the plugin is not"),
        ({"hooks_sha256": "0" * 64}, "the table of hooked functions is not"),
        ({"mappings": {"v1": "5" * 64, "v2": "0" * 64}}, "mapping table v2 is not"),
        ({"mappings": {"v2": "6" * 64}}, "mapping table v1 is not"),
    ],
)
def test_what_differs_here_is_named(change: dict[str, object], named: str) -> None:
    data = freeze_protocol(protocol(TEXT), Approvals(), date=DATE, here=HERE)
    bound = parse_protocol(data, source="frozen.toml")
    require_frozen(bound, here=HERE)
    with pytest.raises(StateConflict, match=named):
        require_frozen(bound, here=dataclasses.replace(HERE, **change))  # type: ignore[arg-type]


def test_another_package_with_the_same_client_is_no_reason_to_refuse() -> None:
    data = freeze_protocol(protocol(TEXT), Approvals(), date=DATE, here=HERE)
    other = dataclasses.replace(HERE, code_version="2", code_sha256="0" * 64)
    require_frozen(parse_protocol(data, source="frozen.toml"), here=other)


def test_a_draft_is_refused() -> None:
    with pytest.raises(StateConflict, match=r"draft\.toml: is a draft; freeze it first"):
        require_frozen(protocol(TEXT))


def test_a_frozen_file_is_not_frozen_again(made: Protocol) -> None:
    with pytest.raises(StateConflict, match="is frozen already"):
        freeze_protocol(made, Approvals(), date=DATE)


@pytest.mark.parametrize(
    ("text", "approvals", "error", "reason"),
    [
        (OPEN, Approvals(), StateConflict, "without approval: 1, 2, 3, 4, 5, 6"),
        (OPEN, Approvals({1: DATE, 2: DATE}), StateConflict, "without approval: 3, 4, 5, 6"),
        (OPEN, Approvals({7: DATE}), InputError, "decision 7 is not open"),
        (TEXT, Approvals({1: DATE}), InputError, r"decision 1 is not open \(open: none\)"),
        (OPEN, Approvals(rest=DATE), InputError, "needs --by NAME"),
        (OPEN, Approvals({1: "2026-02-30"}), InputError, "no date"),
        (
            OPEN,
            Approvals({1: "2030-01-01"}),
            InputError,
            "1: .* later than the freezing, 2026-11-30",
        ),
        (OPEN, Approvals({2: "1999-01-01"}), InputError, "2: .* before the protocol's own date"),
        (OPEN, Approvals(rest="20261130", by="x"), InputError, "no date"),
        (TEXT.replace("cells = 24", "cells = 25"), Approvals(), InputError, "unsound: expected"),
    ],
)
def test_what_cannot_be_frozen(
    text: str, approvals: Approvals, error: type[OpprofError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        freeze_protocol(protocol(text), approvals, date=DATE)


def test_a_layout_that_could_not_be_undone_is_refused() -> None:
    # The approvals would have to be written into an inline array.
    start = OPEN.index("[[open_decisions]]")
    inline = 'open_decisions = [{number = 1, blocking = true, text = "x"}]\n'
    text = inline + OPEN[:start]
    with pytest.raises(InputError, match=r"has no \[header\] of its own"):
        freeze_protocol(protocol(text), Approvals({1: DATE}), date=DATE)


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_any_changed_byte_is_found(made: Protocol, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(made.data) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != made.data[at]))
    tampered = made.data[:at] + bytes([byte]) + made.data[at + 1 :]
    try:
        read = parse_protocol(tampered, source="frozen.toml")
    except InputError:
        return
    with pytest.raises(OpprofError):
        require_frozen(read)


def test_a_new_seal_does_not_hide_a_changed_value(made: Protocol) -> None:
    from opprof.protocol.edit import sealed

    text = sealed(made.data.decode().replace("smd_max = 0.25", "smd_max = 0.75"))
    with pytest.raises(StateConflict, match="not the draft whose hash it names"):
        require_frozen(parse_protocol(text.encode(), source="frozen.toml"))


def test_check_says_what_is_wrong_with_a_status(made: Protocol) -> None:
    from opprof.protocol.check import check_protocol

    claimed = protocol(TEXT.replace('status = "draft"', 'status = "frozen"'))
    assert check_protocol(claimed.file) == ["freeze: a frozen protocol needs the table"]
    mixed = made.data.decode().replace('status = "frozen"', 'status = "draft"')
    assert check_protocol(protocol(mixed).file) == ["freeze: a draft has no [freeze] table"]
    opened = made.data.decode().replace('approved = "2026-07-12"\n', "", 1)
    assert check_protocol(protocol(opened).file) == [
        "open_decisions.1: not approved in a frozen protocol"
    ]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["protocol", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_freezes_checks_and_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, out = tmp_path / "draft.toml", tmp_path / "frozen.toml"
    draft.write_text(OPEN)
    words = ("freeze", str(draft), "--out", str(out), "--date", DATE)
    assert run(*words) == 2
    assert not out.exists()
    assert "decisions without approval: 1, 2, 3, 4, 5, 6" in capsys.readouterr().err
    assert run(*words, "--approve-all") == 2
    capsys.readouterr()
    capsys.readouterr()
    for by in ("R.\nViewer", "R.\udcff"):
        assert run(*words, "--approve-all", "--by", by) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()
    approve = ("--approve", "1=2026-11-01", "--approve", "2", "--approve-all", "--by", "R. Viewer")
    assert run(*words, *approve) == 0
    assert sha256_bytes(out.read_bytes()) in capsys.readouterr().out
    rows = tomllib.loads(out.read_text())["open_decisions"]
    assert [row["approved"] for row in rows] == ["2026-11-01", *[DATE] * 5]
    assert {row["approved_by"] for row in rows} == {"R. Viewer"}
    assert run("check", str(out)) == 0
    assert "sound (frozen)" in capsys.readouterr().out
    assert run("show", str(out)) == 0
    assert sha256_bytes(draft.read_bytes()) in capsys.readouterr().out
    before = out.read_bytes()
    assert run(*words, *approve) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_check_ends_with_1_for_another_installation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "frozen.toml"
    out.write_bytes(freeze_protocol(protocol(TEXT), Approvals(), date=DATE, here=HERE))
    assert run("check", str(out)) == 1
    told = capsys.readouterr().err
    for name in ("client", "plugin", "hooked functions", "mapping table v1", "mapping table v2"):
        assert name in told
    assert run("check", str(out), "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["problems"] == []
    assert len(answer["freeze_problems"]) == 5


@pytest.mark.parametrize("text", ["x", "1=2026-13-01", "=2026-01-01", "-1"])
def test_a_bad_approval_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    draft, out = tmp_path / "draft.toml", tmp_path / "frozen.toml"
    draft.write_text(OPEN)
    assert run("freeze", str(draft), "--out", str(out), f"--approve={text}") == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "Traceback" not in told
