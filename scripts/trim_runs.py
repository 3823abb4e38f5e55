"""Make small copies of real run directories: the same figures, a few percent of the bytes.

usage: python scripts/trim_runs.py SRC DST

Every run directory below SRC is copied to DST. Everything but the traces is copied byte for byte.
Of a Kineto trace (layout as libkineto writes it: one event per ``  {`` ... ``  },`` block) stay

- the text before ``traceEvents`` and after it (``traceName`` loses its folder: a machine path);
- every ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``gpu_user_annotation``, ``cuda_runtime``,
  ``cuda_driver`` and ``user_annotation`` event, and all metadata and instant events;
- every ``cpu_op`` on the same thread that encloses the start of a launch, and every ``vllm::`` op;

in their order, with name, pid, tid, ``ts`` and ``dur`` copied as text, so no digit changes.
``python_function`` and flow (``ac2g``) events go, and of ``args`` all but ``KEPT_ARGS``.
The gzip carries no name and no time and is written at level 9: same input, same file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 1 << 20
EVENT_BORDER = "\n  },\n  {\n"
EVENTS_START = '"traceEvents": [\n  {\n'
EVENTS_END = "\n  }\n  ]"
TRACE_SUFFIX = ".pt.trace.json.gz"

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
KEPT_ARGS = {
    "kernel": ("External id", "device", "stream", "correlation"),
    "gpu_memcpy": ("External id", "device", "stream", "correlation", "bytes"),
    "gpu_memset": ("External id", "device", "stream", "correlation", "bytes"),
    "gpu_user_annotation": ("External id",),
    "cuda_runtime": ("External id", "correlation"),
    "cuda_driver": ("External id", "correlation"),
    "user_annotation": ("External id",),
    # `stream` stays because a reader must not take such an op for a GPU kernel.
    "cpu_op": ("External id", "stream"),
}
LAYER_OP = "vllm::moe_forward"
"""Its `Concrete Inputs` may hold the layer's name, so they stay."""

HEAD = re.compile(
    r'    "ph": "X", "cat": "(?P<cat>[^"]+)", "name": (?P<name>"(?:[^"\\]|\\.)*"),'
    r' "pid": (?P<pid>[^,]+), "tid": (?P<tid>[^,]+),\n'
    r'    "ts": (?P<ts>[0-9.]+), "dur": (?P<dur>[0-9.]+)'
)
ARGS = ',\n    "args": {\n'
DROPPED = re.compile(r'    "ph": (?:"X", "cat": "python_function"|"[sf]", )')


class TrimError(Exception):
    """The trace is not laid out as libkineto writes it."""


def event_texts(path: Path) -> Iterator[str]:
    """Yield the text before the events, then every event's text, then the text after them."""
    buffer = ""
    started = False
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            buffer += chunk
            if not started:
                head, found, rest = buffer.partition(EVENTS_START)
                if not found:
                    continue
                yield head + found
                buffer, started = rest, True
            *events, buffer = buffer.split(EVENT_BORDER)
            yield from events
    last, found, tail = buffer.rpartition(EVENTS_END)
    if not started or not found:
        raise TrimError(f"{path}: no event list in libkineto's layout")
    yield last
    yield found + tail


def integer_ns(microseconds: str) -> int:
    """Return a decimal number of microseconds as integer nanoseconds; refuses what is finer."""
    whole, _, fraction = microseconds.partition(".")
    if len(fraction) > 3:
        raise TrimError(f"{microseconds} us is finer than a nanosecond")
    return int(whole) * 1000 + int(fraction.ljust(3, "0"))


def shortened(text: str, match: re.Match[str]) -> str:
    """Return an event's text with the kept part of its `args`."""
    category, end = match["cat"], match.end()
    if category not in KEPT_ARGS or not text.startswith(ARGS, end):
        return text
    values = json.loads("{" + text[end + len(ARGS) :])
    kept = {key: values[key] for key in KEPT_ARGS[category] if key in values}
    if json.loads(match["name"]) == LAYER_OP and "Concrete Inputs" in values:
        kept["Concrete Inputs"] = values["Concrete Inputs"]
    pairs = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in kept.items())
    return f"{text[:end]}{ARGS}      {pairs}\n    }}"


def encloses_any(start: int, end: int, sorted_starts: list[int]) -> bool:
    """Return whether any of the starts lies in [start, end)."""
    from bisect import bisect_left

    index = bisect_left(sorted_starts, start)
    return index < len(sorted_starts) and sorted_starts[index] < end


def launch_starts(kept: list[tuple[str, re.Match[str] | None]]) -> dict[tuple[str, str], list[int]]:
    """Return, per (pid, tid), the sorted starts of runtime events that put work on the GPU."""
    correlation = re.compile(r'"correlation": (\d+)')
    on_gpu: set[str] = set()
    for text, match in kept:
        if match and match["cat"] in GPU_CATEGORIES:
            on_gpu.update(correlation.findall(text, match.end()))
    starts: dict[tuple[str, str], list[int]] = {}
    for text, match in kept:
        if not match or match["cat"] not in RUNTIME_CATEGORIES:
            continue
        if "Launch" in match["name"] or not on_gpu.isdisjoint(
            correlation.findall(text, match.end())
        ):
            starts.setdefault((match["pid"], match["tid"]), []).append(integer_ns(match["ts"]))
    for values in starts.values():
        values.sort()
    return starts


def wanted(match: re.Match[str] | None, starts: dict[tuple[str, str], list[int]]) -> bool:
    """Return whether an event stays: all but `cpu_op`s that enclose no launch."""
    if match is None or match["cat"] != "cpu_op" or match["name"].startswith('"vllm::'):
        return True
    start = integer_ns(match["ts"])
    end = start + integer_ns(match["dur"])
    return encloses_any(start, end, starts.get((match["pid"], match["tid"]), []))


def trim_trace(source: Path, target: Path) -> None:
    """Write the short copy of one trace."""
    before, *events, after = (text for text in event_texts(source) if not DROPPED.match(text))
    parsed = [(text, HEAD.match(text)) for text in events]
    starts = launch_starts(parsed)
    bodies = [shortened(text, m) if m else text for text, m in parsed if wanted(m, starts)]
    after = re.sub(r'("traceName": ")[^"]*/', r"\1", after)
    payload = (before + EVENT_BORDER.join(bodies) + after).encode()
    json.loads(payload)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
        stream.write(payload)


def trim_run(source: Path, target: Path) -> None:
    """Copy one run directory, trimming its traces; prints sizes and the originals' SHA-256."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        out = target / path.relative_to(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(TRACE_SUFFIX):
            trim_trace(path, out)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            name = path.relative_to(source.parent).as_posix()
            print(f"{digest}  {name}  {path.stat().st_size} -> {out.stat().st_size}")
        else:
            shutil.copyfile(path, out)


def main(arguments: list[str]) -> int:
    """Trim every run directory (one with a `client/timeline.json`) of SRC into DST."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = Path(arguments[0]), Path(arguments[1])
    runs = sorted(p.parent.parent for p in source.glob("*/client/timeline.json"))
    if not runs:
        print(f"{source}: no run directory below it", file=sys.stderr)
        return 2
    for run in runs:
        trim_run(run, target / run.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
