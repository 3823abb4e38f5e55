"""The protocol file: the specification's numbers, its checks, and unusable files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opprof.errors import InputError, SchemaError
from opprof.files import sha256_file
from opprof.protocol import Protocol, expand, load_protocol
from opprof.protocol.check import check_protocol
from opprof.protocol.design import cells, design, execution_order
from opprof.protocol.load import packaged_path, parse_protocol

TEXT = packaged_path().read_bytes()


@pytest.fixture(scope="module")
def phase3() -> Protocol:
    protocol = load_protocol("phase3")
    assert protocol is not None
    return protocol


def edited(old: str, new: str) -> Protocol:
    data = TEXT.decode()
    assert data.count(old) >= 1, f"{old!r} is not in the protocol"
    return parse_protocol(data.replace(old, new, 1).encode(), source="edited.toml")


def test_the_specification_arithmetic_is_reproduced(phase3: Protocol) -> None:
    numbers = design(phase3.file)
    assert (numbers.patterns, numbers.configs, numbers.cells, numbers.tp1_cells) == (11, 5, 24, 23)
    assert (numbers.primary_runs, numbers.confirmation_runs, numbers.measured_runs) == (48, 4, 52)
    assert (numbers.windows, numbers.active_iterations, numbers.trace_files) == (96, 768, 100)
    assert (numbers.clean_s_per_run, numbers.primary_run_s) == (240, 488)
    assert round(numbers.wall_hours, 1) == 7.1
    assert numbers.gpu_hours == pytest.approx(7.5, abs=0.1)


def test_the_packaged_protocol_is_sound_and_hashed_by_its_bytes(phase3: Protocol) -> None:
    assert check_protocol(phase3.file) == []
    assert phase3.sha256 == sha256_file(packaged_path())


def test_cells_are_the_sparse_design(phase3: Protocol) -> None:
    chosen = cells(phase3.file)
    per_pattern = {p: [c for q, c in chosen if q == p] for p, _ in chosen}
    assert per_pattern["P02"] == ["C00"]
    assert per_pattern["P03"] == ["C00", "C10", "C01", "C11"]
    assert per_pattern["P10"] == ["C00", "C10", "C01", "C11", "C00-TP2"]


def test_execution_order_is_the_hash_order(phase3: Protocol) -> None:
    # Worked out with `printf '20260713:P08:C00' | sha256sum` over all 24 cells.
    order = execution_order(phase3.file)
    assert order[:3] == [("P08", "C00"), ("P03", "C10"), ("P07", "C00")]
    assert sorted(order) == sorted(cells(phase3.file))


def test_drain_classes_are_those_of_the_last_amendment(phase3: Protocol) -> None:
    budgets = {row.id: row.drain_budget_s for row in phase3.file.patterns}
    assert {p for p, s in budgets.items() if s == 240} == {"P04", "P06", "P07", "P08", "P11"}
    assert {p for p, s in budgets.items() if s == 600} == {"P10"}
    assert {p for p, s in budgets.items() if s == 120} == {"P01", "P02", "P03", "P05", "P09"}


def test_amendments_are_keyed_by_id_and_title(phase3: Protocol) -> None:
    keys = [(row.id, row.title) for row in phase3.file.amendments]
    assert len(set(keys)) == len(keys) == 8
    assert [i for i, _ in keys].count("A-P3-5") == 2


def test_contrasts_and_thresholds(phase3: Protocol) -> None:
    assert len(phase3.file.h1b.contrasts) == 8
    assert phase3.file.h1b.thresholds["R64"] == 0.15
    assert phase3.file.layer2.active_steps == tuple(range(2, 10))


def test_none_binds_nothing() -> None:
    assert load_protocol("none") is None


def test_the_environment_names_the_protocol(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(TEXT.replace(b'id = "phase3"', b'id = "mine"'))
    monkeypatch.setenv("OPPROF_PROTOCOL", str(path))
    protocol = load_protocol()
    assert protocol is not None
    assert protocol.file.id == "mine"


@pytest.mark.parametrize(
    ("old", "new", "line_text", "reason"),
    [
        ("tie_share = 0.01", 'tie_share = "x"', "tie_share", "Expected `float`"),
        ("tie_share = 0.01", "", "[ranking]", "missing required field `tie_share`"),
        ("[ranking]", "[ranking]\nfoo = 1", "foo", "unknown field `foo`"),
        ("smd_max = 0.25", "smd_max = -1.0", "smd_max", "Expected `float` >= 0"),
        ('arrival = "burst:8"', 'arrival = "burst"', "arrival", "matching regex"),
        ('prefix = "high"', 'prefix = "pool"', "prefix", "(one of 'high', 'natural', 'none')"),
        ("ddof = 1", "ddof = 2", "ddof", "(one of 0, 1)"),
        ('"share_FULL"', '"share_full"', "features", "'share_FULL', 'share_NONE'"),
    ],
)
def test_a_bad_key_is_named_with_its_line(old: str, new: str, line_text: str, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        edited(old, new)
    assert reason in str(caught.value)
    text = TEXT.decode().replace(old, new, 1).splitlines()
    assert caught.value.line is not None
    assert text[caught.value.line - 1].startswith(line_text)


def test_broken_toml_names_the_line() -> None:
    with pytest.raises(InputError, match="not TOML") as caught:
        edited("[ranking]", "[ranking")
    assert caught.value.line == TEXT.decode().splitlines().index("[ranking]") + 1


def test_bytes_that_are_no_text_name_the_offset() -> None:
    with pytest.raises(InputError) as caught:
        parse_protocol(b"schema = 1\n\xff", source="bad.toml")
    assert caught.value.offset == 11


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("cells = 24", "cells = 25", "expected.cells: 25 declared, 24 computed"),
        ('id = "P02"', 'id = "P01"', "patterns.id: 'P01' occurs twice"),
        ('pattern = "P06"', 'pattern = "P66"', "burnin.pattern: no pattern is called 'P66'"),
        ('alternatives = ["v1"]', 'alternatives = ["v2"]', "is the pinned table itself"),
        ("gpu_hours_estimate = 7.5", "gpu_hours_estimate = 9.0", "9.0 declared, 7.43 computed"),
        ('"20-39", ', "", "placement.cpu_map: 7 entries for 8 GPUs"),
        ("CV_moe = 0.15", "CV_mo = 0.15", "no metric is called 'CV_mo'"),
        ("${PRIVATE}/P01.jsonl", "${PRIVAT}/P01.jsonl", "${PRIVAT} is used but not declared"),
    ],
)
def test_every_inconsistency_is_one_sentence(old: str, new: str, problem: str) -> None:
    assert any(problem in text for text in check_protocol(edited(old, new).file))


def test_every_threshold_is_required(phase3: Protocol) -> None:
    # No decision threshold may come from code: dropping any single gate is refused.
    tree = msgspec.to_builtins(phase3.file)
    for table in ("gates", "representativeness", "ranking", "waste", "statistics", "layer2"):
        # A list of further requirements is no threshold: without it nothing more is required.
        for key in tree[table].keys() - {"modes_required"}:
            cut = {**tree, table: {k: v for k, v in tree[table].items() if k != key}}
            with pytest.raises(msgspec.ValidationError, match=f"required field `{key}`"):
                msgspec.convert(cut, type(phase3.file))


def test_variables_are_expanded_or_refused() -> None:
    assert expand("--out ${PRIVATE}/x", {"PRIVATE": "p"}) == "--out p/x"
    with pytest.raises(InputError, match=r"no value for the variable \$\{PRIVATE\}"):
        expand("${PRIVATE}", {})


@pytest.mark.parametrize("number", ["1e308", "inf", "nan", "99999999999999999999"])
def test_a_number_that_no_record_holds_has_its_line(number: str) -> None:
    with pytest.raises(SchemaError, match=r"edited.toml:\d+: .* at `\$\.statistics\.block_s`"):
        edited("\nblock_s = ", f"\nblock_s = {number} # ")
