"""A server's log: real lines of vLLM 0.24.0 on H200s and a CPU, and faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.campaign.server_log import ServerLog, parse_server_log, read_server_log
from opprof.errors import InputError

DATA = Path(__file__).parent / "data"
STAMP = "11-30 03:21:52"


def parse(*lines: str) -> ServerLog:
    return parse_server_log(lines)


def error(text: str, where: str = "core.py:1233") -> str:
    return f"(EngineCore pid=7) ERROR {STAMP} [{where}] {text}"


def test_an_h200_server_at_start_up() -> None:
    log = read_server_log(DATA / "server-h200-tp1.log")
    assert (log.engine_version, log.dtype, log.max_model_len) == ("0.24.0", "bfloat16", 40960)
    assert (log.tensor_parallel_size, log.pipeline_parallel_size) == (1, 1)
    assert log.max_num_batched_tokens == 8192
    assert log.max_num_seqs is None  # a default is not logged
    assert (log.chunked_prefill, log.prefix_caching, log.enforce_eager) == (True, True, False)
    assert log.cudagraph_mode == "FULL_AND_PIECEWISE"
    assert log.cudagraph_capture_sizes is not None
    assert (len(log.cudagraph_capture_sizes), max(log.cudagraph_capture_sizes)) == (51, 512)
    assert log.attention_backends == ["FLASH_ATTN"]
    assert log.moe_backends == ["TRITON"]
    assert log.compile_cache_keys == ["98ebef169f"]
    assert len(log.aot_cache_keys) == 1
    assert log.async_scheduling is True
    assert log.shutdown_line is not None
    assert log.incident_counts == {}


def test_two_ranks_share_their_keys() -> None:
    log = read_server_log(DATA / "server-h200-tp2.log")
    assert log.tensor_parallel_size == 2
    assert log.compile_cache_keys == ["45d4119afc"]
    assert log.moe_backends == ["TRITON"]


def test_a_cpu_server() -> None:
    """The API process guesses that scheduling is asynchronous; the engine's own word counts."""
    log = read_server_log(DATA / "server-cpu.log")
    assert log.async_scheduling is False
    assert (log.cudagraph_mode, log.cudagraph_capture_sizes) == ("NONE", [])
    assert log.max_num_seqs == 64
    assert log.enforce_eager is True
    assert log.incident_counts == {}


def test_an_engine_that_died() -> None:
    log = read_server_log(DATA / "server-h200-killed.log")
    assert log.incident_counts == {"engine_dead": 1, "error_line": 1, "http_5xx": 5}
    assert log.incidents[0].where == "async_llm.py:704"
    assert log.shutdown_line is None


def test_what_comes_after_a_forced_end_can_be_left_out() -> None:
    path = DATA / "server-h200-killed.log"
    size = path.read_bytes().index(b"AsyncLLM output_handler failed")
    start = path.read_bytes().rindex(b"\n", 0, size) + 1
    assert read_server_log(path, upto_bytes=start).incident_counts == {}
    assert read_server_log(path, upto_bytes=0) == ServerLog(lines=0)


def test_requests_cut_off_by_a_shutdown_are_no_fault() -> None:
    log = parse(
        f"(APIServer pid=1) INFO {STAMP} [launcher.py:100] "
        "[shutdown] API server: shutdown triggered",
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal',
        error("EngineDeadError"),
    )
    assert (log.shutdown_line, log.incident_counts, log.incidents_after_shutdown) == (1, {}, 2)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            error("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
            "gpu_out_of_memory",
        ),
        ("(Worker pid=3) torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu_out_of_memory"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access", "cuda_error"),
        (error("EngineCore encountered a fatal error."), "engine_dead"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "engine_dead"),
        (error("something else"), "error_line"),
        (
            '(APIServer pid=1) INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 503 x',
            "http_5xx",
        ),
    ],
)
def test_faults_are_told_apart(line: str, kind: str) -> None:
    log = parse("harmless", line)
    assert log.incident_counts == {kind: 1}
    assert log.incidents[0].line == 2


@pytest.mark.parametrize(
    "line",
    [
        f"(APIServer pid=1) WARNING {STAMP} [system_utils.py:299] OSError: CUDA out of memory.",
        f"(APIServer pid=1) INFO {STAMP} [logger.py:1] Received request: prompt: 'CUDA error:'",
        '(APIServer pid=1) INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 200 OK',
        '(APIServer pid=1) INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 400 Bad Request',
        "",
    ],
)
def test_other_lines_are_no_faults(line: str) -> None:
    assert parse(line).incident_counts == {}


def test_a_traceback_is_one_incident_and_one_for_its_cause() -> None:
    lines = [error("failed"), error("Traceback"), error("CUDA error: x"), error("more")]
    assert parse(*lines).incident_counts == {"cuda_error": 1, "error_line": 1}
    assert parse(error("a"), "between", error("b")).incident_counts == {"error_line": 2}
    assert parse(error("a"), error("b", "other.py:1")).incident_counts == {"error_line": 2}


def test_incidents_are_bounded_and_still_counted() -> None:
    log = parse(*(error("x", f"a.py:{n}") for n in range(100)))
    assert (len(log.incidents), log.incident_counts) == (20, {"error_line": 100})


def test_no_text_of_a_line_is_kept() -> None:
    log = parse(error("prompt: 'secret words' CUDA error: y"), "CUDA error: secret words")
    assert "secret" not in repr(log)


def test_given_values_are_read_from_the_arguments() -> None:
    log = parse(
        f"(APIServer pid=1) INFO {STAMP} [api_utils.py:273] non-default args: "
        "{'model': 'm', 'max_num_seqs': 64, 'max_num_batched_tokens': 2048}"
    )
    assert (log.max_num_seqs, log.max_num_batched_tokens) == (64, 2048)


def test_a_missing_log_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_server_log(tmp_path / "server.log")


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    lines = data.decode("utf-8", "replace").split("\n")
    assert parse_server_log(lines).lines == len(lines)
