"""``opprof materialize`` as it is called: the protocol's rows, messages and exit codes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from opprof.artifacts.run import ManifestSummary
from opprof.cli import main
from opprof.protocol import expand, load_protocol
from opprof.workload.write import summary_path

PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None
ROWS = {row.id: row for row in PROTOCOL.file.patterns if row.prefix != "natural"}
BASE = (
    "materialize --id T01 --kind synthetic --input-uniform 20:40 --output-fixed 4 --prefix none"
    " --arrival steady --num-requests 12 --workload-seed 1"
)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, captured.out, captured.err


@pytest.mark.parametrize("pattern", ROWS)
def test_every_row_of_the_pattern_table(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    row = ROWS[pattern]
    words = shlex.split(expand(row.manifest, {"PRIVATE": str(tmp_path)}))
    # The protocol's own command, only shorter and with the tiny tokenizer.
    words[words.index("--num-requests") + 1] = "24"
    code, out, err = call(capsys, *words, "--tokenizer", str(tokenizer))
    assert (code, err) == (0, "")
    assert out.startswith(f"{pattern}: 24 requests")
    manifest = tmp_path / f"{pattern}.jsonl"
    summary = msgspec.json.decode(summary_path(manifest).read_bytes(), type=ManifestSummary)
    assert (summary.pattern, summary.arrival, summary.prefix) == (pattern, row.arrival, row.prefix)
    assert summary.output_tokens.min == int(row.output.removeprefix("fixed:"))
    assert PROTOCOL is not None
    assert summary.generator["protocol_sha256"] == PROTOCOL.sha256
    assert len(manifest.read_bytes().splitlines()) == 24


def test_the_tokenizer_may_come_from_the_environment(
    tmp_path: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*shlex.split(BASE), "--out", str(tmp_path / "T01.jsonl")]
    monkeypatch.delenv("OPPROF_TOKENIZER", raising=False)
    code, _, err = call(capsys, *words)
    assert code == 2
    assert "no tokenizer: give --tokenizer DIR" in err
    monkeypatch.setenv("OPPROF_TOKENIZER", str(tokenizer))
    assert call(capsys, *words)[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("--kind synthetic", "--kind chat", "--kind 'chat' is unknown"),
        ("20:40", "0:40", "a length of 0 tokens"),
        ("20:40", "-3:40", "a length of -3 tokens"),
        ("--output-fixed 4", "--output-fixed 0", "--output-fixed: a length of 0"),
        ("--arrival steady", "--arrival burst:x", "burst:N"),
        ("--num-requests 12", "--num-requests -1", "--num-requests -1"),
        ("--input-uniform 20:40", "--input-mixture '{\"fixed:3\":0.4}'", "sum to 0.4, not to 1"),
        ("--input-uniform 20:40", "", "exactly one of"),
        ("--workload-seed 1", "", "Missing option '--workload-seed'"),
        ("--num-requests 12", "--num-requests 1.5", "'1.5' is not a valid integer"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    tmp_path: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    reason: str,
) -> None:
    assert old in BASE
    words = shlex.split(BASE.replace(old, new))
    out = tmp_path / "manifests" / "T01.jsonl"
    code, printed, err = call(capsys, *words, "--tokenizer", str(tokenizer), "--out", str(out))
    assert (code, printed) == (2, "")
    assert reason in err
    assert "Traceback" not in err
    assert not out.parent.exists()


def test_without_a_protocol_there_is_no_limit_to_apply(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*shlex.split(BASE), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "T.jsonl")]
    code, _, err = call(capsys, *words, "--protocol", "none")
    assert code == 2
    assert "a manifest needs a protocol" in err


def test_a_termination_leaves_nothing_behind(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "out"
    words = shlex.split(
        BASE.replace("20:40", "4000:8000").replace("requests 12", "requests 400000")
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "opprof",
            *words,
            "--tokenizer",
            str(tokenizer),
            "--out",
            str(folder / "T01.jsonl"),
        ],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    give_up = time.monotonic() + 120
    while not (folder.exists() and any(path.stat().st_size for path in folder.iterdir())):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and b"Traceback" not in errors
    assert list(folder.iterdir()) == []
