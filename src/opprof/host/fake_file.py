"""The file that a fake host is read from: GPUs, NUMA nodes, idle and busy state, scripted events.

TOML, or JSON with the same keys. ``machines/dash0.toml`` is the protocol's machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from opprof.artifacts.environment import GpuDevice, GpuState, HostState, NumaNode, Owner
from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes
from opprof.host.cpus import parse_cpus

MACHINES = Path(__file__).parent / "machines"
_LIMIT_BYTES = 1 << 20

Count = Annotated[int, Meta(ge=0)]
Scalar = bool | int | float | str | list[str] | None
CallKind = Literal["snapshot", "memory", "processes", "disk"]


class FakeProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that an event puts on a GPU."""

    pid: Annotated[int, Meta(ge=1)]
    owner: Owner
    memory_bytes: Count = 0
    name: str | None = "python"
    kind: Literal["compute", "graphics"] = "compute"


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that happens on the fake machine, while all its conditions hold.

    A call counts for an event when label, kind and a GPU fit; the event acts on its matching calls
    number ``first_call`` (from 0) and the following, ``calls`` of them. Counts start anew with the
    process, so an event that must hit the same run after a resume names it by its label.
    """

    label: str = "*"
    """Pattern of the moment's label, as file names are matched."""
    gpus: list[Count] = []
    """Empty: every GPU."""
    kinds: list[CallKind] = []
    """Empty: every kind of call."""
    first_call: Count = 0
    calls: Annotated[int, Meta(ge=1)] | None = None
    from_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds since the host was opened, by its clock."""
    until_s: Annotated[float, Meta(ge=0)] | None = None
    memory_left_bytes: Count = 0
    """Bytes in use without any process."""
    memory_full: bool = False
    """Every byte of the GPU is in use: what an out-of-memory failure looks like from outside."""
    processes: list[FakeProcess] = []
    gpu: dict[str, Scalar] = {}
    """Fields of ``GpuState`` that read otherwise: clocks, throttle reasons, temperature …"""
    host: dict[str, Scalar] = {}
    """Fields of ``HostState`` that read otherwise: load, ``oom_kills`` …"""
    unavailable: dict[str, str] = {}
    """Fields of ``GpuState`` that the driver does not tell, with the reason."""
    free_bytes: Count | None = None
    tree_bytes: Count | None = None
    fail: str = ""
    """The call raises ``EnvironmentFailure`` with this text: driver gone, GPU lost."""


class FakeMachine(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: Literal[1]
    name: str
    gpus: list[GpuDevice]
    numa_nodes: list[NumaNode]
    host: HostState
    idle: dict[str, Scalar]
    """Fields of ``GpuState`` of a GPU that nothing runs on."""
    busy: dict[str, Scalar]
    """Fields that read otherwise while one of the campaign's servers is on it."""
    server_memory_bytes: Count
    """What one server takes on each of its GPUs."""
    driver: str | None = None
    cuda_driver: str | None = None
    free_bytes: Count | None = None
    """null: the real file system's."""
    events: list[Event] = []

    def gpu(self, index: int) -> GpuDevice | None:
        """Return a GPU by its physical index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)


def load_machine(source: str | Path) -> FakeMachine:
    """Read a machine: a file, or the name of a packaged one (``dash0``).

    Raises:
        InputError: no such file or packaged machine.
        SchemaError: not TOML or JSON, unknown keys, a value that its field cannot hold.
    """
    path = Path(source)
    packaged = MACHINES / f"{source}.toml"
    if not path.exists() and path.name == str(source) and packaged.is_file():
        path = packaged
    data = read_bytes(path, limit_bytes=_LIMIT_BYTES)
    try:
        text = data.decode("utf-8")
        raw = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(text)
        if missing := _missing(raw):
            raise SchemaError(
                f"no host file: {', '.join(missing)} missing; begin with a copy of the packaged"
                " dash0.toml (docs/host.md)",
                path=path,
            )
        machine = msgspec.convert(raw, FakeMachine)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"no host file: {error}", path=path) from error
    try:
        check_machine(machine)
    except InputError as error:
        raise SchemaError(f"no host file: {error.reason}", path=path) from error
    return machine


def _missing(raw: object) -> list[str]:
    """Return every required key that is absent, by its path."""
    if not isinstance(raw, dict):
        return []
    found = [name for name in _required(FakeMachine) if name not in raw]
    host = raw.get("host")
    if isinstance(host, dict):
        found += [f"host.{name}" for name in _required(HostState) if name not in host]
    for table, kind in (("gpus", GpuDevice), ("numa_nodes", NumaNode)):
        rows = raw.get(table)
        for at, row in enumerate(rows if isinstance(rows, list) else []):
            if isinstance(row, dict):
                found += [f"{table}[{at}].{name}" for name in _required(kind) if name not in row]
    return found


def _required(kind: type[Struct]) -> list[str]:
    return [each.encode_name for each in msgspec.structs.fields(kind) if each.required]


def check_machine(machine: FakeMachine) -> None:
    """Refuse what no machine can be: GPUs or CPUs twice, states with unknown or impossible fields.

    Raises:
        InputError: the first contradiction.
    """
    for what, values in (
        ("GPU index", [gpu.index for gpu in machine.gpus]),
        ("GPU UUID", [gpu.uuid for gpu in machine.gpus]),
        ("NUMA node", [node.node for node in machine.numa_nodes]),
        ("CPU", [cpu for node in machine.numa_nodes for cpu in parse_cpus(node.cpus)]),
    ):
        if len(set(values)) != len(values):
            raise InputError(f"a {what} occurs twice")
    nodes = {node.node for node in machine.numa_nodes}
    for gpu in machine.gpus:
        if gpu.numa_node is not None and gpu.numa_node not in nodes:
            raise InputError(f"GPU {gpu.index} is on NUMA node {gpu.numa_node}, which is not given")
    gpu_sets = [machine.idle, machine.busy, *(event.gpu for event in machine.events)]
    for fields in gpu_sets:
        _fits({"index": 0, "uuid": "GPU-0"} | fields, GpuState)
    for event in machine.events:
        _fits(msgspec.to_builtins(machine.host) | event.host, HostState)
        unknown = set(event.unavailable) - set(GpuState.__struct_fields__)
        if unknown:
            raise InputError(f"unavailable: GpuState has no field {min(unknown)!r}")


def _fits(fields: Mapping[str, object], kind: type[Struct]) -> None:
    try:
        msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{kind.__name__}: {error}") from error
