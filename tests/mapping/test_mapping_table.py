"""Reading and proving tables: the built-in ones are sound, and each fault has one clear message."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

import pytest

from opprof.errors import InputError, SchemaError
from opprof.mapping import (
    BUILTIN_VERSIONS,
    FAMILIES,
    FAMILY_PRIORITY,
    check_table,
    load_table,
    load_table_file,
)
from opprof.mapping.check import check_loaded
from opprof.mapping.table import parse_table

TABLES = resources.files("opprof.mapping") / "tables"

SMALL = """schema = 1
version = "t"
title = "t"
provenance = "a test"

[sets]
gemm = ['gemm']

[[rules]]
id = "attention.flash"
family = "attention"
priority = 3
description = "flash"
names = ['flash']
examples = [{ name = "flash_fwd" }]

[[rules]]
id = "dense_gemm.named"
family = "dense_gemm"
priority = 6
description = "gemm"
names = ['@gemm']
examples = [{ name = "a_gemm" }]

[[unmatched]]
name = "copy"
reason = "no rule"
"""


def small(old: str = "", new: str = "") -> bytes:
    assert not old or SMALL.count(old) >= 1, f"{old!r} is not in the table"
    return SMALL.replace(old, new, 1).encode()


def messages(data: bytes) -> list[tuple[str, str | None, str]]:
    report = check_loaded(parse_table(data, source="t.toml"))
    return [(f.level, f.rule, f.message) for f in report.findings]


@pytest.mark.parametrize("version", BUILTIN_VERSIONS)
def test_a_built_in_table_is_sound_without_a_single_remark(version: str) -> None:
    report = check_table(version)
    assert report.findings == [] and report.ok
    assert report.version == version
    assert [rule.id for rule in report.rules] == [r.id for r in load_table(version).rules]
    assert all(rule.examples for rule in report.rules)
    assert {rule.family for rule in report.rules} == set(FAMILY_PRIORITY) - {"other"}


@pytest.mark.parametrize("version", BUILTIN_VERSIONS)
def test_the_hash_is_that_of_the_file(version: str) -> None:
    data = (TABLES / f"{version}.toml").read_bytes()
    assert load_table(version).sha256 == hashlib.sha256(data).hexdigest()


def test_v2_is_v1_but_for_the_nvjet_rules() -> None:
    first, second = load_table_file("v1").file, load_table_file("v2").file
    nvjet = {"moe_gemm.nvjet", "dense_gemm.nvjet"}
    assert [r for r in first.rules if r.id not in nvjet] == [
        r for r in second.rules if r.id not in nvjet
    ]
    assert {r.id for r in second.rules} - {r.id for r in first.rules} == {"dense_gemm.nvjet"}
    assert (first.sets, first.unmatched) == (second.sets, second.unmatched)
    changed = {r.id: (r.names, r.scopes) for r in second.rules if r.id in nvjet}
    assert changed == {
        "moe_gemm.nvjet": (["nvjet"], ["@moe_scope"]),
        "dense_gemm.nvjet": (["nvjet"], []),
    }


def test_families_are_the_contracts_in_order() -> None:
    assert FAMILIES == (
        "moe_router", "collective", "attention", "moe_gemm", "sampler", "dense_gemm",
        "norm_elementwise", "kv_memory", "other", "graph_replay_opaque",
    )  # fmt: skip
    assert list(FAMILY_PRIORITY.values()) == list(range(1, 10))


def test_a_table_from_a_file_is_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes((TABLES / "v1.toml").read_bytes())
    assert load_table(path).sha256 == load_table(str(path)).sha256 == load_table("v1").sha256


def test_the_small_table_is_sound() -> None:
    assert messages(small()) == []


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('family = "attention"', 'family = "attn"', ("attention.flash", "'attn'", "moe_router")),
        ('family = "attention"', 'family = "other"', ("attention.flash", "'other'")),
        ('id = "dense_gemm.named"', 'id = "attention.flash"', ("rules[1]", "duplicate id")),
        ("priority = 3", "priority = 4", ("attention.flash", "priority 4", "has 3")),
        ("names = ['flash']", "names = ['fl(ash']", ("names[0]", "bad regular expression")),
        ("names = ['flash']", "names = ['(flash)']", ("names[0]", "captures a group")),
        ("names = ['flash']", "names = ['(?i)flash']", ("names[0]", "bad regular expression")),
        ("names = ['flash']", "scopes = ['[']", ("scopes[0]", "bad regular expression")),
        ("names = ['flash']", "names = ['@nothing']", ("names[0]", "no set 'nothing'")),
        ("names = ['flash']", "", ("attention.flash", "neither names nor scopes")),
        ("gemm = ['gemm']", "gemm = []", ("sets.gemm", "empty")),
        ("gemm = ['gemm']", "gemm = ['*']", ("sets.gemm[0]", "bad regular expression")),
        ("gemm = ['gemm']", "gemm = ['@gemm']", ("sets.gemm[0]", "cannot refer")),
        ("schema = 1", "schema = 1\nschema = 1", ("not TOML", "line 2")),
        ("schema = 1", "schema = ", ("not TOML", "line 1")),
        ("names = ['flash']\n", "names = ['flash']\r\n", ("LF line ends",)),
    ],
)
def test_an_unusable_table_says_file_and_place(old: str, new: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        parse_table(small(old, new), source="t.toml")
    for part in ("t.toml:", *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('title = "t"', 'title = "t"\nauthor = "x"', "author"),
        ("names = ['flash']", "name = ['flash']", "rules[0]"),
        ("priority = 3", 'priority = "3"', "rules[0].priority"),
        ("schema = 1", "schema = 2", "schema"),
        ('id = "attention.flash"', 'id = "Flash Attention"', "rules[0].id"),
        ('{ name = "flash_fwd" }', '{ name = "" }', "examples[0].name"),
    ],
)
def test_a_table_that_does_not_fit_the_schema(old: str, new: str, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_table(small(old, new), source="t.toml")
    assert part in str(caught.value) and "t.toml" in str(caught.value)


def test_priorities_must_ascend() -> None:
    head, first, second = SMALL.split("[[rules]]")
    second, tail = second.split("[[unmatched]]")
    swapped = f"{head}[[rules]]{second}[[rules]]{first}[[unmatched]]{tail}"
    with pytest.raises(InputError, match="priority 3 after 6"):
        parse_table(swapped.encode(), source="t.toml")


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InputError, match=r"t\.toml"):
        parse_table(b'title = "\xff"', source="t.toml")


def test_a_missing_table_names_the_built_in_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="v1, v2"):
        load_table("v3")
    with pytest.raises(InputError, match=r"gone\.toml.*not found"):
        load_table(tmp_path / "gone.toml")
    with pytest.raises(InputError, match="folder"):
        load_table(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            "names = ['@gemm']",
            "names = ['flash', '@gemm']",
            ("warning", "dense_gemm.named", "pattern 'flash' has no example"),
        ),
        (
            '{ name = "flash_fwd" }',
            '{ name = "fwd" }',
            ("error", "attention.flash", "example 'fwd' reaches no rule (other)"),
        ),
        (
            '{ name = "a_gemm" }',
            '{ name = "flash_gemm" }',
            ("error", "dense_gemm.named", "is shadowed: no example reaches it"),
        ),
        (
            '[{ name = "a_gemm" }]',
            "[]",
            ("error", "dense_gemm.named", "has no example"),
        ),
        (
            'name = "copy"',
            'name = "copy_gemm"',
            ("error", "dense_gemm.named", "unmatched name 'copy_gemm' is caught as dense_gemm"),
        ),
        (
            "names = ['flash']",
            "names = ['flash', 'x*']",
            (
                "warning",
                "attention.flash",
                "pattern 'x*' matches the empty string, hence every name",
            ),
        ),
        (
            "names = ['flash']",
            "names = ['flash']\nscopes = ['moe']",
            (
                "error",
                "attention.flash",
                "scope pattern 'moe' matches 'vllm/model_executor/models/qwen3_moe.py(415): "
                "forward', which encloses every launch",
            ),
        ),
        (
            '{ name = "a_gemm" }',
            '{ name = "a_gemm" }, { name = "flash_fwd" }',
            ("error", "dense_gemm.named", "example 'flash_fwd' is also one of attention.flash"),
        ),
        ("names = ['@gemm']", "names = ['gemm']", ("warning", None, "set 'gemm' is unused")),
        (
            "gemm = ['gemm']",
            "gemm = ['gemm', 'gemv']",
            ("warning", None, "pattern 'gemv' of set 'gemm' has no example"),
        ),
    ],
)
def test_findings(old: str, new: str, finding: tuple[str, str | None, str]) -> None:
    found = messages(small(old, new))
    assert finding in found
    report = check_loaded(parse_table(small(old, new), source="t.toml"))
    assert report.ok == all(level != "error" for level, _, _ in found)
