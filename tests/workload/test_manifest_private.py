"""The private anchor: selection, parity, permissions, and not a word of a prompt anywhere else."""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opprof.cli.materialize import materialize_private
from opprof.errors import InputError, IntegrityError, OpprofError, SchemaError, StateConflict
from opprof.files import sha256_file
from opprof.workload.privacy import private_folder, readable_by_others
from opprof.workload.private import PrivateSpec, materialize_trace, measure_parity
from opprof.workload.read import open_manifest
from opprof.workload.write import index_path, summary_path

pytest.importorskip("tokenizers")
SECRET = "zqsecretword"


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def count(texts: Any) -> list[int]:
    """A tokenizer of one token a character."""
    return [len(text) for text in texts]


def row(number: int, **changes: Any) -> dict[str, Any]:
    prompt = f'{SECRET} {number} \n\t"quoted" é 😀 \u2028 end'
    values = {
        "chat_id": number,
        "sampling_u": (number % 8) / 8,
        "input_length": len(prompt),
        "output_length": 100 + number,
        "prompt": prompt,
        "other": {"messages": [SECRET]},
    }
    return {**values, **changes}


def write_source(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "source.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    path.chmod(0o600)
    return path


def make_spec(**changes: Any) -> PrivateSpec:
    values: dict[str, Any] = {
        "pattern": "P10",
        "sampling_u_max": 0.125,
        "max_input_tokens": 32_768,
        "output_cap": 256,
        "arrival": "steady",
        "tokenizer_exact_min": 0.99,
        "tokenizer_error_max_tokens": 1,
    }
    return PrivateSpec(**{**values, **changes})


def run(tmp_path: Path, rows: list[dict[str, Any]], **changes: Any) -> Path:
    out = tmp_path / "private" / "P10.jsonl"
    source = write_source(tmp_path, rows)
    materialize_trace(make_spec(**changes), source, count, "0" * 64, out)
    return out


def test_rows_are_selected_in_order_capped_and_kept_to_the_letter(tmp_path: Path) -> None:
    source = [row(i) for i in range(400)]
    source[1]["input_length"] = 32_769
    out = run(tmp_path, source)
    chosen = [r for i, r in enumerate(source) if i % 8 <= 1 and i != 1]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [r["prompt"] for r in chosen]
    assert [line["input_tokens"] for line in lines] == [r["input_length"] for r in chosen]
    assert [line["output_tokens"] for line in lines] == [
        min(r["output_length"], 256) for r in chosen
    ]
    assert {frozenset(line) for line in lines} == {
        frozenset({"id", "prompt", "input_tokens", "output_tokens", "arrival", "pattern"})
    }
    with open_manifest(out, verify=True) as manifest:
        assert json.loads(manifest.request(0).prompt_json) == chosen[0]["prompt"]
        assert SECRET not in repr(manifest.request(0))
        assert manifest.summary.private
        assert manifest.summary.prefix == "natural"
        assert manifest.summary.generator["source_rows"] == 400
        assert manifest.summary.generator["selected_rows"] == len(chosen) == 99
        assert manifest.summary.generator["source_sha256"] == sha256_file(tmp_path / "source.jsonl")


def test_an_escaped_prompt_keeps_its_very_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    literal = r'"\u0041\/\ud83d\ude00"'
    source.write_text(
        f'{{"sampling_u":0,"input_length":3,"output_length":5,"prompt": {literal} }}\n'
    )
    out = tmp_path / "private" / "P10.jsonl"
    materialize_trace(make_spec(), source, count, "0" * 64, out)
    with open_manifest(out, verify=True) as manifest:
        assert manifest.request(0).prompt_json == literal.encode()


def test_folder_and_files_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    for umask, name in ((0o000, "a"), (0o277, "b")):
        os.umask(umask)
        source = tmp_path / f"{name}.jsonl"
        source.write_text(json.dumps(row(0)) + "\n")
        source.chmod(0o600)
        out = tmp_path / name / "deep" / "P10.jsonl"
        materialize_trace(make_spec(), source, count, "0" * 64, out)
        for folder in (out.parent, out.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in (out, index_path(out), summary_path(out)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not readable_by_others(out)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o701, 0o707])
def test_an_open_folder_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(InputError, match=r"must be 0700"):
        private_folder(folder)


def test_a_git_checkout_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "checkout" / "deep" / "private"
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / ".git").write_text("gitdir: elsewhere")
    with pytest.raises(InputError, match="git checkout"):
        private_folder(inside)
    assert not inside.exists()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "checkout")
    with pytest.raises(InputError, match="git checkout"):
        private_folder(link / "private")


