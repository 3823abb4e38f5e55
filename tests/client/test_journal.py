"""Records: what counts as a failure, whole lines under every fault."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from opprof.client.admission import Flight
from opprof.client.journal import Journal, verdict
from opprof.client.ports import Outcome, RequestSpec
from opprof.errors import EnvironmentFailure, StateConflict

SPEC = RequestSpec("r1", b"[1]", 10, 4)


def outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "ended_ns": 30,
        "first_token_ns": 20,
        "http_status": 200,
        "prompt_tokens": 10,
        "output_tokens": 4,
        "finish_reason": "length",
        **changes,
    }
    return Outcome(**values)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"finish_reason": None}, None),
        ({"output_tokens": 3}, "output_count"),
        ({"prompt_tokens": 11}, "input_count"),
        # The work is exact whatever the server calls its end.
        ({"finish_reason": "stop"}, None),
        ({"error": "cut_stream", "output_tokens": None}, "cut_stream"),
    ],
)
def test_verdicts(changes: dict[str, Any], code: str | None) -> None:
    assert verdict(SPEC, outcome(**changes)) == code


def flight(number: int = 1) -> Flight:
    spec = RequestSpec(f"r{number}", b"[1]", 10, 4)
    return Flight(None, spec, 5, 6)  # type: ignore[arg-type]


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_records_as_the_contract_names_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "requests.jsonl")
    journal.open()
    journal.ended(flight(), outcome())
    journal.ended(flight(2), outcome(error="http_500", http_status=500, output_tokens=None))
    journal.never_ended(flight(3), "interrupted")
    journal.close()
    good, bad, left = lines(tmp_path / "requests.jsonl")
    assert good == {
        "request_id": "r1",
        "scheduled_mono_ns": 5,
        "admitted_mono_ns": 6,
        "first_token_mono_ns": 20,
        "completed_mono_ns": 30,
        "prompt_tokens": 10,
        "requested_output_tokens": 4,
        "output_tokens": 4,
        "http_status": 200,
        "error": None,
        "ended_mono_ns": None,
    }
    assert (bad["completed_mono_ns"], bad["ended_mono_ns"], bad["error"]) == (None, 30, "http_500")
    assert (left["completed_mono_ns"], left["ended_mono_ns"]) == (None, None)
    assert (journal.ok, len(journal.failures)) == (1, 1)


def test_an_existing_file_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("old\n")
    with pytest.raises(StateConflict):
        Journal(path).open()
    assert path.read_text() == "old\n"


def test_a_disk_that_fills_in_mid_line_keeps_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "requests.jsonl")
    journal.open()
    real_write, room = os.write, 500

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real_write(descriptor, data[:room])
        room -= count
        return count

    monkeypatch.setattr("opprof.client.journal.os.write", write)
    for number in range(5):
        journal.ended(flight(number), outcome())
    journal.flush()
    assert journal.write_error is not None
    journal.ended(flight(9), outcome())
    with pytest.raises(EnvironmentFailure, match=r"cannot write: .*space"):
        journal.close()
    kept = lines(tmp_path / "requests.jsonl")
    assert 0 < len(kept) < 5 and [line["request_id"] for line in kept] == ["r0", "r1"][: len(kept)]
