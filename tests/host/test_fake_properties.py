"""The fake host keeps its word whatever is scripted; ``environment.json`` goes there and back."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from opprof.analysis.inputs import read_inputs
from opprof.artifacts.environment import Environment
from opprof.host.fake import FakeHost
from opprof.host.fake_file import Event, FakeMachine, FakeProcess, load_machine
from opprof.host.versions import versions

DASH0 = load_machine("dash0")
RUN = Path(__file__).parents[2] / "examples" / "h200-plugin-runs" / "P03-C00-saturation"

PROCESSES = st.builds(
    FakeProcess,
    pid=st.integers(1, 50),
    owner=st.sampled_from(["same_user", "other_user", "unknown"]),
    memory_bytes=st.integers(0, 1 << 38),
)
EVENTS = st.builds(
    Event,
    label=st.sampled_from(["*", "a*", "b"]),
    gpus=st.lists(st.integers(0, 7), max_size=3, unique=True),
    kinds=st.lists(st.sampled_from(["snapshot", "memory", "processes"]), unique=True, max_size=2),
    first_call=st.integers(0, 3),
    calls=st.none() | st.integers(1, 3),
    memory_left_bytes=st.integers(0, 1 << 40),
    memory_full=st.booleans(),
    processes=st.lists(PROCESSES, max_size=3),
    gpu=st.just({}) | st.just({"sm_clock_mhz": 300, "throttle_reasons": ["hw_slowdown"]}),
    unavailable=st.just({}) | st.just({"power_w": "not supported"}),
)
LOOKS = st.lists(
    st.tuples(
        st.sampled_from(["snapshot", "memory", "processes"]),
        st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True),
        st.sampled_from(["", "ab", "b"]),
    ),
    max_size=8,
)


def machine(events: list[Event]) -> FakeMachine:
    return msgspec.structs.replace(DASH0, events=events)


def look(host: FakeHost, looks: list[tuple[str, list[int], str]]) -> list[object]:
    seen: list[object] = []
    for kind, gpus, label in looks:
        if kind == "snapshot":
            found = host.snapshot(gpus, label)
            seen.append((found.gpus, found.processes, found.host))
        elif kind == "memory":
            seen.append(host.gpu_memory_used(gpus, label))
        else:
            seen.append(host.gpu_processes(gpus, label))
    return seen


@given(st.lists(EVENTS, max_size=4), LOOKS)
def test_what_is_seen_depends_on_the_calls_alone(
    events: list[Event], looks: list[tuple[str, list[int], str]]
) -> None:
    assert look(FakeHost(machine(events)), looks) == look(FakeHost(machine(events)), looks)


@given(st.lists(EVENTS, max_size=4), LOOKS)
def test_memory_and_processes_stay_possible(
    events: list[Event], looks: list[tuple[str, list[int], str]]
) -> None:
    host = FakeHost(machine(events))
    for _, gpus, label in looks:
        used = host.gpu_memory_used(gpus, label)
        assert all(0 <= value <= DASH0.gpus[0].memory_bytes for value in used)
        snapshot = host.snapshot(gpus, label)
        assert [state.index for state in snapshot.gpus] == gpus
        assert {process.gpu for process in snapshot.processes} <= set(gpus)
        places = [(process.gpu, process.pid) for process in snapshot.processes]
        assert places == sorted(set(places))
        for state in snapshot.gpus:
            assert (state.power_w is None) == ("power_w" in state.not_available)


@given(st.lists(EVENTS, max_size=3))
def test_an_event_never_reaches_a_gpu_that_it_does_not_name(events: list[Event]) -> None:
    named = [event for event in events if event.gpus]
    untouched = [gpu for gpu in range(8) if all(gpu not in event.gpus for event in named)]
    host = FakeHost(machine(named))
    assert host.gpu_memory_used(untouched, "ab") == [0] * len(untouched)
    assert host.gpu_processes(untouched, "ab") == []


@given(st.lists(EVENTS, max_size=4))
def test_a_host_file_goes_there_and_back(events: list[Event]) -> None:
    found = machine(events)
    assert msgspec.convert(json.loads(msgspec.json.encode(found)), FakeMachine) == found


def test_the_analysis_reads_the_signal_time_of_a_whole_environment(tmp_path: Path) -> None:
    host = FakeHost(DASH0)
    told, reasons = versions(host.driver())
    found = Environment(
        schema=1,
        run="P03-C00-saturation",
        attempt=1,
        topology=host.topology(),
        gpus=[2],
        gpu_uuids=[DASH0.gpus[2].uuid],
        cpus="40-59",
        versions=told,
        hashes={"protocol": "0" * 64},
        hooked={},
        expected_seconds=488.0,
        before=host.snapshot([2], "before"),
        after=host.snapshot([2], "after"),
        signal_wall_ns=1_800_000_000_000_000_000,
        simulated=True,
        not_available=reasons,
    )
    data = msgspec.json.encode(found)
    assert msgspec.json.decode(data, type=Environment) == found
    run = tmp_path / "run"
    run.mkdir()
    for part in ("client", "opprof"):
        (run / part).symlink_to(RUN / part)
    (run / "environment.json").write_bytes(data)
    assert read_inputs(run).signal_wall_ns == 1_800_000_000_000_000_000
