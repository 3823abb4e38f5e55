"""The stationary-window rule and what each rate and latency counts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.analysis.end_to_end import end_to_end, longest_sustained_lag_ns
from opprof.telemetry.requests import RequestColumns, read_requests
from request_samples import record, write_requests

MS = 1_000_000
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


def sent(
    request_id: int, at_ms: float, first_ms: float, done_ms: float, lag_ms: float = 0
) -> dict[str, Any]:
    return record(
        request_id,
        scheduled_mono_ns=round((at_ms - lag_ms) * MS),
        admitted_mono_ns=round(at_ms * MS),
        first_token_mono_ns=round(first_ms * MS),
        completed_mono_ns=round(done_ms * MS),
    )


@pytest.fixture
def requests(tmp_path: Path) -> RequestColumns:
    return read_requests(
        write_requests(
            tmp_path,
            [
                sent(0, 500, 900, 1000),  # admitted in the warm-up, completes on the border
                sent(1, 1000, 1200, 1500, lag_ms=100),
                sent(2, 1600, 1700, 2000),  # completes on the far border: outside
                sent(3, 1700, 1800, 2500),
                sent(4, 1100, 1200, 1300) | {"output_tokens": 3},
                sent(5, 1100, 1200, 1300) | {"output_tokens": 1, "requested_output_tokens": 1},
                sent(6, 1900, 1950, 0) | {"completed_mono_ns": None, "error": "cut_stream"},
                sent(7, 1900, 1950, 0) | {"completed_mono_ns": None, "output_tokens": None},
                sent(8, 100, 200, 0)
                | {"completed_mono_ns": None, "http_status": 500, "ended_mono_ns": 1500 * MS},
                sent(9, 100, 200, 0) | {"completed_mono_ns": None, "http_status": 500},
            ],
        )
    )


def test_completions_count_by_completion_and_admissions_by_admission(
    requests: RequestColumns,
) -> None:
    found = end_to_end(requests, [(1000 * MS, 2000 * MS)], kind="clean", index=0)
    assert found.seconds == 1.0
    assert found.completed == 3
    assert found.failed == 3
    assert found.admitted == 7
    assert found.scheduled == 6
    assert (found.completed_rps, found.admitted_rps, found.scheduled_rps) == (3.0, 7.0, 6.0)
    assert found.input_tokens_per_s == 300.0
    assert found.output_tokens_per_s == 4 + 4 + 1
    assert found.total_tokens_per_s == 309.0


def test_latency_runs_from_the_schedule_and_from_the_sending(requests: RequestColumns) -> None:
    found = end_to_end(requests, [(1000 * MS, 2000 * MS)], kind="clean", index=0)
    assert found.from_admitted.ttft_ms.max == 400.0
    assert found.from_admitted.ttft_ms.n == 3
    assert found.from_admitted.latency_ms.sum == 500 + 500 + 200
    assert found.from_scheduled.latency_ms.sum == 500 + 600 + 200
    # One request has a single output token and so no time between tokens.
    assert found.from_scheduled.tpot_ms.n == 2
    assert found.from_scheduled.tpot_ms.max == pytest.approx(100.0)
    assert found.from_scheduled.tpot_ms.min == pytest.approx(100 / 3)
    assert found.client_lag_ms.max == 100.0


def test_no_time_and_no_requests_give_zero_rates(requests: RequestColumns) -> None:
    found = end_to_end(requests, [], kind="clean_union", index=0)
    assert found.completed_rps == 0.0
    assert found.from_admitted.ttft_ms.mean is None


@given(borders=st.lists(st.integers(0, 3000), min_size=2, max_size=6, unique=True).map(sorted))
def test_contiguous_segments_add_up_to_the_union(
    tmp_path_factory: pytest.TempPathFactory, borders: list[int]
) -> None:
    records = [sent(i, 40 * i, 40 * i + 20, 40 * i + 10 * (i % 7) + 20) for i in range(60)]
    found = read_requests(write_requests(tmp_path_factory.mktemp("r"), records))
    cuts = [border * MS for border in borders]
    union = end_to_end(found, [(cuts[0], cuts[-1])], kind="clean_union", index=0)
    parts = [
        end_to_end(found, [piece], kind="clean", index=i) for i, piece in enumerate(pairwise(cuts))
    ]
    for name in ("completed", "failed", "admitted", "scheduled"):
        assert sum(getattr(part, name) for part in parts) == getattr(union, name)
    assert union.from_admitted.latency_ms.n == union.completed


def lagging(tmp_path: Path, lags_ms: list[int], spacing_ms: int = 100) -> RequestColumns:
    records = [
        sent(i, spacing_ms * i + 10_000, 99_000, 99_999, lag_ms=lag)
        for i, lag in enumerate(lags_ms)
    ]
    return read_requests(write_requests(tmp_path, records))


def test_one_late_wake_up_is_not_sustained_and_a_client_that_never_catches_up_is(
    tmp_path: Path,
) -> None:
    piece = [(10_000 * MS, 20_000 * MS)]
    late = [0] * 50 + [3000] + [0] * 49
    found = longest_sustained_lag_ns(lagging(tmp_path, late), piece, window_ns=5000 * MS)
    assert found == 0
    behind = [0] * 20 + [1200] * 80
    found = longest_sustained_lag_ns(lagging(tmp_path, behind), piece, window_ns=5000 * MS)
    assert found == 1200 * MS
    assert longest_sustained_lag_ns(lagging(tmp_path, []), piece, window_ns=5000 * MS) is None


@given(lags=st.lists(st.integers(0, 9), min_size=1, max_size=30), window=st.integers(1, 40))
def test_sustained_lag_agrees_with_its_definition(
    tmp_path_factory: pytest.TempPathFactory, lags: list[int], window: int
) -> None:
    found = lagging(tmp_path_factory.mktemp("r"), lags, spacing_ms=1)
    end = 10_000 + len(lags)
    stretches = [
        min(lags[i : i + window]) for i in range(len(lags)) if i == 0 or i + window <= len(lags)
    ]
    got = longest_sustained_lag_ns(found, [(10_000 * MS, end * MS)], window_ns=window * MS)
    assert got == max(stretches) * MS


def test_a_real_run() -> None:
    run = EXAMPLES / "P03-C00-moderate"
    found = end_to_end(
        read_requests(run / "client" / "requests.jsonl"),
        [(355561195029, 370561968914)],
        kind="clean",
        index=0,
    )
    assert (found.completed, found.failed, found.admitted) == (72, 0, 71)
    assert found.output_tokens_per_s == pytest.approx(72 * 64 / 15.000773885)
    assert found.from_admitted.ttft_ms.p50 == pytest.approx(136.687191)
