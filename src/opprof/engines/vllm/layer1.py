"""Layer 1: the hooks of the engine process. One ``schedule()`` and its ``update_from_output()`` are
one step, paired by the scheduler output itself, which carries the step's index.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from opprof.engines.vllm.capture import Capture
from opprof.engines.vllm.plugin import logger
from opprof.engines.vllm.session import Session


def hook_scheduler(module: ModuleType) -> None:
    """Wrap the scheduler's two seams; ``AsyncScheduler`` overrides neither."""
    scheduler = module.Scheduler
    scheduler._opprof = None
    scheduler.schedule = wrap_schedule(scheduler.schedule)
    scheduler.update_from_output = wrap_update(scheduler.update_from_output)
    scheduler._preempt_request = wrap_preempt(scheduler._preempt_request)


def wrap_schedule(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Scheduler.schedule`` that also records what was scheduled."""

    @functools.wraps(original)
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture: Capture | None = self._opprof
        if capture is None or not capture.recorder.is_on:
            return original(self, *args, **kwargs)
        try:
            queries, hits = capture.prefix_counters(self)
        except Exception as error:  # noqa: BLE001 - a recorder's fault must not reach the engine
            capture.fail(error)
            return original(self, *args, **kwargs)
        output = original(self, *args, **kwargs)
        try:
            capture.submitted(self, output, queries, hits)
        except Exception as error:  # noqa: BLE001 - as above
            capture.fail(error)
        return output

    return schedule


def wrap_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Scheduler.update_from_output`` that also records the step's end."""

    @functools.wraps(original)
    def update_from_output(
        self: Any, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        capture: Capture | None = self._opprof
        if capture is not None:
            try:
                capture.completed(scheduler_output, model_runner_output)
            except Exception as error:  # noqa: BLE001 - a recorder's fault must not reach the engine
                capture.fail(error)
        return original(self, scheduler_output, model_runner_output, *args, **kwargs)

    return update_from_output


def wrap_preempt(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Scheduler._preempt_request`` that remembers what will be computed again."""

    @functools.wraps(original)
    def _preempt_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        capture: Capture | None = self._opprof
        if capture is not None:
            try:
                capture.preempted(request)
            except Exception as error:  # noqa: BLE001 - a recorder's fault must not reach the engine
                capture.fail(error)
        return original(self, request, *args, **kwargs)

    return _preempt_request


def hook_core(module: ModuleType) -> None:
    """Wrap the engine's life: begin when all configuration is final, end before teardown."""
    core, process = module.EngineCore, module.EngineCoreProc
    core._opprof_session = None
    core.shutdown = wrap_shutdown(core.shutdown)
    core.profile = wrap_profile(core.profile)
    core.__init__ = wrap_core_init(core.__init__, process)
    for owner in (process, module.DPEngineCoreProc):
        if "run_busy_loop" in vars(owner):
            owner.run_busy_loop = wrap_busy_loop(owner.run_busy_loop)


def begin(core: Any) -> None:
    """Start the recording of one engine; on any fault say so and let it serve."""
    if core._opprof_session is not None:
        return
    try:
        core._opprof_session = Session.begin(core)
    except Exception:  # noqa: BLE001 - unwritable folder, no process, unknown layout: serve on
        logger.exception("opprof: NOT RECORDING; the engine serves without it")


def wrap_core_init(original: Callable[..., Any], process: type) -> Callable[..., Any]:
    """Return ``EngineCore.__init__`` that begins recording for an engine inside its caller."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not isinstance(self, process):
            begin(self)

    return __init__


def wrap_busy_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run_busy_loop`` that begins recording first: all configuration is final by then."""

    @functools.wraps(original)
    def run_busy_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin(self)
        return original(self, *args, **kwargs)

    return run_busy_loop


def wrap_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``EngineCore.shutdown`` that first closes the stream."""

    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        session: Session | None = self._opprof_session
        if session is not None:
            self._opprof_session = None
            error = sys.exc_info()[1]
            try:
                session.end(None if isinstance(error, SystemExit) else error)
            except Exception:  # noqa: BLE001 - the engine's own shutdown must run
                logger.exception("opprof: the stream could not be closed")
        return original(self, *args, **kwargs)

    return shutdown


def wrap_profile(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``EngineCore.profile`` that watches the window and notes what it left."""

    @functools.wraps(original)
    def profile(self: Any, is_start: bool = True, *args: Any, **kwargs: Any) -> Any:
        session: Session | None = self._opprof_session
        if session is None:
            return original(self, is_start, *args, **kwargs)
        try:
            session.before_profile(is_start=is_start)
        except Exception:  # noqa: BLE001 - watching must not break profiling
            logger.exception("opprof: the profiler window is not watched")
            return original(self, is_start, *args, **kwargs)
        result = original(self, is_start, *args, **kwargs)
        try:
            session.after_profile(is_start=is_start)
        except Exception:  # noqa: BLE001 - as above
            logger.exception("opprof: the profiler window is not watched")
        return result

    return profile


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "vllm.v1.core.sched.scheduler": hook_scheduler,
    "vllm.v1.engine.core": hook_core,
}
