"""Reading a stream: what is refused, with file and line, and what comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layer1_samples import footer, header, sidecar, step, text, write_stream
from opprof.errors import InputError, SchemaError
from opprof.telemetry import lines as lines_module
from opprof.telemetry.stream import find_stream, read_sidecar, read_stream

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "h200-runs"


def whole(records: int = 3) -> list[dict[str, Any]]:
    return [header(), *(step(index) for index in range(records)), footer(records)]


def refused(tmp_path: Path, data: bytes) -> SchemaError:
    path = write_stream(tmp_path, data, None)
    with pytest.raises(SchemaError) as caught:
        read_stream(path)
    assert caught.value.path == str(path)
    assert caught.value.exit_code == 2
    return caught.value


def test_every_field_arrives_in_its_column(tmp_path: Path) -> None:
    second = step(
        1,
        submit_mono_ns=5,
        complete_mono_ns=40_000_000,
        scheduled_requests=3,
        prefill_requests=2,
        prefill_tokens=9,
        decode_requests=1,
        decode_tokens=1,
        prefill_chunks=[4, 5],
        context_len_hist=None,
        context_len_sum=11,
        context_len_max=9,
        waiting=1,
        running=3,
        deferred=2,
        preemptions=1,
        kv_usage=0.5,
        prefix_queries=None,
        prefix_hits=None,
        graph={"mode": "NONE", "hit": False, "unpadded_tokens": 10, "bucket_tokens": 0},
        resumed_requests=1,
        recomputed_tokens=7,
    )
    third = step(2, model_executed=False, graph=None, context_len_hist={"1": 1, "256": 2})
    stream = read_stream(
        write_stream(tmp_path, [header(), step(0), second, third, footer(3)], None)
    )
    found = stream.columns
    assert len(found) == 3
    assert found.submit_mono_ns.tolist() == [0, 5, 20_000_000]
    assert found.model_executed.tolist() == [True, True, False]
    assert found.scheduled_tokens.tolist() == [4, 10, 4]
    assert [found.chunks.of(row) for row in range(3)] == [[], [4, 5], []]
    assert found.context_missing.tolist() == [False, True, False]
    assert [found.context_bound_log2.of(row) for row in range(3)] == [[7], [], [0, 8]]
    assert [found.context_count.of(row) for row in range(3)] == [[4], [], [1, 2]]
    assert found.prefix_queries.tolist() == [0, -1, 0]
    assert found.mode.tolist() == [0, 2, -1]
    assert found.hit.tolist() == [True, False, False]
    assert found.bucket_tokens.tolist() == [4, 0, 0]
    assert found.kv_usage.tolist() == [0.25, 0.5, 0.25]
    assert found.graph_valid.tolist() == [True, True, True]
    for name in ("resumed_requests", "preemptions", "waiting"):
        assert getattr(found, name).tolist() == [0, 1, 0]
    assert found.recomputed_tokens.tolist() == [0, 7, 0]
    # Step 1 overlaps step 0, which completes at 10 ms; step 2 completes before step 1 did.
    assert found.begin_mono_ns.tolist() == [0, 10_000_000, 40_000_000]
    assert found.duration_ns.tolist() == [10_000_000, 30_000_000, -10_000_000]
    assert found.latency_ns.tolist() == [10_000_000, 39_999_995, 10_000_000]
    assert stream.footer is not None
    assert stream.torn_line is None
    assert stream.lines == 5


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([step(0)], 1, "does not begin with a header"),
        ([footer(0)], 1, "does not begin with a header"),
        ([header(), header()], 2, "a second header"),
        ([header(), step(0), header(), step(1)], 3, "a second header"),
        ([header(), step(0), footer(1), step(1)], 4, "a line after the footer"),
        ([header(), footer(0), footer(0)], 3, "a line after the footer"),
        ([header(schema=2)], 1, "schema"),
        ([header(config={"max_num_seqs": 0})], 1, "max_num_seqs"),
        ([header(), step(0, surprise=1)], 2, "surprise"),
        ([header(), step(0), step(1, waiting="3")], 3, "waiting"),
        ([header(), step(0), step(1, decode_tokens=-4)], 3, "decode_tokens"),
        ([header(), step(0, kv_usage=1.5)], 2, "kv_usage"),
        ([header(), step(0, step=1.5)], 2, "step"),
        ([header(), step(0, model_executed=1)], 2, "model_executed"),
        ([header(), {"type": "epilogue"}], 2, "epilogue"),
        ([header(), {"step": 0}], 2, "type"),
        ([header(), step(0, waiting=1 << 41)], 2, "waiting is over"),
        ([header(), step(0), step(1, complete_mono_ns=1 << 70)], 3, "a number is over"),
        ([header(), step(0, prefix_hits=1 << 60)], 2, "prefix_hits is over"),
        ([header(), step(0), step(1, prefill_chunks=[3, 1 << 50])], 3, "chunk values go over"),
        ([header(), step(0), step(1, context_len_hist={"4": 1 << 50})], 3, "context counts go"),
        ([header(), step(0), step(1, prefill_chunks=[3, 1 << 80])], 3, "a number is over"),
        ([header(), step(0, context_len_hist={"100": 1})], 2, "no power of two"),
        ([header(), step(0), step(1, context_len_hist={"4": 1 << 63})], 3, "a number is over"),
        (
            [
                header(),
                step(
                    0,
                    graph={
                        "mode": "FULL",
                        "hit": True,
                        "unpadded_tokens": 1,
                        "bucket_tokens": 1 << 64,
                    },
                ),
            ],
            2,
            "a number is over",
        ),
    ],
)
def test_a_file_that_is_no_schema_1_stream_is_refused(
    tmp_path: Path, lines: list[dict[str, Any]], line: int, reason: str
) -> None:
    error = refused(tmp_path, text(lines))
    assert error.line == line
    assert reason in error.reason


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (b"\n", "blank line"),
        (b"   \n", "blank line"),
        (text([step(1)]).replace(b"0.25", b"NaN"), "no valid JSON"),
        (text([step(1)])[:-30] + b"\n", "no valid JSON"),
        (text([step(1)])[:-1] + text([step(2)]), "no valid JSON"),
        (text([step(1)]).replace(b"FULL", b"FU\xff"), "UTF-8"),
        (b"\x00\x00\x00\n", "no valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"\n", "nested too deeply"),
    ],
)
def test_a_faulty_line_inside_the_file_is_refused(
    tmp_path: Path, middle: bytes, reason: str
) -> None:
    error = refused(tmp_path, text([header(), step(0)]) + middle + text([footer(2)]))
    assert error.line == 3
    assert reason in error.reason


@pytest.mark.parametrize("data", [b"", text([header()])[:-20], b"\x00" * 100])
def test_a_file_without_a_whole_header_is_refused(tmp_path: Path, data: bytes) -> None:
    error = refused(tmp_path, data)
    assert error.line == 1
    assert "header" in error.reason


def test_an_endless_line_is_refused_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(lines_module, "BLOCK_BYTES", 512)
    error_line = 3
    data = text([header(), step(0)]) + b"x" * 5000
    path = write_stream(tmp_path, data, None)
    with pytest.raises(InputError, match="line longer than 1000 bytes") as caught:
        read_stream(path)
    assert caught.value.line == error_line


@pytest.mark.parametrize("tail", [b"", b"\n"])
def test_a_torn_last_line_is_kept_as_a_fact(tmp_path: Path, tail: bytes) -> None:
    data = text([header(), step(0), step(1)]) + text([step(2)])[:-40] + tail
    stream = read_stream(write_stream(tmp_path, data, None))
    assert stream.torn_line == 4
    assert len(stream.columns) == 2


def test_a_whole_last_line_without_line_end_counts(tmp_path: Path) -> None:
    stream = read_stream(write_stream(tmp_path, text(whole())[:-1], None))
    assert stream.torn_line is None
    assert stream.footer is not None


def test_a_whole_last_line_of_a_wrong_shape_is_refused_even_without_line_end(
    tmp_path: Path,
) -> None:
    error = refused(tmp_path, text([header(), step(0), step(1, surprise=1)])[:-1])
    assert error.line == 3


def test_lines_may_end_in_carriage_returns(tmp_path: Path) -> None:
    data = text(whole()).replace(b"\n", b"\r\n")
    assert len(read_stream(write_stream(tmp_path, data, None)).columns) == 3


@given(block=st.integers(1, 3000), records=st.integers(0, 12))
def test_blocks_of_any_size_give_the_same_columns(
    tmp_path_factory: pytest.TempPathFactory, block: int, records: int
) -> None:
    path = write_stream(tmp_path_factory.mktemp("blocks"), whole(records), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK_BYTES", block)
        small = read_stream(path)
    large = read_stream(path)
    assert small.lines == large.lines == records + 2
    assert small.footer == large.footer
    for name in ("step", "submit_mono_ns", "kv_usage", "mode", "duration_ns"):
        assert np.array_equal(getattr(small.columns, name), getattr(large.columns, name))


@given(cut=st.integers(0, 5000))
def test_a_stream_cut_anywhere_reads_or_says_why(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    data = text(whole(8))
    kept = data[: min(cut, len(data))]
    path = write_stream(tmp_path_factory.mktemp("cut"), kept, None)
    lines_whole = [line for line in kept.split(b"\n")[:-1] if line]
    try:
        stream = read_stream(path)
    except SchemaError as error:
        assert not lines_whole
        assert "header" in error.reason
        return
    # A last line without its line end may be whole.
    assert stream.lines - len(lines_whole) in (0, 1)
    assert (stream.torn_line is not None) == (
        bool(kept.split(b"\n")[-1]) and stream.lines == len(lines_whole)
    )


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: cannot read"):
        read_stream(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot read"):
        read_stream(tmp_path)


def test_exactly_one_stream_per_run(tmp_path: Path) -> None:
    folder = tmp_path / "opprof"
    with pytest.raises(InputError, match="no Layer-1 stream"):
        find_stream(tmp_path)
    folder.mkdir()
    only = write_stream(folder, whole(), sidecar(3))
    assert find_stream(tmp_path) == only
    (folder / "engine-1.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="2 Layer-1 streams"):
        find_stream(tmp_path)


def test_a_sidecar_is_read_or_its_fault_named(tmp_path: Path) -> None:
    path = write_stream(tmp_path, whole(), sidecar(3, reason=None))
    found = read_sidecar(path)
    assert found.fault is None
    assert found.sidecar is not None
    assert found.sidecar.written_records == 3
    beside = tmp_path / "engine-0.jsonl.footer.json"
    for data in (b"", b"{", json.dumps(sidecar(3, schema=9)).encode(), b"[1]", b"[" * 99_999):
        beside.write_bytes(data)
        fault = read_sidecar(path).fault
        assert fault is not None
        assert fault.startswith("sidecar_invalid: engine-0.jsonl.footer.json")
    beside.unlink()
    assert read_sidecar(path).fault == "sidecar_missing: engine-0.jsonl.footer.json not found"
    beside.mkdir()
    fault = read_sidecar(path).fault
    assert fault is not None
    assert fault.startswith("sidecar_invalid")


@pytest.mark.parametrize("run", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_real_streams_read_whole(run: str) -> None:
    stream = read_stream(find_stream(EXAMPLES / run))
    found = stream.columns
    assert stream.footer is not None
    assert stream.footer.written_records == len(found)
    assert found.graph_valid.all()
    assert (found.duration_ns >= 0).all()
    executed = found.model_executed
    assert (found.unpadded_tokens == found.scheduled_tokens)[executed].all()


def test_integers_that_no_counter_reaches_are_refused(tmp_path: Path) -> None:
    """In the header, the footer and the sidecar, as in every step."""
    huge = 10**300
    records = [step(index) for index in range(3)]
    sizes = {"cudagraph_capture_sizes": [1, huge]}
    for lines, line in (
        ([header(config=sizes), *records], 1),
        ([header(), *records, footer(3, written_records=huge)], 5),
    ):
        error = refused(tmp_path, text(lines))
        assert (error.line, "beyond 62 bits" in error.reason) == (line, True)
    path = write_stream(tmp_path, whole(), sidecar(3, wall_time_ns=huge))
    fault = read_sidecar(path).fault
    assert fault is not None
    assert "beyond 62 bits" in fault
