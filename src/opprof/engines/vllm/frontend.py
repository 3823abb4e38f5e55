"""The API server's part: a profiler window's fault becomes the answer of ``/stop_profile``.

vLLM answers 200 whatever a window left. The engine process notes what it left in the event file
beside its stream; here, after vLLM's own ``stop_profile`` has returned (and has settled its own
state), a fault is raised, which the server answers with HTTP 500.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from opprof.artifacts.engine import ProfilerEvent
from opprof.engines.vllm import DIRECTORY_VARIABLE

TAIL_BYTES = 64 << 10
"""Read from the end of an event file: hundreds of events, of which the last one is wanted."""


def hook_async_llm(module: ModuleType) -> None:
    """Wrap ``AsyncLLM.stop_profile``."""
    module.AsyncLLM.stop_profile = wrap_stop(module.AsyncLLM.stop_profile)


def wrap_stop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``stop_profile`` that raises when an engine noted a fault of this window."""

    @functools.wraps(original)
    async def stop_profile(self: Any, *args: Any, **kwargs: Any) -> Any:
        called_ns = time.monotonic_ns()
        result = await original(self, *args, **kwargs)
        fault = latest_fault(Path(os.environ[DIRECTORY_VARIABLE]).expanduser(), called_ns)
        if fault is not None:
            raise RuntimeError(f"opprof: {fault}")
        return result

    return stop_profile


def latest_fault(folder: Path, since_ns: int) -> str | None:
    """Return the fault of a stop call that returned after ``since_ns``; None when there is none.

    A file that cannot be read is no fault: the engine may run on another host.
    """
    for path in sorted(folder.glob("engine-*.profiler.ndjson")):
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - TAIL_BYTES))
                last = stream.read().splitlines()[-1:]
            event = msgspec.json.decode(last[0], type=ProfilerEvent) if last else None
        except (OSError, msgspec.MsgspecError):
            continue
        if event is not None and event.event == "stop" and event.call_mono_ns[1] >= since_ns:
            return event.fault
    return None


HOOKS: dict[str, Callable[[ModuleType], None]] = {"vllm.v1.engine.async_llm": hook_async_llm}
