"""Small synthetic Kineto traces: events as dictionaries, and the layouts they can be written in.

Times are decimal texts of microseconds, so a test decides every digit.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]

STEP_US = 10_000
"""Distance of the synthetic profiler steps."""
BASE_US = 5_140_000_000_000


class Text(str):
    """JSON text to be written as it stands."""


def encode(value: Any) -> str:
    """Encode as JSON, leaving :class:`Text` as it stands."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{encode(k)}: {encode(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    return json.dumps(value)


def span(category: str, name: str, ts: object, dur: object, **more: Any) -> Event:
    """Return a complete event; ``ts`` and ``dur`` are written digit by digit."""
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    event |= {"ts": Text(ts), "dur": Text(dur)} | more
    return event


def python_function(name: str, ts: object = f"{BASE_US}.000", dur: object = "1.000") -> Event:
    args = {"Python parent id": None, "Python id": 1, "Ev Idx": 7}
    return span("python_function", name, ts, dur, args=args)


def annotation(name: str, ts: object, dur: object) -> Event:
    return span("user_annotation", name, ts, dur, args={"External id": 1})


def call(name: str, ts: object, correlation: int | None, dur: object = "5.000") -> Event:
    args = {"cbid": 211} | ({} if correlation is None else {"correlation": correlation})
    return span("cuda_runtime", name, ts, dur, args=args)


def kernel(
    name: str,
    ts: object,
    dur: object,
    correlation: int | None,
    stream: int = 7,
    cat: str = "kernel",
) -> Event:
    args = {"queued": 0, "device": 0, "stream": stream}
    args |= {} if correlation is None else {"correlation": correlation}
    return span(cat, name, ts, dur, args=args) | {"pid": 0, "tid": stream}


def us(offset: float) -> str:
    """Return a time on the trace's clock as Kineto writes it."""
    return f"{BASE_US + offset:.3f}"


@dataclass
class Trace:
    """A window with steps 2..9, one launch and one kernel of 100 µs in each."""

    events: list[Event] = field(default_factory=list)
    head: dict[str, Any] = field(
        default_factory=lambda: {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        }
    )
    tail: dict[str, Any] = field(default_factory=lambda: {"traceName": "trace.json"})

    @classmethod
    def window(cls, numbers: range = range(2, 10), *, counts: str = "0(0)|4(4)") -> Trace:
        trace = cls()
        prefill, decode = counts.split("|")
        for number in numbers:
            at = (number - 2) * STEP_US
            execute = f"execute_context_{prefill}_generation_{decode}"
            trace.events += [
                annotation(f"ProfilerStep#{number}", us(at), "9990.000"),
                annotation(execute, us(at + 10), "9000.000"),
                call("cudaLaunchKernel", us(at + 100), 1000 + number),
                kernel("some_kernel", us(at + 5000), "100.000", 1000 + number),
            ]
        return trace

    def add(self, *events: Event) -> Trace:
        self.events += events
        return self

    def without(self, name: str) -> Trace:
        """Drop every event of a name."""
        self.events = [event for event in self.events if event["name"] != name]
        return self

    # ------------------------------------------------------------------ layouts

    def kineto(self) -> str:
        """Return the text in libkineto's layout."""
        head = "".join(f"  {encode(k)}: {encode(v)},\n" for k, v in self.head.items())
        events = ",\n".join(map(_kineto_event, self.events))
        tail = "".join(f",\n  {encode(k)}: {encode(v)}" for k, v in self.tail.items())
        return f'\n  {{\n{head}  "traceEvents": [\n{events}\n  ]{tail}\n}}\n'

    def compact(self) -> str:
        """Return the text without any space."""
        document = self.head | {"traceEvents": self.events} | self.tail
        return encode(document).replace('": ', '":').replace(', "', ',"')

    def reordered(self) -> str:
        """Return the text with every object's keys in reverse, one event a line."""
        events = [dict(reversed(list(event.items()))) for event in self.events]
        body = " ,\n".join(map(encode, events))
        return '{"traceEvents" : [ ' + body + " ] , " + encode(self.head)[1:]

    def indented(self) -> str:
        """Return the text as ``json.dumps(indent=4)`` writes it."""
        document = json.loads(encode(self.head | {"traceEvents": self.events} | self.tail))
        return json.dumps(document, indent=4)

    def write(self, path: Path, layout: str = "kineto") -> Path:
        return write_text(path, getattr(self, layout)())


def _kineto_event(event: Event) -> str:
    if "cat" not in event:
        return "  " + encode(event)
    first = [(k, event[k]) for k in ("ph", "cat", "name", "pid", "tid") if k in event]
    second = [(k, event[k]) for k in ("ts", "dur") if k in event]
    lines = [", ".join(f"{encode(k)}: {encode(v)}" for k, v in part) for part in (first, second)]
    text = "  {\n" + ",\n".join(f"    {line}" for line in lines if line)
    if "args" in event:
        args = ", ".join(f"{encode(k)}: {encode(v)}" for k, v in event["args"].items())
        text += f',\n    "args": {{\n      {args}\n    }}'
    return text + "\n  }"


def write_text(path: Path, text: str | bytes) -> Path:
    """Write text gzipped, at a fixed time and without a name."""
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, 1, mtime=0))
    return path
