"""Linux and psutil: NUMA nodes, governors, OOM kills; a machine looked at without NVML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opprof.errors import EnvironmentFailure, InputError
from opprof.host import machine
from opprof.host.cpu import NO_GPU, CpuHost
from opprof.host.cpus import parse_cpus
from opprof.host.ports import Host


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_numa_nodes_come_in_order_and_memory_only_nodes_are_left_out(tmp_path: Path) -> None:
    for node, cpus in ((10, "20-29\n"), (2, "0-9,40\n"), (3, "\n")):
        write(tmp_path / "node" / f"node{node}" / "cpulist", cpus)
    write(tmp_path / "node" / "online", "0-3\n")
    assert [(n.node, n.cpus) for n in machine.numa_nodes(tmp_path)] == [
        (2, "0-9,40"),
        (10, "20-29"),
    ]
    assert machine.numa_nodes(tmp_path / "absent") == []


def test_governors_are_counted(tmp_path: Path) -> None:
    for cpu in range(3):
        governor = "powersave" if cpu == 2 else "performance"
        write(tmp_path / "cpu" / f"cpu{cpu}" / "cpufreq" / "scaling_governor", f"{governor}\n")
    (tmp_path / "cpu" / "cpuidle").mkdir()
    assert machine.governors(tmp_path) == {"performance": 2, "powersave": 1}


def test_a_kernel_that_tells_nothing_leaves_reasons(tmp_path: Path) -> None:
    state = machine.host_state(tmp_path, tmp_path / "vmstat")
    assert state.cpu_governors is None
    assert state.oom_kills is None
    assert {"cpu_governors", "oom_kills"} <= set(state.not_available)
    assert state.memory_total_bytes > state.memory_available_bytes > 0
    write(tmp_path / "vmstat", "pgpgin 1\noom_kill 3\n")
    assert machine.oom_kills(tmp_path / "vmstat") == 3


def test_a_pci_devices_node(tmp_path: Path) -> None:
    write(tmp_path / "0000:1b:00.0" / "numa_node", "1\n")
    write(tmp_path / "0000:1c:00.0" / "numa_node", "-1\n")
    assert machine.pci_numa_node("00000000:1B:00.0", tmp_path) == 1
    assert machine.pci_numa_node("00000000:1C:00.0", tmp_path) is None
    assert machine.pci_numa_node("00000000:1D:00.0", tmp_path) is None


def test_a_machine_without_nvml_says_so() -> None:
    host: Host = CpuHost("plain")
    topology = host.topology()
    assert (topology.host, topology.kind, topology.gpus) == ("plain", "cpu", [])
    assert topology.not_available["gpus"] == NO_GPU
    assert set(parse_cpus(topology.cpus)) == os.sched_getaffinity(0)
    snapshot = host.snapshot([], "before")
    assert snapshot.label == "before"
    assert snapshot.not_available == {"gpus": NO_GPU, "processes": NO_GPU}
    assert host.gpu_memory_used([]) == []
    assert host.gpu_processes([]) == []
    assert host.driver() == (None, None)
    for call in (host.snapshot, host.gpu_memory_used, host.gpu_processes):
        with pytest.raises(InputError, match="no GPU 0"):
            call([0])


def test_without_psutil_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    with pytest.raises(EnvironmentFailure, match=r"opprof\[campaign\]"):
        machine.host_state()
