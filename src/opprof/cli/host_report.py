"""``opprof doctor --host``: what a campaign would know of this machine, as one look shows it."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from opprof.artifacts.environment import GpuState, HostState, Snapshot, Topology, Versions
from opprof.cli.options import gpu_indices
from opprof.host.ports import Host


class HostReport(Struct, frozen=True):
    """Topology, one snapshot, versions; what could not be read, with its reason; the placement."""

    topology: Topology
    snapshot: Snapshot
    versions: Versions
    not_available: dict[str, str]
    placement_problems: list[str] | None
    """Against the bound protocol's map; null without one, or on a host without GPUs."""
    protocol_id: str | None
    free_bytes: int
    """On the file system of the current folder."""


def examine_host(
    host_file: str | None, gpus: str | None, python: str | None, protocol_source: str | None
) -> HostReport:
    """Look at the machine, or at one from a file.

    Raises:
        InputError: no such host file, GPU or protocol.
        EnvironmentFailure: the driver or the other interpreter cannot be asked.
    """
    from pathlib import Path

    from opprof.campaign.places import placement_problems
    from opprof.host.versions import versions
    from opprof.protocol import load_protocol

    host = _open(host_file)
    topology = host.topology()
    known = [gpu.index for gpu in topology.gpus]
    chosen = known if gpus is None else list(gpu_indices(gpus))
    protocol = load_protocol(protocol_source)
    problems = None
    if protocol is not None and known:
        problems = placement_problems(protocol.file.placement, topology)
    found, reasons = versions(host.driver(), python=python)
    return HostReport(
        topology=topology,
        snapshot=host.snapshot(chosen, "doctor"),
        versions=found,
        not_available=topology.not_available | {f"versions.{k}": v for k, v in reasons.items()},
        placement_problems=problems,
        protocol_id=None if protocol is None else protocol.file.id,
        free_bytes=host.free_bytes(Path.cwd()),
    )


def show_host(report: HostReport) -> None:
    """Print the look for a person."""
    topology, snapshot = report.topology, report.snapshot
    echo = click.echo
    note = " (from a file: nothing of its GPUs is real)" if topology.kind == "fake" else ""
    echo(f"host           {topology.host}, looked at through {topology.kind}{note}")
    versions = {name: getattr(report.versions, name) for name in Versions.__struct_fields__}
    told = ", ".join(f"{name} {value}" for name, value in versions.items() if value is not None)
    echo(f"versions       {told}")
    for node in topology.numa_nodes:
        echo(f"NUMA node {node.node:<4} CPUs {node.cpus}")
    echo(f"usable CPUs    {topology.cpus}")
    _show_machine(snapshot.host, report.free_bytes)
    for gpu in topology.gpus:
        mig = ", partitioned (MIG)" if gpu.mig_enabled else ""
        echo(f"GPU {gpu.index:<11}{gpu.name}, {gpu.uuid}, NUMA node {_or_dash(gpu.numa_node)}{mig}")
        for state in snapshot.gpus:
            if state.index == gpu.index:
                _show_gpu(state)
    for process in snapshot.processes:
        memory = _or_dash(process.memory_bytes, " bytes")
        echo(
            f"  process      {process.pid} {process.name or '?'} on GPU {process.gpu}, "
            f"{process.owner}, {process.kind}, {memory}"
        )
    if topology.gpus and not snapshot.processes and "processes" not in snapshot.not_available:
        echo("  process      none on these GPUs")
    missing = report.not_available | snapshot.not_available
    for name, reason in missing.items():
        echo(f"not available  {name}: {reason}")
    for problem in report.placement_problems or []:
        echo(f"placement      not as protocol {report.protocol_id}'s map says: {problem}")
    if report.placement_problems == []:
        echo(f"placement      as protocol {report.protocol_id}'s map says")


def show_map(host_file: str | None, gpus: str | None) -> None:
    """Print a [placement] for the machine, to put into a protocol.

    Raises:
        InputError: no such host file or GPU, or the machine has no map (see
            :func:`opprof.campaign.places.split_cpus`).
        EnvironmentFailure: the driver cannot be asked.
    """
    import json

    from opprof.campaign.places import choose_gpus, split_cpus

    topology = _open(host_file).topology()
    masks, nodes = split_cpus(choose_gpus(topology, [] if gpus is None else gpu_indices(gpus)))
    click.echo(f"gpus = {len(masks)}\ncpu_map = {json.dumps(masks)}\nnuma_nodes = {nodes}")


def _show_machine(state: HostState, free: int) -> None:
    governors = state.cpu_governors or {}
    click.echo(
        f"machine        load {state.load_1m:.2f} {state.load_5m:.2f} {state.load_15m:.2f} on "
        f"{state.cpus} CPUs, {state.memory_available_bytes / 2**30:.1f} of "
        f"{state.memory_total_bytes / 2**30:.1f} GiB available, governors "
        f"{', '.join(f'{name} x{count}' for name, count in governors.items()) or '-'}, "
        f"OOM kills {_or_dash(state.oom_kills)}, {free / 1e9:.1f} GB free here"
    )


def _show_gpu(state: GpuState) -> None:
    reasons = state.throttle_reasons
    parts = [
        f"SM {_or_dash(state.sm_clock_mhz)}/{_or_dash(state.sm_clock_max_mhz)} MHz",
        f"memory {_or_dash(state.mem_clock_mhz)}/{_or_dash(state.mem_clock_max_mhz)} MHz",
        f"P{_or_dash(state.pstate)}",
        f"{_or_dash(state.power_w)}/{_or_dash(state.power_limit_w)} W",
        f"{_or_dash(state.temperature_c)} C",
        f"{_or_dash(state.utilization_percent)} %",
        f"clock events {'-' if reasons is None else ', '.join(reasons) or 'none'}",
        f"used {_or_dash(state.memory_used_bytes)} of {_or_dash(state.memory_total_bytes)} bytes "
        f"(driver's reserve {_or_dash(state.memory_reserved_bytes)})",
        f"ECC {_or_dash(state.ecc_enabled)}, uncorrected {_or_dash(state.ecc_uncorrected)}",
        f"persistence {_or_dash(state.persistence)}",
        f"compute mode {_or_dash(state.compute_mode)}",
    ]
    click.echo(f"  state        {'; '.join(parts)}")
    for name, reason in state.not_available.items():
        click.echo(f"  no {name}: {reason}")


def _or_dash(value: Any, unit: str = "") -> str:
    return "-" if value is None else f"{value}{unit}"


def _open(host_file: str | None) -> Host:
    from opprof.host.detect import open_real_host
    from opprof.host.fake import FakeHost
    from opprof.host.fake_file import load_machine

    return open_real_host() if host_file is None else FakeHost(load_machine(host_file))
