"""A-P3-5: every cause of invalidity has its own reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import footer, header, sidecar, step, text, write_stream
from opprof.artifacts.composition import StreamAccounting
from opprof.artifacts.layer1 import Sidecar
from opprof.artifacts.run import Interval, Timeline
from opprof.protocol.model import Layer1
from opprof.telemetry.accounting import (
    REASON_CODES,
    account,
    signal_on_stream_clock,
    step_order_faults,
)
from opprof.telemetry.stream import read_sidecar, read_stream

RULE = Layer1(flush_interval_s=1.0, checkpoint_tolerance_ms=100.0)
CHECKPOINT_NS = 1_000_000_000_000


def judge(
    folder: Path,
    lines: list[dict[str, Any]] | bytes,
    beside: dict[str, Any] | bytes | None,
    *,
    rule: Layer1 | None = RULE,
    signal_wall_ns: int | None = None,
) -> StreamAccounting:
    path = write_stream(folder, lines, beside)
    return account(read_stream(path), read_sidecar(path), rule=rule, signal_wall_ns=signal_wall_ns)


def codes(found: StreamAccounting) -> list[str]:
    assert found.valid == (not found.reasons)
    names = [reason.split(":")[0] for reason in found.reasons]
    assert set(names) <= set(REASON_CODES)
    return names


def steps(*indices: int) -> list[dict[str, Any]]:
    return [step(position, step=index) for position, index in enumerate(indices)]


def test_a_clean_close_is_valid(tmp_path: Path) -> None:
    found = judge(tmp_path, [header(), *steps(0, 1, 2), footer(3)], sidecar(3))
    assert codes(found) == []
    assert (found.step_lines, found.first_step, found.last_step) == (3, 0, 2)
    assert (found.encoded_records, found.written_records, found.dropped_records) == (3, 3, 0)
    assert found.footer_in_stream
    assert found.sidecar_final is True
    assert found.checkpoint_age_ms is None


@pytest.mark.parametrize(
    ("lines", "beside", "expected"),
    [
        ([*steps(0, 1, 3), footer(3, last_step_index=3)], sidecar(3, last_step_index=3), ["gap"]),
        ([*steps(1, 2), footer(2, last_step_index=2)], sidecar(2, last_step_index=2), ["gap"]),
        (
            [*steps(0, 1, 1), footer(3, last_step_index=1)],
            sidecar(3, last_step_index=1),
            ["duplicate"],
        ),
        (
            [*steps(0, 2, 1), footer(3, last_step_index=1)],
            sidecar(3, last_step_index=1),
            ["out_of_order"],
        ),
        (
            [*steps(0, 3, 3, 1), footer(4, last_step_index=1)],
            sidecar(4, last_step_index=1),
            ["gap", "duplicate", "out_of_order"],
        ),
        ([*steps(0, 1), footer(2)], None, ["sidecar_missing"]),
        ([*steps(0, 1), footer(2)], b"{", ["sidecar_invalid"]),
        ([*steps(0, 1), footer(2)], sidecar(2, final=False), ["sidecar_not_final"]),
        ([*steps(0, 1), footer(2, final=False)], sidecar(2), ["footer_not_final"]),
        (
            [*steps(0, 1), footer(2)],
            sidecar(1, last_step_index=1),
            ["sidecar_disagrees"],
        ),
        ([*steps(0, 1), footer(2)], sidecar(2, last_step_index=0), ["sidecar_disagrees"]),
        (
            [*steps(0, 1), footer(2, encoded_records=3, dropped_records=1)],
            sidecar(2, encoded_records=3, dropped_records=1),
            ["dropped"],
        ),
        (
            [*steps(0, 1), footer(2, encoded_records=3)],
            sidecar(2, encoded_records=3),
            ["encoded_imbalance"],
        ),
        (
            [*steps(0, 1), footer(3, last_step_index=1)],
            sidecar(3, last_step_index=1),
            ["count_mismatch"],
        ),
        (
            [*steps(0, 1), footer(2, last_step_index=2)],
            sidecar(2, last_step_index=2),
            ["last_step_mismatch"],
        ),
        (
            [*steps(0, 1), footer(2, reason="encoder failed")],
            sidecar(2),
            ["recording_ended_early"],
        ),
        ([footer(0)], sidecar(0), ["no_steps"]),
        (steps(0, 1), sidecar(2), ["footer_missing"]),
        ([*steps(0, 1), footer(2)], sidecar(2, flush_interval_s=2.0), ["flush_interval_disagrees"]),
    ],
)
def test_each_fault_has_its_own_reason(
    tmp_path: Path,
    lines: list[dict[str, Any]],
    beside: dict[str, Any] | bytes | None,
    expected: list[str],
) -> None:
    assert codes(judge(tmp_path, [header(), *lines], beside)) == expected


@pytest.mark.parametrize(
    ("signal_ms", "expected", "tolerance_ms"),
    [
        (0.0, [], 0.0),
        (-50.0, [], 0.0),
        (1000.0, [], 0.0),
        (1000.5, [], 0.5),
        (1100.0, [], 100.0),
        (1100.001, ["checkpoint_old"], 100.0),
    ],
)
def test_a_hard_kill_is_valid_up_to_one_flush_interval_and_the_tolerance(
    tmp_path: Path, signal_ms: float, expected: list[str], tolerance_ms: float
) -> None:
    found = judge(
        tmp_path,
        [header(), *steps(0, 1)],
        sidecar(2, final=False),
        signal_wall_ns=CHECKPOINT_NS + round(signal_ms * 1e6),
    )
    assert codes(found) == expected
    assert found.checkpoint_age_ms == pytest.approx(signal_ms)
    assert found.tolerance_used_ms == pytest.approx(tolerance_ms)
    assert not found.footer_in_stream


def test_a_checkpoint_that_the_writer_made_after_the_kill_is_valid(tmp_path: Path) -> None:
    """The writer outlives a killed engine (seen on an H200: 33 ms after the signal)."""
    found = judge(
        tmp_path,
        [header(), *steps(0, 1)],
        sidecar(2, final=False, engine_gone=True, open_steps=2),
        signal_wall_ns=CHECKPOINT_NS - 33_000_000,
    )
    assert codes(found) == []
    assert (found.checkpoint_age_ms, found.tolerance_used_ms, found.open_steps) == (-33.0, 0.0, 2)


def test_a_hard_kill_without_signal_time_or_protocol_is_not_proven(tmp_path: Path) -> None:
    lines = [header(), *steps(0, 1)]
    beside = sidecar(2, final=False)
    assert codes(judge(tmp_path, lines, beside)) == ["signal_time_unknown"]
    unbound = judge(tmp_path, lines, beside, rule=None, signal_wall_ns=CHECKPOINT_NS)
    assert codes(unbound) == ["checkpoint_rule_unbound"]


def test_lines_beyond_the_checkpoint_are_a_mismatch(tmp_path: Path) -> None:
    found = judge(
        tmp_path,
        [header(), *steps(0, 1, 2)],
        sidecar(2, final=False),
        signal_wall_ns=CHECKPOINT_NS,
    )
    assert codes(found) == ["count_mismatch", "last_step_mismatch"]


def test_a_torn_line_invalidates_whatever_the_sidecar_says(tmp_path: Path) -> None:
    data = text([header(), *steps(0, 1)]) + text(steps(0))[:-9]
    found = judge(tmp_path, data, sidecar(2, final=False), signal_wall_ns=CHECKPOINT_NS)
    assert codes(found) == ["partial_last_line"]
    assert "line 4 of engine-0.jsonl" in found.reasons[0]


def test_a_gap_names_its_line(tmp_path: Path) -> None:
    faults = step_order_faults(np.array([0, 1, 5, 6, 6], np.int64))
    assert faults == [
        "gap: 3 missing, the first is step 2: line 4 holds step 5",
        "duplicate: 1 repeated, the first is step 6 on line 6",
    ]


@given(st.lists(st.integers(0, 12), max_size=15))
def test_order_faults_agree_with_their_definition(indices: list[int]) -> None:
    names = [fault.split(":")[0] for fault in step_order_faults(np.array(indices, np.int64))]
    gap = bool(indices) and set(indices) != set(range(max(indices) + 1))
    duplicate = len(set(indices)) != len(indices)
    firsts = [value for row, value in enumerate(indices) if value not in indices[:row]]
    out_of_order = firsts != sorted(firsts)
    expected = [
        name
        for name, found in (
            ("gap", gap),
            ("duplicate", duplicate),
            ("out_of_order", out_of_order),
        )
        if found
    ]
    assert names == expected


@pytest.mark.parametrize(
    ("clock", "signal_ns", "mono_ns", "ends_ns", "expected"),
    [
        ("CLOCK_MONOTONIC", 77, 500, [900], 77),
        ("CLOCK_MONOTONIC", None, 500, [900], None),
        # 400 ns after the checkpoint the client's clock stood still.
        ("virtual", 77, 500, [800, 900], CHECKPOINT_NS + 400),
        ("virtual", None, 500, [900], None),
        ("virtual", 77, None, [900], None),
        ("virtual", 77, 500, [], None),
    ],
)
def test_the_signal_is_told_by_the_checkpoints_clock(
    clock: str,
    signal_ns: int | None,
    mono_ns: int | None,
    ends_ns: list[int],
    expected: int | None,
) -> None:
    found = msgspec.convert(sidecar(2, final=False, mono_time_ns=mono_ns), Sidecar)
    timeline = Timeline(
        schema=1,
        pattern="P01",
        config="C00",
        load_point="saturation",
        max_concurrency=1,
        rate_rps=None,
        clock=clock,
        intervals=[Interval("clean", i, 0, end) for i, end in enumerate(ends_ns)],
    )
    assert signal_on_stream_clock(signal_ns, timeline, found) == expected
