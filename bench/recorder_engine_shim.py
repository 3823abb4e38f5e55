"""The plugin for ``recorder_engine.py``: OpProf's own, with clocks around hooks and originals."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS: list[list[int]] = []
"""One row a step: recording on, requests, tokens, then ns: hooked and original schedule, update."""


def timed(function: Callable[..., Any], sink: list[int]) -> Callable[..., Any]:
    """Return the function with its duration in ns left in ``sink[0]``."""
    clock = time.perf_counter_ns

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = clock()
        result = function(*args, **kwargs)
        sink[0] = clock() - begin
        return result

    return call


def register() -> None:
    """Activate OpProf with timed originals and timed hooks."""
    if not os.environ.get("VLLM_OPPROF_DIR"):
        return
    from opprof.engines.vllm import layer1, register, session

    own_schedule, own_update, outer = [0], [0], [0]
    wrap_schedule, wrap_update = layer1.wrap_schedule, layer1.wrap_update
    waiting: dict[int, list[int]] = {}

    def schedule_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        hooked = timed(wrap_schedule(timed(original, own_schedule)), outer)

        @functools.wraps(original)
        def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = hooked(self, *args, **kwargs)
            counts = output.num_scheduled_tokens
            is_on = hasattr(output, "opprof_step")
            row = [len(counts), output.total_num_scheduled_tokens, outer[0], own_schedule[0]]
            waiting[id(output)] = [int(is_on), *row]
            return output

        return schedule

    def update_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        hooked = timed(wrap_update(timed(original, own_update)), outer)

        @functools.wraps(original)
        def update(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            result = hooked(self, output, *args, **kwargs)
            row = waiting.pop(id(output), None)
            if row is not None:
                ROWS.append([*row, outer[0], own_update[0]])
            return result

        return update

    layer1.wrap_schedule, layer1.wrap_update = schedule_wrapper, update_wrapper
    end = session.Session.end

    def end_and_dump(self: Any, error: BaseException | None) -> None:
        end(self, error)
        Path(os.environ["OPPROF_BENCH_TIMINGS"]).write_text(json.dumps(ROWS))

    session.Session.end = end_and_dump
    register()
