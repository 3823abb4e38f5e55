"""Writing and reading: whole or not at all, lazily, and never with the wrong bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from workload_helpers import make_spec

from opprof.artifacts.run import ManifestSummary
from opprof.errors import EnvironmentFailure, InputError, SchemaError, StateConflict
from opprof.workload.materialize import materialize_synthetic
from opprof.workload.read import Manifest, open_manifest
from opprof.workload.tokenizer import Vocabulary
from opprof.workload.write import index_path, summary_path


@pytest.fixture
def path(tmp_path: Path, vocabulary: Vocabulary) -> Path:
    out = tmp_path / "T01.jsonl"
    materialize_synthetic(make_spec(arrival="burst:8"), vocabulary, out)
    return out


def rows(manifest: Manifest) -> list[tuple[str, object, int, int]]:
    requests = [manifest.request(i) for i in range(len(manifest))]
    return [(r.id, json.loads(r.prompt_json), r.input_tokens, r.output_tokens) for r in requests]


def expected(path: Path) -> list[tuple[str, object, int, int]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(x["id"], x["prompt_token_ids"], x["input_tokens"], x["output_tokens"]) for x in lines]


def test_names_beside_the_manifest() -> None:
    assert summary_path(Path("a/P03.jsonl")) == Path("a/P03.manifest.sha256")
    assert index_path(Path("a/P03.jsonl")) == Path("a/P03.manifest.index")
    assert summary_path(Path("P03.json")) != summary_path(Path("P03.jsonl"))


@pytest.mark.parametrize("without", [(), ("index",), ("summary",), ("index", "summary")])
@pytest.mark.parametrize("verify", [True, False])
def test_all_ways_of_opening_give_the_same(
    path: Path, without: tuple[str, ...], verify: bool
) -> None:
    for kind, beside in (("index", index_path(path)), ("summary", summary_path(path))):
        if kind in without:
            beside.unlink()
    with open_manifest(path, verify=verify) as manifest:
        assert rows(manifest) == expected(path)
        assert manifest.arrival == "burst:8"
        assert manifest.pattern == "T01"
        assert len(manifest) == 40
        assert manifest.summary.input_tokens.sum == sum(manifest.input_tokens)
        assert manifest.summary.sha256 == manifest.sha256
        assert list(manifest.output_tokens) == [8] * 40


def test_a_manifest_never_wraps(path: Path) -> None:
    with open_manifest(path, verify=True) as manifest:
        for index in (40, -1):
            with pytest.raises(IndexError):
                manifest.request(index)


def test_a_changed_manifest_is_found(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"[") + 1
    changed = data[:at] + (b"1" if data[at : at + 1] != b"1" else b"2") + data[at + 1 :]
    path.write_bytes(changed)
    with pytest.raises(InputError, match="changed since its hash was written"):
        open_manifest(path, verify=True)
    index_path(path).unlink()
    with pytest.raises(InputError, match="changed since its hash was written"):
        open_manifest(path, verify=False)


def test_a_cut_manifest_is_found_without_reading_it(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(InputError, match="bytes, but had"):
        open_manifest(path, verify=False)


def test_a_manifest_that_changes_while_it_is_open_is_found(path: Path) -> None:
    with open_manifest(path, verify=True) as manifest:
        path.write_bytes(b"x" * 300)
        with pytest.raises(InputError, match="changed while it was in use"):
            manifest.request(0)
        with pytest.raises(InputError, match="changed while it was in use"):
            manifest.request(39)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 500])
def test_a_damaged_or_foreign_index_is_not_used(path: Path, damage: bytes) -> None:
    index_path(path).write_bytes(damage)
    with open_manifest(path, verify=False) as manifest:
        assert rows(manifest) == expected(path)


def test_the_index_of_another_manifest_is_not_used(
    path: Path, tmp_path: Path, vocabulary: Vocabulary
) -> None:
    other = tmp_path / "T02.jsonl"
    materialize_synthetic(make_spec(seed=1), vocabulary, other)
    index_path(path).write_bytes(index_path(other).read_bytes())
    with open_manifest(path, verify=False) as manifest:
        assert rows(manifest) == expected(path)


GOOD = (
    '{"id":"a","prompt_token_ids":[1,2],"input_tokens":2,"output_tokens":3,'
    '"arrival":"steady","pattern":"X"}\n'
)


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD + GOOD.replace('"id":"a"', '"id":"b"').replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (GOOD + GOOD, 2, "the id 'a' occurs twice"),
        (change('"input_tokens":2', '"input_tokens":3'), 2, "but there are 2 token ids"),
        (change("[1,2]", "[1,-2]"), 2, "unusable prompt"),
        (change("[1,2]", "[1,2.5]"), 2, "unusable prompt"),
        (change("[1,2]", '"text"'), 2, "unusable prompt"),
        (change("[1,2]", "null"), 2, "unusable prompt"),
        (change('"prompt_token_ids":[1,2],', ""), 2, "exactly one of"),
        (change("[1,2]", '[1,2],"prompt":"x"'), 2, "exactly one of"),
        (change('"prompt_token_ids":[1,2]', '"prompt":"x"'), 2, "in one manifest"),
        (change('"prompt_token_ids":[1,2]', '"prompt":7'), 2, "unusable prompt"),
        (change('"output_tokens":3', '"output_tokens":0'), 2, "no manifest line"),
        (change('"output_tokens":3', '"output_tokens":"3"'), 2, "no manifest line"),
        (change('"pattern":"X"', '"pattern":"Y"'), 2, "pattern is 'Y', but 'X' on line 1"),
        (change('"steady"', '"burst:8"'), 2, "arrival is 'burst:8'"),
        (change('"steady"', '"poisson"'), 2, "no manifest line"),
        (change('"pattern":"X"', '"pattern":"X","more":1'), 2, "unknown field `more`"),
        (GOOD + GOOD[:40], 2, "the line is cut short"),
        (GOOD + "\n" + GOOD, 2, "truncated"),
        ('{"prompt_token_ids":' + "[" * 100_000 + "\n", 1, "nested too deeply"),
        ("", None, "no request"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, line: int | None, reason: str) -> None:
    path = tmp_path / "X.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        open_manifest(path, verify=True)
    assert caught.value.line == line
    assert caught.value.path == str(path)


def test_lines_of_others_may_be_written_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "X.jsonl"
    path.write_text(
        '{ "pattern" : "[1, 2]", "prompt_token_ids": [1, 2] , "id": 7, "input_tokens": 2,'
        ' "arrival": "steady", "output_tokens": 3 }\n'
        '{"id":"prompt","pattern":"[1, 2]","arrival":"steady","input_tokens":1,'
        '"output_tokens":1,"prompt_token_ids":[5]}'
    )
    with open_manifest(path, verify=True) as manifest:
        assert rows(manifest) == [("7", [1, 2], 2, 3), ("prompt", [5], 1, 1)]
        assert manifest.summary.prefix == "undeclared"


def test_text_lines_are_read_and_taken_as_private(tmp_path: Path) -> None:
    path = tmp_path / "X.jsonl"
    path.write_text(GOOD.replace('"prompt_token_ids":[1,2]', '"prompt":"a \\"b\\" \\u00e9"'))
    with open_manifest(path, verify=True) as manifest:
        assert json.loads(manifest.request(0).prompt_json) == 'a "b" é'
        assert manifest.summary.private


def test_a_broken_summary_is_refused(path: Path) -> None:
    summary_path(path).write_text("{}")
    with pytest.raises(SchemaError, match="no manifest summary"):
        open_manifest(path, verify=True)


def test_a_missing_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file not found"):
        open_manifest(tmp_path / "none.jsonl", verify=True)
    with pytest.raises(InputError, match="no regular file"):
        open_manifest(tmp_path, verify=True)


def test_the_same_manifest_may_be_written_again(path: Path, vocabulary: Vocabulary) -> None:
    before = path.read_bytes()
    index_path(path).unlink()
    materialize_synthetic(make_spec(arrival="burst:8"), vocabulary, path)
    assert path.read_bytes() == before
    assert index_path(path).exists()


def test_another_manifest_is_never_written_over(path: Path, vocabulary: Vocabulary) -> None:
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    with pytest.raises(StateConflict, match="manifests are immutable"):
        materialize_synthetic(make_spec(seed=1), vocabulary, path)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


def test_the_summary_file_is_the_artefact(path: Path) -> None:
    summary = msgspec.json.decode(summary_path(path).read_bytes(), type=ManifestSummary)
    assert summary.pattern == "T01"
    assert summary.sha256 == open_manifest(path, verify=True).sha256


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, tokenizer: Path) -> None:
    # A limit on file size stands in for the full disk: the write fails half-way all the same.
    script = """
        import resource, sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        from workload_helpers import make_spec
        from opprof.errors import EnvironmentFailure
        from opprof.workload.materialize import materialize_synthetic
        from opprof.workload.tokenizer import load_vocabulary
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            spec = make_spec(num_requests=4_000)
            materialize_synthetic(spec, load_vocabulary(Path(sys.argv[2])), Path(sys.argv[3]))
        except EnvironmentFailure as error:
            print(error)
            sys.exit(error.exit_code)
    """
    out = tmp_path / "manifests" / "T01.jsonl"
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), here, str(tokenizer), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "cannot write: File too large" in done.stdout
    assert list(out.parent.iterdir()) == []


def test_an_unwritable_place_is_an_environment_failure(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EnvironmentFailure, match="cannot write"):
        materialize_synthetic(make_spec(), vocabulary, blocked / "T01.jsonl")


def test_the_reader_needs_no_numpy(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from opprof.workload.read import open_manifest;"
        "m = open_manifest(Path(sys.argv[1]), verify=True); m.request(3);"
        "sys.exit('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == 0


def test_memory_does_not_grow_with_the_manifest(tmp_path: Path, tokenizer: Path) -> None:
    # 3 million tokens would take 24 MB as one array and 250 MB as Python lists.
    code = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from workload_helpers import make_spec\n"
        "from opprof.workload.materialize import materialize_synthetic as run\n"
        "from opprof.workload.tokenizer import load_vocabulary\n"
        "words, out = load_vocabulary(Path(sys.argv[2])), Path(sys.argv[3])\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "run(make_spec(input_fixed=1000, num_requests=300), words, out / 'a.jsonl')\n"
        "small = peak()\n"
        "run(make_spec(input_fixed=1000, num_requests=3000), words, out / 'b.jsonl')\n"
        "print((peak() - small) // 1024)\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, here, str(tokenizer), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 8
