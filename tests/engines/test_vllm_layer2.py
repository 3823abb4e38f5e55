"""Repeated windows, the step annotation, and graph statistics, on fakes of vLLM's classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from engine_fakes import Stat

from opprof.engines.vllm import layer2


class Profile:
    """Like ``torch.profiler.profile``: one schedule, good for one window."""

    def __init__(self) -> None:
        self.windows = 0

    def start(self) -> None:
        self.windows += 1


class Wrapper:
    """Like vLLM 0.24's ``TorchProfilerWrapper``."""

    def __init__(self, config: str, *, rank: int) -> None:
        self.config = config
        self.rank = rank
        self.profiler = Profile()
        self._uses_schedule = config == "scheduled"
        self._warmup_steps_remaining = 1

    def _start(self) -> None:
        self.profiler.start()


class Rebuilding(Wrapper):
    """Like vLLM 0.32's: it builds a profile at each start."""

    def _start(self) -> None:
        torch = SimpleNamespace(profiler=SimpleNamespace(profile=Profile))
        self.profiler = torch.profiler.profile()
        self.profiler.start()


def hooked(base: type[Wrapper]) -> type[Wrapper]:
    own = {name: vars(base).get(name, vars(Wrapper)[name]) for name in ("__init__", "_start")}
    made = type("TorchProfilerWrapper", (base,), own)
    layer2.hook_profiler(SimpleNamespace(TorchProfilerWrapper=made))  # type: ignore[arg-type]
    return made


def test_every_scheduled_start_has_a_fresh_profile() -> None:
    wrapper = hooked(Wrapper)("scheduled", rank=1)
    profiles = []
    for _ in range(3):
        wrapper._start()
        wrapper._warmup_steps_remaining = 0
        profiles.append(wrapper.profiler)
    assert [profile.windows for profile in profiles] == [1, 1, 1]
    assert len({id(profile) for profile in profiles}) == 3
    wrapper._start()
    assert wrapper._warmup_steps_remaining == 1
    assert (wrapper.config, wrapper.rank) == ("scheduled", 1)


def test_an_unscheduled_profile_is_started_again() -> None:
    wrapper = hooked(Wrapper)("endless", rank=0)
    wrapper._start()
    wrapper._start()
    assert wrapper.profiler.windows == 2


def test_a_rebuilding_engine_is_left_alone() -> None:
    made = hooked(Rebuilding)
    assert made._start is Rebuilding._start


class Trace:
    """Records what opens and closes."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def annotation(self, name: str) -> Any:
        return Scope(self.events, name)


class Scope:
    """Like ``record_function``."""

    def __init__(self, events: list[str], name: str) -> None:
        self.events = events
        self.name = name

    def __enter__(self) -> None:
        self.events.append(f"+{self.name}")

    def __exit__(self, *_: object) -> None:
        self.events.append(f"-{self.name}")


class Worker:
    """Like vLLM's ``Worker``, as far as annotations go."""

    def __init__(self, *, running: bool) -> None:
        self.trace = Trace()
        self.profiler = SimpleNamespace(
            _running=running, annotate_context_manager=self.trace.annotation
        )

    def annotate_profile(self, scheduler_output: Any) -> Any:
        self.trace.events.append("profiler step")
        return self.trace.annotation("execute")

    annotate = layer2.wrap_annotate(annotate_profile)


def test_the_step_opens_after_the_profiler_and_inside_execute() -> None:
    worker = Worker(running=True)
    with worker.annotate(SimpleNamespace(opprof_step=41)):
        worker.trace.events.append("model")
    assert worker.trace.events == [
        "profiler step",
        "+execute",
        "+opprof_step_41",
        "model",
        "-opprof_step_41",
        "-execute",
    ]


def test_both_scopes_close_on_an_error() -> None:
    worker = Worker(running=True)
    with (
        pytest.raises(RuntimeError, match="model"),
        worker.annotate(SimpleNamespace(opprof_step=1)),
    ):
        raise RuntimeError("model")
    assert worker.trace.events[-2:] == ["-opprof_step_1", "-execute"]


@pytest.mark.parametrize(
    ("running", "output"), [(False, SimpleNamespace(opprof_step=1)), (True, SimpleNamespace())]
)
def test_no_mark_outside_a_window_or_without_a_step(running: bool, output: Any) -> None:
    worker = Worker(running=running)
    with worker.annotate(output):
        pass
    assert worker.trace.events == ["profiler step", "+execute", "-execute"]


def test_graph_metrics_are_switched_on_before_the_worker_reads_them() -> None:
    seen: list[bool] = []

    class WorkerBase:
        def __init__(self, vllm_config: Any, local_rank: int) -> None:
            seen.append(vllm_config.observability_config.cudagraph_metrics)

    layer2.hook_worker_base(SimpleNamespace(WorkerBase=WorkerBase))  # type: ignore[arg-type]
    config = SimpleNamespace(observability_config=SimpleNamespace(cudagraph_metrics=False))
    WorkerBase(config, local_rank=0)
    assert seen == [True]


def make_stat(
    num_unpadded_tokens: int, num_padded_tokens: int, num_paddings: int, runtime_mode: str
) -> Stat:
    assert num_paddings == num_padded_tokens - num_unpadded_tokens
    return Stat(num_unpadded_tokens, num_padded_tokens, runtime_mode)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_v2_runner_gets_graph_stats(asynchronous: bool) -> None:
    def dispatch(manager: Any, num_reqs: int, num_tokens: int, *rest: Any) -> tuple[Any, None]:
        return SimpleNamespace(cg_mode="FULL", num_tokens=16), None

    def sample(self: Any, grammar: Any) -> Any:
        output = SimpleNamespace(req_ids=["a"], cudagraph_stats=None)
        return SimpleNamespace(model_runner_output=output) if asynchronous else output

    new_dispatch, new_sample = layer2.add_graph_stats(dispatch, sample, make_stat)
    assert new_dispatch(None, 13, 13)[0].num_tokens == 16
    result = new_sample(None, None)
    output = result.model_runner_output if asynchronous else result
    assert output.cudagraph_stats == Stat(13, 16, "FULL")
    again = new_sample(None, None)
    output = again.model_runner_output if asynchronous else again
    assert output.cudagraph_stats is None, "a dispatch must not be used twice"


def test_shared_empty_outputs_are_never_touched() -> None:
    empty = SimpleNamespace(req_ids=[])
    description = SimpleNamespace(cg_mode="NONE", num_tokens=4)
    new_dispatch, new_sample = layer2.add_graph_stats(
        lambda *_: (description, None), lambda *_: empty, make_stat
    )
    new_dispatch(None, 1, 4)
    assert new_sample(None) is empty
    assert vars(empty) == {"req_ids": []}


def test_a_v2_runner_with_stats_is_left_alone() -> None:
    module = SimpleNamespace(CUDAGraphStat=object)
    layer2.hook_v2_runner(module)  # type: ignore[arg-type]
    assert vars(module) == {"CUDAGraphStat": object}
