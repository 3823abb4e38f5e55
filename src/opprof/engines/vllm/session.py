"""One engine's recording: its files, its recorder, and the profiler windows it watches."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts.engine import EngineReport, ProfilerEvent
from opprof.artifacts.layer1 import Header
from opprof.engines.recorder.handle import Recorder
from opprof.engines.recorder.stream import set_aside
from opprof.engines.vllm import DIRECTORY_VARIABLE
from opprof.engines.vllm.capture import Capture
from opprof.engines.vllm.describe import describe_engine, engine_index
from opprof.engines.vllm.plugin import current_fit
from opprof.files import write_atomic

FLUSH_INTERVAL_S = 1.0
TRACE_MARK = ".pt.trace.json"

logger = logging.getLogger("vllm.opprof")


class Session:
    """What :mod:`opprof.engines.vllm.layer1` keeps on an engine core."""

    def __init__(self, recorder: Recorder, report: EngineReport, ranks: int) -> None:
        self.recorder = recorder
        self._windows = recorder.path.with_name(
            recorder.path.name.removesuffix(".jsonl") + ".profiler.ndjson"
        )
        set_aside(self._windows)
        self._trace_dir = _local_folder(report.profiler_dir)
        self._ranks = ranks
        self._window = -1
        self._is_open = False
        self._before: set[str] = set()
        self._call_ns = 0

    @classmethod
    def begin(cls, core: Any) -> Session:
        """Describe the engine, start the recorder and attach it to the scheduler.

        Raises:
            EnvironmentFailure: the folder cannot be written, or no writer process starts.
            RuntimeError: the scheduler's queues have an unknown layout.
        """
        from vllm.v1.utils import compute_iteration_details

        fit = current_fit()
        folder = Path(os.environ[DIRECTORY_VARIABLE]).expanduser().resolve()
        index = engine_index(core.vllm_config)
        report = describe_engine(core, fit)
        name = "engine-config.json" if index == 0 else f"engine-{index}-config.json"
        write_atomic(folder / name, msgspec.json.format(msgspec.json.encode(report), indent=1))
        header = Header(
            schema=1,
            engine="vllm",
            engine_version=fit.version,
            flush_interval_s=FLUSH_INTERVAL_S,
            config=report.config,
            untested=fit.differences,
        )
        recorder = Recorder(folder / f"engine-{index}.jsonl", header)
        capture = Capture(recorder, core.scheduler, compute_iteration_details)
        recorder.start()
        session = cls(recorder, report, core.vllm_config.parallel_config.world_size)
        core.scheduler._opprof = capture
        logger.warning("opprof: recording every engine step to %s", recorder.path)
        if report.shutdown_timeout_s == 0:
            logger.warning(
                "opprof: --shutdown-timeout is 0, so SIGTERM kills the engine at once and the "
                "stream will have no footer; give a positive timeout"
            )
        return session

    def end(self, error: BaseException | None) -> None:
        """Close the stream: cleanly, or with the error that ended the engine."""
        reason = "" if error is None else f"engine error: {type(error).__name__}: {error}"
        if not self.recorder.close(reason) and self.recorder.failure is None:
            logger.error("opprof: the writer process did not confirm the end of the stream")

    def before_profile(self, *, is_start: bool) -> None:
        """Note the moment, and at a window's start which traces exist already."""
        self._call_ns = time.monotonic_ns()
        if is_start and not self._is_open:
            self._before = self._traces()
            if self.recorder.is_on:
                self.recorder.profile(started=True, at_ns=self._call_ns)

    def after_profile(self, *, is_start: bool) -> None:
        """Write the window's event; :mod:`opprof.engines.vllm.frontend` tells the client."""
        after_ns = time.monotonic_ns()
        event = self._started(after_ns) if is_start else self._stopped(after_ns)
        if event.fault is not None:
            logger.error("opprof: profiler window %d: %s", event.window, event.fault)
        with self._windows.open("ab") as stream:
            stream.write(msgspec.json.encode(event) + b"\n")

    def _started(self, after_ns: int) -> ProfilerEvent:
        fault = None
        if self._is_open:
            fault = "started again while a window is open (vLLM ignores it)"
        else:
            self._window += 1
            self._is_open = True
        return ProfilerEvent(
            schema=1,
            event="start",
            window=self._window,
            call_mono_ns=[self._call_ns, after_ns],
            traces=[],
            expected_ranks=None,
            fault=fault,
        )

    def _stopped(self, after_ns: int) -> ProfilerEvent:
        window, expected = -1, None
        fault: str | None = "stopped without a start"
        traces: list[str] = []
        if self._is_open:
            self._is_open = False
            window, fault = self._window, None
            if self.recorder.is_on:
                self.recorder.profile(started=False, at_ns=after_ns)
            if self._trace_dir is not None:
                expected = self._ranks
                traces = sorted(self._traces() - self._before)
                if not traces:
                    fault = f"no trace was written to {self._trace_dir}"
                elif len(traces) != expected:
                    fault = f"{len(traces)} traces were written by {expected} ranks"
        return ProfilerEvent(
            schema=1,
            event="stop",
            window=window,
            call_mono_ns=[self._call_ns, after_ns],
            traces=traces,
            expected_ranks=expected,
            fault=fault,
        )

    def _traces(self) -> set[str]:
        if self._trace_dir is None or not self._trace_dir.is_dir():
            return set()
        return {path.name for path in self._trace_dir.iterdir() if TRACE_MARK in path.name}


def _local_folder(name: str | None) -> Path | None:
    return None if name is None or "://" in name else Path(name)
