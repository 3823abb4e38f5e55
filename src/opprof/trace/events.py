"""The Kineto events that OpProf decodes, one msgspec Struct a category; all others are skipped.

Line of each kind as libkineto writes it (vLLM 0.24.0, torch 2.11)::

    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 782, "tid": 782,
     "ts": 5143829935106.256, "dur": 21.515, "args": {"External id": 81923, ...}}
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", ...}
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 782, ...
     "args": {"External id": 13, "cbid": 211, "correlation": 16558}}
    {"ph": "X", "cat": "kernel", "name": "void cutlass::...", "pid": 0, "tid": 7, "ts": ...,
     "dur": 3.872, "args": {"device": 0, "stream": 7, "correlation": 5751684, ...}}

``ts`` and ``dur`` stay raw JSON text until :mod:`opprof.trace.nanoseconds` makes integers of them.
``gpu_user_annotation`` spans lie over kernels and are counted, never timed (FIELD-CASES 7). A
``cpu_op`` may carry ``args.stream`` (Inductor's Triton ops do): the category decides what it is.
"""

from __future__ import annotations

from typing import Union

from msgspec import Raw, Struct, json

Thread = int | str


class LaunchArgs(Struct, frozen=True, gc=False):
    """``args`` of a CUDA API call."""

    correlation: int | None = None


class DeviceArgs(Struct, frozen=True, gc=False):
    """``args`` of a device activity."""

    correlation: int | None = None
    stream: int | str | None = None
    device: int | str | None = None


class CpuOp(Struct, frozen=True, gc=False, tag_field="cat", tag="cpu_op"):
    """An operator call on a CPU thread."""

    name: str
    ts: Raw
    dur: Raw
    tid: Thread = 0


class UserAnnotation(Struct, frozen=True, gc=False, tag_field="cat", tag="user_annotation"):
    """A ``record_function`` span on a CPU thread."""

    name: str
    ts: Raw
    dur: Raw
    tid: Thread = 0


class RuntimeCall(Struct, frozen=True, gc=False, tag_field="cat", tag="cuda_runtime"):
    """A CUDA runtime call."""

    name: str
    ts: Raw
    dur: Raw
    tid: Thread = 0
    args: LaunchArgs = LaunchArgs()


class DriverCall(Struct, frozen=True, gc=False, tag_field="cat", tag="cuda_driver"):
    """A CUDA driver call."""

    name: str
    ts: Raw
    dur: Raw
    tid: Thread = 0
    args: LaunchArgs = LaunchArgs()


class Kernel(Struct, frozen=True, gc=False, tag_field="cat", tag="kernel"):
    """One kernel on a device."""

    name: str
    ts: Raw
    dur: Raw
    args: DeviceArgs = DeviceArgs()


class Memcpy(Struct, frozen=True, gc=False, tag_field="cat", tag="gpu_memcpy"):
    """One copy by a device."""

    name: str
    ts: Raw
    dur: Raw
    args: DeviceArgs = DeviceArgs()


class Memset(Struct, frozen=True, gc=False, tag_field="cat", tag="gpu_memset"):
    """One memset by a device."""

    name: str
    ts: Raw
    dur: Raw
    args: DeviceArgs = DeviceArgs()


class GpuAnnotation(Struct, frozen=True, gc=False, tag_field="cat", tag="gpu_user_annotation"):
    """A CPU annotation repeated over its kernels: counted, never timed."""


class PythonFunction(Struct, frozen=True, gc=False, tag_field="cat", tag="python_function"):
    """A Python frame: nine events in ten, and none of them read."""


class Flow(Struct, frozen=True, gc=False, tag_field="cat", tag="ac2g"):
    """An arrow between a launch and its kernel; the correlation says the same."""


class Overhead(Struct, frozen=True, gc=False, tag_field="cat", tag="overhead"):
    """The profiler's own work."""


class ProfilerSpan(Struct, frozen=True, gc=False, tag_field="cat", tag="Trace"):
    """The profiler's own span."""


TimedEvent = CpuOp | UserAnnotation | RuntimeCall | DriverCall | Kernel | Memcpy | Memset
SkippedEvent = GpuAnnotation | PythonFunction | Flow | Overhead | ProfilerSpan
Event = TimedEvent | SkippedEvent

_TIMED = (CpuOp, UserAnnotation, RuntimeCall, DriverCall, Kernel, Memcpy, Memset)
_SKIPPED = (GpuAnnotation, PythonFunction, Flow, Overhead, ProfilerSpan)
KNOWN_CATEGORIES: dict[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind for kind in (*_TIMED, *_SKIPPED)
}
"""Category to its Struct; an event of any other category, or of none, is skipped."""

EVENTS = json.Decoder(list[Union[(*_TIMED, *_SKIPPED)]])  # type: ignore[valid-type]
"""Decodes an array all of whose elements have known categories, in one call."""


class Peek(Struct, frozen=True, gc=False):
    """The category of any event object."""

    cat: str | None = None


PEEK = json.Decoder(Peek)
ONE_EVENT: dict[str, json.Decoder[Event]] = {
    category: json.Decoder(kind) for category, kind in KNOWN_CATEGORIES.items()
}
