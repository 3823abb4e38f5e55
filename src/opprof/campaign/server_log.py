"""What a server's log says: effective values at start-up, and errors until it was told to end.

Lines of vLLM 0.24.0, as seen on H200s and on a CPU::

    (EngineCore pid=745) INFO 11-30 03:22:17 [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model=…
    (APIServer pid=618) INFO 11-30 03:21:52 [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=8192.
    (EngineCore pid=745) INFO 11-30 03:22:20 [unquantized.py:247] Using TRITON Unquantized MoE backend out of …
    (APIServer pid=618) INFO:     127.0.0.1:46428 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
    (APIServer pid=618) INFO 11-30 03:25:27 [launcher.py:100] [shutdown] API server: shutdown triggered

No text of a line is ever kept but for the values above: an error's text may quote a request.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from msgspec import Struct

from opprof.errors import InputError

_LINE_BYTES = 1 << 20
"""Longer lines are read in pieces; no line that matters is that long."""
_INCIDENTS_MAX = 20

_LINE = re.compile(
    r"^(?:\((?P<process>[^)]*)\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[(?P<where>[\w.]+:\d+)\] )?(?P<text>.*)$",
    re.DOTALL,
)
_ACCESS = re.compile(r'^INFO: +\S+ - "[A-Z]+ \S+ HTTP/[\d.]+" (?P<status>\d{3})')
_SHUTDOWN = re.compile(r"^\[shutdown\] API server: shutdown triggered")

IncidentKind = Literal["gpu_out_of_memory", "cuda_error", "engine_dead", "http_5xx", "error_line"]

_FATAL: tuple[tuple[IncidentKind, re.Pattern[str]], ...] = (
    # The first that fits names the line. An engine that dies of an exhausted GPU says both.
    ("gpu_out_of_memory", re.compile(r"OutOfMemoryError|CUDA out of memory|out of memory\b.*CUDA")),
    ("cuda_error", re.compile(r"CUDA error:|CUBLAS_STATUS_|NCCL error|AcceleratorError")),
    (
        "engine_dead",
        re.compile(r"EngineDeadError|encountered a fatal error|Engine core initialization failed"),
    ),
)


class Incident(Struct, frozen=True):
    """One line that speaks of a fault; its text is not kept."""

    kind: IncidentKind
    line: int
    """Counted from 1."""
    where: str
    """``core.py:1233``: who wrote it; empty where the line does not tell."""


class ServerLog(Struct, frozen=True):
    """What a log says. null or empty: it does not say."""

    lines: int
    engine_version: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    quantization: str | None = None
    max_num_seqs: int | None = None
    """vLLM logs it only where it was given."""
    max_num_batched_tokens: int | None = None
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: list[int] | None = None
    async_scheduling: bool | None = None
    """By the engine's own process; the API process logs a guess first (seen to differ on CPU)."""
    attention_backends: list[str] = []
    moe_backends: list[str] = []
    compile_cache_keys: list[str] = []
    aot_cache_keys: list[str] = []
    shutdown_line: int | None = None
    """Where the server was told to end."""
    incidents: list[Incident] = []
    """Before it was told to end; the first twenty, and the first of each kind."""
    incident_counts: dict[str, int] = {}
    """By kind, before it was told to end."""
    incidents_after_shutdown: int = 0
    """Requests that a shutdown cuts off answer 500: no fault of the measurement."""


_INITIALIZING = re.compile(r"^Initializing a V1 LLM engine \(v(?P<version>[^)]+)\) with config: ")
_CONFIG: dict[str, re.Pattern[str]] = {
    "dtype": re.compile(r", dtype=torch\.(\w+),"),
    "max_model_len": re.compile(r", max_seq_len=(\d+),"),
    "tensor_parallel_size": re.compile(r", tensor_parallel_size=(\d+),"),
    "pipeline_parallel_size": re.compile(r", pipeline_parallel_size=(\d+),"),
    "data_parallel_size": re.compile(r", data_parallel_size=(\d+),"),
    "chunked_prefill": re.compile(r", enable_chunked_prefill=(True|False),"),
    "prefix_caching": re.compile(r", enable_prefix_caching=(True|False),"),
    "enforce_eager": re.compile(r", enforce_eager=(True|False),"),
    "quantization": re.compile(r", quantization=(\w+),"),
    "cudagraph_mode": re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+):"),
    "cudagraph_capture_sizes": re.compile(r"'cudagraph_capture_sizes': \[([\d, ]*)\]"),
}
_CHUNKED = re.compile(r"^Chunked prefill is enabled with max_num_batched_tokens=(\d+)\.")
_NON_DEFAULT = re.compile(r"^non-default args: \{")
_GIVEN_SEQS = re.compile(r"'max_num_seqs': (\d+)[,}]")
_GIVEN_TOKENS = re.compile(r"'max_num_batched_tokens': (\d+)[,}]")
_ASYNC = re.compile(r"^Asynchronous scheduling is (enabled|disabled)\.")
_ATTENTION = re.compile(r"^Using (\S+) attention backend")
_MOE = re.compile(r"^Using (.+?) Unquantized MoE backend")
_CACHE = re.compile(r"torch_compile_cache/([0-9a-f]{6,64})/")
_AOT = re.compile(r"torch_aot_compile/([0-9a-f]{16,64})/")