@pytest.mark.parametrize(
    "made",
    ["client/", "opprof/", "traces/", "analysis/", "manifest.sha256", "client/timeline.json"],
)
@pytest.mark.parametrize("below", ["", "client"])
def test_a_run_directory_is_refused(tmp_path: Path, made: str, below: str) -> None:
    folder = tmp_path / "run"
    place = folder / made
    (place if made.endswith("/") else place.parent).mkdir(parents=True)
    if not made.endswith("/"):
        place.write_text("")
    with pytest.raises(InputError, match="run directory"):
        private_folder(folder / below)


def test_far_below_a_run_directory_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "run" / "opprof").mkdir(parents=True)
    (tmp_path / "run" / "client").mkdir()
    with pytest.raises(InputError, match="run directory"):
        private_folder(tmp_path / "run" / "a" / "b")


def test_a_home_with_a_folder_of_that_name_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "opprof").mkdir()
    assert private_folder(tmp_path / "private") == (tmp_path / "private").resolve()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="this is none"):
        private_folder(tmp_path / "file")


def inexact(rows: int, errors: list[int]) -> list[dict[str, Any]]:
    source = [row(0) for _ in range(rows)]
    for index, error in enumerate(errors):
        source[index]["input_length"] += error
    return source


def test_parity_passes_at_its_limits(tmp_path: Path) -> None:
    out = run(tmp_path, inexact(200, [1, -1]))
    with open_manifest(out, verify=True) as manifest:
        generator = manifest.summary.generator
        assert (generator["tokenizer_exact_rows"], generator["tokenizer_inexact_rows"]) == (198, 2)
        # What the server must report is the pinned tokenizer's count, not the observation.
        assert len(set(manifest.input_tokens)) == 1
        assert generator["observed_input_tokens"]["distinct"] == 3


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([1, 1, 1], "197 of 200 rows have the exact length, 99.00% must"),
        ([2], "1 of 200 rows differ by more than 1 tokens .largest difference 2."),
        ([-9, 5], "2 of 200 rows differ"),
    ],
)
def test_parity_fails_with_counts_and_without_text(
    tmp_path: Path, errors: list[int], reason: str
) -> None:
    with pytest.raises(IntegrityError, match=reason) as caught:
        run(tmp_path, inexact(200, errors))
    assert SECRET not in str(caught.value)
    assert list((tmp_path / "private").iterdir()) == []


