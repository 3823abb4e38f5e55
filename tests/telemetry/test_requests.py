"""Request records: what is refused, what fails, what is still open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opprof.errors import InputError, SchemaError
from opprof.telemetry.requests import read_requests
from request_samples import record, write_requests


def test_records_are_sorted_into_completed_failed_and_open(tmp_path: Path) -> None:
    found = read_requests(
        write_requests(
            tmp_path,
            [
                record(0),
                record(1, output_tokens=3),
                record(2, http_status=500, completed_mono_ns=None, first_token_mono_ns=None),
                record(3, error="cut_stream", completed_mono_ns=None, ended_mono_ns=77),
                record(4, completed_mono_ns=None, output_tokens=None),
                record(
                    5,
                    admitted_mono_ns=None,
                    first_token_mono_ns=None,
                    completed_mono_ns=None,
                    http_status=None,
                    output_tokens=None,
                    prompt_tokens=None,
                ),
                record(6, http_status=None),
                record(7, output_tokens=None),
            ],
        )
    )
    assert found.completed.tolist() == [True, *[False] * 7]
    assert found.failed.tolist() == [False, True, True, True, False, False, True, True]
    assert found.open.tolist() == [False, False, False, False, True, False, False, False]
    assert found.errors == {"cut_stream": 1}
    assert found.last_known_mono_ns.tolist() == [30, 30, 10, 77, 20, 0, 30, 30]
    assert found.reasons() == []
    assert found.disorder() == 0


def test_duplicates_and_a_torn_line_are_reasons(tmp_path: Path) -> None:
    path = write_requests(tmp_path, [record(0), record(0), record("0")])
    path.write_bytes(path.read_bytes() + b'{"request_id": 4, "sche')
    found = read_requests(path)
    assert [reason.split(":")[0] for reason in found.reasons()] == [
        "partial_last_line",
        "duplicate_request",
    ]
    assert found.duplicate_ids == 1
    assert found.torn_line == 4


@pytest.mark.parametrize(
    "change",
    [
        {"admitted_mono_ns": 60},
        {"first_token_mono_ns": 5},
        {"completed_mono_ns": 15},
        {"first_token_mono_ns": None, "completed_mono_ns": 5},
    ],
)
def test_times_that_go_backwards_are_counted(tmp_path: Path, change: dict[str, Any]) -> None:
    found = read_requests(write_requests(tmp_path, [record(0), record(1, **change)]))
    assert found.disorder() == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(record(1) | {"prompt": "text"}), "prompt"),
        (json.dumps(record(1, http_status="200")), "http_status"),
        (json.dumps(record(1, prompt_tokens=-1)), "prompt_tokens"),
        (json.dumps(record(1, completed_mono_ns=1 << 63)), "out of range"),
        ("", "blank line"),
        ("{", "no valid JSON"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join([json.dumps(record(0)), line, json.dumps(record(2)), ""]))
    with pytest.raises(SchemaError) as caught:
        read_requests(path)
    assert caught.value.line == 2
    assert reason in caught.value.reason


def test_an_empty_file_is_no_requests_and_a_missing_one_an_error(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"")
    assert len(read_requests(path)) == 0
    with pytest.raises(InputError, match="cannot read"):
        read_requests(tmp_path / "none.jsonl")
