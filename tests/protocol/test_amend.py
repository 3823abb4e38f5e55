"""Amendments: what one changes and records, the chain back to the draft, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from opprof.cli import main
from opprof.errors import InputError, OpprofError, SchemaError, StateConflict
from opprof.protocol import Protocol
from opprof.protocol.amend import Request, amend_protocol, chain_problems, undo_amendment
from opprof.protocol.diff import diff
from opprof.protocol.edit import sealed, text_of
from opprof.protocol.freeze import (
    Approvals,
    Installation,
    check_frozen,
    freeze_protocol,
    require_frozen,
)
from opprof.protocol.load import packaged_path, parse_protocol

TEXT = packaged_path().read_text()
DATE = "2026-11-30"
HERE = Installation("1", "1" * 64, "2" * 64, "3" * 64, "4" * 64, {"v1": "5" * 64, "v2": "6" * 64})


def frozen(text: str = TEXT) -> Protocol:
    draft = parse_protocol(text.encode(), source="draft.toml")
    data = freeze_protocol(draft, Approvals(), date=DATE, here=HERE)
    return parse_protocol(data, source="frozen.toml")


def amended(
    base: Protocol, *pairs: tuple[str, str], here: Installation = HERE, **changes: Any
) -> Protocol:
    request = Request("A-X-1", f"title {len(base.file.amendments)}", "a reason", DATE, pairs)
    data = amend_protocol(base, dataclasses.replace(request, **changes), here=here)
    return parse_protocol(data, source="amended.toml")


@pytest.fixture(scope="module")
def base() -> Protocol:
    return frozen()


def test_an_amendment_sets_its_key_and_records_both_values(base: Protocol) -> None:
    made = amended(base, ("patterns.P10.drain_budget_s", "720.50"), rejudge=True)
    row = made.pattern("P10")
    assert row is not None and row.drain_budget_s == 720.5
    record = made.file.amendments[-1]
    assert (record.id, record.date, record.reason) == ("A-X-1", DATE, "a reason")
    assert record.rejudge
    assert record.previous_sha256 == base.sha256
    assert record.changes == ["patterns.P10.drain_budget_s"]
    assert [(v.key, v.old, v.new) for v in record.values] == [(record.changes[0], 600, 720.5)]
    assert "drain_budget_s = 720.50   # A-P3-5, drain quarantine" in made.data.decode()
    assert made.file.amendments[:-1] == base.file.amendments
    require_frozen(made, here=HERE)


LINE = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "patterns.P10.drain_budget_s": st.integers(1, 1800),
    "patterns.P02.warmup_rule": st.just("completions_or_stabilized"),
    "gates.warmup_completions_min": st.integers(0, 500).filter(lambda v: v != 32),
    "gates.warmup_stabilized_drift_max": st.floats(0.11, 4.0),
    "h1b.thresholds.R64": st.floats(0.2, 4.0),
    "pinned.hardware": LINE.filter(lambda v: v != "NVIDIA H20"),
    "configs.C10.purpose": LINE,
    "budget.public_bytes_max": st.integers(4_000_000_000, 1 << 40),
    "mapping.alternatives": st.just([]),
    "ranking.other_may_be_top": st.just(True),
    "representativeness.features": st.just(["decode_batch"]),
    "partial_matrix.h1a_patterns": st.just(["P01", "P02"]),
}


def value_at(protocol: Protocol, key: str) -> Any:
    tree = msgspec.to_builtins(protocol.file)
    for name in key.split("."):
        rows = isinstance(tree, list)
        tree = next(row for row in tree if row["id"] == name) if rows else tree[name]
    return tree


# A failing chain is not shrunk: every example parses the file a dozen times.
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_the_difference_is_exactly_what_was_set(base: Protocol, data: st.DataObject) -> None:
    chain = [base]
    wanted: dict[str, Any] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        keys = data.draw(st.sets(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=4))
        new = {key: data.draw(CHOICES[key]) for key in sorted(keys)}
        changed = {k: v for k, v in new.items() if v != value_at(chain[-1], k)}
        if changed:
            pairs = [(key, text_of(value)) for key, value in changed.items()]
            chain.append(amended(chain[-1], *pairs))
            found = {change.key: change.new for change in diff(chain[-2].file, chain[-1].file)}
            assert found == changed
            wanted |= changed
    assert chain_problems(chain[-1]) == []
    said = {change.key: change.new for change in diff(base.file, chain[-1].file)}
    assert said == {k: v for k, v in wanted.items() if v != value_at(base, k)}
    for before, after in pairwise(chain):
        assert undo_amendment(after.data, before.sha256) == before.data


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_any_changed_byte_of_a_chain_is_found(twice: Protocol, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(twice.data) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != twice.data[at]))
    try:
        read = parse_protocol(
            twice.data[:at] + bytes([byte]) + twice.data[at + 1 :], source="twice.toml"
        )
    except InputError:
        return
    assert read.file.freeze is None or check_frozen(read, here=HERE)


@pytest.fixture(scope="module")
def twice(base: Protocol) -> Protocol:
    once = amended(base, ("gates.classifiable_min", "0.75"))
    return amended(once, ("gates.classifiable_min", "0.80"), ("pinned.hardware", "NVIDIA H200"))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("smd_max = 0.25", "smd_max = 0.75", "it is not the file it amended"),
        ("classifiable_min = 0.80", "classifiable_min = 0.90", "not what the last amendment made"),
        ("new = 0.75 },", "new = 0.76 },", "it is not the file it amended"),
        ("# Keys end in their unit.", "# Keys end somewhere.", "it is not the file it amended"),
    ],
)
def test_a_new_seal_does_not_hide_what_no_amendment_says(
    twice: Protocol, old: str, new: str, problem: str
) -> None:
    assert twice.data.decode().count(old) == 1
    text = sealed(twice.data.decode().replace(old, new))
    [found] = chain_problems(parse_protocol(text.encode(), source="x.toml"))
    assert problem in found


def test_a_key_that_was_absent_is_added_and_undone(base: Protocol) -> None:
    head, _, tail = TEXT.partition("[partial_matrix]")
    without = frozen(head + tail[tail.index("# ---") :])
    table = (
        "{measured_runs = 40, incomplete_cells = [], h1a_patterns = ['P01'], "
        "not_evaluable_contrasts = []}"
    )
    made = amended(without, ("partial_matrix", table))
    assert made.file.partial_matrix is not None
    assert made.file.amendments[-1].values[0].old is None
    assert chain_problems(made) == []
    assert undo_amendment(made.data, without.sha256) == without.data


def test_the_first_amendment_of_a_protocol_that_had_none(base: Protocol) -> None:
    start, end = TEXT.index("[[amendments]]"), TEXT.index("[partial_matrix]")
    for head in ("", "amendments = []\n"):
        plain = frozen(head + TEXT[:start] + TEXT[end:])
        assert plain.file.amendments == []
        first = amended(plain, ("gates.classifiable_min", "0.75"))
        second = amended(first, ("gates.classifiable_min", "0.8"))
        assert [row.title for row in second.file.amendments] == ["title 0", "title 1"]
        assert chain_problems(second) == []


def test_a_named_mapping_table_is_bound_with_its_hash(base: Protocol) -> None:
    here = dataclasses.replace(HERE, mappings={"v2": "6" * 64})
    made = amended(base, ("mapping.alternatives", "[]"), here=here)
    assert made.file.freeze is not None
    assert made.file.freeze.mappings == {"v2": "6" * 64}
    assert made.file.amendments[-1].changes == ["mapping.alternatives", "freeze.mappings"]
    assert check_frozen(made, here=here) == []


def test_another_installation_needs_to_be_recorded(base: Protocol) -> None:
    other = dataclasses.replace(HERE, client_sha256="9" * 64, code_sha256="8" * 64)
    with pytest.raises(
        StateConflict, match=r"the client is not the one that was frozen.*--refresh"
    ):
        amended(base, ("gates.classifiable_min", "0.75"), here=other)
    made = amended(base, here=other, refresh=True)
    assert diff(base.file, made.file) == []
    assert made.file.amendments[-1].changes == ["freeze.code_sha256", "freeze.client_sha256"]
    require_frozen(made, here=other)
    with pytest.raises(StateConflict, match="the client"):
        require_frozen(made, here=HERE)
    assert chain_problems(made) == []


@pytest.mark.parametrize(
    ("pairs", "error", "reason"),
    [
        ([("nope.x", "1")], InputError, "a protocol has no 'nope'"),
        ([("gates.nope", "1")], SchemaError, "^unknown key 'gates.nope': gates has no 'nope'$"),
        (
            [("patterns.P01.nope", "1")],
            SchemaError,
            "^unknown key 'patterns.P01.nope': patterns.P01 has no 'nope'$",
        ),
        ([("h1b.limits.R64", "1")], InputError, "no table 'h1b.limits'"),
        ([("gates.warmup_completions_min.x", "1")], InputError, "is no table"),
        ([("patterns.P99.arrival", "steady")], InputError, "with an ID of: P01, P02"),
        ([("patterns.P01", "1")], InputError, "with an ID of: P01, P02"),
        (
            [("gates.warmup_completions_min", "many")],
            SchemaError,
            "^with these values the protocol is unusable: .* Expected `int`, got `str`",
        ),
        ([("gates.warmup_completions_min", "-1")], SchemaError, "Expected `int` >= 0"),
        ([("patterns.P01.arrival", "burst")], SchemaError, "matching regex"),
        ([("gates.warmup_completions_min", "32")], InputError, "is 32 already"),
        ([("gates.classifiable_min", "0.7")], InputError, "is 0.70 already"),
        ([("status", "draft")], InputError, "status cannot be amended"),
        ([("freeze.seal", "0" * 64)], InputError, "freeze.seal cannot be amended"),
        ([("open_decisions.1.approved", DATE)], InputError, "cannot be amended"),
        ([("gates.classifiable_min", "0.8")] * 2, InputError, "is set twice"),
        ([], InputError, "changes at least one key"),
        ([("expected.cells", "25")], InputError, "unsound when amended: expected.cells"),
        ([("mapping.pinned", "v1")], InputError, "is the pinned table itself"),
    ],
)
def test_what_cannot_be_amended(
    base: Protocol, pairs: list[tuple[str, str]], error: type[OpprofError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        amended(base, *pairs)


def test_a_draft_and_a_tampered_file_cannot_be_amended(base: Protocol) -> None:
    draft = parse_protocol(TEXT.encode(), source="draft.toml")
    with pytest.raises(StateConflict, match="is a draft"):
        amended(draft, ("gates.classifiable_min", "0.8"))
    touched = base.data.replace(b"smd_max = 0.25", b"smd_max = 0.75")
    with pytest.raises(StateConflict, match="its seal does not fit"):
        amended(parse_protocol(touched, source="x.toml"), ("gates.classifiable_min", "0.8"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "A-P3-5", "title": "drain quarantine"}, "is there already"),
        ({"date": "2026-11-29"}, "before the last change, 2026-11-30"),
        ({"date": "yesterday"}, "is no date"),
        ({"reason": " "}, "needs a reason"),
        ({"title": ""}, "needs a title"),
    ],
)
def test_what_an_amendment_must_say(base: Protocol, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        amended(base, ("gates.classifiable_min", "0.8"), **changes)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["protocol", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "frozen.toml", tmp_path / "amended.toml"
    assert run("freeze", "phase3", "--out", str(first), "--date", DATE) == 0
    words = ["amend", str(first), "--id", "A-X-1", "--title", "t", "--reason", "r", "--date", DATE]
    words += ["--out", str(second)]
    assert run(*words, "--set", "gates.nope=1") == 2
    assert not second.exists()
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "Traceback" not in told
    assert run(*words, "--set", "gates") == 2
    for flag, text in (("--id", "X\nY"), ("--title", "t\udcff"), ("--reason", "r\x1b[31m")):
        capsys.readouterr()
        assert run(*words, "--set", "patterns.P10.drain_budget_s=700", flag, text) == 2
        told = capsys.readouterr().err
        assert f"{flag} " in told and "which no record can hold" in told and told.count("\n") == 1
    assert run(*words, "--set", "configs.C10.purpose=p\udcff") == 2
    assert "no UTF-8" in capsys.readouterr().err
    assert not second.exists()
    assert run(*words, "--set", "patterns.P10.drain_budget_s=700", "--rejudge") == 0
    assert run("check", str(second)) == 0
    capsys.readouterr()
    assert run("diff", str(first), str(second), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    [change] = answer["changes"]
    assert (change["key"], change["old"], change["new"]) == (
        "patterns.P10.drain_budget_s",
        600,
        700,
    )
    assert {pattern for pattern, _ in change["cells"]} == {"P10"}
    assert change["rejudgeable"]
    assert run("diff", str(first), str(second)) == 0
    shown = capsys.readouterr().out
    assert "amendment added: 2026-11-30 A-X-1 t: r" in shown
    assert run("diff", str(second), str(second)) == 0
    assert "say the same" in capsys.readouterr().out
    before = second.read_bytes()
    assert run(*words, "--set", "patterns.P10.drain_budget_s=800") == 2
    assert second.read_bytes() == before
