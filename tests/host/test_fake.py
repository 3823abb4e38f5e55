"""The fake host: the protocol's machine, scripted events, memory that follows real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import msgspec
import pytest

from opprof.errors import EnvironmentFailure, InputError, SchemaError
from opprof.host.fake import FakeHost
from opprof.host.fake_file import Event, FakeMachine, FakeProcess, load_machine
from opprof.host.ports import Host

DASH0 = load_machine("dash0")


def scripted(*events: Event, **options: object) -> FakeHost:
    return FakeHost(msgspec.structs.replace(DASH0, events=list(events)), **options)  # type: ignore[arg-type]


def test_the_packaged_machine_is_the_protocols() -> None:
    host: Host = FakeHost(DASH0)
    topology = host.topology()
    assert [gpu.index for gpu in topology.gpus] == list(range(8))
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert topology.cpus == "0-159"
    assert topology.kind == host.kind == "fake"
    assert len({gpu.uuid for gpu in topology.gpus}) == 8


def test_a_snapshot_speaks_of_the_gpus_asked_for_in_that_order() -> None:
    snapshot = FakeHost(DASH0).snapshot([5, 2], "before")
    assert [gpu.index for gpu in snapshot.gpus] == [5, 2]
    assert snapshot.label == "before"
    assert snapshot.processes == []
    assert snapshot.gpus[0].throttle_reasons == ["gpu_idle"]
    assert snapshot.gpus[0].memory_used_bytes == 0


def test_an_unknown_gpu_is_refused_everywhere() -> None:
    host = FakeHost(DASH0)
    for call in (host.snapshot, host.gpu_memory_used, host.gpu_processes):
        with pytest.raises(InputError, match="no GPU 8"):
            call([8])


def test_occupied_memory_is_given_back_by_release() -> None:
    host = FakeHost(DASH0)
    host.occupy([1, 2])
    assert host.gpu_memory_used([0, 1, 2]) == [0, 90_000_000_000, 90_000_000_000]
    assert host.snapshot([1]).gpus[0].sm_clock_mhz == 1980
    host.release([1, 2])
    assert host.gpu_memory_used([1, 2]) == [0, 0]


def test_events_choose_by_label_gpu_kind_and_call() -> None:
    host = scripted(
        Event(label="P05-*:after", gpus=[3], gpu={"sm_clock_mhz": 900}),
        Event(kinds=["memory"], gpus=[1], first_call=1, calls=2, memory_left_bytes=5),
    )
    assert host.snapshot([3], "P05-C00-moderate:before").gpus[0].sm_clock_mhz == 345
    assert host.snapshot([3], "P05-C00-moderate:after").gpus[0].sm_clock_mhz == 900
    assert host.snapshot([2], "P05-C00-moderate:after").gpus[0].sm_clock_mhz == 345
    assert [host.gpu_memory_used([1])[0] for _ in range(4)] == [0, 5, 5, 0]
    assert host.gpu_memory_used([0]) == [0]


def test_events_follow_the_hosts_clock() -> None:
    now = [0]
    host = scripted(Event(from_s=1, until_s=2, host={"load_1m": 80.0}), mono_ns=lambda: now[0])
    seen = []
    for now[0] in (999_999_999, 1_000_000_000, 1_999_999_999, 2_000_000_000):
        seen.append(host.snapshot([0]).host.load_1m)
    assert seen == [2.0, 80.0, 80.0, 2.0]


def test_contamination_memory_exhaustion_and_a_lost_driver() -> None:
    stranger = FakeProcess(pid=4242, owner="other_user", memory_bytes=7)
    host = scripted(
        Event(label="dirty", gpus=[0], processes=[stranger]),
        Event(label="full", memory_full=True),
        Event(label="gone", fail="driver gone"),
        Event(label="silent", unavailable={"power_w": "not supported"}),
    )
    dirty = host.snapshot([0, 1], "dirty")
    assert [(p.gpu, p.pid, p.owner) for p in dirty.processes] == [(0, 4242, "other_user")]
    assert [gpu.memory_used_bytes for gpu in dirty.gpus] == [7, 0]
    assert host.gpu_memory_used([6], "full") == [102_625_181_696]
    silent = host.snapshot([0], "silent").gpus[0]
    assert silent.power_w is None
    assert silent.not_available == {"power_w": "not supported"}
    with pytest.raises(EnvironmentFailure, match="driver gone"):
        host.snapshot([0], "gone")


def test_disk_is_real_unless_scripted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    real = FakeHost(DASH0)
    assert real.tree_bytes(tmp_path) == 5
    assert real.free_bytes(tmp_path / "not" / "there" / "yet") > 0
    told = scripted(Event(kinds=["disk"], free_bytes=1, tree_bytes=2))
    assert told.free_bytes(tmp_path) == 1
    assert told.tree_bytes(tmp_path) == 2


def test_memory_follows_a_marked_server_process() -> None:
    mark = f"fake-host-test-{os.getpid()}"
    environment = os.environ | {
        "OPPROF_CAMPAIGN": mark,
        "OPPROF_ROLE": "server",
        "OPPROF_RUN": "P01-C00-moderate",
        "CUDA_VISIBLE_DEVICES": f"2,{DASH0.gpus[3].uuid}",
    }
    host = FakeHost(DASH0, campaign=mark)
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert host.gpu_memory_used([2, 3, 4]) == [90_000_000_000, 90_000_000_000, 0]
        (process,) = host.gpu_processes([2])
        assert (process.pid, process.owner) == (child.pid, "campaign")
        (marked,) = host.processes.marked(mark)
        assert (marked.run, marked.role) == ("P01-C00-moderate", "server")
        assert FakeHost(DASH0, campaign="another").gpu_memory_used([2]) == [0]
    finally:
        child.communicate(b"\n", timeout=120)
    assert host.gpu_memory_used([2, 3]) == [0, 0]


def test_a_host_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_bytes(msgspec.json.encode(DASH0))
    assert load_machine(path) == DASH0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unknown": 1}, "unknown"),
        ({"idle": {"sm_clock": 1}}, "sm_clock"),
        ({"events": [{"gpu": {"pstate": 99}}]}, "pstate"),
        ({"events": [{"host": {"load_1m": "high"}}]}, "load_1m"),
        ({"events": [{"unavailable": {"watts": "no"}}]}, "watts"),
        (
            {"numa_nodes": [{"node": 0, "cpus": "0-9"}, {"node": 1, "cpus": "9"}]},
            "CPU occurs twice",
        ),
        ({"numa_nodes": [{"node": 0, "cpus": "0-9"}]}, "NUMA node 1"),
        ({"numa_nodes": [{"node": 0, "cpus": "9-0"}, {"node": 1, "cpus": ""}]}, "no range"),
    ],
)
def test_a_contradictory_host_file_is_refused(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(msgspec.to_builtins(DASH0) | change))
    with pytest.raises(SchemaError, match=reason) as failure:
        load_machine(path)
    assert failure.value.path == str(path)


def test_the_documented_event_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "host.md").read_text()
    block = text.split("```toml\n")[1].split("```")[0]
    (event,) = msgspec.convert(tomllib.loads(block)["events"], list[Event])
    label = "P05-C00-moderate/1/after"
    seen = scripted(event).snapshot([3], label)
    assert seen.gpus[0].throttle_reasons == ["hw_thermal_slowdown"]
    assert [process.pid for process in seen.processes] == [4242]


def test_no_machine_of_that_name() -> None:
    with pytest.raises(InputError, match="not found"):
        load_machine("dash9")


def test_the_clock_is_monotonic_by_default() -> None:
    before = time.monotonic_ns()
    snapshot = FakeHost(DASH0).snapshot([0])
    assert before <= snapshot.mono_ns <= time.monotonic_ns()
    assert isinstance(DASH0, FakeMachine)


def test_everything_that_a_host_file_lacks_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("schema = 1\n[host]\nload_1m = 1.0\n[[gpus]]\nindex = 0\n")
    with pytest.raises(SchemaError) as found:
        load_machine(path)
    reason = str(found.value)
    for name in ("name", "numa_nodes", "idle", "busy", "server_memory_bytes", "host.load_5m",
                 "host.cpus", "gpus[0].uuid"):  # fmt: skip
        assert f"{name}," in reason or f"{name} missing" in reason, name
    assert "copy of the packaged dash0.toml" in reason
    assert "load_1m" not in reason