def test_parity_counts() -> None:
    parity = measure_parity(array("q", [5, 5, 5, 5]), array("q", [5, 4, 6, 9]), limit=1)
    assert (parity.rows, parity.exact, parity.within_limit) == (4, 1, 2)
    assert (parity.beyond_limit, parity.max_error_tokens) == (1, 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": None}, "prompt is not a string .no text."),
        ({"prompt": 5}, "prompt is not a string .no text."),
        ({"prompt": [{"role": "user", "content": SECRET}]}, "prompt is not a string .messages."),
        ({"prompt": None, "messages": [SECRET]}, "prompt is not a string .messages."),
        ({"sampling_u": "0.1"}, "no source row"),
        ({"sampling_u": -0.5}, "sampling_u is outside"),
        ({"input_length": 12.5}, "no source row"),
        ({"input_length": -1}, "no source row"),
        ({"input_length": 0}, "input_length 0"),
        ({"output_length": 0}, "output_length 0"),
        ({"prompt": "", "input_length": 1}, "the prompt is empty"),
        ({"output_length": SECRET}, "no source row"),
    ],
)
def test_a_bad_row_is_named_without_its_text(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        run(tmp_path, [row(0), row(0, **changes)])
    assert caught.value.line == 2
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert list((tmp_path / "private").iterdir()) == []


@pytest.mark.parametrize(
    "tail",
    [
        b'{"sampling_u":0,"input_length":3,"output_length":5,"prompt":"zqsecretword',
        b'{"sampling_u":0,"input_length":3,"output_length":5,"prompt":"zqsecretword\xff"}\n',
        b'{"sampling_u":0,"input_length":3,"output_length":5,"prompt":"zqsecretword\\ud800"}\n',
        b'{"sampling_u":0,"input_length":3,"output_length":5,"prompt":"zqsecretword\x00"}\n',
        b'{"sampling_u":0,"input_length":3,"output_length":5,"prompt":' + b"[" * 100_000 + b"\n",
        b"zqsecretword\n",
        b"\n",
    ],
)
def test_broken_bytes_are_named_without_their_text(tmp_path: Path, tail: bytes) -> None:
    source = write_source(tmp_path, [row(0)])
    source.write_bytes(source.read_bytes() + tail)
    out = tmp_path / "private" / "P10.jsonl"
    with pytest.raises(InputError) as caught:
        materialize_trace(make_spec(), source, count, "0" * 64, out)
    assert caught.value.line == 2
    assert SECRET not in str(caught.value)


def test_the_expected_source_is_enforced(tmp_path: Path) -> None:
    rows = [row(i) for i in range(20)]
    digest = sha256_file(write_source(tmp_path, rows))
    run(tmp_path, rows, expect_sha256=digest, expect_rows=20)
    (tmp_path / "private" / "P10.jsonl").unlink()
    with pytest.raises(InputError, match="the source has 20 rows, expected are 21"):
        run(tmp_path, rows, expect_rows=21)
    with pytest.raises(InputError, match=f"the source has SHA-256 {digest}"):
        run(tmp_path, rows, expect_sha256="0" * 64)
    assert not (tmp_path / "private" / "P10.jsonl").exists()


def test_nothing_selected_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of 3 rows is selected"):
        run(tmp_path, [row(7), row(7), row(7)])
    with pytest.raises(InputError, match="none of 0 rows"):
        run(tmp_path, [])


def test_another_private_manifest_is_never_written_over(tmp_path: Path) -> None:
    run(tmp_path, [row(0)])
    run(tmp_path, [row(0)])
    with pytest.raises(StateConflict):
        run(tmp_path, [row(0), row(1)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pattern": ""}, "--id"),
        ({"sampling_u_max": 1.5}, "--sampling-u-max"),
        ({"sampling_u_max": float("nan")}, "--sampling-u-max"),
        ({"max_input_tokens": 0}, "--max-input-tokens"),
        ({"output_cap": 0}, "--output-cap"),
        ({"arrival": "soon"}, "--arrival"),
        ({"expect_sha256": "abc"}, "64 hex digits"),
        ({"expect_rows": 0}, "--expect-rows 0"),
    ],
)
def test_unusable_flags_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make_spec(**changes).check()


def flags(tmp_path: Path, source: Path, tokenizer: Path, *more: str) -> list[str]:
    return [
        *("--id", "P10", "--source", str(source), "--sampling-u-max", "0.125"),
        *("--max-input-tokens", "32768", "--output-cap", "256", "--arrival", "steady"),
        *("--preserve-prompts", "--disable-shuffle", "--tokenizer", str(tokenizer)),
        *("--out", str(tmp_path / "private" / "P10.jsonl"), *more),
    ]


def test_no_prompt_text_leaves_the_private_folder(tmp_path: Path, tokenizer: Path) -> None:
    from opprof.workload.tokenizer import load_counter

    exact = load_counter(tokenizer)
    rows = [row(i) for i in range(30)]
    for r in rows:
        r["input_length"] = exact([r["prompt"]])[0]
    source = write_source(tmp_path, rows)
    done = CliRunner().invoke(materialize_private, flags(tmp_path, source, tokenizer))
    assert done.exit_code == 0, done.output
    assert "P10: 8 requests" in done.output
    assert SECRET not in done.output
    out = tmp_path / "private" / "P10.jsonl"
    assert SECRET in out.read_text()
    for beside in (index_path(out), summary_path(out)):
        assert SECRET.encode() not in beside.read_bytes()
    rows[0]["input_length"] += 3
    failed = CliRunner().invoke(
        materialize_private, flags(tmp_path, write_source(tmp_path, rows), tokenizer)
    )
    assert isinstance(failed.exception, OpprofError)
    assert SECRET not in failed.output + str(failed.exception)


def test_a_source_open_to_others_is_remarked_on(tmp_path: Path, tokenizer: Path) -> None:
    source = write_source(tmp_path, [row(0)])
    source.chmod(0o644)
    done = CliRunner().invoke(materialize_private, flags(tmp_path, source, tokenizer))
    assert "can be read by others" in done.stderr


def test_both_promises_must_be_made(tmp_path: Path, tokenizer: Path) -> None:
    source = write_source(tmp_path, [row(0)])
    for flag in ("--preserve-prompts", "--disable-shuffle"):
        given = [f for f in flags(tmp_path, source, tokenizer) if f != flag]
        done = CliRunner().invoke(materialize_private, given)
        assert isinstance(done.exception, InputError)
        assert "are required" in str(done.exception)


def test_a_missing_source_is_named(tmp_path: Path, tokenizer: Path) -> None:
    done = CliRunner().invoke(
        materialize_private, flags(tmp_path, tmp_path / "none.jsonl", tokenizer)
    )
    assert isinstance(done.exception, InputError)
    assert "none.jsonl" in str(done.exception)
    assert not isinstance(done.exception, SchemaError)
