"""NVML behind the Host protocol, over a module that behaves like pynvml; error paths included."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvml_stub import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNINITIALIZED,
    StubNvml,
)
from opprof.artifacts.environment import GpuState
from opprof.errors import EnvironmentFailure, InputError
from opprof.host import nvml_library
from opprof.host.birthmark import birthmark
from opprof.host.nvml import NvmlHost
from opprof.host.nvml_fields import clock_events, cuda_version
from opprof.host.ownership import Ownership
from opprof.host.ports import Host, Process


@pytest.fixture
def stub() -> StubNvml:
    return StubNvml()


def open_host(stub: StubNvml, **options: object) -> NvmlHost:
    return NvmlHost("box", library=stub, **options)  # type: ignore[arg-type]


def test_topology(stub: StubNvml) -> None:
    host: Host = open_host(stub)
    topology = host.topology()
    assert [(g.index, g.uuid, g.name, g.numa_node) for g in topology.gpus] == [
        (0, "GPU-00000000", "NVIDIA H200", 0),
        (1, "GPU-00000001", "NVIDIA H200", 1),
    ]
    assert topology.gpus[1].pci_bus_id == "00000000:1C:00.0"
    assert not topology.gpus[0].mig_enabled
    assert topology.host == "box"
    assert topology.cpus
    assert host.driver() == ("580.159.04", "13.0")


def test_every_field_of_a_healthy_gpu_is_told(stub: StubNvml) -> None:
    stub.used[1] = 1234
    (state,) = open_host(stub).snapshot([1], "before").gpus
    assert state == GpuState(
        index=1,
        uuid="GPU-00000001",
        memory_used_bytes=1234,
        memory_reserved_bytes=600,
        memory_total_bytes=150_000,
        sm_clock_mhz=1980,
        mem_clock_mhz=3201,
        sm_clock_max_mhz=1980,
        mem_clock_max_mhz=3201,
        sm_clock_application_mhz=1980,
        pstate=0,
        power_w=119.78,
        power_limit_w=700.0,
        temperature_c=37,
        utilization_percent=3,
        throttle_reasons=[],
        ecc_enabled=True,
        ecc_uncorrected=0,
        persistence=True,
        compute_mode="default",
    )


FIELDS = {
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPerformanceState": "pstate",
    "nvmlDeviceGetApplicationsClock": "sm_clock_application_mhz",
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 999])
@pytest.mark.parametrize("function", sorted(FIELDS))
def test_a_field_that_is_not_told_is_null_with_its_reason(
    stub: StubNvml, function: str, code: int
) -> None:
    stub.errors[function] = code
    (state,) = open_host(stub).snapshot([0]).gpus
    field = FIELDS[function]
    assert getattr(state, field) is None
    assert set(state.not_available) == {field}
    assert state.not_available[field]
    assert state.sm_clock_mhz == 1980


@pytest.mark.parametrize("code", sorted(nvml_library.FATAL))
@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetHandleByIndex"])
def test_a_lost_gpu_or_driver_ends_the_look(stub: StubNvml, function: str, code: int) -> None:
    host = open_host(stub)
    host.topology()
    stub.errors[function] = code
    with pytest.raises(EnvironmentFailure, match="NVML"):
        host.snapshot([0])


def test_one_lost_gpu_leaves_the_other_readable(stub: StubNvml) -> None:
    host = open_host(stub)
    host.topology()
    stub.gpu_errors["nvmlDeviceGetMemoryInfo", 0] = GPU_IS_LOST
    assert host.gpu_memory_used([1]) == [0]
    with pytest.raises(EnvironmentFailure, match="gpu is lost"):
        host.gpu_memory_used([0])


def test_a_library_that_was_shut_down_is_started_again_once_told(stub: StubNvml) -> None:
    host = open_host(stub)
    host.topology()
    stub.initialised = 0
    with pytest.raises(EnvironmentFailure, match="uninitialized"):
        host.snapshot([0])
    assert host.snapshot([0]).gpus[0].sm_clock_mhz == 1980


def test_nothing_starts_without_a_driver(stub: StubNvml) -> None:
    stub.errors["nvmlInit"] = 9
    with pytest.raises(EnvironmentFailure, match="nvmlInit"):
        open_host(stub).topology()
    stub.errors["nvmlInit"] = NO_PERMISSION
    with pytest.raises(EnvironmentFailure, match="cannot start NVML"):
        open_host(stub).topology()


def test_after_a_fork_the_child_starts_the_library_itself(stub: StubNvml) -> None:
    host = open_host(stub)
    host.topology()
    assert stub.initialised == 1
    child = os.fork()
    if child == 0:
        host.snapshot([0])
        os._exit(0 if stub.initialised == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stub.initialised == 1


def test_older_releases(stub: StubNvml) -> None:
    stub.bytes_names = True
    stub.nvmlMemory_v2 = None
    stub.absent = {"nvmlDeviceGetCurrentClocksEventReasons"}
    stub.events[0] = 0x28
    host = open_host(stub)
    assert host.topology().gpus[0].name == "NVIDIA H200"
    (state,) = host.snapshot([0]).gpus
    assert (state.memory_used_bytes, state.memory_reserved_bytes) == (600, None)
    assert "held in memory_used_bytes" in state.not_available["memory_reserved_bytes"]
    assert state.throttle_reasons == ["hw_slowdown", "sw_thermal_slowdown"]


def test_memory_that_is_not_told_is_never_zero(stub: StubNvml) -> None:
    stub.errors["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    host = open_host(stub)
    state = host.snapshot([0]).gpus[0]
    assert state.memory_used_bytes is None
    assert state.not_available["memory_used_bytes"] == "not supported"
    with pytest.raises(EnvironmentFailure, match="cannot read GPU memory"):
        host.gpu_memory_used([0])


def test_processes_that_cannot_be_listed_are_not_none(stub: StubNvml) -> None:
    stub.errors["nvmlDeviceGetComputeRunningProcesses"] = NOT_SUPPORTED
    host = open_host(stub)
    snapshot = host.snapshot([0])
    assert snapshot.processes == []
    assert snapshot.not_available == {"processes": "not supported"}
    with pytest.raises(EnvironmentFailure, match="cannot list"):
        host.gpu_processes([0])


def test_processes_say_whose_they_are(stub: StubNvml) -> None:
    mine, hidden = os.getpid(), (1 << 22) + 5
    stub.processes[0] = [(mine, 7), (hidden, None)]
    stub.graphics[0] = [(mine, 7), (1, 3)]
    stub.processes[1] = [(mine, 8)]
    plain = open_host(stub).gpu_processes([1, 0])
    assert [(p.gpu, p.pid) for p in plain] == [(0, 1), (0, mine), (0, hidden), (1, mine)]
    by_pid = {p.pid: p for p in plain if p.gpu == 0}
    assert (by_pid[mine].owner, by_pid[mine].kind) == ("same_user", "compute")
    assert (by_pid[hidden].owner, by_pid[hidden].name) == ("unknown", None)
    assert by_pid[hidden].memory_bytes is None
    assert by_pid[1].kind == "graphics"


def test_a_worker_without_its_environment_is_still_the_campaigns() -> None:
    """vLLM's workers write titles over it; the birthmark stays."""
    worker = Process(7, 70, 1, 7, 7, "S", True, "VLLM::Worker", None, None, None, None)
    assert Ownership("c").of(worker) == "same_user"
    born = msgspec.structs.replace(worker, birthmark=birthmark("c", "P01"))
    assert Ownership("c").of(born) == "campaign"
    assert Ownership("d").of(born) == "same_user"
    assert Ownership().of(born) == "same_user"


