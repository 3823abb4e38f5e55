"""A scan that could not be made says so: never "private text", never "pass", exit code 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from integrity_tree import LOG, SECRET, plant, scan, tar_of, write_manifest

from opprof.campaign.checks import privacy_gate
from opprof.cli import main
from opprof.errors import InputError
from opprof.integrity import check, containers
from opprof.integrity.scan import Scanner

HERE = os.getpid()


@pytest.fixture
def tree(tree: Path) -> Path:
    for name in ("a", "b"):
        # Each is a batch of its own, so that two workers have something to do.
        with (tree / name).open("wb") as stream:
            stream.truncate(5 << 20)
    return tree


def no_memory(*_: Any) -> NoReturn:
    raise MemoryError


def killed(*_: Any) -> NoReturn:
    assert os.getpid() != HERE
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def faulty(*_: Any) -> NoReturn:
    raise RuntimeError("a fault of this program")


def arguments(tree: Path, manifest: Path, jobs: int) -> list[str]:
    return ["scan", str(tree), "--private", str(manifest), "--jobs", str(jobs)]


@pytest.mark.parametrize(
    ("end", "jobs", "said"),
    [
        (no_memory, 1, "more memory than there is: there is no verdict"),
        (no_memory, 2, "more memory than there is: there is no verdict"),
        (killed, 2, "there is no verdict: a worker process was killed"),
        (faulty, 1, "and no verdict"),
        (faulty, 2, "and no verdict"),
    ],
)
def test_a_scan_that_dies_is_no_verdict(
    tree: Path,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: Callable[..., NoReturn],
    jobs: int,
    said: str,
) -> None:
    (tree / LOG).write_text(SECRET)
    monkeypatch.setattr(Scanner, "scan_entry", end)
    with pytest.raises(SystemExit) as done:
        main(arguments(tree, manifest, jobs))
    output = capsys.readouterr()
    assert done.value.code == 2
    assert output.out == ""
    assert output.err.splitlines()[-1].endswith(said) or said in output.err.splitlines()[-1]
    assert (len(output.err.splitlines()) == 1) == (end is not faulty)


def test_an_index_that_has_no_room_is_no_verdict(
    tree: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "read_private", no_memory)
    with pytest.raises(InputError, match="more memory than there is"):
        scan(tree, manifest)


def test_too_little_memory_for_real_is_no_verdict(tree: Path, tmp_path: Path) -> None:
    rows = [SECRET + "x".join(map(str, range(at, at + 60_000))) for at in range(40)]
    manifest = write_manifest(tmp_path / "large", rows)
    program = (
        "import resource, sys; import numpy, opprof.integrity.check, opprof.cli.scan\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (12 << 20),) * 2)\n"
        "from opprof.cli import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments(tree, manifest, 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "no verdict" in done.stderr


def failing_read(after: int) -> Callable[..., bytes]:
    real, reads = os.pread, []

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(offset)
        if len(reads) > after:
            raise OSError(5, os.strerror(5))
        return real(descriptor, size, offset)

    return pread


@pytest.mark.parametrize("name", ["server.log", "server.tar"])
def test_a_file_that_fails_halfway_is_no_verdict_and_hides_no_other(
    tmp_path: Path,
    manifest: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    tree = tmp_path / "c"
    tree.mkdir()
    data = b"harmless\n" * 90_000
    (tree / name).write_bytes(tar_of({"x": data}) if name.endswith("tar") else data)
    monkeypatch.setattr(containers.os, "pread", failing_read(1))
    with pytest.raises(SystemExit) as done:
        main(arguments(tree, manifest, 1))
    assert done.value.code == 2
    assert "not_evaluable: 1 finding in 1 file" in capsys.readouterr().out
    (tree / "z.log").write_text("x")
    (tree / SECRET[72:106]).write_text("x")
    monkeypatch.setattr(containers.os, "pread", failing_read(1))
    assert scan(tree, manifest).outcome == "fail"


def test_what_nobody_could_look_at_never_ends_the_search(tree: Path, manifest: Path) -> None:
    members = {f"{number}.zip": b"PK\x03\x04" for number in range(60)}
    (tree / "x.tar").write_bytes(tar_of(members | {"z": SECRET.encode()}))
    report = scan(tree, manifest)
    assert report.outcome == "fail"
    assert report.more == ["x.tar"]


def told(tree: Path, manifest: Path, log: Path) -> int:
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "opprof", *arguments(tree, manifest, 1), "--json"]
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False)
    return done.returncode


def test_the_controller_believes_only_a_report(tmp_path: Path, manifest: Path) -> None:
    tree, log = tmp_path / "run", tmp_path / "run.1.scan.log"
    plant(tree, LOG, "harmless")
    code = told(tree, manifest, log)
    assert (privacy_gate(code, log).name, privacy_gate(code, log).outcome) == ("privacy", "pass")
    # Any Python that dies has exit code 1, and one that is killed has left half a report.
    for died in (1, 2, 70, -9, None):
        assert privacy_gate(died, log).name == "privacy_scan"
    (tree / "cut.gz").write_bytes(b"\x1f\x8b")
    gate = privacy_gate(told(tree, manifest, log), log)
    assert (gate.name, gate.outcome) == ("privacy_scan", "fail")
    assert "not_looked_at in cut.gz" in gate.reason
    (tree / LOG).write_text(SECRET)
    code = told(tree, manifest, log)
    gate = privacy_gate(code, log)
    assert (gate.name, gate.outcome) == ("privacy", "fail")
    assert f"one is prompt_text in {LOG}" in gate.reason
    assert json.loads(log.read_text())["outcome"] == "fail"
    log.write_bytes(log.read_bytes()[:-9])
    assert privacy_gate(1, log).name == "privacy_scan"
    log.write_text("Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n")
    for died in (0, 1, 2, None):
        assert privacy_gate(died, log).name == "privacy_scan"
    assert told(tree, tmp_path / "none", log) == 2
    assert privacy_gate(2, log).name == "privacy_scan"