class _Reader:
    """Collects values line by line; the first word of each counts, lists keep every one."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.lists: dict[str, list[str]] = {}
        self.incidents: list[Incident] = []
        self.counts: dict[str, int] = {}
        self.after = 0
        self.shutdown: int | None = None
        self.lines = 0
        self._error_block: tuple[int, str] | None = None

    def feed(self, raw: str) -> None:
        self.lines += 1
        match = _LINE.match(raw)
        assert match is not None  # every part of the pattern is optional
        text, level = match["text"], match["level"]
        if level is None:
            self._unlevelled(text)
        elif level in ("ERROR", "CRITICAL"):
            self._error(text, match["where"])
        elif level == "INFO":
            self._value(text, match["process"] or "")

    def _error(self, text: str, where: str) -> None:
        """The lines of one traceback are one incident, and one more for each fault they name."""
        kind, block = _kind(text), self._error_block
        self._error_block = (self.lines, where)
        if kind is not None or block != (self.lines - 1, where):
            self._incident(kind or "error_line", where)

    def _unlevelled(self, text: str) -> None:
        """An access line of the web server, or a raw line: a traceback of a dying process."""
        access = _ACCESS.match(text)
        if access is not None:
            if access["status"].startswith("5"):
                self._incident("http_5xx", "")
            return
        kind = _kind(text)
        if kind is not None:
            self._incident(kind, "")

    def _incident(self, kind: IncidentKind, where: str) -> None:
        if self.shutdown is not None:
            self.after += 1
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.incidents) < _INCIDENTS_MAX or self.counts[kind] == 1:
            self.incidents.append(Incident(kind, self.lines, where))

    def _value(self, text: str, process: str) -> None:
        if _SHUTDOWN.match(text):
            self.shutdown = self.shutdown or self.lines
        elif found := _INITIALIZING.match(text):
            self._first("engine_version", found["version"])
            for name, pattern in _CONFIG.items():
                if value := pattern.search(text, found.end() - 2):
                    self._first(name, _typed(name, value[1]))
        elif found := _CHUNKED.match(text):
            self._first("max_num_batched_tokens", int(found[1]))
        elif _NON_DEFAULT.match(text):
            for name, pattern in (
                ("max_num_seqs", _GIVEN_SEQS),
                ("max_num_batched_tokens", _GIVEN_TOKENS),
            ):
                if value := pattern.search(text):
                    self._first(name, int(value[1]))
        elif (found := _ASYNC.match(text)) and process.startswith("EngineCore"):
            self.values["async_scheduling"] = found[1] == "enabled"
        else:
            self._lists(text)

    def _lists(self, text: str) -> None:
        for name, pattern in (
            ("attention_backends", _ATTENTION),
            ("moe_backends", _MOE),
            ("compile_cache_keys", _CACHE),
            ("aot_cache_keys", _AOT),
        ):
            if found := pattern.search(text):
                kept = self.lists.setdefault(name, [])
                if found[1] not in kept:
                    kept.append(found[1])

    def _first(self, name: str, value: object) -> None:
        self.values.setdefault(name, value)


def read_server_log(path: Path, *, upto_bytes: int | None = None) -> ServerLog:
    """Read a server's log, line by line; bytes that are no UTF-8 are replaced.

    Args:
        path: The log.
        upto_bytes: Read no further: the log's size when the controller ended the server by force,
            since a killed engine leaves errors that are no fault of the run.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return parse_server_log(_bounded(stream, upto_bytes))
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", path=path) from error


def parse_server_log(lines: Iterable[str]) -> ServerLog:
    """Gather what the lines say; see :class:`ServerLog`."""
    reader = _Reader()
    for line in lines:
        reader.feed(line.rstrip("\r\n"))
    return ServerLog(
        lines=reader.lines,
        shutdown_line=reader.shutdown,
        incidents=reader.incidents,
        incident_counts=dict(sorted(reader.counts.items())),
        incidents_after_shutdown=reader.after,
        **reader.values,  # type: ignore[arg-type]  # names are fields by construction (tested)
        **reader.lists,  # type: ignore[arg-type]
    )


def _bounded(stream: BinaryIO, upto_bytes: int | None) -> Iterator[str]:
    left = upto_bytes
    while left is None or left > 0:
        line = stream.readline(_LINE_BYTES if left is None else min(_LINE_BYTES, left))
        if not line:
            return
        left = None if left is None else left - len(line)
        yield line.decode("utf-8", "replace")


def _kind(text: str) -> IncidentKind | None:
    return next((kind for kind, pattern in _FATAL if pattern.search(text)), None)


def _typed(name: str, text: str) -> object:
    if name == "cudagraph_capture_sizes":
        return [int(part) for part in text.split(",") if part.strip()]
    if text in ("True", "False"):
        return text == "True"
    if name == "quantization" and text == "None":
        return None
    return int(text) if text.isdecimal() else text