def test_an_unknown_gpu_is_refused(stub: StubNvml) -> None:
    with pytest.raises(InputError, match="no GPU 2, only 2"):
        open_host(stub).snapshot([2])


def test_mig_and_odd_affinities(stub: StubNvml) -> None:
    stub.mig = True
    stub.nodes = {0: 0b11, 1: 1 << 40}
    topology = open_host(stub).topology()
    assert topology.gpus[0].mig_enabled
    assert topology.gpus[0].numa_node is None
    assert topology.not_available["gpu0.numa_node"] == "the driver names 2 nodes"
    assert topology.gpus[1].numa_node == 40


def test_without_a_driver_word_the_kernel_tells_the_node(
    stub: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.errors["nvmlDeviceGetMemoryAffinity"] = NOT_SUPPORTED
    assert "neither the driver" in open_host(stub).topology().not_available["gpu0.numa_node"]
    monkeypatch.setattr("opprof.host.nvml_fields.pci_numa_node", lambda _: 1)
    assert open_host(stub).topology().gpus[0].numa_node == 1


def test_cuda_visible_devices_plays_no_part(
    stub: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in open_host(stub).topology().gpus] == [0, 1]


def test_closing_gives_the_library_back(stub: StubNvml) -> None:
    host = open_host(stub)
    host.close()
    host.topology()
    host.close()
    assert stub.initialised == 0


@given(st.integers(0, (1 << 64) - 1))
def test_every_set_bit_has_one_name(mask: int) -> None:
    names = clock_events(mask)
    assert len(names) == len(set(names)) == mask.bit_count()
    assert names == sorted(names)


def test_named_bits() -> None:
    assert clock_events(0) == []
    assert clock_events(0x1) == ["gpu_idle"]
    assert clock_events(0x84) == ["hw_power_brake_slowdown", "sw_power_cap"]
    assert clock_events(1 << 33) == ["bit_33"]
    assert [cuda_version(value) for value in (13000, 12090, 11080)] == ["13.0", "12.9", "11.8"]


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(EnvironmentFailure, match=r"opprof\[campaign\]"):
        NvmlHost("box")


def test_vllms_own_copy_is_found_without_importing_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm"
    (package / "third_party").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "third_party" / "pynvml.py").write_text(
        "import sys\nclass NVMLError(Exception): pass\nsys.modules[__name__].made = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml_library.import_pynvml().made


def test_disk(stub: StubNvml, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"xyz")
    host = open_host(stub)
    assert host.tree_bytes(tmp_path) == 3
    assert host.free_bytes(tmp_path) > 0
    assert UNINITIALIZED in nvml_library.FATAL


CALLS = [
    *FIELDS,
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
]


@given(
    st.dictionaries(
        st.sampled_from(CALLS), st.integers(2, 40).filter(lambda c: c not in nvml_library.FATAL)
    )
)
def test_whatever_is_refused_a_null_has_a_reason_and_the_rest_is_told(
    errors: dict[str, int],
) -> None:
    stub = StubNvml()
    stub.errors = errors
    snapshot = open_host(stub).snapshot([0, 1])
    for state in snapshot.gpus:
        for field in state.__struct_fields__:
            null = getattr(state, field) is None
            assert null == (field in state.not_available), field
    refused = "nvmlDeviceGetComputeRunningProcesses" in errors
    assert ("processes" in snapshot.not_available) is refused


@given(st.sampled_from(CALLS), st.sampled_from(sorted(nvml_library.FATAL)))
def test_a_driver_that_goes_midway_is_one_error_and_never_a_null(call: str, code: int) -> None:
    stub = StubNvml()
    host = open_host(stub)
    host.topology()
    stub.errors[call] = code
    with pytest.raises(EnvironmentFailure, match=call):
        host.snapshot([0, 1])
